"""Named sets of sentence pairs, folders and pairs of files: one way to open them all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from anaphor.config import nearest
from anaphor.data.download import NamedFile, Stored, Upstream
from anaphor.data.embedded_pairs import Dates, Echo, EchoFit, Reverse
from anaphor.data.pair_source import SOURCE, TARGET, PairFiles, PairSource, TwoFiles
from anaphor.data.source import SPLIT_NAMES, SPLITS, TEST, TRAIN, VALID
from anaphor.data.sources import SOURCES
from anaphor.data.stored import StoredFile
from anaphor.errors import ConfigError, DataError

__all__ = ["PAIR_SOURCES", "NamedPairs", "PairSource", "open_pairs"]

# train.en, train.en.gz, train.en.txt.gz: a stem, a language, how it is stored.
_BY_LANGUAGE = re.compile(r"[^.]+\.(?P<language>[^.]+)(?:\.txt)?(?:\.gz)?")
_NO_LANGUAGES = ("txt", "gz")
# src-train.txt beside train.txt or tgt-train.txt.
_BY_PREFIX = re.compile(r"[^.]+(?:\.txt)?(?:\.gz)?")
_SPLIT = re.compile(r"(?:src-|tgt-)?(?P<split>train|validation|valid|val|test)(?![a-zA-Z])")

# language -> split -> file
Folder = dict[str, dict[str, StoredFile]]


@dataclass(frozen=True, kw_only=True)
class NamedPairs:
    """A set of sentence pairs that has a name."""

    about: str
    """What it is, in a few words."""
    licence: str
    """Under which terms its text may be used."""
    files: tuple[NamedFile, ...] = ()
    """What it needs on disk; nothing for one that is made on the spot."""
    open: Callable[[], PairSource]
    """Makes it ready to be read; nothing is read or downloaded yet."""


def _multi30k() -> NamedPairs:
    root = "https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw"
    stems = {TRAIN: "train", VALID: "val", TEST: "test_2016_flickr"}
    # SHA-256 and length of each text, then of the gzip file.
    known = {
        "train.en": (
            ("460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6", 1_801_238),
            ("d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f", 568_929),
        ),
        "train.de": (
            ("2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72", 2_110_398),
            ("726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6", 637_044),
        ),
        "val.en": (
            ("1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227", 63_297),
            ("14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28", 21_650),
        ),
        "val.de": (
            ("660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660", 75_981),
            ("f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a", 24_681),
        ),
        "test_2016_flickr.en": (
            ("399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182", 62_076),
            ("611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9", 21_077),
        ),
        "test_2016_flickr.de": (
            ("4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16", 70_649),
            ("9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8", 22_890),
        ),
    }
    files = {
        name: NamedFile(
            "multi30k",
            Upstream(file=name, url=f"{root}/{name}.gz", sha256=text[0], bytes=text[1], packed=Stored(*packed)),
        )
        for name, (text, packed) in known.items()
    }
    paired = {split: (files[f"{stem}.en"], files[f"{stem}.de"]) for split, stem in stems.items()}
    return NamedPairs(
        about="captions of photographs, English and German; test is test_2016_flickr (Elliott et al. 2016)",
        licence="none stated; images for research and education only",
        files=tuple(files.values()),
        open=lambda: PairFiles("multi30k", ("en", "de"), paired),
    )


PAIR_SOURCES: dict[str, NamedPairs] = {
    "echo": NamedPairs(
        about="sentences of python-reference, to be said once more",
        licence="PSF-2.0",
        open=Echo,
    ),
    "echo-fit": NamedPairs(
        about="the same, tested on the sentences of train: how well a model fits, nothing else",
        licence="PSF-2.0",
        open=EchoFit,
    ),
    "reverse": NamedPairs(
        about="letters at random, to be said backwards",
        licence="none needed",
        open=Reverse,
    ),
    "dates": NamedPairs(
        about="dates in many spellings, to be written like 2026-11-15; for characters or bpe",
        licence="none needed",
        open=Dates,
    ),
    "multi30k": _multi30k(),
}


def open_pairs(name: str, source: str | None = None, target: str | None = None) -> PairSource:
    """Pairs by their name, a folder with a file for each split and language, or two files, `ONE,OTHER`, split 90/5/5.

    `source` and `target` say the direction; one of them is enough where there are two languages. Names come first: a
    folder that is called like one is meant when it is written `./name`.
    """
    if name in PAIR_SOURCES:
        return _directed(PAIR_SOURCES[name].open(), source, target)
    path = Path(name).expanduser()
    if path.is_dir():
        return _folder(name, path, source, target)
    halves = list(_halves(name))
    for first, second in halves:
        if first.is_file() and second.is_file():
            languages = _language(first), _language(second)
            names = languages if all(languages) and languages[0] != languages[1] else (SOURCE, TARGET)
            return _directed(TwoFiles(name, names, (StoredFile(first), StoredFile(second))), source, target)
    if len(halves) == 1 and any(half.is_file() for half in halves[0]):
        missing = next(half for half in halves[0] if not half.is_file())
        raise DataError(f"{name!r} means two files, but {missing} is none")
    hint = "; that is a text, without translations" if name in SOURCES else nearest(name, PAIR_SOURCES)
    known = ", ".join(sorted(PAIR_SOURCES))
    raise ConfigError(
        f"unknown sentence pairs {name!r}{hint} (known: {known}; or a folder, or two files with a comma between them)"
    )


def _directed(pairs: PairSource, source: str | None, target: str | None) -> PairSource:
    return pairs if _direction(pairs.name, pairs.languages, source, target) == pairs.languages else pairs.swapped()


def _direction(name: str, languages: tuple[str, ...], source: str | None, target: str | None) -> tuple[str, str]:
    """Source and target language. Where nothing is said, two languages stand in their order already."""
    for side, language in ((SOURCE, source), (TARGET, target)):
        if language is not None and language not in languages:
            hint = nearest(language, languages)
            raise ConfigError(f"{side}={language}: {name} has no such language{hint} (it has: {', '.join(languages)})")
    if source is not None and source == target:
        raise ConfigError(f"source={source} and target={target}: they must be two languages")
    if source is not None and target is not None:
        return source, target
    if len(languages) > 2:
        raise ConfigError(f"{name} has {', '.join(languages)}: say both the source and the target language")
    first, second = languages
    return (second, first) if source == second or target == first else (first, second)


def _halves(name: str) -> Iterator[tuple[Path, Path]]:
    for comma in re.finditer(",", name):
        yield Path(name[: comma.start()]).expanduser(), Path(name[comma.end() :]).expanduser()


def _language(path: Path) -> str:
    """The ending of a file's name, storage aside; empty where there is none."""
    return Path(path.name.removesuffix(".gz").removesuffix(".txt")).suffix.removeprefix(".")


