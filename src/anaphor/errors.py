"""All that a user may ever see go wrong, and how messages count. Anything else that is raised is a bug of ours."""

from __future__ import annotations

LONGEST_MESSAGE = 2000  # characters


def count_noun(count: int, noun: str) -> str:
    """'1 line', '2 lines'."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class AnaphorError(Exception):
    """A problem told in one line: what was given, what is allowed, the nearest guess."""

    exit_code = 2

    def __str__(self) -> str:
        """A long value of the user's is cut out of the middle."""
        text = super().__str__()
        return text if len(text) <= LONGEST_MESSAGE else f"{text[: LONGEST_MESSAGE - 500]} … {text[-500:]}"


class ConfigError(AnaphorError):
    """A setting, a name or a shape that cannot work."""


class DataError(AnaphorError):
    """A data set or a file that is missing or broken."""


class TooLarge(DataError):
    """A text or a file that is larger than is allowed where it was given."""


class CheckpointError(AnaphorError):
    """A checkpoint that is damaged or does not fit."""


class KernelWarning(UserWarning):
    """Kernels for a device cannot be compiled or run there, so that training is slower."""


class Diverged(AnaphorError):
    """Training reached a loss or a gradient that is not a finite number."""

    exit_code = 3
