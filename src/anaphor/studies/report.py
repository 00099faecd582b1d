"""The answer of a study: choose, seal, test, then table, figures and findings in its folder."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anaphor.config import finite
from anaphor.errors import DataError
from anaphor.metrics.perplexity import LossTotal
from anaphor.studies.cell import MEASURES, TEST, Cell, value_of
from anaphor.studies.comparisons import told_of_text
from anaphor.studies.figures import draw_study
from anaphor.studies.findings import described, findings
from anaphor.studies.groups import Group, Metric, label
from anaphor.studies.measures import read_losses
from anaphor.studies.spec import Setting, StudySpec
from anaphor.studies.statistics import ENOUGH, Interval, interval, paired_blocks
from anaphor.studies.study import Study
from anaphor.studies.tables import write_tables
from anaphor.studies.units import OTHER_TOKENS, WAY_OUT, has_unknown_words, told_apart, unit_of
from anaphor.training.files import replace_file
from anaphor.training.run_folder import RunFolder

NAMES = {
    "loss": ("loss", "nats", 0.0),
    "perplexity": ("perplexity", "PPL", 1.0),
    "bits_per_byte": ("bits per byte", "bits", 0.0),
    "bleu": ("BLEU", "BLEU", 0.0),
}
"""Names, units, and the least that each can be."""
SEEN = "sees later tokens: exp(loss), not a perplexity"


def report(study: Study, *, force: bool = False) -> dict[str, Any]:
    """All that the study found, as plain data; files of it lie in the study's folder."""
    spec, settings = study.spec, settings_of(study)
    notes = notes_of(study, settings, spec.metric.split(".")[1], way_out(study, settings))
    groups = [group_of(study, setting, note) for setting, note in zip(settings, notes, strict=True)]
    metric = metric_of(spec)
    ranked = [
        (metric.cost(group.mean), place) for place, group in enumerate(groups) if group.ranked and not group.failed
    ]
    best = min(ranked)[1] if ranked else None
    chosen = None if best is None else settings[best]
    untested: dict[str, str] = {}
    if spec.test != "none" and chosen is not None:
        study.seal(chosen, force=force)
        finished = [cell for cell in study.cells if cell.status(spec) == "finished"]
        untested = study.test([cell for cell in finished if spec.test == "all" or cell.setting is chosen])
    axes = axes_of(spec, settings)
    found = [*findings(groups, axes, metric), *compared(study, settings, groups, ranked)]
    extra = further_columns(study, settings)
    table = write_tables(groups, axes, metric, extra, study.folder)
    figures = draw_study(groups, axes, metric, study.folder, tested_groups(study, settings, notes))
    tables = {"table": table}
    if spec.lengths:
        tables["table_by_length"], further, drawn = by_length(study, settings, axes)
        found, figures = found + further, figures + drawn
    result: dict[str, Any] = {
        "study": str(study.folder),
        "cells": [cell_result(study, cell, untested.get(cell.key, "")) for cell in study.cells],
        "best": None if best is None or chosen is None else best_result(study, groups[best], chosen),
        "findings": found,
        "figures": [str(path) for path in figures],
        **tables,
    }
    result = finite(result)
    replace_file(study.folder / "findings.txt", ("\n".join(found) + "\n").encode())
    replace_file(study.folder / "result.json", json.dumps(result, indent=2, ensure_ascii=False).encode() + b"\n")
    return result


def settings_of(study: Study) -> list[Setting]:
    """Each setting once, in the order in which it was tried."""
    return list({id(cell.setting): cell.setting for cell in study.cells}.values())


def axes_of(spec: StudySpec, settings: Sequence[Setting]) -> dict[str, list[Any]]:
    """The values along each axis; those of a search are known when it is over."""
    if not spec.searches:
        return {name: list(values) for name, values in spec.axes.items()}
    names = dict.fromkeys(name for setting in settings for name in setting.parameters)
    return {name: list(dict.fromkeys(setting.parameters.get(name) for setting in settings)) for name in names}


def metric_of(spec: StudySpec) -> Metric:
    split, name = spec.metric.split(".")
    long, short, least = NAMES[name]
    return Metric(f"{'validation' if split == 'valid' else split} {long}", short, spec.goal, least)


def cells_of(study: Study, setting: Setting) -> list[Cell]:
    return sorted((cell for cell in study.cells if cell.setting is setting), key=lambda cell: cell.seed)


def group_of(study: Study, setting: Setting, note: str) -> Group:
    cells = cells_of(study, setting)
    values = {cell.seed: value for cell in cells if (value := study.value(cell)) is not None}
    return Group(
        setting.parameters,
        tuple(values),
        tuple(values.values()),
        note=note if values else without_value(study, cells),
        failed=len(cells) - len(values),
    )


