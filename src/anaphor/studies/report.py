"""The report of a study: select, freeze, test; then tables, figures and findings in its folder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from anaphor.draw import figure_paths, learning_curves
from anaphor.errors import DataError
from anaphor.files import make_folder, replace_file
from anaphor.metrics.labels import label_setting
from anaphor.metrics.result import Metric, training_metric
from anaphor.metrics.statistics import MIN_SEEDS, Interval, block_bootstrap, confidence_interval
from anaphor.plain_values import replace_nonfinite
from anaphor.studies.axes import format_setting, format_value
from anaphor.studies.cell import MEASURES, TEST, Cell, data_digests
from anaphor.studies.figures import View, draw_study
from anaphor.studies.findings import describe_findings, describe_trends
from anaphor.studies.groups import Group, Objective, describe_block_difference, find_undistinguished
from anaphor.studies.reported import Reported
from anaphor.studies.size_matching import format_difference
from anaphor.studies.spec import Setting, StudySpec
from anaphor.studies.study import Study
from anaphor.studies.tables import TableCell, write_tables
from anaphor.studies.tuning import Choice, choose_values, describe_choices

Axes = dict[str, list[Any]]
TEST_DETAILS = ("digest", "measures", "wanted", "longer")
"""Keys of a cell's test scores that are no scores."""
MAX_CURVES = 6  # settings whose learning curves fit side by side


def report(study: Study, *, force: bool = False) -> dict[str, Any]:
    """Everything that the study found, as plain data; its files are in the study's folder."""
    spec = study.spec
    choices = choose_values(spec, study.cells) if spec.tune else []
    settings = [choice.compared for choice in choices] or list_settings(study)
    objective = Objective(spec.target)
    notes = comparison_notes(study, settings, spec.target)
    groups = [make_group(study, setting, note) for setting, note in zip(settings, notes, strict=True)]
    ranked = sorted(
        (objective.cost(group.mean), index)
        for index, group in enumerate(groups)
        if group.is_ranked and not group.failed
    )
    best = ranked[0][1] if ranked else None
    chosen = None if best is None else settings[best]
    untested: dict[str, str] = {}
    if spec.test != "none" and chosen is not None:
        study.freeze(chosen, force=force)
        finished = [cell for setting in settings for cell in finished_cells(study, setting)]
        untested = study.test([cell for cell in finished if spec.test == "all" or cell.setting is chosen])
    axes = list_axes(spec, settings)
    findings = describe_findings(groups, axes, objective) + compare_losses(study, settings, groups, ranked)
    others = [make_view(study, settings, one) for one in spec.reported]
    columns = (
        tuned_columns(choices)
        | matched_columns(spec, settings)
        | reported_columns(others)
        | further_columns(study, settings)
    )
    columns |= tested_columns(study, settings)
    bold = {one.objective.title: find_undistinguished(one.groups, one.objective) for one in others}
    bold[objective.title] = find_undistinguished(groups, objective)
    tables = {"table": write_tables(groups, axes, objective, columns, study.folder, bold, column_labels(spec))}
    figures = draw_study(groups, axes, objective, study.folder, make_test_groups(study, settings, notes), others)
    figures += draw_learning(study, settings)
    if choices:
        findings = [findings[0], *describe_choices(spec, choices), *findings[1:]]
        figures += report_tuning(study, choices, axes, objective)
    for name in further_tables(study, settings):
        tables[f"table_by_{name}"], sentences, paths = report_table(study, settings, axes, name)
        findings, figures = findings + sentences, figures + paths
    result = replace_nonfinite(
        {
            "study": str(study.folder),
            "cells": [plain_cell(study, cell, settings, untested.get(cell.key, "")) for cell in study.cells],
            "best": None if best is None or chosen is None else plain_best(study, groups[best], chosen),
            "findings": findings,
            "figures": [str(path) for path in figures],
            **tables,
        }
    )
    replace_file(study.folder / "findings.txt", ("\n".join(findings) + "\n").encode())
    replace_file(study.folder / "result.json", json.dumps(result, indent=2, ensure_ascii=False).encode() + b"\n")
    return dict(result)


def list_settings(study: Study) -> list[Setting]:
    """Each setting once, in the order in which it was tried."""
    return list({id(cell.setting): cell.setting for cell in study.cells}.values())


def list_axes(spec: StudySpec, settings: Sequence[Setting]) -> Axes:
    """Values of each axis; those of a search are the ones that it tried."""
    if not spec.is_search:
        return {name: list(values) for name, values in spec.axes.items()}
    names = dict.fromkeys(name for setting in settings for name in setting.parameters)
    return {name: list(dict.fromkeys(setting.parameters.get(name) for setting in settings)) for name in names}


