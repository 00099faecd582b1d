"""What `evaluate` shows beside the score of a run: further rows, and variants of its model.

`register_evaluation` adds them, with flags of their own. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain, product
from math import prod
from pathlib import Path
from typing import Any, TypeVar

from anaphor.config import settings_of
from anaphor.data.dataset import TEST
from anaphor.errors import ConfigError
from anaphor.metrics.result import Result
from anaphor.registry import EVALUATIONS, TASKS, import_object

Signed = TypeVar("Signed", bound=Result)
Row = tuple[dict[str, Any] | None, list[str]]
"""A result as plain values, and lines for people. None: lines alone."""


@dataclass(frozen=True)
class Variant:
    """The model of a run as it was trained, or with something changed."""

    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What differs, by name: part of the signatures of its scores. Empty for the model as it was trained."""
    apply: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Inside the block that it opens, the model is this variant."""

    @property
    def label(self) -> str:
        """What a line for people says of it."""
        return _name_metadata(self.metadata)

    def sign(self, result: Signed) -> Signed:
        """A result of this variant, whose signature says so."""
        return replace(result, metadata={**result.metadata, **self.metadata})


class Evaluation:
    """What one registered evaluation does for one run. Every method has a default that changes nothing."""

    columns: tuple[str, ...] = ()
    """Facts of results that are values of their own in each row of `--json`: null where a result has none."""

    def choices(self) -> Mapping[str, Sequence[Any]]:
        """Settings that are chosen on validation text, with the values that were given: on test there may be one."""
        return {}

    def variants(self) -> Sequence[Variant]:
        """Variants of the model; at least one. All rows are repeated for each."""
        return (Variant(),)

    def score(self, split: str, protocols: Sequence[Any] = ()) -> Iterator[Result]:
        """Results beside the plain ones, each a row. Their metadata name what differs, and so their signatures do.

        The model must be as before after each of them.

        Args:
            split: The part of the data that is scored.
            protocols: How the plain rows were scored, where the task has several ways: for a stream of text a
                `tasks.lm.protocol.Protocol` for each choice of segment length and state.
        """
        return iter(())

    def describe(self, result: Result) -> str:
        """What a line for people says of a result of `score`, before the metrics of the task."""
        return _name_metadata({name: result.metadata[name] for name in self.columns if name in result.metadata})


def _name_metadata(metadata: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in metadata.items())


class Evaluations:
    """The registered evaluations of one run."""

    def __init__(self, experiment: Any, parts: Mapping[str, Evaluation]) -> None:
        """`parts`: by the names under which they are registered."""
        self.experiment, self.parts = experiment, dict(parts)
        self._variant_of: dict[str, Variant] = {}  # by the signatures of plain results

    def check_choices(self, split: str) -> None:
        """Raise where a setting would be chosen on test."""
        for part in self.parts.values():
            for name, values in part.choices().items():
                if split == TEST and len(values) > 1:
                    raise ConfigError(f"{name}={values} on test: choose one of them on valid")

    def count_variants(self) -> int:
        """How often each row is repeated."""
        return prod(len(part.variants()) for part in self.parts.values())

    def each_variant(self) -> Iterator[Variant]:
        """Each combination of variants, with the model changed while the caller has it."""
        for variants in product(*(part.variants() for part in self.parts.values())):
            with ExitStack() as stack:
                for variant in variants:
                    stack.enter_context(variant.apply())
                yield Variant({name: value for variant in variants for name, value in variant.metadata.items()})

    def score(
        self, split: str, variant: Variant, plain: Sequence[Result], protocols: Sequence[Any] = ()
    ) -> Iterator[tuple[Result, str]]:
        """The results of all evaluations for a variant, each with its label. `plain` are those without them."""
        for result in plain:
            if self._variant_of.setdefault(result.signature, variant) is not variant:
                raise ConfigError("two variants of the model have scores with the same signature: give them metadata")
        for name, part in self.parts.items():
            for result in part.score(split, protocols):
                if not isinstance(result, Result):
                    raise ConfigError(f"evaluation {name!r} must give results, but it gave a {type(result).__name__}")
                signed = variant.sign(result)
                if signed.signature in self._variant_of:
                    raise ConfigError(
                        f"evaluation {name!r} has a result with the signature of the plain score: "
                        f"its metadata must name what differs"
                    )
                yield signed, ", ".join(filter(None, (variant.label, part.describe(result))))

    def columns(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """The values that a row has for the evaluations, given the metadata of its result."""
        return {name: metadata.get(name) for part in self.parts.values() for name in part.columns}

    def rows(self, split: str) -> Iterator[Row]:
        """The score of a split and what is beside it, for a task that scores a split in one way."""
        self.check_choices(split)
        task = TASKS[self.experiment.spec.task]
        for variant in self.each_variant():
            plain = variant.sign(self.experiment.score(split))
            for result, label in chain([(plain, variant.label)], self.score(split, variant, [plain])):
                values = result.to_plain()
                name = f"{split}, {label}" if label else split
                yield {**values, **self.columns(result.metadata)}, task.describe_split(name, values)


def make_evaluations(options: Any, experiment: Any, run: Path) -> Evaluations:
    """The evaluations that are registered for the task of a run.

    Call it before other data take the place of those that the run was trained on: some read these.

    Args:
        options: The options of `evaluate`, with the settings of the evaluations.
        experiment: The run, loaded.
        run: Its folder, for messages.
    """
    parts = {}
    for name in EVALUATIONS:
        extra = EVALUATIONS[name]
        if not extra.suits(experiment.spec.task):
            continue
        settings = () if extra.settings is None else (settings_of(options, extra.settings),)
        part = import_object(extra.make)(*settings, experiment, run)
        if part is not None and not isinstance(part, Evaluation):
            raise ConfigError(f"evaluation {name!r} must be an Evaluation or None, but it is a {type(part).__name__}")
        if part is not None:
            parts[name] = part
    return Evaluations(experiment, parts)
