"""Questions with options to choose from. Each student has the options in an order of their own.

The answer is the letter of an option, or several letters in any order: `b`, `ad`, `a, d`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anaphor.course.numbers.values import Numbers, seeded

LETTERS = "abcdefgh"


@dataclass(frozen=True)
class Question:
    """A question and its options."""

    text: str
    right: Sequence[str]
    wrong: Sequence[str]

    def options(self, topic: str, student: str) -> list[str]:
        """All options in the student's order."""
        shuffled = [*self.right, *self.wrong]
        seeded(f"{topic}/options", student).shuffle(shuffled)
        return shuffled

    def answer(self, options: Sequence[str]) -> str:
        """Letters of the right options."""
        return "".join(LETTERS[place] for place, option in enumerate(options) if option in self.right)


def ask(topic: str, student: str, questions: Mapping[str, Question]) -> Numbers:
    """Questions that share their options, or have some of their own, as numbers of an exercise. What the text shows is
    `{{options}}` of the first question, or `{{name}}` of each, with `{{name_text}}` for what is asked."""
    shown: dict[str, str] = {}
    expected: dict[str, Any] = {}
    first = next(iter(questions.values()))
    shared = {*first.right, *first.wrong}
    for name, question in questions.items():
        is_shared = {*question.right, *question.wrong} == shared
        options = (first if is_shared else question).options(topic if is_shared else f"{topic}/{name}", student)
        expected[name] = question.answer(options)
        listed = "\n".join(f"- {letter}) {option}" for letter, option in zip(LETTERS, options, strict=False))
        shown |= {name: listed, f"{name}_text": question.text}
        if question is first:
            shown["options"] = listed

    def judge(found: Mapping[str, Any]) -> dict[str, str]:
        return {name: _compare(value, expected[name]) for name, value in found.items()}

    return Numbers(shown, expected, judge)


def _compare(found: Any, expected: str) -> str:
    """What is wrong with letters, without the result."""
    parts = found if isinstance(found, list) else [found]
    if not all(isinstance(part, str) for part in parts):
        return "not letters of options"
    letters = {letter for part in parts for letter in part if letter not in " ,;.)("}
    if not letters <= {*LETTERS}:
        return "not letters of options"
    return "" if letters == {*expected} else "not right"
