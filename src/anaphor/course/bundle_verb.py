"""`anaphor bundle --out course.zip`: a course for a room without a network, set up there by one command."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from anaphor.errors import ConfigError, count_noun
from anaphor.flags import parse


@dataclass(frozen=True, kw_only=True)
class Options:
    """Write a course as one zip file for rooms without a network: all wheels, documentation, examples and small data.

    In the room, `sh install.sh` in the unpacked folder sets everything up. Wheels have the versions that are installed
    here, and come through pip with its own settings. An interrupted call resumes.
    """

    help_examples: ClassVar[tuple[str, ...]] = (
        "anaphor bundle --out course.zip",
        "anaphor bundle --out course.zip --platform linux-x86_64 macos-arm64 --python 3.11 3.12 --packages jupyterlab",
    )

    out: Path | None = None
    """File to write: NAME.zip, with everything in a folder NAME."""
    platform: tuple[str, ...] = ()
    """Systems to bundle for: linux-x86_64, linux-aarch64 or macos-arm64 (this one if not given)."""
    python: tuple[str, ...] = ()
    """Versions of Python to bundle for, such as 3.12 (this one if not given)."""
    packages: tuple[str, ...] = ()
    """Further packages, such as jupyterlab, with all that they need."""
    data: tuple[str, ...] = ("small",)
    """Data sets by name; `small`: those on this disk with less than 10 MB; `none`: no data."""
    docs: Path | None = None
    """Folder with the documentation, such as the built site (the pages as Markdown if not given)."""
    overwrite: bool = False
    """Replace an existing file."""
    json: bool = False
    """Print one JSON value: out, bytes, anaphor, platforms, pythons, wheels, packages, data and files."""


def run(argv: Sequence[str]) -> int:
    options = parse(Options, argv, program="anaphor bundle")
    if options.out is None:
        raise ConfigError("a bundle needs a file: give it with --out course.zip")

    from anaphor.course.bundling.bundle import BundlePlan, check_out, make_bundle

    out = check_out(options.out, overwrite=options.overwrite)
    plan = BundlePlan.read(options.platform, options.python, options.packages, options.data, options.docs)
    bundle = make_bundle(out, plan, print_progress)
    size = out.stat().st_size
    if options.json:
        facts = {
            "out": str(options.out),
            "bytes": size,
            "anaphor": bundle.version,
            "platforms": [*dict.fromkeys(target.platform for target in bundle.targets)],
            "pythons": [*dict.fromkeys(target.python for target in bundle.targets)],
            "packages": [*bundle.packages],
            "wheels": bundle.wheels,
            "data": [one.name for one in bundle.data],
            "files": len(bundle.files),
        }
        print(json.dumps(facts))
        return 0
    sets = ", ".join(one.name for one in bundle.data) or "none"
    print(f"{out}: {size / 1e6:,.0f} MB, {count_noun(len(bundle.wheels), 'wheel')}, data sets: {sets}")
    print(f"in the room: unzip {out.name} && sh {out.stem}/install.sh")
    return 0


def print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
