"""The beginning of a report: title, date, the winner in a sentence with its interval, and the curves as a picture."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from anaphor.draw import COLORS, curves
from anaphor.errors import count_noun
from anaphor.metrics.labels import Label, format_value, label_column

Row = Mapping[str, Any]

MAX_NAMES = 4
"""Runs that a title names; more are counted."""
MAX_LINES = len(COLORS)
"""Runs whose curves the picture has, the best ones."""


def describe_head(rows: Sequence[Row], studies: Sequence[Row], curves_of: Mapping[str, Row]) -> dict[str, Any]:
    """Title, date, pictures and the best settings of studies; `describe_winners` has the sentences.

    Args:
        rows: The runs, as the page lists them.
        studies: The studies as the page shows them.
        curves_of: The curves of runs by id.
    """
    today = date.today()
    return {
        "title": name_report(rows, studies),
        "date": f"{today.day} {today:%B %Y}",
        "pictures": [picture for group in group_runs(rows) for picture in draw_group(group, curves_of)],
        "studies": [describe_study(study) for study in studies],
    }


def describe_winners(rows: Sequence[Row], comparison: Row | None) -> list[str]:
    """A sentence for the runs of each task and data set.

    Args:
        rows: The runs, as the page lists them.
        comparison: `runs`, two ids, and `overall`, the difference of their losses with its interval; None where no two
            were scored together.
    """
    return [describe_winner(group, comparison) for group in group_runs(rows)]


def group_runs(rows: Sequence[Row]) -> list[list[Row]]:
    """Runs of no study that were validated, by task and data."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if not row["study"] and row["best"] is not None and row["metric"]:
            groups.setdefault((row["task"], str(row["settings"].get("data"))), []).append(row)
    return list(groups.values())


def name_report(rows: Sequence[Row], studies: Sequence[Row]) -> str:
    """The names of studies and runs, or how many there are."""
    names = [*(study["study"] for study in studies), *(row["run"] for row in rows if not row["study"])]
    if len(names) <= MAX_NAMES:
        return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
    tasks = sorted({row["task"] for row in rows if row["task"]})
    return f"{count_noun(len(names), 'run')} of {' and '.join(tasks)}"


def describe_winner(group: Sequence[Row], comparison: Row | None) -> str:
    """Which of some runs of one task on the same data is the best, and by how much."""
    first, *others = rank(group)
    metric = find_metric(first)
    article = "an" if metric.text[:1].lower() in "aeiou" else "a"
    value = f"{article} {metric.text} of {format_value(first['best'])} on validation"
    same = [row for row in others if row["metric"] == first["metric"]]
    if not same:
        return f"{first['run']} has {value}."
    sentence = f"{first['run']} is the best of {count_noun(1 + len(same), 'run')}, with {value}"
    interval = describe_interval(first, same[0], comparison)
    return f"{sentence}; {same[0]['run']} follows with {format_value(same[0]['best'])}{interval}."


def describe_interval(first: Row, second: Row, comparison: Row | None) -> str:
    """How the losses of the best two differ on the same items, where these were scored."""
    if comparison is None or {*comparison["runs"]} != {first["id"], second["id"]}:
        return ""
    sign = 1.0 if comparison["runs"][0] == first["id"] else -1.0  # the difference is that of the second minus the first
    overall = comparison["overall"]
    ends = [sign * overall[name] for name in ("low", "high") if overall[name] is not None]
    if len(ends) < 2:
        return ""
    difference, low, high = sign * overall["difference"], min(ends), max(ends)
    loss = f"its loss is {abs(difference):.4f} nats per {comparison['item']} {'higher' if difference >= 0 else 'lower'}"
    span = f"95 % interval of the difference {low:+.4f} to {high:+.4f}".replace("-", "−")
    return f" ({loss}, {span}{', which includes 0' if low <= 0 <= high else ''})"


def rank(group: Sequence[Row]) -> list[Row]:
    """The runs, best first."""
    sign = -1.0 if group and find_goal(group[0]) == "max" else 1.0
    return sorted(group, key=lambda row: sign * row["best"])


def find_goal(row: Row) -> str | None:
    return next((one["goal"] for one in row["metrics"] if one["name"] == row["metric"]), row.get("goal"))


def find_metric(row: Row) -> Label:
    """The label of the metric that selects the checkpoint of a run."""
    known = {one["name"]: Label(one["label"], one["unit"]) for one in row["metrics"]}
    return known.get(row["metric"], Label(str(row["metric"])))


def draw_group(group: Sequence[Row], curves_of: Mapping[str, Row]) -> list[dict[str, str]]:
    """The metric of some runs on validation against the steps of training, as a picture with a text in its place."""
    first, *_ = ranked = rank(group)
    name = f"valid.{first['metric']}"
    series = {}
    for row in ranked[:MAX_LINES]:
        columns = curves_of.get(row["id"], {}).get("columns", {})
        points = [
            (x, y)
            for x, y in zip(columns.get("step", ()), columns.get(name, ()), strict=False)
            if isinstance(y, int | float) and math.isfinite(y)
        ]
        if points:
            x, y = zip(*points, strict=True)
            series[row["run"]] = (x, y)
    if not series:
        return []
    known = {one["name"]: Label(one["label"], one["unit"]) for one in first["metrics"]}
    label = label_column(name, known, first["counted"]).axis
    with TemporaryDirectory() as folder:
        path = curves(series, Path(folder) / "curves.svg", x_label="step", y_label=label)
        source = base64.b64encode(path.read_bytes()).decode()
    return [{"alt": f"{label} of {', '.join(series)} by step", "source": f"data:image/svg+xml;base64,{source}"}]


def describe_study(study: Row) -> dict[str, Any]:
    """What a study has found, and its best two settings."""
    sign = -1.0 if study["goal"] == "max" else 1.0
    ranked = sorted((one for one in study["groups"] if one["mean"] is not None), key=lambda one: sign * one["mean"])
    return {
        "study": study["study"],
        "about": study["about"],
        "label": study["label"],
        "findings": study["findings"],
        "best": [
            {
                "setting": ", ".join(f"{name}={value}" for name, value in one["parameters"].items()) or "all",
                "value": format_value(one["mean"]),
                "interval": "" if one["low"] is None else f"{format_value(one['low'])} to {format_value(one['high'])}",
                "seeds": len(one["seeds"]),
            }
            for one in ranked[:2]
        ],
    }
