"""Options of `anaphor runs [FOLDER]`."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from anaphor.cli.imports import import_given
from anaphor.config import look_up
from anaphor.errors import ConfigError, DataError
from anaphor.flags import Positional, parse
from anaphor.user_paths import user_path

STATUSES = {
    "training": "a process holds the lock of the run",
    "finished": "the budget was spent, or training stopped early",
    "interrupted": "ended by Ctrl-C, and scored",
    "stopped": "ended or killed without a result",
    "diverged": "the loss was not finite",
    "converted": "read from weights of transformers",
    "unreadable": "its settings cannot be read",
}
SORTS = {
    "name": "path of the folder",
    "task": "name of the task",
    "status": "status",
    "step": "last step, largest first",
    "best": "best value of the selecting metric, best first",
    "last": "last value of the selecting metric, best first",
    "parameters": "number of parameters, largest first",
    "throughput": "items per second, fastest first",
    "age": "time since it was last written, newest first",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """List the runs and studies below a folder: status, step, best and last value, size, speed, age, and the settings
    in which they differ."""

    help_examples: ClassVar[tuple[str, ...]] = (
        "anaphor runs",
        "anaphor runs runs --sort best --where model=lstm",
    )

    folder: Annotated[Path, Positional("[FOLDER]")] = Path()
    """Folder with runs and studies (the current folder if not given); links are not followed."""
    sort: str = "name"
    """Order: name, task, status, step, best, last, parameters, throughput or age."""
    reverse: bool = False
    """Reverse the order."""
    filter: str | None = None
    """Show only runs with this text in their path, task, status or settings that differ."""
    where: tuple[str, ...] = ()
    """Show only runs with these settings, as NAME=VALUE."""
    status: tuple[str, ...] = ()
    """Show only training, finished, interrupted, stopped, diverged, converted or unreadable ones."""
    add: tuple[Path, ...] = field(default=(), metadata={"repeated": True})
    """Folder with runs of TensorBoard or wandb that are to stand beside these; may be given several times."""
    imports: tuple[Path, ...] = field(default=(), metadata={"flag": "import", "repeated": True})
    """Python file that registers parts of your own; may be given several times."""
    cells: bool = False
    """Show the runs of studies in the table as well; --json and --csv always have them."""
    reach: tuple[float, ...] = ()
    """Show the seconds of training after which each run first reached these values of the metric on validation."""
    curves: Path | None = None
    """Draw the metric on validation against seconds of training, a line for each run, into this PNG, SVG or PDF."""
    metric: str | None = None
    """Metric of --reach and --curves (the one that selects the checkpoint if not given); runs may lack it."""
    watch: bool = False
    """Refresh until Ctrl-C; where there is no terminal, print again after each change."""
    interval: float = 2.0
    """Seconds between two refreshes of --watch."""
    csv: bool = False
    """Print CSV, with a column for each setting that differs."""
    json: bool = False
    """Print one JSON list; with --watch one in each line."""

    def __post_init__(self) -> None:
        look_up(SORTS, self.sort, "order")
        for status in self.status:
            look_up(STATUSES, status, "status")
        for condition in self.where:
            if not re.fullmatch(r"\w+=.*", condition, flags=re.DOTALL):
                raise ConfigError(f"where={condition!r}: write NAME=VALUE, such as model=lstm")
        if self.metric is not None and not self.reach and self.curves is None:
            raise ConfigError("--metric belongs to --reach and --curves: give one of them")
        if self.curves is not None and self.curves.suffix not in (".png", ".svg", ".pdf"):
            raise ConfigError(f"curves={self.curves}: the name must end in .png, .svg or .pdf")
        if self.curves is not None and self.watch:
            raise ConfigError("--curves and --watch: give one of them, the figure is drawn once")
        if not all(map(math.isfinite, self.reach)):
            raise ConfigError(f"reach={list(self.reach)}: the values must be finite")
        if self.csv and self.json:
            raise ConfigError("--csv and --json: give one of them")
        if not 0.1 <= self.interval <= 3600:
            raise ConfigError(f"interval={self.interval}: it must be from 0.1 to 3600 seconds")


def run(argv: Sequence[str]) -> int:
    import_given(argv)
    options = parse(Options, argv, program="anaphor runs")
    folder = user_path(options.folder)
    if not folder.is_dir():
        raise DataError(f"no folder at {folder}")
    if options.add:
        from anaphor.web.added_runs import add_runs, describe_added

        for source in map(user_path, options.add):
            print(describe_added(add_runs(source, folder), source), file=sys.stderr)
    from anaphor.web.runs_listing import show_runs

    show_runs(folder, options)
    return 0
