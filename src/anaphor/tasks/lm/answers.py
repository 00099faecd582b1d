"""Language models on synthetic tasks: only the answers are learned and scored, also on longer sequences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from anaphor.data.answered_batches import AnsweredBatches
from anaphor.data.batches import IGNORE_INDEX, Batch
from anaphor.data.dataset import LINE_SEPARATOR, TEST
from anaphor.data.synthetic.base import SyntheticDataset
from anaphor.errors import ConfigError
from anaphor.evaluation import eval_mode
from anaphor.metrics.losses import LossMeter, LossResult, loss_result
from anaphor.metrics.positions import PositionMeter, PositionScores
from anaphor.precision import to_double
from anaphor.progress_listener import report_progress
from anaphor.tasks.lm.experiment import PaddedExperiment

LOGITS_AT_ONCE = 1 << 26
"""Logits that a batch of the scores may have."""


class AnswersExperiment(PaddedExperiment):
    """Sequences of a synthetic task. Loss and accuracy count the answers alone; no state is carried."""

    overlap_unit, overlap_separator = "sequences", LINE_SEPARATOR
    scored_unit = "answers"

    @property
    def task(self) -> SyntheticDataset:
        """The data set, which knows the answers."""
        source = self.source
        if not isinstance(source, SyntheticDataset):
            raise ConfigError(f"data={source.name}: the run answers questions of {self.spec.data}, and it has none")
        return source

    def load_split(self, name: str) -> Any:
        return self.load_sequences(name, 1)

    def load_sequences(self, name: str, times: int) -> AnsweredBatches:
        """The sequences of a split, so many times as long as those of training."""
        answered = self.task.make_sequences(name, times)
        if name == "train" and self.spec.max_examples is not None:
            answered = answered.first(self.spec.max_examples)
        spec = self.spec
        batches = AnsweredBatches.build(
            answered, self.tokenizer, self.task.words, spec.batch_size, spec.seed, self.device
        )
        self._check_positions(batches, name)
        return batches

    def _check_positions(self, batches: AnsweredBatches, split: str) -> None:
        limit = self.model.max_positions
        if limit is not None and batches.length > limit:
            raise ConfigError(
                f"a sequence of {split} has {batches.length:,} tokens, but the model has {limit:,} learned positions: "
                f"use a larger --max-positions, or another --position"
            )

    def statistics(self) -> dict[str, Any]:
        return super().statistics() | {"padding_share": None}

    def evaluate(self, split: str) -> LossResult:
        return self._result(self.split(split), 1)

    def evaluate_with_recall(self, split: str) -> LossResult:
        """The same: the answers are what is recalled."""
        return self.evaluate(split)

    def score(self, split: str) -> LossResult:
        """All metrics: the accuracy at each position too, and on longer sequences."""
        result = self.evaluate(split)
        longer = {times: self.evaluate_longer(split, times) for times in self.task.longer}
        values = {
            f"accuracy_{times}x": None if one is None else one.values["accuracy"] for times, one in longer.items()
        }
        overlap = self.overlap(split) if split == TEST else {}
        return replace(result, values={**result.values, **values}, details={**result.details, **overlap})

    def evaluate_longer(self, split: str, times: int) -> LossResult | None:
        """The result on sequences so many times as long as those of training. None: the model has no positions for
        them."""
        limit = self.model.max_positions
        if limit is not None and 1 + self.task.count_tokens(times) > limit:
            return None
        return self._result(self.load_sequences(split, times), times)

    def _result(self, batches: AnsweredBatches, times: int) -> LossResult:
        found = score_answers(self, batches)
        meter = LossMeter(causal=self.model.causal)
        meter.add(torch.tensor(found.loss * found.targets), found.targets)
        others = {"accuracy": found.accuracy, "sequence_accuracy": found.sequence_accuracy}
        metadata = self.metadata(batches) | ({} if times == 1 else {"longer": times})
        details = {"accuracy_by_position": list(found.by_position)}
        return loss_result(meter.read(), metadata, others, **details)

    def result_of(self, split: str, losses: Iterable[tuple[Batch, Tensor]]) -> LossResult:
        """The loss alone, of the answers of all sequences of a split."""
        batches, meter = self.split(split), LossMeter(causal=self.model.causal)
        for batch, values in losses:
            meter.add(to_double(values).sum(), batch.count)
        return loss_result(meter.read(), self.metadata(batches))

    def metadata(self, batches: AnsweredBatches) -> dict[str, Any]:
        """What a score depends on, for its signature."""
        limit = {} if self.spec.max_examples is None else {"max_examples": self.spec.max_examples}
        own = {"sequences": batches.examples, **self.task.signature}
        return {"batching": "answers", **self.common_metadata(batches.tokens, 0), **own, **limit}

    def sample(self, seed: int) -> str:
        """The first sequence of valid with what the model answers."""
        batch = self.split("valid").in_rows(1)[0]
        with eval_mode(self.model), torch.inference_mode():
            answers = self.model(batch.input_ids)[0].argmax(-1)[0].tolist()
        names, rows = self.tokenizer.tokens, (batch.input_ids[0].tolist(), answers, batch.targets[0].tolist())
        return " ".join(
            names[token] if target == IGNORE_INDEX else f"{names[token]} ({names[answer]}, right: {names[target]})"
            for token, answer, target in list(zip(*rows, strict=True))[1:]
        )


def score_answers(experiment: AnswersExperiment, batches: AnsweredBatches) -> PositionScores:
    """Accuracy and loss of the answers."""
    model, meter = experiment.model, PositionMeter()
    rows = max(1, LOGITS_AT_ONCE // (batches.length * len(experiment.tokenizer)))
    chunks = batches.in_rows(min(rows, 256))
    with eval_mode(model), torch.inference_mode():
        for number, batch in enumerate(chunks, 1):
            meter.add(model(batch.input_ids)[0], batch.targets)
            report_progress("scoring", number, len(chunks))
    return meter.read()