def cells_of(study: Study, setting: Setting) -> list[Cell]:
    """Those that are compared, by seed; without those of other seeds that only tuned."""
    cells = (cell for cell in study.cells if cell.setting is setting and cell.seed in study.spec.seeds)
    return sorted(cells, key=lambda cell: cell.seed)


def finished_cells(study: Study, setting: Setting) -> list[Cell]:
    return [cell for cell in cells_of(study, setting) if cell.status(study.spec) == "finished"]


def make_group(study: Study, setting: Setting, note: str) -> Group:
    cells = cells_of(study, setting)
    values = {cell.seed: value for cell in cells if (value := study.value(cell)) is not None}
    if not values:
        note = next((study.reason(cell, "finished") for cell in finished_cells(study, setting)), "")
    missing = len(study.spec.seeds) - len(values)
    return Group(setting.parameters, tuple(values), tuple(values.values()), note, missing)


def comparison_notes(study: Study, settings: Sequence[Setting], metric: Metric) -> list[str]:
    """Why each setting cannot be compared with the others by a metric; empty where it can."""
    support = study.spec.support
    exclusions = [support.exclusion(setting.run, metric) for setting in settings]
    units, results = set(), []
    for setting, exclusion in zip(settings, exclusions, strict=True):
        for cell in finished_cells(study, setting)[:1]:  # all seeds have the same unit
            result = cell.result["valid"]
            results.append(result)
            if not exclusion and support.value(result, metric) is not None:
                digests = data_digests(study.spec.task, setting.run)
                units.add(support.unit(setting.run, digests, result, metric))
    reason = support.difference_reason(units, results, metric) if len(units) > 1 else ""
    return [exclusion or reason for exclusion in exclusions]


def make_test_groups(study: Study, settings: Sequence[Setting], notes: Sequence[str]) -> list[Group]:
    """The settings with their test scores; empty unless every finished cell has one."""
    return group_test_scores(study, settings, notes, lambda cell: test_value(study, cell))


def group_test_scores(
    study: Study, settings: Sequence[Setting], notes: Sequence[str], value: Callable[[Cell], float | None]
) -> list[Group]:
    groups = []
    for setting, note in zip(settings, notes, strict=True):
        finished = finished_cells(study, setting)
        values = {cell.seed: found for cell in finished if (found := value(cell)) is not None}
        if len(values) < len(finished):
            return []
        missing = len(study.spec.seeds) - len(values)
        groups.append(Group(setting.parameters, tuple(values), tuple(values.values()), note, missing))
    return groups


def make_view(study: Study, settings: Sequence[Setting], reported: Reported) -> View:
    """The settings by a further metric, on validation and, where every finished cell has it, on test."""
    spec, groups = study.spec, []
    notes = comparison_notes(study, settings, reported.base)
    for setting, note in zip(settings, notes, strict=True):
        values = {cell.seed: cell.reported_value(spec, reported) for cell in finished_cells(study, setting)}
        found = {seed: value for seed, value in values.items() if value is not None}
        groups.append(
            Group(setting.parameters, tuple(found), tuple(found.values()), note, len(spec.seeds) - len(found))
        )
    tested = group_test_scores(study, settings, notes, lambda cell: cell.reported_value(spec, reported, "test"))
    return View(Objective(reported.metric), groups, tested)


def reported_columns(views: Sequence[View]) -> dict[str, list[TableCell]]:
    """Further metrics on validation."""
    return {view.objective.title: [interval_of(group.values) for group in view.groups] for view in views}


def column_labels(spec: StudySpec) -> dict[str, str]:
    """What people read instead of the names of columns: metrics with their units, and settings in words."""
    metrics = [spec.target, *(one.metric for one in spec.reported)]
    objectives = [Objective(metric, split) for metric in metrics for split in ("validation", "test", "training")]
    settings = {axis.name: label_setting(axis.name).text for axis in spec.tune}
    return {**settings, **{one.title: one.axis for one in objectives}}


def tested_columns(study: Study, settings: Sequence[Setting]) -> dict[str, list[TableCell]]:
    """Test scores of what was evaluated on test, by every metric that is reported."""
    cells = [cells_of(study, setting) for setting in settings]
    rows = {"test": [[test_value(study, cell) for cell in row] for row in cells]}
    for one in study.spec.reported:
        title = Objective(one.metric, "test").title
        rows[title] = [[cell.reported_value(study.spec, one, "test") for cell in row] for row in cells]
    return {name: [interval_of(row) for row in found] for name, found in rows.items() if any(map(has_value, found))}


