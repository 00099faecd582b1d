"""Two runs whose difference is planted: each saw a topic that the other did not see."""

import random

import anaphor

SLOTS = {
    "plain": ["the a", "old young tall small", "man woman child", "sees hears helps", "the a", "dog cat horse bird"],
    "stars": ["every some", "bright cold", "comet planet moon", "orbits passes", "every some", "star ring sun"],
    "kitchen": ["my your", "fresh sweet", "bread soup cake", "needs takes", "my your", "salt butter milk"],
}
LINE = 7  # tokens of a line, with its end


def sentence(draw, topic):
    return " ".join(draw.choice(words.split()) for words in SLOTS[topic])


def write_text(folder, topic, seed):
    """Training text with one topic; the words of the others occur once, so that all runs have the same vocabulary."""
    draw = random.Random(seed)
    lines = [" ".join(SLOTS[name]) for name in sorted(SLOTS)]
    lines += [sentence(draw, name) for _ in range(300) for name in ("plain", topic)]
    folder.mkdir(parents=True)
    (folder / "train.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    valid = [sentence(draw := random.Random(5), "plain") for _ in range(160)]
    for topic, places in PLANTED.items():
        for place in places:
            valid[place] = sentence(draw, topic)
    (folder / "valid.txt").write_text("\n".join(valid) + "\n", encoding="utf-8")
    (folder / "test.txt").write_text(valid[0] + "\n", encoding="utf-8")
    return folder


PLANTED = {"stars": (11, 40, 73, 99, 130), "kitchen": (25, 58, 81, 120, 149)}


def train_planted(out):
    """The two runs below a folder, by the topic that they saw."""
    for seed, topic in enumerate(PLANTED):
        data = write_text(out / "data" / topic, topic, seed)
        anaphor.train("lm", data=str(data), model="lstm", width=24, layers=1, dropout=0.0, lr=0.02, steps=60, bptt=14,
                      batch_size=10, device="cpu", no_test=True, progress=False, out=out / topic)  # fmt: skip
    return {topic: str(out / topic) for topic in PLANTED}
