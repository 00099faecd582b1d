"""`anaphor check-mixer NAME`: does a mixer keep the five promises of the contract?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from anaphor.flags import Positional, parse
from anaphor.imported_files import import_file


@dataclass(frozen=True, kw_only=True)
class Options:
    """Check that a mixer keeps the five promises of the contract, in double precision on random inputs.

    The exit code is 0 whether they hold or not: scripts read the verdict, `holds`, from --json.
    """

    mixer: Annotated[str, Positional("NAME")]
    """Name of the mixer."""
    imports: tuple[Path, ...] = field(default=(), metadata={"flag": "import", "repeated": True})
    """Python file that registers parts of your own; may be given several times."""
    threads: int | None = None
    """CPU threads (all cores if not given)."""
    json: bool = False
    """Print one JSON value: mixer, holds (true or false), promises and failures."""


def run(argv: Sequence[str]) -> int:
    options = parse(Options, argv, program="anaphor check-mixer")
    for path in options.imports:
        import_file(path)
    from anaphor.mixers.contract import PROMISES, check_mixer
    from anaphor.training.device import set_threads

    set_threads(options.threads)
    report = check_mixer(options.mixer)
    if options.json:
        print(json.dumps(report.to_plain()))
        return 0
    for promise, meaning in PROMISES.items():
        if promise not in report.promises:
            print(f"{promise:<27}does not apply: the mixer needs whole sequences")
        elif promise in report.failures:
            print(f"{promise:<27}BROKEN: {report.failures[promise]}")
        else:
            print(f"{promise:<27}holds: {meaning}")
    count = len(report.promises)
    if report.holds:
        print(f"{report.mixer} keeps all {count} promises" + ("" if count == len(PROMISES) else " that apply"))
    else:
        print(f"{report.mixer} breaks {len(report.failures)} of {count} promises")
    return 0
