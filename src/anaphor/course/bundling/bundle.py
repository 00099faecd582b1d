"""A bundle: wheels, pages, examples, data and the small encoder in one zip file, with a program that installs them.

    course/
      README.md       what is in it, and the one command
      install.sh, install.bat, install.py
      bundle.json     systems, versions, and the digest of every file
      wheels/         Anaphor and all that it needs
      docs/, examples/, data/
      encoder/        a run of `train classify`

While it is made its files are in `course.zip.partial`, from which an interrupted bundle goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement

from anaphor.course.bundling.contents import (
    SMALL,
    BundledData,
    collect_data,
    collect_examples,
    collect_pages,
    train_encoder,
)
from anaphor.course.bundling.own_wheel import EPOCH, files_below, find_distribution, write_own_wheel
from anaphor.course.bundling.target import Target, choose_targets
from anaphor.course.bundling.wheels import Report, collect_wheels, read_requirement
from anaphor.errors import ConfigError
from anaphor.files import disk_space_checked, sync
from anaphor.user_paths import user_path, writing_to

ROOM = Path(__file__).with_name("room")
"""The programs that install, and the page about them."""
FORMAT = 1
STORED = (".whl", ".gz", ".xz", ".png", ".zip", ".safetensors")
"""Compressed already."""


@dataclass(frozen=True, kw_only=True)
class BundlePlan:
    """What a bundle is to have."""

    targets: Sequence[Target]
    packages: Sequence[Requirement] = ()
    """Further packages, such as jupyterlab."""
    data: Sequence[str] = (SMALL,)
    docs: Path | None = None

    @classmethod
    def read(
        cls,
        platforms: tuple[str, ...] = (),
        pythons: tuple[str, ...] = (),
        packages: tuple[str, ...] = (),
        data: tuple[str, ...] = (SMALL,),
        docs: Path | None = None,
    ) -> BundlePlan:
        """From what a user gives; refused where a name is unknown."""
        return cls(
            targets=choose_targets(platforms, pythons),
            packages=[read_requirement(one) for one in packages],
            data=data,
            docs=docs,
        )


@dataclass
class Bundle:
    """What a bundle has."""

    version: str
    targets: Sequence[Target]
    packages: Sequence[str]
    """To be installed, by name."""
    wheels: list[str] = field(default_factory=list)
    data: list[BundledData] = field(default_factory=list)
    files: dict[str, Path] = field(default_factory=dict)
    """By their path in the bundle."""

    def manifest(self) -> bytes:
        """`bundle.json`, with the digest of every file."""
        digests = {name: _digest(path) for name, path in sorted(self.files.items())}
        facts = {
            "format": FORMAT,
            "anaphor": self.version,
            "install": [*self.packages],
            "platforms": [*dict.fromkeys(target.platform for target in self.targets)],
            "pythons": [*dict.fromkeys(target.python for target in self.targets)],
            "wheels": self.wheels,
            "data": [one.name for one in self.data],
            "sha256": digests,
        }
        return (json.dumps(facts, indent=1) + "\n").encode()


def check_out(out: Path, *, overwrite: bool) -> Path:
    """The zip file to write, refused before anything is downloaded."""
    path = user_path(out)
    if path.suffix != ".zip":
        raise ConfigError(f"out={out} must be a .zip file, such as course.zip")
    if path.is_dir():
        raise ConfigError(f"out={out} is a folder: name a .zip file")
    if path.exists() and not overwrite:
        raise ConfigError(f"out={out} exists: name another file, or replace it with --overwrite")
    return path


def make_bundle(out: Path, plan: BundlePlan, report: Report) -> Bundle:
    """Write a bundle. Nothing is there before it is whole."""
    partial = out.with_name(f"{out.name}.partial")
    own = find_distribution()
    with writing_to(out.parent):
        wheels = partial / "wheels"
        wheels.mkdir(parents=True, exist_ok=True)
        roots = [Requirement(f"anaphor=={own.version}"), *plan.packages]
        bundle = Bundle(own.version, plan.targets, [f"anaphor=={own.version}", *(one.name for one in plan.packages)])
        bundle.data = collect_data(plan.data)
        write_own_wheel(wheels)
        for target in plan.targets:
            for wheel in collect_wheels([*roots, Requirement("pip")], target, wheels, report):
                bundle.files[f"wheels/{wheel.path.name}"] = wheel.path
        bundle.wheels = sorted(path.name for path in bundle.files.values())
        report("training the small encoder")
        train_encoder(partial / "encoder")
        add_contents(bundle, partial, plan.docs)
        write_zip(bundle, out, report)
        shutil.rmtree(partial)
    return bundle


def add_contents(bundle: Bundle, partial: Path, docs: Path | None) -> None:
    """All but the wheels."""
    parts: Mapping[str, Mapping[str, Path]] = {
        "docs": collect_pages(docs),
        "examples": collect_examples(),
        "encoder": dict(files_below(partial / "encoder")),
        "data": {name: path for one in bundle.data for name, path in one.files.items()},
    }
    for folder, files in parts.items():
        bundle.files |= {f"{folder}/{name}": path for name, path in files.items()}
    for name, text in room_files(bundle, parts["docs"]).items():
        path = partial / name
        path.write_text(text, encoding="utf-8", newline="\r\n" if name.endswith(".bat") else "\n")
        bundle.files[name] = path


def room_files(bundle: Bundle, pages: Mapping[str, Path]) -> dict[str, str]:
    """The programs that install, and the page about them."""
    data = "\n".join(f"- `{one.name}` (license: {one.license})" for one in bundle.data)
    start = next((name for name in ("index.html", "index.md") if name in pages), "")
    values = {
        "VERSION": bundle.version,
        "PYTHONS": " ".join(dict.fromkeys(target.python for target in bundle.targets)),
        "TARGETS": "\n".join(f"- {target}" for target in bundle.targets),
        "WHEELS": str(len(bundle.wheels)),
        "DATA": data or "- none but what is built in",
        "DOCS": f"`docs/{start}`" if start else "none were there when this was made",
    }
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(ROOM.iterdir()) if path.is_file()}
    for name, value in values.items():
        texts = {file: text.replace(f"@{name}@", value) for file, text in texts.items()}
    return texts


def write_zip(bundle: Bundle, out: Path, report: Report) -> None:
    """Write all files into one folder of a zip file, which has its name at the end."""
    size = sum(path.stat().st_size for path in bundle.files.values())
    report(f"packing {len(bundle.files):,} files, {size / 1e6:,.0f} MB")
    draft = out.with_name(f"{out.name}.tmp")
    try:
        with disk_space_checked(draft, size), zipfile.ZipFile(draft, "w") as archive:
            archive.writestr(_entry(f"{out.stem}/bundle.json"), bundle.manifest())
            for name, path in sorted(bundle.files.items()):
                entry = _entry(f"{out.stem}/{name}")
                with path.open("rb") as source, archive.open(entry, "w", force_zip64=True) as target:
                    shutil.copyfileobj(source, target, 1 << 20)
        sync(draft)
        os.replace(draft, out)
    finally:
        draft.unlink(missing_ok=True)
    sync(out.parent)


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.compress_type = zipfile.ZIP_STORED if name.endswith(STORED) else zipfile.ZIP_DEFLATED
    entry.external_attr = (0o755 if name.endswith(".sh") else 0o644) << 16
    return entry


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
