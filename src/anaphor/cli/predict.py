"""`anaphor predict RUN …`: what a trained model predicts for inputs of one's own."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from anaphor.cli.run_options import RunOptions, load_experiment, parse_task_options, warn
from anaphor.cli.table import for_terminal
from anaphor.plain_values import replace_nonfinite


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions):
    """Predict labels with a trained model. The inputs depend on the task of the run."""

    help_examples: ClassVar[tuple[str, ...]] = (
        'anaphor predict runs/reviews "I liked it"',
        "anaphor predict runs/photos one.jpg two.jpg",
    )


def run(argv: Sequence[str]) -> int:
    _, options = parse_task_options("predict", argv, Options, required=True)
    own: Any = options
    rows, lines = own.predict(load_experiment(options), warn)
    text = json.dumps(replace_nonfinite(rows), allow_nan=False) if options.json else "\n".join(lines)
    if options.json or lines:
        print(for_terminal(text, sys.stdout))
    return 0