def has_value(row: Sequence[float | None]) -> bool:
    return any(value is not None for value in row)


def test_value(study: Study, cell: Cell) -> float | None:
    return study.spec.support.value(cell.read(TEST), study.spec.target)


def plain_cell(study: Study, cell: Cell, compared: Sequence[Setting], untested: str) -> dict[str, Any]:
    status, result = cell.status(study.spec), cell.result
    found = {
        "parameters": cell.setting.labels,
        "seed": cell.seed,
        "status": status,
        "valid": result.get("valid"),
        "run": str(cell.folder),
        "seconds": result.get("seconds"),
    }
    if reported := reported_values(study, cell, "valid"):
        found["valid"] = {**(result.get("valid") or {}), **reported}
    if study.spec.tune:
        found["chosen"] = cell.seed in study.spec.seeds and any(cell.setting is one for one in compared)
    if tested := cell.read(TEST):
        scores = {key: value for key, value in tested.items() if key not in TEST_DETAILS}
        found["test"] = {**scores, **reported_values(study, cell, "test")}
    if reason := study.reason(cell, status):
        found["reason"] = reason
    if untested:
        found["untested"] = untested
    return found


def reported_values(study: Study, cell: Cell, split: str) -> dict[str, float]:
    """Values of further metrics on longer examples, by name; those of the split itself are in its result."""
    longer = (one for one in study.spec.reported if one.factor > 1)
    values = {one.metric.name: cell.reported_value(study.spec, one, split) for one in longer}
    return {name: value for name, value in values.items() if value is not None}


def plain_best(study: Study, group: Group, setting: Setting) -> dict[str, Any]:
    found = {"parameters": setting.labels, "valid": dataclasses.asdict(confidence_interval(group.values))}
    tested = [test_value(study, cell) for cell in cells_of(study, setting) if cell.read(TEST)]
    values = [value for value in tested if value is not None]
    if values and len(values) == len(tested):
        found["test"] = dataclasses.asdict(confidence_interval(values))
    return found


def compare_losses(
    study: Study, settings: Sequence[Setting], groups: Sequence[Group], ranked: Sequence[tuple[float, int]]
) -> list[str]:
    """Compare the two best settings on the same items of the validation data, where the task saved their losses."""
    best, loss = [index for _, index in ranked[:2]], study.spec.definition.metrics[0]
    if len(best) < 2 or any(comparison_notes(study, [settings[index] for index in best], loss)):
        return []
    losses, lines = [], []
    for index in best:
        rows = [read_losses(cell) for cell in cells_of(study, settings[index])]
        if not rows or not all(rows):
            return []
        losses.append(np.stack([row["losses"] for row in rows]))
        lines += [row["lines"] for row in rows]
    if losses[0].shape != losses[1].shape or not all(np.array_equal(one, lines[0]) for one in lines):
        return []  # other items
    runs = len(losses[0])
    if runs < MIN_SEEDS:  # too few for other seeds, but these runs can be compared on other data
        losses = [of.mean(0) for of in losses]
    try:
        found = block_bootstrap(losses[0], losses[1], lines[0])
    except DataError:  # too few lines, or a loss that is not finite
        return []
    first, second = (format_setting(groups[index].parameters) for index in best)
    sentence = describe_block_difference((first, second), found, runs, study.spec.definition.unit)
    return [f"{sentence[0].upper()}{sentence[1:]}"] if sentence else []


def read_losses(cell: Cell) -> dict[str, Any]:
    """Losses of single items and the numbers of their lines; empty where the task saves none, or they are damaged."""
    name = cell.read(MEASURES).get("losses")
    try:
        found = load_file(cell.folder / name) if name and (cell.folder / name).is_file() else {}
    except (SafetensorError, OSError):
        return {}
    return found if {"losses", "lines"} <= set(found) else {}


def tuned_columns(choices: Sequence[Choice]) -> dict[str, list[TableCell]]:
    """The chosen values, and which others are as good within the interval of the best, so that the optimum is flat."""
    columns: dict[str, list[TableCell]] = {}
    names = list(choices[0].settings[0].tuned) if choices else []
    for name in names:
        columns[name] = [None if one.setting is None else format_value(one.setting.tuned[name]) for one in choices]
    if choices:
        columns["within its interval"] = [describe_close(one) for one in choices]
    return columns


