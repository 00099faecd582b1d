"""Which settings have no hope left: the median rule, by the numbers that the study chooses by."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from anaphor.studies.cell import Cell, value_of
from anaphor.studies.spec import METRICS
from anaphor.studies.units import unit_of
from anaphor.training.run_folder import RunFolder

COMPANY = 3  # cells of other settings that must have come as far before one can be called hopeless


@dataclass(frozen=True)
class Curve:
    """How one cell has fared so far, as the study's metric has it."""

    costs: Mapping[int, float]
    """By step; less is better, whatever the goal."""
    counted: Hashable = None
    """Only curves that count the same are compared."""

    @property
    def reached(self) -> int:
        return max(self.costs, default=0)

    def best_until(self, step: int) -> float:
        return min(cost for at, cost in self.costs.items() if at <= step)


def curve(cell: Cell, metric: str) -> Curve:
    """What a cell has told so far. Where its validations on the way do not have that number, there is nothing."""
    sign = 1 if METRICS[metric] == "minimize" else -1
    lines = [line for line in RunFolder(cell.folder).read_metrics() if line.get("valid")]
    values = {line["step"]: value_of(line["valid"], metric) for line in lines}
    costs = {step: sign * value for step, value in values.items() if value is not None}
    if not costs:
        return Curve({})
    run = cell.setting.run
    counted = unit_of(run, lines[-1]["valid"], metric.partition(".")[2])
    return Curve(costs, (counted, getattr(run, "causal", True)))


def hopeless(running: Sequence[Cell], cells: Iterable[Cell], metric: str) -> list[Cell]:
    """The running cells of settings that are worse than the median of the others at the same step.

    A setting without one of its seeds cannot be chosen, so that a single unlucky seed must not end it: it is judged as
    a whole, by the mean of all its seeds that came so far, at the last step that every running one of them has reached.
    """
    curves: dict[Hashable, dict[str, Curve]] = {}
    for cell in cells:
        curves.setdefault(cell.setting.run, {})[cell.key] = curve(cell, metric)
    ended = []
    for run in dict.fromkeys(cell.setting.run for cell in running):
        going = [cell for cell in running if cell.setting.run == run]
        step = min(curves[run][cell.key].reached for cell in going)
        if not step:
            continue  # one of them has told nothing yet
        counted = curves[run][going[0].key].counted
        so_far = {
            other: [one.best_until(step) for one in of.values() if one.reached >= step and one.counted == counted]
            for other, of in curves.items()
        }
        own, others = so_far.pop(run), [costs for costs in so_far.values() if costs]
        if sum(map(len, others)) >= COMPANY and fmean(own) > median(map(fmean, others)):
            ended += going
    return ended
