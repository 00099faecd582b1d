"""An idea of one's own in one file: a language model whose head knows which words the text has had before.

It has a part of each kind that Anaphor's own extras have: embeddings, a part behind the head, a loss term, a callback,
an evaluation and a verb, each with flags of its own.

    anaphor train lm --import repetition.py --repetition --data grammar --out runs/repetition
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import anaphor
from anaphor.mixers import Span
from anaphor.models import Embedding, HeadWrapper


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    section: ClassVar[str] = "repetition"

    unit_embeddings: bool = False
    """Embeddings have length 1."""
    repetition: bool = False
    """Words that the text has had before have a learned bonus."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    section: ClassVar[str] = "repetition_training"

    z_loss: float = 0.0
    """Weight of the squared logarithm of the softmax's denominator."""
    log_bonus: bool = False
    """Log the bonus of repeated words to bonus.csv in the run folder."""

    def __post_init__(self) -> None:
        if not self.z_loss >= 0:
            raise anaphor.ConfigError(f"z_loss={self.z_loss}: it must be at least 0")


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    section: ClassVar[str] = "repetition"

    without_repetition: bool = False
    """Also without the bonus of repeated words."""


class UnitEmbedding(Embedding):
    """Vectors of length 1. The head uses them, too, where it is tied."""

    def table(self) -> Tensor:
        return F.normalize(self.weight, dim=-1)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.table())


class ReadTokens(NamedTuple):
    """Which tokens a row has read: 1 for these, else 0."""

    now: Tensor
    """[B, V]"""
    after_each: Tensor | None
    """[B, T, V]: after each of the newest tokens."""


class Repetition(HeadWrapper):
    """Adds the bonus to the logits of the tokens that a row has read."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.bonus = nn.Parameter(torch.zeros(()))

    def initial_state(self, rows: int) -> ReadTokens:
        return ReadTokens(self.bonus.new_zeros(rows, self.vocabulary), None)

    def extend(self, state: ReadTokens, hidden_states: Tensor, tokens: Tensor, span: Span) -> ReadTokens:
        new = F.one_hot(tokens, self.vocabulary) * span.valid[..., None]
        after_each = (state.now[:, None] + new.cumsum(1)).clamp(max=1)
        return ReadTokens(after_each[:, -1], after_each)

    def predict(self, logits: Tensor, state: ReadTokens) -> Tensor:
        assert state.after_each is not None, "it has read a token"
        return logits + self.bonus * state.after_each[:, -logits.shape[1] :]

    def metadata(self) -> dict[str, Any]:
        return {"repetition": "bonus"}


class LogBonus(anaphor.NullCallback):
    """Writes a line for each step: items trained on, bonus."""

    def __init__(self, bonus: Tensor, file: Path) -> None:
        self.bonus, self.file = bonus, file

    def on_step(self, info: anaphor.StepInfo, /) -> None:
        with self.file.open("a") as file:
            print(info.count, f"{self.bonus.item():.6f}", sep=",", file=file)


class WithoutRepetition(anaphor.Evaluation):
    """A variant of the model in which the bonus is 0."""

    columns = ("bonus",)

    def __init__(self, settings: EvaluationSettings, experiment: Any, run: Path) -> None:
        self.settings, self.head = settings, experiment.model.head_wrapper
        if settings.without_repetition and not isinstance(self.head, Repetition):
            raise anaphor.ConfigError(f"{run} was trained without --repetition")

    def variants(self) -> Sequence[anaphor.Variant]:
        plain = anaphor.Variant()
        return (
            (plain, anaphor.Variant({"bonus": "none"}, self.no_bonus)) if self.settings.without_repetition else (plain,)
        )

    @contextmanager
    def no_bonus(self) -> Iterator[None]:
        bonus = self.head.bonus.data
        self.head.bonus.data = torch.zeros_like(bonus)
        try:
            yield
        finally:
            self.head.bonus.data = bonus


def make_embedding(settings: ModelSettings, spec: Any) -> UnitEmbedding | None:
    return UnitEmbedding(spec.vocabulary, spec.width_in) if settings.unit_embeddings else None


def make_head(settings: ModelSettings, spec: Any) -> Repetition | None:
    return Repetition(spec.vocabulary) if settings.repetition else None


def make_term(settings: TrainingSettings) -> Callable[..., Tensor] | None:
    def z_loss(hidden_states: Tensor, head: Any, batch: Any) -> Tensor:
        log_z = head(hidden_states).float().logsumexp(-1)
        penalty: Tensor = settings.z_loss * (log_z.square() * batch.has_target).sum()
        return penalty

    return z_loss if settings.z_loss else None


def make_callback(settings: TrainingSettings, experiment: Any, run: Path) -> LogBonus | None:
    if not settings.log_bonus:
        return None
    head = experiment.model.head_wrapper
    if not isinstance(head, Repetition):
        raise anaphor.ConfigError("log_bonus: the model has no bonus without --repetition")
    return LogBonus(head.bonus, run / "bonus.csv")


def print_bonus(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("anaphor bonus")
    parser.add_argument("run", help="run folder")
    parser.add_argument("--digits", type=int, default=3, help="digits after the point")
    options = parser.parse_args(argv)
    model: Any = anaphor.load_run(options.run).model
    print(f"bonus {model.head_wrapper.bonus.item():.{options.digits}f}")
    return 0


anaphor.register_embedder("unit-embeddings", make_embedding, ModelSettings)
anaphor.register_head("repetition", make_head, ModelSettings)
anaphor.register_loss_term("z-loss", make_term, TrainingSettings)
anaphor.register_callback("bonus", make_callback, TrainingSettings, tasks=("lm",))
anaphor.register_evaluation("without-repetition", WithoutRepetition, EvaluationSettings)
anaphor.register_verb("bonus", "bonus of repeated words of a run", print_bonus)
