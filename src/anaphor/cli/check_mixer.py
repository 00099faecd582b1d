"""`anaphor check-mixer NAME`: does a mixer keep the six promises of the contract?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from anaphor.flags import Positional, parse
from anaphor.imported_files import import_file


@dataclass(frozen=True, kw_only=True)
class Options:
    """Check that a mixer keeps the six promises of the contract, on random inputs.

    The exit code is 0 whether they hold or not: scripts read the verdict, `holds`, from --json.
    """

    help_examples: ClassVar[tuple[str, ...]] = (
        "anaphor check-mixer lstm",
        "anaphor check-mixer my-mixer --import my_mixer.py",
    )

    mixer: Annotated[str, Positional("NAME")]
    """Name of the mixer."""
    tokens: int = 260
    """Most tokens of a sequence; lengths are tried around each power of two up to it."""
    width: int = 64
    """Width of the mixer."""
    device: str = "cpu"
    """Device: auto, cpu or cuda."""
    dtype: str = "float64"
    """Precision: float64, float32 or bfloat16."""
    against: str | None = None
    """Name of a slow twin, a mixer with weights of the same names: outputs and gradients must agree."""
    imports: tuple[Path, ...] = field(default=(), metadata={"flag": "import", "repeated": True})
    """Python file that registers parts of your own; may be given several times."""
    threads: int | None = None
    """CPU threads (all cores if not given)."""
    json: bool = False
    """Print one JSON value: mixer, holds (true or false), promises, failures and what is not checked."""


def run(argv: Sequence[str]) -> int:
    options = parse(Options, argv, program="anaphor check-mixer")
    for path in options.imports:
        import_file(path)
    from anaphor.mixers.check import TWIN, CheckSettings, check_mixer
    from anaphor.mixers.contract import PROMISES
    from anaphor.training.device import choose_device, set_threads

    set_threads(options.threads)
    settings = CheckSettings(
        tokens=options.tokens,
        width=options.width,
        device=str(choose_device(options.device)),
        dtype=options.dtype,
        against=options.against,
    )
    report = check_mixer(options.mixer, settings)
    if options.json:
        print(json.dumps(report.to_plain()))
        return 0
    meanings = PROMISES | ({} if options.against is None else {TWIN: f"outputs and gradients are {options.against}'s"})
    for promise, meaning in meanings.items():
        if promise in report.inapplicable:
            print(f"{promise:<27}does not apply: {report.inapplicable[promise]}")
        elif promise in report.failures:
            print(f"{promise:<27}BROKEN: {report.failures[promise]}")
        else:
            print(f"{promise:<27}holds: {meaning}")
    for line in report.not_checked:
        print(f"not checked: {line}")
    count = len(report.promises)
    if report.holds:
        print(f"{report.mixer} keeps all {count} promises" + (" that apply" if report.inapplicable else ""))
    else:
        print(f"{report.mixer} breaks {len(report.failures)} of {count} promises")
    return 0
