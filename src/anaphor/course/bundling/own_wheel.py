"""The wheel of Anaphor itself, made from the package that runs, wherever that was installed from.

A checkout that is installed in place (`pip install -e .`) has no wheel, and one from an index could be another version.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from anaphor.errors import ConfigError
from anaphor.shipped_files import DOCS, PACKAGE, find_docs

WHEEL = "Wheel-Version: 1.0\nGenerator: anaphor bundle\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The date of every file in a wheel or bundle, so that the same content makes the same bytes."""


def find_distribution() -> Distribution:
    """What pip knows of the Anaphor that runs."""
    try:
        return distribution("anaphor")
    except PackageNotFoundError:
        raise ConfigError(
            f"Anaphor is imported from {PACKAGE.parent} and not installed, so that its requirements are not known: "
            "install it with pip"
        ) from None


def write_own_wheel(folder: Path) -> Path:
    """Write `anaphor-VERSION-py3-none-any.whl` into a folder."""
    own = find_distribution()
    info = f"anaphor-{own.version}.dist-info"
    content = {f"anaphor/{name}": path.read_bytes() for name, path in package_files()}
    content |= {f"{info}/{name}": text.encode() for name, text in _facts(own).items()}
    rows = [f"{name},sha256={_digest(raw)},{len(raw)}" for name, raw in content.items()]
    content[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    path = folder / f"anaphor-{own.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, raw in content.items():
            wheel.writestr(zipfile.ZipInfo(name, EPOCH), raw, zipfile.ZIP_DEFLATED)
    return path


def package_files() -> Iterator[tuple[str, Path]]:
    """The files of the package by their path in it, the documentation with them."""
    yield from files_below(PACKAGE)
    docs = find_docs()
    if docs is not None and not docs.is_relative_to(PACKAGE):
        yield from ((f"{DOCS}/{name}", path) for name, path in files_below(docs))


def files_below(folder: Path) -> Iterator[tuple[str, Path]]:
    """The files of a folder by their path in it, without hidden ones and those that Python compiled."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        is_left_out = any(part.startswith(".") or part == "__pycache__" for part in parts) or path.suffix == ".pyc"
        if path.is_file() and not is_left_out:
            yield "/".join(parts), path


def _facts(own: Distribution) -> dict[str, str]:
    """The files that say what the package is."""
    facts = {"METADATA": own.read_text("METADATA"), "entry_points.txt": own.read_text("entry_points.txt")}
    facts["licenses/LICENSE"] = own.read_text("licenses/LICENSE")
    return {name: text for name, text in {**facts, "WHEEL": WHEEL}.items() if text}


def _digest(raw: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(raw).digest()).rstrip(b"=").decode()
