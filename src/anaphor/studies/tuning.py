"""Nested selection: for every setting of a study the best of the values that are tuned, by validation alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anaphor.metrics.statistics import confidence_interval
from anaphor.studies.axes import format_setting, format_value
from anaphor.studies.cell import Cell
from anaphor.studies.groups import Group, Objective, find_best, is_numeric
from anaphor.studies.spec import Setting, StudySpec

MAX_NAMES = 6  # named in a sentence; more are counted


@dataclass(frozen=True)
class Choice:
    """The values that were tried for one setting of the parameters, and the best of them."""

    settings: tuple[Setting, ...]
    """One for each of the values that were tried."""
    groups: tuple[Group, ...]
    """Their results over the seeds that tune."""
    setting: Setting | None
    """The best one; None where none of them has a result for all these seeds."""

    @property
    def compared(self) -> Setting:
        """What stands in the table: the best one, or the setting without a value."""
        first = self.settings[0]
        return Setting(first.parameters, first.run) if self.setting is None else self.setting

    @property
    def best(self) -> Group | None:
        return next((group for one, group in zip(self.settings, self.groups, strict=True) if one is self.setting), None)

    def find_close(self) -> list[Setting] | None:
        """Others whose mean is within the interval of the best one, so that the optimum is flat there. None where the
        best one has no interval, because one seed tuned it."""
        best = self.best
        half = None if best is None else confidence_interval(best.values).half_width
        if best is None or half is None:
            return None
        return [
            one
            for one, group in zip(self.settings, self.groups, strict=True)
            if one is not self.setting and group.is_ranked and abs(group.mean - best.mean) <= half
        ]


def choose_values(spec: StudySpec, cells: Sequence[Cell]) -> list[Choice]:
    """The choice of each setting of the parameters, in their order; the first one of equally good values.

    Values that a seed has no result for are never chosen.
    """
    by_parameters: dict[str, list[Setting]] = {}
    for setting in {id(cell.setting): cell.setting for cell in cells}.values():
        by_parameters.setdefault(format_setting(setting.parameters), []).append(setting)
    choices = []
    for settings in by_parameters.values():
        groups = [_group(spec, setting, cells) for setting in settings]
        best = find_best(groups, Objective(spec.target))
        chosen = next((one for one, group in zip(settings, groups, strict=True) if group is best), None)
        choices.append(Choice(tuple(settings), tuple(groups), chosen))
    return choices


def _group(spec: StudySpec, setting: Setting, cells: Sequence[Cell]) -> Group:
    """The results of a setting over the seeds that tune."""
    own = [cell for cell in cells if cell.setting is setting and cell.seed in spec.tuning_seeds]
    values = {cell.seed: value for cell in own if (value := cell.value(spec)) is not None}
    seeds = sorted(values)
    return Group(setting.labels, tuple(seeds), tuple(values[seed] for seed in seeds), "", len(own) - len(values))


def describe_choices(spec: StudySpec, choices: Sequence[Choice]) -> Iterator[str]:
    """Sentences: what was chosen by what, and where better values may lie beyond those that were tried."""
    seeds = spec.tuning_seeds
    names = " and ".join(axis.name for axis in spec.tune)
    count = len(choices[0].settings)
    over = f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}"
    chosen = [f"{format_setting(one.compared.parameters)}: {_name(one.setting)}" for one in choices]
    if len(chosen) > MAX_NAMES:
        chosen = [*chosen[:MAX_NAMES], f"and {len(chosen) - MAX_NAMES} more in the table"]
    yield f"Tuned {names} by {Objective(spec.target).title} ({over}, {count} values for each): {'; '.join(chosen)}."
    for axis in spec.tune:
        ends = {min(axis.values), max(axis.values)} if is_numeric(axis.values) and len(axis.values) > 1 else set()
        at_end = [
            f"{format_setting(one.setting.parameters)} ({format_value(one.setting.tuned[axis.name])})"
            for one in choices
            if one.setting is not None and one.setting.tuned[axis.name] in ends
        ]
        if at_end:
            named = "; ".join(at_end) if len(at_end) <= MAX_NAMES else f"{len(at_end)} of {len(choices)} settings"
            yield f"The best {axis.name} is at an end of its values for {named}: better ones may lie beyond."


def _name(setting: Setting | None) -> str:
    return "none has a result for all seeds" if setting is None else format_setting(setting.tuned)
