"""`anaphor check FILE.py::NAME`: a student's own implementation against ours."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from anaphor.config import nearest
from anaphor.course.catalog import CATALOG, find_reference, has_reference
from anaphor.errors import ConfigError, count_noun
from anaphor.flags import Positional, parse

if TYPE_CHECKING:
    from anaphor.course.check_report import CheckReport


@dataclass(frozen=True, kw_only=True)
class Options:
    """Check your own implementation against ours, without training: values, gradients, masks, dtype and device.

    `anaphor check list` lists what can be checked. `anaphor check FOLDER` says what is missing in a handout folder, and
    what cannot be read. The exit code is 0 if it passed, 1 if it did not, and 2 for a file or a signature that cannot
    be checked.
    """

    help_examples: ClassVar[tuple[str, ...]] = (
        "anaphor check attention.py::AttentionHead",
        "anaphor check .",
    )

    target: Annotated[str, Positional("FILE.py::NAME")]
    """Class or function to check, or `list`; the file is run. Or the folder of a handout."""
    reference: str | None = dataclasses.field(default=None, metadata={"flag": "as"})
    """What it is compared with, if it has another name; see `anaphor check list`."""
    device: str = "cpu"
    """Device: auto, cpu or cuda."""
    json: bool = False
    """Print one JSON value: name, reference, passed, mistakes (name, where, text) and checked."""


def run(argv: Sequence[str]) -> int:
    options = parse(Options, argv, program="anaphor check")
    if options.target == "list":
        return print_references(options)
    file, separator, name = options.target.rpartition("::")
    if not separator and Path(options.target).expanduser().is_dir():
        return print_folder(options)
    if not separator:
        form = "is not of the form FILE.py::NAME, for example attention.py::AttentionHead"
        raise ConfigError(f"{options.target!r} {form}{nearest(options.target, ['list'])}")
    if options.reference is None and not has_reference(name):
        if not Path(file).expanduser().exists():  # the likelier mistake
            raise ConfigError(f"there is no file {file}, and no reference is called {name!r}{nearest(name, CATALOG)}")
        known = ", ".join(CATALOG)
        raise ConfigError(
            f"no reference is called {name!r}{nearest(name, CATALOG)}: name one with --as (known: {known})"
        )
    reference = find_reference(options.reference or name)

    from anaphor.course.check import check
    from anaphor.course.student import load_subject
    from anaphor.training.device import choose_device

    report = check(reference, load_subject(options.target), str(choose_device(options.device)))
    return print_result(options, report, print_report)


def print_folder(options: Options) -> int:
    """What is missing in a handout folder."""
    from anaphor.course.check_folder import check_folder

    report = check_folder(Path(options.target).expanduser())
    return print_result(options, report, print_folder_report)


def print_result(options: Options, report: CheckReport, show: Callable[[CheckReport], None]) -> int:
    if options.json:
        print(json.dumps(report.to_plain()))
    else:
        show(report)
    return 0 if report.passed else 1


def print_references(options: Options) -> int:
    if options.json:
        listed = [
            {"name": name, "call": entry.call, "other_names": [*entry.other_names]} for name, entry in CATALOG.items()
        ]
        print(json.dumps(listed))
        return 0
    width = max(map(len, CATALOG))
    for name, entry in CATALOG.items():
        print(f"{name:<{width}}  {entry.call}")
    return 0


def print_report(report: CheckReport) -> None:
    for mistake in report.mistakes:
        where = f" ({mistake.where})" if mistake.where else ""
        print(f"{mistake.name}{where}: {mistake.text}")
    if report.checked:
        print(f"checked: {', '.join(report.checked)}")
    verdict = "passed" if report.passed else "did not pass"
    print(f"{report.name} {verdict}, compared with {report.reference}")


def print_folder_report(report: CheckReport) -> None:
    """A line for each finding; what is missing in one line."""
    missing = [one.where for one in report.mistakes if one.name == "missing"]
    for one in report.mistakes:
        if one.name != "missing":
            print(f"{one.name} ({one.where}): {one.text}")
    if missing:
        print(f"missing: {', '.join(dict.fromkeys(missing))}")
    found = count_noun(len(report.mistakes), "finding")
    print(f"{report.name}, {report.reference}: {found if report.mistakes else 'everything is there and can be read'}")
