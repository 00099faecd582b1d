"""`anaphor look RUN …`: what a trained model does with an input, as figures and as one interactive page."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from anaphor.cli.run_options import RunOptions, load_experiment, parse_task_options, warn
from anaphor.cli.table import for_terminal
from anaphor.plain_values import replace_nonfinite
from anaphor.progress import Bar, SecondBar
from anaphor.progress_listener import progress_listener


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions):
    """Look inside a trained model: attention, gates and losses. Writes one page that needs no network, and figures.

    Other options depend on the task of the run.
    """

    help_examples: ClassVar[tuple[str, ...]] = (
        'anaphor look runs/lstm "The value of this expression" --out seen',
        "anaphor look runs/lstm --file text.txt --out seen",
    )

    out: Path
    """Folder for the page and the figures."""


def run(argv: Sequence[str]) -> int:
    task, options = parse_task_options("look", argv, Options, required=True)
    own: Any = options
    own.validate(options.run)
    load = partial(load_experiment, options, task=task.name)
    experiment = load_experiment(options)
    with _show_progress(options.json):
        plain, lines = own.look(experiment, options.run, options.out, load, warn)
    text = json.dumps(replace_nonfinite(plain), allow_nan=False) if options.json else "\n".join(lines)
    print(for_terminal(text, sys.stdout))
    return 0


@contextmanager
def _show_progress(is_json: bool) -> Iterator[None]:
    """A progress bar in a terminal, unless a program reads the result."""
    if is_json or not sys.stderr.isatty():
        yield
        return
    with Bar("looking") as bar, progress_listener(SecondBar(bar, alone=True)):
        yield
