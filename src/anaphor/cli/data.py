"""`anaphor data`: named data sets and pretrained weights, where they are on disk, how to download them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from anaphor.cli.table import print_table
from anaphor.config import look_up
from anaphor.errors import ConfigError
from anaphor.flags import Positional, parse
from anaphor.registry import DATASETS, TASKS, WEIGHTS

if TYPE_CHECKING:
    from anaphor.data.datasets import NamedDataset

ACTIONS = {
    "list": "all data sets, whether they are on disk, and pretrained weights",
    "get": "download the missing files of a data set",
    "where": "files of a data set, on disk and upstream; for weights the commands that download them",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Data sets and pretrained weights by name: `list` shows them all, `where NAME` the files of a data set or how to
    get weights, `get NAME` downloads the missing files of a data set."""

    help_examples: ClassVar[tuple[str, ...]] = (
        "anaphor data",
        "anaphor data get wikitext-2",
    )

    action: Annotated[str, Positional("[ACTION]")] = "list"
    """list, get or where."""
    name: Annotated[str | None, Positional("[NAME]")] = None
    """A data set, for get and where; pretrained weights, for where."""
    json: bool = False
    """Print one JSON value instead of a table; `list` has the data sets only."""

    def __post_init__(self) -> None:
        for table in (DATASETS, WEIGHTS):
            if self.action not in ACTIONS and self.action in table:
                raise ConfigError(
                    f"unknown action {self.action!r} (known: {', '.join(sorted(ACTIONS))}); "
                    f"`data where {self.action}` describes {'that data set' if table is DATASETS else 'these weights'}"
                )
        look_up(ACTIONS, self.action, "action")
        if self.action == "list" and self.name is not None:
            raise ConfigError(f"`data list` takes no name, but {self.name!r} was given; `data where {self.name}`?")
        if self.action != "list" and self.name is None:
            raise ConfigError(f"`data {self.action}` needs the name of a data set; `data list` shows them")
        if self.action == "get" and self.name in WEIGHTS and self.name not in DATASETS:
            raise ConfigError(
                f"{self.name} names pretrained weights, which other programs download: "
                f"`anaphor data where {self.name}` shows the commands"
            )


def run(argv: Sequence[str]) -> int:
    options = parse(Options, argv, program="anaphor data")
    if options.name is not None and options.name in WEIGHTS and options.name not in DATASETS:
        show_weights(options.name, options.json)
        return 0

    from anaphor.data.datasets import find_dataset

    if options.name is None:
        rows = [describe(name, find_dataset(name)) for name in DATASETS]
        if options.json:
            print(json.dumps(rows))
        else:
            print_all(rows)
            print_weights()
        return 0
    dataset = find_dataset(options.name)
    if options.action == "get":
        for file in dataset.files:
            file.digest()  # reads it, and so downloads and checks it
    row = describe(options.name, dataset)
    if options.json:
        print(json.dumps(row))
    else:
        print_one(row, dataset.made_from)
    return 0


def describe(name: str, dataset: NamedDataset) -> dict[str, Any]:
    """What is known of a data set without reading it."""
    files = []
    for file in dataset.files:
        found = file.find()
        files.append(
            {
                "file": file.upstream.file,
                "path": None if found is None else str(found),
                "put_at": str(file.candidates()[0]),
                "url": file.upstream.url or None,
                "sha256": file.upstream.sha256,
                "bytes": file.upstream.bytes,
                "download": file.upstream.transfer.bytes,
            }
        )
    return {
        "name": name,
        "task": find_task(dataset.columns),
        "columns": list(dataset.columns),
        "about": dataset.about,
        "licence": dataset.license,
        "options": dataset.defaults,
        "embedded": not files,
        "ready": all(file["path"] for file in files),
        "files": files,
    }


def find_task(columns: tuple[str, ...]) -> str | None:
    """The first task that reads data sets with these columns."""
    return next((name for name in TASKS if TASKS[name].columns == columns), None)


def print_all(rows: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("data", "task", "on disk", "about"):
        table.add_column(heading, no_wrap=heading != "about")
    for row in rows:
        size = sum(file["download"] for file in row["files"] if not file["path"])
        missing = f"no, {size / 1e6:.1f} MB" if can_download(row) else "no, see where"
        on_disk = "built in" if row["embedded"] else "yes" if row["ready"] else missing
        table.add_row(row["name"], row["task"] or "", on_disk, row["about"])
    print_table(Console(), table)


def can_download(row: dict[str, Any]) -> bool:
    return all(file["path"] or file["url"] for file in row["files"])


def print_one(row: dict[str, Any], made_from: str | None) -> None:
    # Plain lines, so that paths are not wrapped and can be copied.
    task = f" for `train {row['task']}`" if row["task"] else ""
    print(f"{row['name']}: {row['about']}; columns {', '.join(row['columns'])}{task}; license: {row['licence']}")
    if row["embedded"]:
        print("built in: it needs neither network nor disk")
    if row["options"]:
        options = ",".join(f"{name}={json.dumps(value).strip(chr(34))}" for name, value in row["options"].items())
        print(f"options follow the name; these are the defaults: --data {row['name']}:{options}")
    for file in row["files"]:
        get = f"`anaphor data get {row['name']}` downloads it, or " if file["url"] else ""
        print(f"{file['file']}: {file['path'] or f'not on disk; {get}put it at ' + file['put_at']}")
        origin = f" from {file['url']}" if file["url"] else ", another form of what is upstream"
        print(f"  {file['bytes']:,} bytes{origin}")
        print(f"  SHA-256 {file['sha256']}")
    if made_from is not None:
        print(f"made from {made_from}")


def print_weights() -> None:
    """All pretrained weights, where there are any."""
    from rich.console import Console
    from rich.table import Table

    if not WEIGHTS:
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("weights", "model type", "download", "about"):
        table.add_column(heading, no_wrap=heading != "about")
    for name in WEIGHTS:
        one = WEIGHTS[name]
        table.add_row(name, one.model_type, f"{one.megabytes} MB", one.about)
    print()
    print_table(Console(), table)
    print("\n`anaphor data get NAME` downloads a data set; `anaphor data where NAME` shows how to get weights")


def show_weights(name: str, as_json: bool) -> None:
    one = WEIGHTS[name]
    ways = one.commands(name)
    if as_json:
        row = {"name": name, "model_type": one.model_type, "about": one.about, "licence": one.license, "hub": one.hub}
        print(json.dumps({**row, "commands": [command for commands in ways.values() for command in commands]}))
        return
    print(f"{name}: {one.about}; license: {one.license}; {one.megabytes} MB")
    for origin, commands in ways.items():
        print(f"{origin}:")
        for command in commands:
            print(f"  {command}")