def notes_of(study: Study, settings: Sequence[Setting], name: str, instead: str = "") -> list[str]:
    """Why each setting cannot be compared with the others by the number of that name; nothing where it can.

    `instead` is what else compares settings whose tokens differ.
    """
    scores = scores_of(study, settings)
    seeing = [not getattr(setting.run, "causal", True) for setting in settings]
    units = {
        unit_of(setting.run, score, name)
        for setting, score, sees in zip(settings, scores, seeing, strict=True)
        if score is not None and value_of(score, f"valid.{name}") is not None and not sees
    }
    others = told_apart(units, name)
    others += instead if others == OTHER_TOKENS else ""
    return [SEEN if sees else others for sees in seeing]


def way_out(study: Study, settings: Sequence[Setting]) -> str:
    """What compares settings whose tokens differ, if anything does."""
    unknown = any(score is not None and has_unknown_words(score) for score in scores_of(study, settings))
    return f"{WAY_OUT}, where no word is unknown" if unknown else WAY_OUT


def scores_of(study: Study, settings: Sequence[Setting]) -> list[dict[str, Any] | None]:
    """The validation score of one seed of each setting: all that finished have the same tokens."""
    finished = [[cell for cell in cells_of(study, one) if cell.status(study.spec) == "finished"] for one in settings]
    return [cells[0].read(RunFolder(cells[0].folder).result.name)["valid"] if cells else None for cells in finished]


def without_value(study: Study, cells: Sequence[Cell]) -> str:
    """Why runs that finished have no number to be compared by."""
    finished = (cell for cell in cells if cell.status(study.spec) == "finished")
    return next((study.reason(cell, "finished") for cell in finished), "")


def tested_groups(study: Study, settings: Sequence[Setting], notes: Sequence[str]) -> list[Group]:
    """The same settings with their test scores; none unless every finished cell has one."""
    name = study.spec.metric.split(".")[1]
    groups = []
    for setting, note in zip(settings, notes, strict=True):
        cells = cells_of(study, setting)
        finished = [cell for cell in cells if cell.status(study.spec) == "finished"]
        values = {cell.seed: value for cell in finished if (value := _named(cell.read(TEST), name)) is not None}
        if len(values) < len(finished):
            return []
        left = len(cells) - len(values)
        groups.append(Group(setting.parameters, tuple(values), tuple(values.values()), note, left))
    return groups


def cell_result(study: Study, cell: Cell, untested: str) -> dict[str, Any]:
    status = cell.status(study.spec)
    result = cell.read(RunFolder(cell.folder).result.name)
    found = {
        "parameters": dict(cell.setting.parameters),
        "seed": cell.seed,
        "status": status,
        "valid": result.get("valid"),
        "run": str(cell.folder),
        "seconds": result.get("seconds"),
    }
    if tested := cell.read(TEST):
        found["test"] = {key: value for key, value in tested.items() if key != "lengths"}
    if reason := study.reason(cell, status):
        found["reason"] = reason
    if untested:
        found["untested"] = untested
    return found


def best_result(study: Study, group: Group, setting: Setting) -> dict[str, Any]:
    found = {"parameters": dict(group.parameters), "valid": dataclasses.asdict(interval(group.values))}
    name = study.spec.metric.split(".")[1]
    tested = [score[name] for cell in cells_of(study, setting) if (score := cell.read(TEST))]
    if tested and None not in tested:
        found["test"] = dataclasses.asdict(interval(tested))
    return found


def compared(
    study: Study, settings: Sequence[Setting], groups: Sequence[Group], ranked: list[tuple[float, int]]
) -> list[str]:
    """The two best on the same tokens of the validation text: would the order hold on other text of this kind?"""
    if len(ranked) < 2:
        return []
    places = [place for _, place in sorted(ranked)[:2]]
    if any(notes_of(study, [settings[place] for place in places], "loss")):
        return []
    losses, lines = [], []
    for place in places:
        rows = [read_losses(cell.folder) for cell in cells_of(study, settings[place])]
        if not rows or any(row is None for row in rows):
            return []
        losses.append(np.stack([row[0] for row in rows if row is not None]))
        lines += [row[1] for row in rows if row is not None]
    if losses[0].shape != losses[1].shape or not all(np.array_equal(one, lines[0]) for one in lines):
        return []  # other tokens, whatever the runs say of them
    runs = len(losses[0])
    if runs < ENOUGH:  # hardly anything is known of other seeds, but these runs can be compared on other text
        losses = [of.mean(0) for of in losses]
    try:
        text = paired_blocks(losses[0], losses[1], lines[0])
    except DataError:  # a text of too few lines, or a loss that is not finite: nothing can be said
        return []
    first, second = (label(groups[place].parameters) for place in places)
    sentence = told_of_text((first, second), text, runs)
    return [f"{sentence[0].upper()}{sentence[1:]}"] if sentence else []


