"""A step of training on a CPU uses the memory that the one before has freed."""

import platform
import resource

import pytest

import anaphor

PAGE = resource.getpagesize()
WORDS, WIDTH, FIRST, LAST = 17_000, 400, 5, 10

pytestmark = [
    pytest.mark.usefixtures("single_precision", "own_cache"),
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has no such option"),
]


class Faults(anaphor.NullCallback):
    """Counts the pages that the system has given to this process."""

    def __init__(self):
        self.counts = []

    def on_step(self, info):
        self.counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)


def test_a_step_asks_the_system_for_no_memory(tmp_path):
    (tmp_path / "text").mkdir()
    for split, words in (("train", WORDS), ("valid", 20)):
        (tmp_path / "text" / f"{split}.txt").write_text(" ".join(f"w{number}" for number in range(words)))
    faults = Faults()
    anaphor.train(
        "lm", out=tmp_path / "run", callback=faults, data=str(tmp_path / "text"), model="lstm", layers=1, width=WIDTH,
        tied=False, optimizer="sgd", lr=0.1, clip=0.25, batch_size=2, bptt=4, steps=LAST, eval_every=LAST,
        device="cpu", no_test=True,
    )  # fmt: skip
    gradient = 4 * WORDS * WIDTH / PAGE  # pages of one of two gradients of a step: of the embeddings, and of the head
    given = faults.counts[LAST - 1] - faults.counts[FIRST - 1]
    assert given / (LAST - FIRST) < gradient / 2
