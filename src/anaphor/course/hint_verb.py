"""`anaphor hint 002.3b`: the hints of an exercise, one at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from anaphor.course.sheet import find_exercise
from anaphor.errors import ConfigError, count_noun
from anaphor.flags import Positional, parse


@dataclass(frozen=True, kw_only=True)
class Options:
    """Show a hint of an exercise. Each step says more than the one before."""

    help_examples: ClassVar[tuple[str, ...]] = ("anaphor hint 002.2a", "anaphor hint 002.2a --step 2")

    exercise: Annotated[str, Positional("EXERCISE")]
    """ID of the exercise, as the handout has it."""
    step: int = 1
    """Which hint: 1 is the first one."""
    json: bool = False
    """Print one JSON value: exercise, step, steps (how many there are) and hint."""


def run(argv: Sequence[str]) -> int:
    options = parse(Options, argv, program="anaphor hint")
    exercise = find_exercise(options.exercise)
    steps = len(exercise.hints)
    if not 1 <= options.step <= steps:
        raise ConfigError(
            f"step={options.step}: {exercise.id} has {count_noun(steps, 'hint') if steps else 'no hints'}"
        )
    hint = exercise.hints[options.step - 1].strip()
    if options.json:
        print(json.dumps({"exercise": exercise.id, "step": options.step, "steps": steps, "hint": hint}))
        return 0
    print(f"{exercise.id} {exercise.title}, hint {options.step} of {steps}: {hint}")
    if options.step < steps:
        print(f"next hint: anaphor hint {exercise.id} --step {options.step + 1}")
    return 0
