"""Tables in Arrow and Parquet files: folders that `datasets` of Hugging Face saved, and Parquet files, read row by row.

They are read by pyarrow; `datasets` is not needed. A folder of `save_to_disk` has a `state.json` that lists its Arrow
files; one with several splits has a folder for each and a `dataset_dict.json`. Parquet files are called as their split
is, such as `train.parquet` or `train-00000-of-00002.parquet`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from anaphor.data.dataset import ALL, SPLIT_NAMES, SPLITS, TRAIN, Dataset
from anaphor.data.files import COMPRESSION, StoredFile, digest_of, note_of_files
from anaphor.data.text import check_characters
from anaphor.errors import AnaphorError, ConfigError, DataError, count_noun

STATE, INFO, SPLIT_LIST = "state.json", "dataset_info.json", "dataset_dict.json"
MAX_JSON = 1 << 24  # bytes
ROWS = 1000  # that are read at once
PARQUET = ".parquet"
_PARQUET_NAME = re.compile(r"(?P<split>[A-Za-z]+)(?:[-_.].*)?\.parquet")


@dataclass(frozen=True)
class ArrowTable:
    """The rows of one or several files, in order."""

    files: tuple[Path, ...]
    folder: Path | None = None
    """That of `save_to_disk`, which says how labels are called."""

    def __str__(self) -> str:
        return str(self.folder or self.files[0])

    @property
    def size(self) -> int:
        """Bytes of the rows, about."""
        return sum(StoredFile(file).size * (COMPRESSION if _is_parquet(file) else 1) for file in self.files)

    def all_files(self) -> tuple[Path, ...]:
        """Those of the rows, and the one that says how labels are called."""
        info = () if self.folder is None else (self.folder / INFO,)
        return (*self.files, *(file for file in info if file.is_file()))

    def columns(self) -> dict[str, Any]:
        """The types of the columns by name."""
        with _naming(self.files[0]):
            if _is_parquet(self.files[0]):
                schema = _open_parquet(self.files[0]).schema_arrow
            else:
                with _open_arrow(self.files[0]) as stream:
                    schema = stream.schema
            return {field.name: field.type for field in schema}

    def count(self) -> int:
        """Number of rows."""
        total = 0
        for file in self.files:
            with _naming(file):
                if _is_parquet(file):
                    total += _open_parquet(file).metadata.num_rows
                else:
                    with _open_arrow(file) as stream:
                        total += sum(batch.num_rows for batch in stream)
        return total

    def read(self, columns: Sequence[str], start: int = 0) -> Iterator[tuple[Any, ...]]:
        """The values of some columns, row by row, from a row on."""
        for file in self.files:
            with _naming(file):
                for batch in _read_batches(file, columns):
                    if start >= batch.num_rows:
                        start -= batch.num_rows
                        continue
                    some = batch.slice(start)
                    start = 0
                    for place in range(0, some.num_rows, ROWS):
                        part = some.slice(place, ROWS)
                        yield from zip(*(column.to_pylist() for column in part.columns), strict=True)

    def label_names(self, column: str) -> list[str]:
        """The names of labels that are stored as numbers; empty where there are none."""
        if self.folder is None or not (self.folder / INFO).is_file():
            return []
        feature = read_json(self.folder / INFO).get("features", {}).get(column, {})
        names = feature.get("names") if isinstance(feature, Mapping) else None
        return [str(name) for name in names] if isinstance(names, list) else []


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Errors of pyarrow as one line that names the file."""
    _require_pyarrow(file)
    try:
        yield
    except AnaphorError:
        raise
    except Exception as error:  # noqa: BLE001 (a broken file may raise anything)
        what = "a Parquet file" if _is_parquet(file) else "an Arrow file"
        raise DataError(f"{file} is not {what} that pyarrow can read: {str(error)[:80]}") from None


def _require_pyarrow(file: Path) -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        what = "Parquet" if _is_parquet(file) else "Arrow"
        raise ConfigError(f"{file}: {what} files need pyarrow: pip install 'anaphor[parquet]'") from None


def _is_parquet(file: Path) -> bool:
    return file.suffix == PARQUET


def _open_parquet(path: Path) -> Any:
    from pyarrow import parquet

    return parquet.ParquetFile(path, memory_map=True)


@contextmanager
def _open_arrow(path: Path) -> Iterator[Any]:
    import pyarrow

    with pyarrow.memory_map(str(path)) as file, pyarrow.ipc.open_stream(file) as stream:
        yield stream


