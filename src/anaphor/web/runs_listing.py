"""What `anaphor runs` does: list the runs and studies below a folder as a table, CSV or JSON, and draw their curves."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from anaphor.cli.table import MAX_LINE, print_table
from anaphor.config import nearest
from anaphor.draw import curves
from anaphor.errors import ConfigError, DataError
from anaphor.metrics.labels import Label, label_column
from anaphor.web.catalog import Catalog, Listing, find_differing
from anaphor.web.history import METRICS, read_lines
from anaphor.web.runs_table import build_view, show_value
from anaphor.web.runs_verb import Options
from anaphor.yaml_files import parse_yaml

Row = Mapping[str, Any]

LARGEST_FIRST = ("step", "parameters", "throughput")
FACTS = (
    "run", "kind", "study", "task", "status", "error", "step", "steps", "epoch", "metric", "goal", "best", "last",
    "parameters", "train_loss", "throughput", "counted", "seconds_left", "age", "started", "seed", "cells", "finished",
    "failed", "diverged",
)  # fmt: skip
"""Keys of an entry of `--json`, and columns of `--csv`."""
KEYS = ("settings", "scores")
"""Further keys of `--json`; with `--reach` there is `reached` as well."""


def show_runs(folder: Path, options: Options) -> None:
    """Print the runs and studies below a folder, again and again with `--watch`; draw what `--curves` asks for."""
    catalog = Catalog(folder)
    if options.watch:
        watch(catalog.scan, options)
        return
    entries = print_listing(catalog.scan(), options)
    if options.curves is not None:
        draw_against_seconds(entries, options.curves)


def watch(scan: Callable[[], Listing], options: Options) -> None:
    """Show the table again and again. Ctrl-C is how it ends."""
    try:
        if is_terminal() and not options.json and not options.csv:
            watch_terminal(scan, options)
        before = None
        while True:
            listing = scan()
            if listing.version != before:
                print_listing(listing, options)
                sys.stdout.flush()
            before = listing.version
            time.sleep(options.interval)
    except KeyboardInterrupt:
        return


def watch_terminal(scan: Callable[[], Listing], options: Options) -> None:
    with Live(auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            entries = select(scan(), options)
            live.update(build_view(entries, options.cells, live.console.size), refresh=True)
            time.sleep(options.interval)


def print_listing(listing: Listing, options: Options) -> list[Row]:
    """Print what is asked for. Returns the entries that were printed."""
    entries = select(listing, options)
    if options.json:
        keys = (*FACTS, *KEYS, *(["reached"] if options.reach else []))
        print(json.dumps([to_json(entry, keys) for entry in entries]))
    elif options.csv:
        print(to_csv(entries), end="")
    else:
        console = Console()
        print_table(console, build_view(entries, options.cells, (console.width, MAX_LINE) if is_terminal() else None))
        for note in listing.notes:
            print(f"anaphor: {note}", file=sys.stderr)
    return entries


def is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def select(listing: Listing, options: Options) -> list[Row]:
    """The runs and studies that are asked for, in order; paths are as other commands take them."""
    plain = listing.to_plain()
    folder = options.folder
    names = {study["id"]: str(folder / study["study"]) for study in plain["studies"]}
    runs = [
        {**row, "kind": "run", "run": str(folder / row["run"]), "study": names.get(row["study"] or "")}
        for row in plain["runs"]
    ]
    studies = [{**row, "kind": "study", "run": names[row["id"]], "study": None} for row in plain["studies"]]
    check_names(options.where, runs)
    kept: list[Row] = [row for row in [*runs, *studies] if is_selected(row, plain["differing"], options)]
    if options.reach or options.curves is not None:
        check_metric(options.metric, kept)
        kept = [add_history(row, options) if row["kind"] == "run" else row for row in kept]
    return sort_entries(kept, options.sort, reverse=options.reverse)


def add_history(row: Row, options: Options) -> Row:
    """The row with all values of the metric, and the seconds of training after which each goal was reached."""
    name = options.metric or row["metric"]
    metrics = {one["name"]: one for one in row["metrics"]}
    if name is None or name not in metrics:  # its task has no such metric, or is not known
        return {**row, "history": (None, [], []), "reached": dict.fromkeys(map(show_value, options.reach))}
    try:
        lines = read_lines(Path(row["run"]) / METRICS, None).rows
    except OSError:  # nothing was ever validated; or it cannot be read, which the listing says
        lines = []
    validated = [line for line in lines if isinstance(line.get("valid"), Mapping)]
    is_measured = any(name in line["valid"] for line in validated)
    if not is_measured and (validated or name != row["metric"]):  # its task has such a metric on other data
        return {**row, "history": (None, [], []), "reached": dict.fromkeys(map(show_value, options.reach))}
    found = [(line.get("seconds"), line["valid"].get(name)) for line in validated]
    points = [(x, y) for x, y in found if isinstance(x, int | float) and isinstance(y, int | float)]
    sign = -1 if metrics[name]["goal"] == "max" else 1
    reached = {
        show_value(value): next((x for x, y in points if sign * y <= sign * value), None) for value in options.reach
    }
    labels = {one["name"]: Label(one["label"], one["unit"]) for one in row["metrics"]}
    label = label_column(f"valid.{name}", labels, row["counted"]).axis
    return {**row, "history": (label, [x for x, _ in points], [y for _, y in points]), "reached": reached}


def draw_against_seconds(entries: Sequence[Row], path: Path) -> None:
    runs = [row for row in entries if row["kind"] == "run" and row["history"][1]]
    labels = {row["history"][0] for row in runs}
    if len(labels) != 1:
        given = " and ".join(sorted(labels)) or "no value"
        raise ConfigError(f"--curves draws one metric, but these runs have {given}: choose with --metric or --where")
    names = shorten([row["run"] for row in runs])
    series = {name: (row["history"][1], row["history"][2]) for name, row in zip(names, runs, strict=True)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        curves(series, path, x_label="seconds of training", y_label=labels.pop())
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from None
    print(path, file=sys.stderr)


def shorten(paths: Sequence[str]) -> list[str]:
    """Paths without the folders that all of them are in."""
    parts = [Path(path).parts for path in paths]
    shared = 0
    while all(len(one) > shared + 1 and one[shared] == parts[0][shared] for one in parts):
        shared += 1
    return ["/".join(one[shared:]) for one in parts]


def check_names(conditions: Sequence[str], runs: Sequence[Row]) -> None:
    """Raise for a setting that no run has, unless there are no runs at all."""
    settings = {name for row in runs for name in ("task", *row["settings"])}
    for name in [condition.partition("=")[0] for condition in conditions]:
        if settings and name not in settings:
            raise ConfigError(f"where: no run has the setting {name!r}{nearest(name, settings)}")


def check_metric(name: str | None, rows: Sequence[Row]) -> None:
    """Raise for a metric that no run has, unless no run has any."""
    metrics = {metric["name"] for row in rows if row["kind"] == "run" for metric in row["metrics"]}
    if name is not None and metrics and name not in metrics:
        raise ConfigError(f"metric: no run has the metric {name!r}{nearest(name, metrics)}")


def is_selected(row: Row, differing: Sequence[str], options: Options) -> bool:
    settings = {"task": row.get("task"), **row.get("settings", {})}
    if options.status and row["status"] not in options.status:
        return False
    for condition in options.where:
        name, _, value = condition.partition("=")
        if name not in settings or value not in (show_value(settings[name]), str(settings[name])):
            try:
                if name not in settings or parse_yaml(value) != settings[name]:
                    return False
            except Exception:  # noqa: BLE001 (a text that is no YAML is a text)
                return False
    if options.filter is None:
        return True
    shown = [f"{name}={show_value(settings.get(name))}" for name in differing]
    texts = [row["run"], str(row.get("task")), row["status"], *shown]
    return any(options.filter.casefold() in text.casefold() for text in texts)


def sort_entries(entries: Sequence[Row], by: str, *, reverse: bool) -> list[Row]:
    """In order of a value, then of names; those without the value come last, in either direction."""
    named = sorted(entries, key=lambda row: natural_key(row["run"]), reverse=reverse and by == "name")
    if by == "name":
        return named
    if by in ("task", "status"):
        return sorted(named, key=lambda row: str(row.get(by) or ""), reverse=reverse)
    present = [row for row in named if row.get(by) is not None]
    missing = [row for row in named if row.get(by) is None]

    def key(row: Row) -> tuple[str, float]:
        is_falling = by in LARGEST_FIRST or (by in ("best", "last") and row["goal"] == "max")
        sign = (-1 if is_falling else 1) * (-1 if reverse else 1)
        # Values of two metrics are not comparable.
        return str(row["metric"]) if by in ("best", "last") else "", sign * row[by]

    return [*sorted(present, key=key), *missing]


def natural_key(name: str) -> list[tuple[int, str]]:
    """`run-10` after `run-9`."""
    parts = re.findall(r"\d{1,18}|\D+|\d+", name)
    return [(int(part), "") if part.isdecimal() and len(part) <= 18 else (-1, part.casefold()) for part in parts]


def to_json(row: Row, keys: Sequence[str]) -> dict[str, Any]:
    """An entry of `--json`; every one has the same keys."""
    return {name: row.get(name) for name in keys}


def to_csv(entries: Sequence[Row]) -> str:
    runs = [row for row in entries if row["kind"] == "run"]
    names = [name for name in find_differing(runs) if name not in FACTS]
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    goals = list(next((row["reached"] for row in runs if "reached" in row), {}))
    writer.writerow([*FACTS, *(f"seconds to {goal}" for goal in goals), *names])
    for row in entries:
        settings = row.get("settings", {})
        shown = [show_value(settings[name]) if name in settings else "" for name in names]
        reached = [row.get("reached", {}).get(goal) for goal in goals]
        writer.writerow([*(row.get(name) for name in FACTS), *reached, *shown])
    return output.getvalue()
