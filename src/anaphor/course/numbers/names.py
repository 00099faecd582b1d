"""Names of the people in a student's texts."""

from __future__ import annotations

from anaphor.course.numbers.values import seed_random

NAMES = (
    "Alma", "Amos", "Anya", "Arlo", "Bela", "Bo", "Cleo", "Dara", "Edda", "Elio", "Ezra",
    "Fay", "Finn", "Gus", "Hal", "Ida", "Ivo", "Jada", "Juno", "Kai", "Lea", "Leo",
    "Lina", "Lou", "Mara", "Max", "Mia", "Mila", "Nico", "Nina", "Noa", "Omar", "Otto",
    "Pia", "Ravi", "Rosa", "Sami", "Siri", "Tilo", "Uma", "Vera", "Yara", "Zoe",
)  # fmt: skip
NUMBER = 6
"""How many a student's texts have: as many as the grammar of `grammar`."""


def student_names(student: str) -> list[str]:
    return seed_random("names", student).sample(NAMES, NUMBER)
