"""Options of `anaphor evaluate` and `anaphor look` for language models. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from anaphor.config import check_at_least, look_up
from anaphor.errors import ConfigError
from anaphor.flags import Positional
from anaphor.tasks.evaluations import Row
from anaphor.tasks.lm import PROTOCOLS

if TYPE_CHECKING:
    from anaphor.tasks.lm.experiment import LanguageModelExperiment

STATES = {"carried": True, "restarted": False}


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Options for language models."""

    data: str | None = None
    """Text other than that of training: a name, a folder or a file, which is scored as a whole."""
    bptt: tuple[int, ...] = ()
    """Segment lengths; one row each (that of training if not given)."""
    carry: bool | None = None
    """Carry the state from one segment to the next (as in training if not given)."""
    state: tuple[str, ...] = ()
    """States between segments, carried and restarted; one row each (as in training if not given)."""
    by_position: bool = False
    """Also the loss by position within the segment."""
    out: Path | None = None
    """Folder for figures of perplexity by length and loss by position."""
    batch_size: int | None = None
    """Rows that are scored in parallel (as in training if not given)."""
    protocol: str | None = None
    """Scoring: complete or example (as in training if not given)."""

    def validate(self, split: str | None) -> None:
        """Refuse settings that do not fit together, before the run is loaded."""
        check_at_least(1, batch_size=self.batch_size)
        if any(length < 1 for length in self.bptt):
            raise ConfigError(f"bptt={self.bptt}: a segment has at least 1 token")
        for name in self.state:
            look_up(STATES, name, "state")
        if self.state and self.carry is not None:
            raise ConfigError(f"state={self.state} and carry={self.carry} are the same option: give one of them")
        if self.protocol is not None:
            look_up(PROTOCOLS, self.protocol, "protocol")

    def evaluate(self, experiment: LanguageModelExperiment, run: Path, split: str | None) -> Iterator[Row]:
        """Rows as JSON, each with lines for people; then lines about all of them."""
        from anaphor.tasks.lm.evaluate import evaluate

        return evaluate(experiment, self, run, split)


@dataclass(frozen=True, kw_only=True)
class LookOptions:
    """Options for language models. Prints what each attention head does, heads that repeat earlier text first."""

    text: Annotated[str | None, Positional("TEXT")] = None
    """Text to look at."""
    file: Path | None = None
    """File with the text."""
    layer: int | None = None
    """Layer to draw and to show first (all in the figure, the clearest head on the page, if not given)."""
    head: int | None = None
    """Head of that layer (all if not given)."""
    layers: tuple[int, ...] = ()
    """Layers to record, for long texts in large models (all if not given)."""
    compare: Path | None = None
    """Another run on the same text with the same tokens; its figures end in -compared."""

    def validate(self, run: Path) -> None:
        """Refuse settings that do not fit together, before the run is loaded."""
        if self.layers and self.text is None and self.file is None:
            raise ConfigError("the text is missing: --layers takes all values after it, so write the text before it")
        if (self.text is None) == (self.file is None):
            raise ConfigError("look at one text: write it after the run, or name a file with --file")
        if self.head is not None and self.layer is None:
            raise ConfigError(f"head={self.head} needs --layer")
        if self.layer is not None and self.layers and self.layer not in self.layers:
            raise ConfigError(f"layer={self.layer} is not among layers={self.layers}")
        if self.compare is not None and self.compare.resolve() == run.resolve():
            raise ConfigError(f"compare={self.compare} is the run itself")

    def look(
        self,
        experiment: LanguageModelExperiment,
        run: Path,
        out: Path,
        load: Callable[[Path], LanguageModelExperiment],
        warn: Callable[[str], None],
    ) -> tuple[dict[str, Any], list[str]]:
        """Write the page and the figures. Returns all values as JSON, and lines for people."""
        from anaphor.tasks.lm.look import look

        return look(experiment, self, run, out, load, warn)
