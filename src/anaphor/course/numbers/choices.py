"""Questions with options to choose from. Each student has the options in an order of their own.

The answer is the letter of an option, or several letters in any order: `b`, `ad`, `a, d`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anaphor.course.numbers.values import Numbers, seed_random

LETTERS = "abcdefgh"


@dataclass(frozen=True)
class Question:
    """The options of a question. What is asked is in the text of the exercise."""

    right: Sequence[str]
    wrong: Sequence[str]

    def shuffle(self, topic: str, student: str) -> list[str]:
        """All options in the student's order."""
        options = [*self.right, *self.wrong]
        seed_random(f"{topic}/options", student).shuffle(options)
        return options

    def answer(self, options: Sequence[str]) -> str:
        """Letters of the right options."""
        return "".join(letter for letter, option in zip(LETTERS, options, strict=False) if option in self.right)


def ask(topic: str, student: str, questions: Mapping[str, Question]) -> Numbers:
    """Questions with the same options as numbers of an exercise, whose text shows them as `{{options}}`."""
    options = next(iter(questions.values())).shuffle(topic, student)
    listed = "\n".join(f"- {letter}) {option}" for letter, option in zip(LETTERS, options, strict=False))
    expected = {name: question.answer(options) for name, question in questions.items()}

    def judge(found: Mapping[str, Any]) -> dict[str, str]:
        return {name: _compare(value, expected[name]) for name, value in found.items()}

    return Numbers({"options": listed}, expected, judge, are_letters=True)


def _compare(found: Any, expected: str) -> str:
    """What is wrong with letters, without the result."""
    parts = found if isinstance(found, list) else [found]
    letters = {letter for part in parts for letter in part if letter in LETTERS}
    return "" if letters == {*expected} else "not right"