def further_columns(study: Study, settings: Sequence[Setting]) -> dict[str, list[Interval | int | None]]:
    """What else was measured, a column each: mean over seeds and interval. Sizes are told where they differ."""
    columns: dict[str, list[Interval | int | None]] = {}

    def add(name: str, values: list[list[float | None]]) -> None:
        if any(value is not None for row in values for value in row):
            columns[name] = [over_seeds(row) for row in values]

    cells = [cells_of(study, setting) for setting in settings]
    sizes = [_size(row) for row in cells]
    if len({size for size in sizes if size is not None}) > 1:
        columns["parameters"] = [*sizes]
    exponential = [[cell.read(MEASURES) for cell in row] for row in cells]
    add("train", [[_exp(found.get("train")) for found in row] for row in exponential])
    name = study.spec.metric.split(".")[1]
    add("test", [[_named(cell.read(TEST), name) for cell in row] for row in cells])
    for name in study.spec.samples:
        add(name, [[_exp(found.get("samples", {}).get(name)) for found in row] for row in exponential])
    if study.spec.long_lines:
        add(
            f"{study.spec.long_lines} long lines",
            [[_mean_exp(found.get("long_lines", [])) for found in row] for row in exponential],
        )
    return columns


def _exp(score: dict[str, Any] | None) -> float | None:
    return LossTotal(score["loss"], 1).perplexity if score and score.get("loss") is not None else None


def _named(score: dict[str, Any], name: str) -> float | None:
    """That number of a score; where later tokens were seen there is no perplexity, and the exponential stands in."""
    if score.get(name) is None:
        return _exp(score) if name == "perplexity" else None
    return float(score[name])


def _mean_exp(scores: list[dict[str, Any]]) -> float | None:
    """The perplexity of several texts together, each token counted once."""
    if not scores or any(score["loss"] is None for score in scores):
        return None
    total = sum(score["loss"] * score["tokens"] for score in scores)
    return LossTotal(total, sum(score["tokens"] for score in scores)).perplexity


def _size(cells: Sequence[Cell]) -> int | None:
    """How many numbers a model of this setting learns, which is the same for all seeds."""
    found = (cell.read(RunFolder(cell.folder).result.name).get("parameters") for cell in cells)
    return next((size for size in found if isinstance(size, int)), None)


def over_seeds(values: Sequence[float | None]) -> Interval | None:
    there = [value for value in values if value is not None]
    return interval(there) if there else None


def by_length(
    study: Study, settings: Sequence[Setting], axes: dict[str, list[Any]]
) -> tuple[str, list[str], list[Path]]:
    """The study once more with the length of segments as an axis: table, findings and figures.

    A segment ends where its row does. Lengths beyond that are all one, and stand once, where they end.
    """
    # Numbers of one split only, or they could not be compared.
    tested = all(cell.read(TEST) for cell in study.cells if cell.status(study.spec) == "finished")
    groups: list[Group] = []
    ends: list[tuple[str, dict[int, int]]] = []
    for setting, note in zip(settings, notes_of(study, settings, "perplexity"), strict=True):
        rows = {
            cell.seed: {
                (row["bptt"], row["state"]): row for row in cell.read(TEST if tested else MEASURES).get("lengths", [])
            }
            for cell in cells_of(study, setting)
        }
        scored: dict[tuple[str, int], Group] = {}
        reached: dict[int, int] = {}
        for state, length in itertools.product(("carried", "restarted"), study.spec.lengths):
            scores = {seed: value for seed, of in rows.items() if (value := _exp(of.get((length, state)))) is not None}
            if scores:
                reached[length] = max(len(rows[seed][length, state]["positions"]) for seed in scores)
                parameters = {**setting.parameters, "state": state, "length": reached[length]}
                group = Group(parameters, tuple(scores), tuple(scores.values()), note, len(rows) - len(scores))
                scored.setdefault((state, reached[length]), group)
        groups += scored.values()
        ends.append((label(setting.parameters), reached))
    split, short = ("test", "test PPL") if tested else ("validation", "PPL")
    metric = Metric(f"{split} perplexity", short, least=1.0)
    lengths = list(dict.fromkeys(group.parameters["length"] for group in groups))
    along = {**axes, "state": ["carried", "restarted"], "length": lengths}
    folder = study.folder / "lengths"
    folder.mkdir(exist_ok=True)
    table = write_tables(groups, along, metric, {}, folder)
    chosen = "these are test scores, and nothing is chosen by them."
    found = [chosen, *described(groups, along, metric)] if tested else findings(groups, along, metric)
    found += ended_early(ends)
    return table, [f"By length: {line}" for line in found], draw_study(groups, along, metric, folder)


def ended_early(ends: Sequence[tuple[str, dict[int, int]]]) -> list[str]:
    """Which lengths the rows of the text are too short for, by what each setting reached at each length."""
    longest = {name: max(reached.values(), default=0) for name, reached in ends}
    found: dict[str, str] = {}
    for name, reached in ends:
        last, beyond = longest[name], [str(length) for length in sorted(reached) if length > longest[name]]
        if beyond:
            several = f"{', '.join(beyond[:-1])} and {beyond[-1]} stand at {last:,}: their segments"
            which = several if len(beyond) > 1 else f"{beyond[0]} stands at {last:,}: its segments"
            found[name] = f"{which} have {last:,} tokens, for no row of the text is longer."
    # A setting that nothing is said of may have rows that are longer, or refuse such lengths.
    if len(set(found.values())) == 1 and max(longest.values()) == max(longest[name] for name in found):
        return list(found.values())[:1]
    return [f"with {name}, {sentence}" for name, sentence in found.items()]