def matched_columns(spec: StudySpec, settings: Sequence[Setting]) -> dict[str, list[TableCell]]:
    """The width that was found for each setting, its size, and the remaining difference."""
    if not spec.match:
        return {}
    by, wanted = spec.match["by"], spec.match["parameters"]
    sizes = [setting.size for setting in settings]
    return {
        by: [getattr(setting.run, by) for setting in settings],
        "parameters": [*sizes],
        f"of {wanted:,}": [None if size is None else format_difference(size, wanted) for size in sizes],
    }


def describe_close(choice: Choice) -> str | None:
    """Values within the interval of the best one; None where it has none."""
    close = choice.find_close()
    if close is None:
        return None
    single = [format_value(next(iter(one.tuned.values()))) for one in close if len(one.tuned) == 1]
    return "; ".join(single or [format_setting(one.tuned) for one in close]) or "none"


def report_tuning(study: Study, choices: Sequence[Choice], axes: Axes, objective: Objective) -> list[Path]:
    """Tables and figures of all values that were tried, in a folder of their own."""
    groups = [group for choice in choices for group in choice.groups]
    axes = {**axes, **{axis.name: list(axis.values) for axis in study.spec.tune}}
    folder = study.folder / "tuning"
    make_folder(folder, within=study.folder)
    write_tables(groups, axes, objective, {}, folder)
    return draw_study(groups, axes, objective, folder)


def further_columns(study: Study, settings: Sequence[Setting]) -> dict[str, list[TableCell]]:
    """Other measurements, one column each: mean and interval over seeds. Numbers of parameters only if they differ."""
    columns: dict[str, list[TableCell]] = {}

    def add(name: str, rows: list[list[float | None]]) -> None:
        if any(map(has_value, rows)):
            columns[name] = [interval_of(row) for row in rows]

    cells = [cells_of(study, setting) for setting in settings]
    sizes = [next((size for cell in row if (size := cell.result.get("parameters"))), None) for row in cells]
    if not study.spec.match and len({size for size in sizes if size is not None}) > 1:
        columns["parameters"] = [*sizes]
    measured = [[cell.read(MEASURES).get("columns", {}) for cell in row] for row in cells]
    names = list(dict.fromkeys(name for row in measured for found in row for name in found))
    for name in names:
        results = [[found.get(name) for found in row] for row in measured]
        metric = choose_metric(study.spec, [result for row in results for result in row])
        title = name if metric == study.spec.target else f"{name} ({metric.label})"
        further = {title: metric}
        if metric == study.spec.target:  # these were measured as validation is
            further |= {f"{name} ({one.metric.label})": one.metric for one in study.spec.reported if one.factor == 1}
        for heading, shown in further.items():
            add(
                heading,
                [[None if of is None else study.spec.support.value(of, shown) for of in row] for row in results],
            )
    numbers = [[cell.read(MEASURES).get("numbers", {}) for cell in row] for row in cells]
    for name in dict.fromkeys(name for row in numbers for found in row for name in found):
        rows = [[found.get(name) for found in row] for row in numbers]
        if all(type(value) is int for row in rows for value in row if value is not None):  # a count, as of bytes
            columns[name] = [next((value for value in row if value is not None), None) for row in rows]
        else:
            add(name, rows)
    add(f"training {study.spec.target.label}", [[training_value(study, cell) for cell in row] for row in cells])
    return columns


def training_value(study: Study, cell: Cell) -> float | None:
    """Value of the metric on the training batches of the best checkpoint's epoch, as they were seen; None where the
    task does not measure it."""
    best, name = cell.result.get("best_step"), study.spec.target.name
    values = [training_metric(line, name) for line in cell.read_validations() if line.get("step") == best]
    return None if not values or values[0] is None else float(values[0])


def draw_learning(study: Study, settings: Sequence[Setting]) -> list[Path]:
    """Loss and metric of training and validation by epoch, for a few settings side by side."""
    if not 1 < len(settings) <= MAX_CURVES:
        return []
    metrics = {metric.name: metric for metric in study.spec.definition.metrics}
    shown = [metrics["loss"]] if "loss" in metrics else []
    if study.spec.target not in shown and study.spec.target.derived_from is None:
        shown.append(study.spec.target)
    rows: dict[str, dict[str, dict[str, list[dict[float, float]]]]] = {}
    for metric, setting in product(shown, settings):
        names = list(setting.parameters.values())
        title = format_value(names[0]) if len(names) == 1 else format_setting(setting.parameters)
        for cell in finished_cells(study, setting):
            history = [line for line in cell.read_validations() if isinstance(line.get("epoch"), int | float)]
            of_training = {line["epoch"]: training_metric(line, metric.name) for line in history}
            of_validation = {line["epoch"]: line["valid"].get(metric.name) for line in history}
            for name, values in (("training", of_training), ("validation", of_validation)):
                curve = {epoch: value for epoch, value in values.items() if isinstance(value, int | float)}
                if len(curve) > 1:
                    rows.setdefault(metric.axis, {}).setdefault(title, {}).setdefault(name, []).append(curve)
    paths = figure_paths(study.folder / "learning")
    try:
        if rows:
            learning_curves(rows, paths, "epoch")
    except OSError as error:
        raise DataError(f"cannot write the figures to {study.folder}: {error.strerror or error}") from None
    return paths if rows else []


