"""What a check found: the mistakes, and what was compared. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NOT_READ = "weights-not-read"
"""Name of the finding that nothing could be compared: a person has to read the code."""


@dataclass(frozen=True)
class Finding:
    """A mistake that was found."""

    name: str
    where: str
    text: str

    def to_plain(self) -> dict[str, str]:
        return {"name": self.name, "where": self.where, "text": self.text}


@dataclass(frozen=True)
class CheckReport:
    """What a check found."""

    name: str
    reference: str
    mistakes: tuple[Finding, ...]
    checked: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.mistakes

    @property
    def is_compared(self) -> bool:
        """Whether the weights could be read; otherwise nothing is known of the values."""
        return all(one.name != NOT_READ for one in self.mistakes)

    def to_plain(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "reference": self.reference,
            "passed": self.passed,
            "mistakes": [mistake.to_plain() for mistake in self.mistakes],
            "checked": [*self.checked],
        }
