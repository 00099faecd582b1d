"""All that a user may ever see go wrong, and how messages count. Anything else that is raised is a bug of ours."""

from __future__ import annotations

import re
import sys

MAX_MESSAGE = 2000  # characters
FLAG = re.compile(r"`[^`]*`|(?<![\w-])(--[a-z][a-z-]*[a-z])")
"""A flag. Whole commands are matched without their flags: they are for the command line in Python, too."""
SWITCHES = ("resume", "overwrite", "force", "trust", "tensorboard", "joint", "cuda-graph")
"""Flags without a value that messages name."""
OTHER_KEYWORDS = {
    **{f"--{name}": f"{name.replace('-', '_')}=True" for name in SWITCHES},
    "--no-test": "no_test=True",  # the others with `--no-` say that a setting is False
    "--import": "imports=[…] or anaphor.import_file(…)",
    "--max-file-bytes": "os.environ['ANAPHOR_MAX_FILE_BYTES']",
    "--no-kernels": "os.environ['ANAPHOR_NO_KERNELS'] = '1'",
}


def count_noun(count: int, noun: str) -> str:
    """'1 line', '2 lines'."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def describe_exception(error: BaseException, place: str = "") -> str:
    """What a user's code raised, in one line; the place is where, or empty."""
    where = f" in {place}" if place else ""
    message = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}{where}{': ' if message else ''}{message}"


def keyword_of(flag: str) -> str:
    """'--eval-every' in Python is 'eval_every=…', and '--no-carry' is 'carry=False'."""
    name = flag.removeprefix("--").replace("-", "_")
    plain = f"{name[3:]}=False" if name.startswith("no_") else f"{name}=…"
    return OTHER_KEYWORDS.get(flag, plain)


def print_warning(line: str) -> None:
    """A line that the user should read, on stderr, unless the caller has a better way."""
    print(f"anaphor: {line}", file=sys.stderr)  # noqa: T201 (not on stdout, which is for results)


class AnaphorError(Exception):
    """A problem told in one line: what was given, what is allowed, the nearest guess."""

    exit_code = 2
    has_last_word = False
    """Whether of several processes this one is to say it, although only the first one prints."""

    def __init__(self, *arguments: object) -> None:
        """Messages name flags. A traceback, which the command line never prints, also says what they are in Python."""
        super().__init__(*arguments)
        flags = dict.fromkeys(flag for flag in FLAG.findall(" ".join(map(str, arguments))) if flag)
        if flags:
            keywords = ", ".join(f"{flag} is {keyword_of(flag)}" for flag in flags)
            self.add_note(f"in Python flags are keywords: {keywords}")

    def __str__(self) -> str:
        """A long value of the user's is cut out of the middle."""
        text = super().__str__()
        return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 500]} … {text[-500:]}"


class ConfigError(AnaphorError):
    """A setting, a name or a shape that cannot work."""


class UnknownName(ConfigError):
    """A name that no part has: of a model, a data set, an optimizer, or the like."""

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class NotInstalled(ConfigError, AttributeError):
    """A part of Anaphor that was deleted. As an AttributeError it makes `hasattr(anaphor, name)` False."""

    def __init__(self, what: str, package: str) -> None:
        needs = "" if what == package else f" needs {package}, which"
        super().__init__(f"{what}{needs} is not installed")


class DataError(AnaphorError):
    """A data set or a file that is missing or broken."""


class TooLarge(DataError):
    """A text or a file that is larger than is allowed where it was given."""


class CheckpointError(AnaphorError):
    """A checkpoint that is damaged or does not fit."""


class KernelError(AnaphorError):
    """A kernel written by hand that cannot be compiled or launched."""


class Diverged(AnaphorError):
    """A loss, a gradient, a weight or a logit is not a finite number."""

    exit_code = 3
