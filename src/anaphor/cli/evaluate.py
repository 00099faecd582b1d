"""`anaphor evaluate RUN`: validation or test score of a trained model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from anaphor.cli.run_options import RunOptions, load_experiment, parse_task_options, warn
from anaphor.cli.table import print_score
from anaphor.config import look_up
from anaphor.data.dataset import SPLITS, VALID
from anaphor.errors import ConfigError
from anaphor.plain_values import replace_nonfinite
from anaphor.progress import Bar, SecondBar
from anaphor.progress_listener import progress_listener
from anaphor.registry import evaluation_settings
from anaphor.tasks.evaluations import Row, make_evaluations
from anaphor.training.run_folder import NO_DATA

if TYPE_CHECKING:
    from anaphor.training.experiment import Experiment


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions):
    """Evaluate a trained model on a split of its data. Other options depend on the task of the run."""

    help_examples: ClassVar[tuple[str, ...]] = (
        "anaphor evaluate runs/lstm",
        "anaphor evaluate runs/lstm --split test",
    )

    has_extras: ClassVar[bool] = True

    split: str | None = None
    """Split to evaluate on: train, valid or test (if not given: valid; all of --data that has no splits)."""

    def __post_init__(self) -> None:
        if self.split is not None:
            look_up(dict.fromkeys(SPLITS), self.split, "split")


def run(argv: Sequence[str]) -> int:
    _, options = parse_task_options("evaluate", argv, Options, extras=evaluation_settings)
    validate = getattr(options, "validate", None)
    if validate is not None:
        validate(options.split)

    experiment = load_experiment(options)
    if getattr(options, "data", None) is None:
        if experiment.spec.data == NO_DATA:
            raise ConfigError(f"{options.run} was converted and has no data of its own: give --data")
        for split in experiment.changed_splits():
            warn(f"{split} has changed since {options.run} was trained")
    rows = []
    for row, lines in _show_progress(_results(options, experiment)):
        if row is not None:
            rows.append(row)
        for line in [] if options.json else lines:
            print_score(line)
    if options.json:
        print(json.dumps(replace_nonfinite(rows)))
    return 0


def _results(options: Any, experiment: Experiment) -> Iterator[Row]:
    # Of other data without --split, the task chooses the part to score: it opens them.
    split = VALID if options.split is None and getattr(options, "data", None) is None else options.split
    if hasattr(options, "evaluate"):
        rows: Iterator[Row] = options.evaluate(experiment, options.run, split)
        return rows
    return make_evaluations(options, experiment, options.run).rows(split)


def _show_progress(rows: Iterator[Row]) -> Iterator[Row]:
    """Each row with a progress bar while it is computed and none while it is printed: a bar takes over stdout."""
    while True:
        with Bar("evaluating") as bar, progress_listener(SecondBar(bar, alone=True)):
            row = next(rows, None)
        if row is None:
            return
        yield row