def _folder(name: str, path: Path, source: str | None, target: str | None) -> PairSource:
    found = _by_prefix(path) or _by_language(path)
    if len(found) < 2:
        what = f"has files in one language only, {next(iter(found))}" if found else "has no files like train.en"
        raise DataError(f"{path} {what}: a folder of pairs has train, valid and test files in two languages")
    languages = tuple(sorted(found))
    said = source is not None or target is not None
    if not said and len(languages) == 2 and languages not in ((SOURCE, TARGET), ("src", "tgt"), ("src", "trg")):
        raise ConfigError(f"{path} has {', '.join(languages)}: say the source or the target language")
    direction = _direction(str(path), languages, source, target)
    sides = [found[language] for language in direction]
    files = {}
    for split in SPLITS:
        here = [side.get(split) for side in sides]
        if here[0] is not None and here[1] is not None:
            files[split] = here[0], here[1]
        elif split == TRAIN or any(here):
            lacking = " or ".join(language for language, file in zip(direction, here, strict=True) if file is None)
            raise DataError(f"{path} has no {split} file in {lacking}")
    return PairFiles(name, direction, files)


def _by_language(path: Path) -> Folder:
    found: dict[str, list[Path]] = {}
    for file in sorted(path.iterdir()):
        match = _BY_LANGUAGE.fullmatch(file.name)
        if match and match["language"] not in _NO_LANGUAGES and file.is_file():
            found.setdefault(match["language"], []).append(file)
    return {language: files for language, paths in found.items() if (files := _by_split(paths))}


def _by_prefix(path: Path) -> Folder:
    """Files whose names begin with their side; nothing where no name begins with `src-`."""
    found: dict[str, list[Path]] = {SOURCE: [], TARGET: []}
    for file in sorted(path.iterdir()):
        if _BY_PREFIX.fullmatch(file.name) and file.is_file():
            found[SOURCE if file.name.startswith("src-") else TARGET].append(file)
    sides = {side: _by_split(paths) for side, paths in found.items()}
    return sides if sides[SOURCE] else {}


def _by_split(paths: list[Path]) -> dict[str, StoredFile]:
    """The file of each split: `test` goes before longer names like `test_2016_flickr`, of which there may be one."""
    found: dict[str, dict[bool, list[Path]]] = {}
    for path in paths:
        match = _SPLIT.match(path.name)
        if match:
            plain = match.end() == len(path.name.split(".")[0])
            found.setdefault(SPLIT_NAMES[match["split"]], {}).setdefault(plain, []).append(path)
    files = {}
    for split, candidates in found.items():
        first, *others = candidates.get(True) or candidates[False]
        if others:
            raise DataError(
                f"{first.parent} has two files for {split}, {first.name} and {others[0].name}: keep one of them"
            )
        files[split] = StoredFile(first)
    return files
