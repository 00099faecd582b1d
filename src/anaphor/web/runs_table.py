"""The table of `anaphor runs`: a line for each run, then one for each study, then what went wrong."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from anaphor.cli.table import for_terminal
from anaphor.errors import count_noun
from anaphor.metrics.labels import ITEMS, format_value
from anaphor.web.catalog import find_differing

Row = Mapping[str, Any]

STYLES = {
    "training": "bold green",
    "diverged": "red",
    "unreadable": "red",
    "stopped": "yellow",
    "interrupted": "yellow",
}
LEFT, RIGHT = ("run", "task", "status", "metric"), ("step", "best", "last", "parameters", "speed", "age")
WIDE = 120  # columns of a terminal that shows all
DROPPED = {"speed": 16, "age": 16, "last": 6, "step": 6}
"""Columns that a narrow one lacks, in this order, where beside them there is not so much room for settings."""
MIN_NAME, MIN_SETTINGS = 16, 16  # columns for the name of a run, and for settings, in a narrow one
MAX_ERRORS = 10
# What ends a line for any reader of the table: a name with one of them must not look like two rows.
_BREAKS = re.compile(r"[\t\n\x0b\x0c\r\x1c-\x1e\x85\u2028\u2029]")


def build_view(entries: Sequence[Row], with_cells: bool, size: tuple[int, int] | None = None) -> Group:
    """All that is shown, for rich. `size` is that of the terminal; without one, nothing is left out."""

    width, height = size or (None, None)
    runs = [row for row in entries if row["kind"] == "run" and (with_cells or not row["study"])]
    studies = [row for row in entries if row["kind"] == "study"]
    hidden = sum(row["kind"] == "run" for row in entries) - len(runs)
    parts: list[Any] = []
    room = len(runs) if height is None else max(height - len(studies) - MAX_ERRORS - 6, 5)
    if runs:
        parts.append(build_runs(runs[:room], runs, width if width is not None and width < WIDE else None))
    lines = [f"and {count_noun(len(runs) - room, 'more run')}"] if len(runs) > room else []
    lines += [f"not listed: {count_noun(hidden, 'run')} of studies (use --cells)"] if hidden else []
    lines += [] if runs or hidden or studies else ["no runs"]
    parts += [Text(line, style="dim") for line in lines]
    if studies:
        parts += [*([Text("")] if parts else []), build_studies(studies)]
    errors = [row for row in [*runs, *studies] if row["error"]]
    parts += [Text("")] if errors else []
    parts += [Text(show_text(f"{row['run']}: {row['error']}")) for row in errors[:MAX_ERRORS]]
    if len(errors) > MAX_ERRORS:
        parts.append(Text(f"and {len(errors) - MAX_ERRORS} more, which --json lists", style="dim"))
    return Group(*parts)


def build_runs(runs: Sequence[Row], every: Sequence[Row], width: int | None = None) -> Table:
    """The table of these runs, which are the first of every one. One that is to fit a width lacks what changes least,
    and what can be said in a heading, and breaks the paths of runs between their parts."""

    tasks = {row["task"] for row in every}
    names = {task: find_distinguishing([row for row in every if row["task"] == task]) for task in tasks}
    left_out = {"task"} if len(tasks) == 1 or width is not None else set()
    titles = {}
    if width is not None:
        left_out |= {"parameters"}
        metrics = {row["metric"] for row in runs if row["metric"]}
        if not any(map(is_unvalidated, runs)):
            left_out |= {"last", "speed"}
            titles = {"best": f"best {min(metrics)}"} if len(metrics) == 1 else {}
            left_out |= {"metric"} if titles else set()
    cells = [format_cells(row) for row in runs]
    headings = [name for name in (*LEFT, *RIGHT) if name not in left_out]
    goals = list(next((row["reached"] for row in every if row.get("reached")), {}))
    if width is not None:
        headings = drop_columns(headings, titles, cells, width - sum(10 + len(goal) for goal in goals))
    table = Table(box=None, pad_edge=False)
    # rich makes only those columns narrower that may be wrapped. Settings are not wrapped but cut off.
    for name in headings:
        table.add_column(titles.get(name, name), no_wrap=True, justify="left" if name in LEFT else "right")
    for goal in goals:
        table.add_column(f"s to {goal}", no_wrap=True, justify="right")
    table.add_column(Text("differs in", no_wrap=True, overflow="ellipsis"))
    rows: list[list[Text]] = []
    for row, shown in zip(runs, cells, strict=True):
        styles = {"status": STYLES.get(row["status"], "")}
        texts = [Text(shown[name], style=styles.get(name, "")) for name in headings]
        never = "never" if goals and row["history"][0] is not None else ""  # empty: the run has no such metric
        times = [row["reached"][goal] for goal in goals]
        texts += [Text(never if time is None else f"{time:.1f}") for time in times]
        settings = [
            f"{name}={show_value(row['settings'][name])}" for name in names[row["task"]] if name in row["settings"]
        ]
        rows.append([*texts, Text(show_text(", ".join(settings)), no_wrap=True, overflow="ellipsis")])
    if width is not None:
        columns = [
            [str(column.header), *(cells[place].plain for cells in rows)] for place, column in enumerate(table.columns)
        ]
        others = sum(2 + max(len(text) for text in texts) for texts in columns[1:-1])  # two spaces between columns
        room = max(width - others - MIN_SETTINGS, MIN_NAME)
        rows = [[Text(fold_path(cells[0].plain, room)), *cells[1:]] for cells in rows]
    for line in rows:
        table.add_row(*line)
    return table


def format_cells(row: Row) -> dict[str, str]:
    """What the columns have of a run."""
    cells = {
        "run": row["run"],
        "task": row["task"] or "",
        "status": row["status"],
        "metric": "training loss" if is_unvalidated(row) else row["metric"] or "",
        "step": format_step(row),
        "best": format_metric(row, "best"),
        "last": format_value(row["train_loss"]) if is_unvalidated(row) else format_metric(row, "last"),
        "parameters": format_size(row["parameters"]),
        "speed": format_speed(row),
        "age": format_age(row["age"]),
    }
    return {name: show_text(text) for name, text in cells.items()}


def drop_columns(
    headings: Sequence[str], titles: Mapping[str, str], cells: Sequence[Mapping[str, str]], width: int
) -> list[str]:
    """The columns without those for which there is no room, so that no value is cut off."""
    kept = list(headings)
    widest = {
        name: max(len(text) for text in (titles.get(name, name), *(row[name] for row in cells))) for name in headings
    }
    for name, settings in DROPPED.items():
        if MIN_NAME + sum(2 + widest[other] for other in kept if other != "run") + 2 + settings <= width:
            break
        kept = [other for other in kept if other != name]
    return kept


def fold_path(path: str, room: int) -> str:
    """A path in lines that fit: broken after a slash, in a long part after a hyphen or the like, and within a word only
    where one alone is too long."""
    lines = [""]
    for part in re.findall(r"[^/]*/|[^/]+", path):
        for piece in [part] if len(part) <= room else re.findall(r"[^-_.=,]*[-_.=,/]|[^-_.=,]+", part):
            if lines[-1] and len(lines[-1]) + len(piece) > room:
                lines.append("")
            lines[-1] += piece
    return "\n".join(line[start : start + room] for line in lines for start in range(0, len(line), room))


def build_studies(studies: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("study", "status"):
        table.add_column(heading, no_wrap=True)
    for heading in ("cells", "finished", "failed", "diverged", "age"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in studies:
        status = Text(row["status"], style=STYLES.get(row["status"], ""))
        counts = [str(row[name]) for name in ("cells", "finished", "failed", "diverged")]
        table.add_row(Text(show_text(row["run"])), status, *counts, format_age(row["age"]))
    return table


def show_text(text: str) -> str:
    """A text in one line, without codes that a terminal would obey."""
    return for_terminal(_BREAKS.sub(lambda code: repr(code[0])[1:-1], text), sys.stdout)


def find_distinguishing(runs: Sequence[Row]) -> list[str]:
    """As few settings as tell apart the runs of a task that differ at all: data, model and mixers first, then what all
    runs have, because what only some have follows from their layers; the seed last. Settings that follow from these
    are left out."""
    differing = find_differing(runs)
    first = {"data": 0, "model": 1, "mixers": 2}
    partial = {name for name in differing if any(name not in row["settings"] for row in runs if row["settings"])}
    order = sorted(differing, key=lambda name: (first.get(name, len(first)), name == "seed", name in partial))
    groups, chosen = [list(runs)], list[str]()
    for name in order:
        split: list[list[Row]] = []
        for group in groups:
            by_value: dict[str, list[Row]] = {}
            for row in group:
                by_value.setdefault(show_value(row["settings"].get(name)), []).append(row)
            split += by_value.values()
        if len(split) > len(groups):
            chosen.append(name)
            groups = split
    return chosen


def format_step(row: Row) -> str:
    if row["step"] is None:
        return ""
    planned = f"/{row['steps']:,}" if row["steps"] and row["steps"] != row["step"] else ""
    return f"{row['step']:,}{planned}"


def format_metric(row: Row, name: str) -> str:
    return "" if row[name] is None else format_value(row[name])


def is_unvalidated(row: Row) -> bool:
    """Whether a run has trained and was not validated yet: its training loss is shown instead."""
    return row["best"] is None and row["last"] is None and row["train_loss"] is not None


def format_size(count: float | None) -> str:
    if count is None:
        return ""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f}"


def format_speed(row: Row) -> str:
    return "" if row["throughput"] is None else f"{format_size(row['throughput'])} {row['counted'] or ITEMS}/s"


def format_age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def show_value(value: Any) -> str:
    """A setting for people, as `--where` takes it."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return f"[{','.join(map(show_value, value))}]"
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else str(value)
    return json.dumps(value, ensure_ascii=False)
