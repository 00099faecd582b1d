"""Named data sets, folders and files: one way to open them all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from anaphor.config import nearest
from anaphor.data.download import NamedFile, Upstream
from anaphor.data.reference import PythonReference
from anaphor.data.source import SPLIT_NAMES, TEST, TRAIN, OneFile, Source, SplitFiles
from anaphor.data.stored import ENDINGS, StoredFile
from anaphor.data.synthetic import GrammarSource
from anaphor.errors import ConfigError, DataError

__all__ = ["EXAMPLES", "LINES", "SOURCES", "NamedSource", "Overlap", "Source", "open_source", "overlap"]


@dataclass(frozen=True, kw_only=True)
class NamedSource:
    """A data set that has a name."""

    about: str
    """What it is, in a few words."""
    licence: str
    """Under which terms its text may be used."""
    files: tuple[NamedFile, ...] = ()
    """What it needs on disk; nothing for one that is made on the spot."""
    open: Callable[[], Source]
    """Makes it ready to be read; nothing is read or downloaded yet."""


def _wikitext_2() -> NamedSource:
    root = (
        "https://raw.githubusercontent.com/pytorch/examples/77f55b912142e11fcfdf5b530231fb9c52f181e8"
        "/word_language_model/data/wikitext-2"
    )
    known = {
        "train": ("9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f", 10_797_148),
        "valid": ("f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8", 1_121_681),
        "test": ("d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0", 1_256_449),
    }
    files = {}
    for split, (sha256, size) in known.items():
        name = f"{split}.txt"
        files[split] = NamedFile("wikitext-2", Upstream(file=name, url=f"{root}/{name}", sha256=sha256, bytes=size))
    return NamedSource(
        about="good articles of Wikipedia, words apart, rare ones as <unk> (Merity et al. 2016)",
        licence="CC BY-SA 3.0",
        files=tuple(files.values()),
        open=lambda: SplitFiles("wikitext-2", files),
    )


def _tinyshakespeare() -> NamedSource:
    upstream = Upstream(
        file="input.txt",
        url=(
            "https://raw.githubusercontent.com/karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e"
            "/data/tinyshakespeare/input.txt"
        ),
        sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        bytes=1_115_394,
    )
    file = NamedFile("tinyshakespeare", upstream)
    return NamedSource(
        about="a megabyte of Shakespeare's plays, dialogues separated by blank lines (Karpathy 2015)",
        licence="public domain",
        files=(file,),
        open=lambda: OneFile("tinyshakespeare", file),
    )


SOURCES: dict[str, NamedSource] = {
    "python-reference": NamedSource(
        about="the language reference inside every CPython, as prose",
        licence="PSF-2.0",
        open=PythonReference,
    ),
    "grammar": NamedSource(
        about="sentences drawn from a grammar whose entropy is known exactly",
        licence="none needed",
        open=GrammarSource,
    ),
    "wikitext-2": _wikitext_2(),
    "tinyshakespeare": _tinyshakespeare(),
}


def open_source(name: str) -> Source:
    """A data set by its name, a folder with a file for each split, or one text file, split 90/5/5 by position.

    Names come first: a folder that is called like one is meant when it is written `./name`.
    """
    if name in SOURCES:
        return SOURCES[name].open()
    path = Path(name).expanduser()
    if path.is_dir():
        return _folder(name, path)
    if path.is_file():
        return OneFile(name, StoredFile(path))
    known = ", ".join(sorted(SOURCES))
    raise ConfigError(
        f"unknown data set {name!r}{nearest(name, SOURCES)} (known: {known}; or a folder, or a text file)"
    )


def _folder(name: str, path: Path) -> Source:
    files: dict[str, StoredFile] = {}
    for stem, split in SPLIT_NAMES.items():
        for ending in ENDINGS:
            candidate = path / f"{stem}{ending}"
            if not candidate.is_file():
                continue
            if split in files:
                raise DataError(
                    f"{path} has two files for {split}, {files[split].path.name} and {candidate.name}: keep one of them"
                )
            files[split] = StoredFile(candidate)
    if TRAIN in files:
        return SplitFiles(name, files)
    texts = sorted(file for file in path.iterdir() if file.name.endswith(ENDINGS) and file.is_file())
    if not files and len(texts) == 1:
        return OneFile(name, StoredFile(texts[0]))
    raise DataError(
        f"{path} has no train.txt and no train.txt.gz: a text folder has train, valid and test files, or one text file"
    )


@dataclass(frozen=True)
class Overlap:
    """How much of test a model may have learnt by heart."""

    parts: int
    """Lines or examples of test, blank ones aside."""
    in_train: int
    """Those that stand in train as well, word for word."""


LINES, EXAMPLES = rb"\n", rb"\n\s*\n"


def overlap(source: Source, between: bytes = LINES) -> Overlap:
    """Compare the lines, or what stands between other separators. It reads the test split.

    Bytes are compared, so that what is no text can be counted too.
    """
    tested = Counter(_parts(source.read(TEST), between))
    found = {part for part in _parts(source.read(TRAIN), between) if part in tested}
    return Overlap(tested.total(), sum(tested[part] for part in found))


def _parts(raw: bytes, between: bytes) -> Iterator[bytes]:
    plain = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in raw else raw
    return filter(None, (part.strip() for part in re.split(between, plain)))