def choose_metric(spec: StudySpec, results: Sequence[Mapping[str, Any] | None]) -> Metric:
    """The study's metric, or the first one of the task where none of the results has it."""
    for metric in (spec.target, *spec.definition.metrics):
        if any(result is not None and spec.support.value(result, metric) is not None for result in results):
            return metric
    return spec.target


def interval_of(values: Sequence[float | None]) -> Interval | None:
    present = [value for value in values if value is not None]
    return confidence_interval(present) if present else None


def further_tables(study: Study, settings: Sequence[Setting]) -> list[str]:
    """Names of the tables that the task measured."""
    cells = [cell for setting in settings for cell in finished_cells(study, setting)]
    measured = [cell.read(MEASURES).get("tables", {}) for cell in cells]
    return list(dict.fromkeys(name for tables in measured for name in tables))


def report_table(study: Study, settings: Sequence[Setting], axes: Axes, name: str) -> tuple[str, list[str], list[Path]]:
    """A table of the task, whose axes are further axes of the study: table, findings and figures.

    Test scores are used where every cell has them, because scores of two splits are not comparable.
    """
    spec, support = study.spec, study.spec.support
    cells = [cell for setting in settings for cell in cells_of(study, setting)]
    tested = all(cell.has_test_scores(spec) for cell in cells if cell.status(spec) == "finished")
    found = {
        cell.key: (cell.read(TEST).get("measures", {}) if tested else cell.read(MEASURES)).get("tables", {}).get(name)
        for cell in cells
    }
    tables = [table for table in found.values() if table]
    names: list[str] = tables[0]["axes"] if tables else []
    metric = choose_metric(spec, [row for table in tables for row in table["rows"]])
    groups: list[Group] = []
    remarks: list[tuple[str, str, float]] = []
    for setting, note in zip(settings, comparison_notes(study, settings, metric), strict=True):
        cells = cells_of(study, setting)
        values: dict[tuple[Any, ...], dict[int, float]] = {}
        for cell in cells:
            for row in (found[cell.key] or {"rows": []})["rows"]:
                if (value := support.value(row, metric)) is not None:
                    values.setdefault(tuple(row[axis] for axis in names), {})[cell.seed] = value
        for key, by_seed in values.items():
            parameters = {**setting.parameters, **dict(zip(names, key, strict=True))}
            missing = len(cells) - len(by_seed)
            groups.append(Group(parameters, tuple(by_seed), tuple(by_seed.values()), note, missing))
        remark = next((table["remark"] for cell in cells if (table := found[cell.key])), "")
        remarks.append((format_setting(setting.parameters), remark, max((key[-1] for key in values), default=0)))
    objective = Objective(metric, "test" if tested else "validation")
    axes = {**axes, **{axis: list(dict.fromkeys(group.parameters[axis] for group in groups)) for axis in names}}
    folder = study.folder / f"{name}s"
    make_folder(folder, within=study.folder)
    text = write_tables(groups, axes, objective, {}, folder)
    if tested:
        sentences = ["test scores, by which nothing is selected.", *describe_trends(groups, axes, objective)]
    else:
        sentences = describe_findings(groups, axes, objective)
    sentences += merge_remarks(remarks)
    return text, [f"By {name}: {line}" for line in sentences], draw_study(groups, axes, objective, folder)


def merge_remarks(remarks: Sequence[tuple[str, str, float]]) -> list[str]:
    """Remarks of settings (name, remark, largest value of the last axis): one sentence if it holds for all of them."""
    present = [one for one in remarks if one[1]]
    is_common = len({remark for _, remark, _ in present}) == 1
    if is_common and max(size for *_, size in remarks) == max(size for *_, size in present):
        return [present[0][1]]
    return [f"with {name}, {remark}" for name, remark, _ in present]