def _read_batches(path: Path, columns: Sequence[str]) -> Iterator[Any]:
    if _is_parquet(path):
        yield from _open_parquet(path).iter_batches(batch_size=ROWS, columns=list(columns))
        return
    with _open_arrow(path) as stream:
        for batch in stream:
            yield batch.select(list(columns))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a folder that may have come from anywhere."""
    try:
        if path.stat().st_size > MAX_JSON:
            raise DataError(f"{path} has more than {MAX_JSON:,} bytes")
        plain = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {str(error)[:80]}") from None
    if not isinstance(plain, dict):
        raise DataError(f"{path} is not a JSON object")
    return plain


def find_tables(path: Path) -> dict[str, ArrowTable] | None:
    """The tables of a file or folder by split; None where it has none. A table without a split is train, alone."""
    if path.is_file():
        return {TRAIN: ArrowTable((path,))} if _is_parquet(path) else None
    return find_saved_tables(path) or _parquet_tables(path)


def find_saved_tables(path: Path) -> dict[str, ArrowTable] | None:
    """The tables of a folder of `save_to_disk` by split; None for any other folder."""
    if (path / STATE).is_file():
        return {TRAIN: _saved_table(path)}
    if (path / SPLIT_LIST).is_file():
        names = read_json(path / SPLIT_LIST).get("splits")
        if not isinstance(names, list) or not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise DataError(f"{path / SPLIT_LIST} does not list the splits: save the data again with save_to_disk")
        return _by_split(path, {name: _saved_table(path / name) for name in names if name in SPLIT_NAMES})
    return None


def _saved_table(folder: Path) -> ArrowTable:
    files = read_json(folder / STATE).get("_data_files")
    given = [file.get("filename") for file in files if isinstance(file, dict)] if isinstance(files, list) else []
    names = [name for name in given if isinstance(name, str) and Path(name).name == name]
    if not names or len(names) < len(given):
        raise DataError(f"{folder / STATE} does not list the files of the data: save them again with save_to_disk")
    for name in names:
        if not (folder / name).is_file():
            raise DataError(f"{folder} has no {name}, which its {STATE} lists")
    return ArrowTable(tuple(folder / name for name in names), folder)


def _parquet_tables(path: Path) -> dict[str, ArrowTable] | None:
    files: dict[str, list[Path]] = {}
    for file in sorted(path.glob(f"*{PARQUET}")) or sorted((path / "data").glob(f"*{PARQUET}")):
        match = _PARQUET_NAME.fullmatch(file.name)
        if match and match["split"] in SPLIT_NAMES:
            files.setdefault(match["split"], []).append(file)
    return _by_split(path, {name: ArrowTable(tuple(found)) for name, found in files.items()}) if files else None


def _by_split(path: Path, tables: Mapping[str, ArrowTable]) -> dict[str, ArrowTable]:
    found: dict[str, ArrowTable] = {}
    for name, table in tables.items():
        split = SPLIT_NAMES[name]
        if split in found:
            raise DataError(f"{path} has two tables for {split}, {found[split]} and {table}: keep one of them")
        found[split] = table
    if TRAIN not in found:
        raise DataError(f"{path} has no train, but {', '.join(tables) or 'no split'}")
    return found


class ArrowText(Dataset):
    """A text whose lines are the rows of a column: each ends with a line end. A table without splits is split 90/5/5 by
    the number of rows."""

    def __init__(self, name: str, tables: Mapping[str, ArrowTable]) -> None:
        self.name, self.tables = name, dict(tables)
        self.has_own_splits = len(self.tables) > 1
        self.splits = tuple(split for split in SPLITS if split in self.tables) if self.has_own_splits else SPLITS
        self._bounds = cache(self._find_bounds)

    def read(self, split: str, column: str | None = None) -> bytes:
        return b"".join(self.pieces(split, column))

    def pieces(self, split: str, column: str | None = None, start: int = 0) -> Iterator[bytes]:
        self.column_index(column)
        table, first, count = self._bounds(self.check_split(split))
        name = text_column(table)
        for number, (text,) in enumerate(table.read((name,), first)):
            if number == count:
                return
            if not isinstance(text, str):
                raise DataError(f"row {first + number + 1} of {table} has no text in the column {name!r}")
            check_characters(text, f"row {first + number + 1} of {table}")
            line = (text if text.endswith("\n") else f"{text}\n").encode()
            if start < len(line):
                yield line[start:]
            start = max(start - len(line), 0)

    @property
    def size(self) -> int:
        return sum(table.size for table in self.tables.values())

    def split_size(self, split: str) -> int:
        table, _, count = self._bounds(self.check_split(split))
        return table.size if self.has_own_splits else table.size * count // max(table.count(), 1)

    def column_digest(self, split: str, column: str) -> str:
        files = self._bounds(self.check_split(split))[0].files
        return note_of_files(files, f"rows of {split}", lambda: digest_of(self.pieces(split)))

    def where(self, split: str, column: str | None = None) -> str:
        return str(self._bounds(self.check_split(split))[0])

    def _find_bounds(self, split: str) -> tuple[ArrowTable, int, int]:
        """The table of a split, its first row, and how many there are."""
        if self.has_own_splits:
            return self.tables[split], 0, self.tables[split].count()
        (table,) = self.tables.values()
        rows = table.count()
        if split == ALL:
            return table, 0, rows
        cuts = [0, rows * 90 // 100, rows * 95 // 100, rows]
        if not cuts[0] < cuts[1] < cuts[2] < cuts[3]:
            raise DataError(
                f"{table} has {count_noun(rows, 'row')}, too few to be split into train, valid and test: give more"
            )
        index = SPLITS.index(split)
        return table, cuts[index], cuts[index + 1] - cuts[index]


def text_column(table: ArrowTable) -> str:
    """The column of the texts: text or sentence, or the only one of strings."""
    columns = table.columns()
    names = [name for name, kind in columns.items() if str(kind) in ("string", "large_string", "string_view")]
    usual = [name for name in ("text", "sentence") if name in names]
    if usual or len(names) == 1:
        return (usual or names)[0]
    raise DataError(
        f"{table} has no column 'text' (it has: {', '.join(columns)}); rename the column of the texts to text"
    )
