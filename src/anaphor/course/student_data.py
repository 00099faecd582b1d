"""Texts of a student's own, small enough to be part of a handout: stories, pairs, dialogues, and labeled sentences.

All are drawn with the student's ID as the seed, from the grammars of the data sets `grammar` and `negation`. A
story keeps to a few people, things and verbs, so that what was read before helps to predict what comes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from anaphor.course.numbers.names import student_names
from anaphor.course.numbers.values import seed_random
from anaphor.data.dataset import SPLITS
from anaphor.data.grammar_dataset import WORDS, english
from anaphor.data.negation import LABELS, draw_sentence

KINDS = (("NOUN_ONE", "NOUN_MANY"), ("TRANSITIVE_ONE", "TRANSITIVE_MANY"), ("INTRANSITIVE_ONE", "INTRANSITIVE_MANY"),
         ("ADJECTIVE",), ("NAME",))  # fmt: skip
"""Words that a story has few of. Those of one tuple go together: a noun and its plural."""
CAST = 3
"""How many of each kind a story has."""
STORY_LINES = 8
STORY_TOKENS = {"train": 24_000, "valid": 3_000, "test": 3_000}
PAIRS = {"train": 1_600, "valid": 200, "test": 200}
PAIR_WORDS = 12
"""Most words of a pair's sentence."""
DIALOGUES = {"train": 600, "valid": 60, "test": 60}
LABELED = {"train": 1_920, "valid": 300, "test": 300}


def student_files(sheet: str, student: str) -> dict[str, str]:
    """The data of a student's handout: paths below the folder, and texts."""
    return {f"data/{name}": text for folder in FOLDERS.get(sheet, ()) for name, text in MAKERS[folder](student).items()}


def stories(student: str) -> dict[str, str]:
    """Running text: a line for each sentence, a story in eight lines."""
    files: dict[str, str] = {}
    for split in SPLITS:
        lines: list[str] = []
        tokens = 0
        for story in _draw_stories(student, split):
            lines += [" ".join(words) for words in story]
            tokens += sum(len(words) + 1 for words in story)
            if tokens >= STORY_TOKENS[split]:
                break
        files[f"stories/{split}.txt"] = _join(lines)
    return files


def pairs(student: str) -> dict[str, str]:
    """Sentences and the same sentences once more, as source and target; no sentence twice."""
    files: dict[str, str] = {}
    seen: set[str] = set()
    for split in SPLITS:
        lines: list[str] = []
        for story in _draw_stories(student, f"pairs/{split}"):
            for words in story:
                sentence = " ".join(words)
                if len(words) <= PAIR_WORDS and sentence not in seen:
                    seen.add(sentence)
                    lines.append(sentence)
            if len(lines) >= PAIRS[split]:
                break
        text = _join(lines[: PAIRS[split]])
        files |= {f"pairs/{split}.text": text, f"pairs/{split}.echo": text}
    return files


def dialogues(student: str) -> dict[str, str]:
    """Speeches of a play, each below the name of who speaks, with an empty line between two."""
    files: dict[str, str] = {}
    for split in SPLITS:
        speeches: list[str] = []
        for story in _draw_stories(student, f"dialogues/{split}"):
            speakers = _cast(seed_random(f"speakers/{split}/{len(speeches)}", student), student_names(student))
            for number in range(0, len(story), 2):
                said = [" ".join(words).replace(" ,", ",").replace(" .", ".") for words in story[number : number + 2]]
                lines = "\n".join(line[0].upper() + line[1:] for line in said)
                speeches.append(f"{speakers[number // 2 % CAST].upper()}:\n{lines}\n")
            if len(speeches) >= DIALOGUES[split]:
                break
        files[f"dialogues/{split}.txt"] = "\n".join(speeches[: DIALOGUES[split]])
    return files


def reviews(student: str) -> dict[str, str]:
    """Sentences with nested negation and what they say of their topic; no sentence twice."""
    files: dict[str, str] = {}
    seen: set[str] = set()
    for split in SPLITS:
        draw = seed_random(f"reviews/{split}", student)
        rows: list[str] = []
        while len(rows) < LABELED[split]:
            label = len(rows) % 2
            sentence = draw_sentence(draw.random, label)
            if sentence not in seen:
                seen.add(sentence)
                rows.append(f"{sentence}\t{LABELS[label]}")
        files[f"reviews/{split}.tsv"] = _join(rows)
    return files


def _draw_stories(student: str, split: str) -> Iterator[list[list[str]]]:
    """Stories without end: the lines of each, as words."""
    draw = seed_random(f"stories/{split}", student)
    grammar, names = english(), student_names(student)
    words = {kind: names if kind == "NAME" else WORDS[kind].split() for kinds in KINDS for kind in kinds}
    own = dict(zip(WORDS["NAME"].split(), names, strict=True))
    while True:
        replacement: dict[str, str] = {}
        for kinds in KINDS:
            number = len(words[kinds[0]])
            cast = draw.sample(range(number), CAST)
            for old in range(number):
                new = cast[old % CAST]
                replacement |= {words[kind][old]: words[kind][new] for kind in kinds}
        lines = [grammar.sample(draw) for _ in range(STORY_LINES)]
        yield [[replacement.get(own.get(word, word), word) for word in line] for line in lines]


def _cast(draw: random.Random, names: list[str]) -> list[str]:
    return draw.sample(names, CAST)


def _join(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


MAKERS = {"stories": stories, "pairs": pairs, "dialogues": dialogues, "reviews": reviews}
FOLDERS: Mapping[str, tuple[str, ...]] = {
    "000": ("stories",),
    "001": ("stories", "pairs"),
    "002": ("dialogues",),
    "004": ("stories", "reviews"),
}
"""What each sheet needs; 003 needs none."""
