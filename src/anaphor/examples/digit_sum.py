"""A task of your own in one file: the sum of a sequence of digits, by regression.

anaphor train digit-sum --import digit_sum.py --lr 0.03 --steps 1000 --out runs/digits
anaphor evaluate runs/digits --import digit_sum.py
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import anaphor
from anaphor import Experiment, Loss, Metric, Result, RunSpec, TaskDefinition
from anaphor.errors import ConfigError

SIZES = {"train": 2000, "valid": 200, "test": 200}
METRICS = (
    Metric("mse", "min", "mean squared error", digits=4, minimum=0.0),
    Metric("within_half", "max", "share within 0.5", minimum=0.0, maximum=1.0),
)


@dataclass(frozen=True, kw_only=True)
class DigitSumSpec(RunSpec):
    """Train a model that adds up digits."""

    section = "data"

    data: str = "digits"
    """Data set: digits, drawn at random, the same for every seed."""
    length: int = 6
    """Digits per sequence."""
    model: str = "gru"
    """Recurrent layer: gru or rnn."""
    batch_size: int = 50
    """Sequences per batch."""


@dataclass(frozen=True)
class Batch:
    """Digits [B, T] and their sums [B]."""

    digits: Tensor
    sums: Tensor

    @property
    def count(self) -> int:
        return len(self.digits)

    denominator = count


class Adder(nn.Module):
    def __init__(self, kind: str, width: int = 16) -> None:
        super().__init__()
        layers = {"gru": nn.GRU, "rnn": nn.RNN}
        if kind not in layers:
            raise ConfigError(f"unknown model {kind!r} (known: gru, rnn)")
        self.embed = nn.Embedding(10, width)
        self.layer = layers[kind](width, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, digits: Tensor) -> Tensor:
        y, _ = self.layer(self.embed(digits))
        sums: Tensor = self.head(y[:, -1]).squeeze(-1)
        return sums


class DigitSum(Experiment):
    spec: DigitSumSpec
    model: Adder

    def __init__(self, spec: DigitSumSpec, saved: dict[str, Any] | None = None, data_path: str | None = None) -> None:
        torch.manual_seed(spec.seed)
        self.spec, self.device, self.saved = spec, torch.device("cpu"), saved or {}
        self.model = Adder(spec.model)
        self.split = cache(self._draw)

    def _draw(self, split: str, factor: int = 1) -> Batch:
        generator = torch.Generator().manual_seed(list(SIZES).index(split))
        digits = torch.randint(0, 10, (SIZES[split], factor * self.spec.length), generator=generator)
        return Batch(digits, digits.sum(1).float())

    def batches(self, epoch: int) -> list[Batch]:
        data = self.split("train")
        order = torch.randperm(data.count, generator=torch.Generator().manual_seed(self.spec.seed + epoch))
        return [Batch(data.digits[rows], data.sums[rows]) for rows in order.split(self.spec.batch_size)]

    def loss(self, batch: Batch, carry: None) -> tuple[Loss, None]:
        return Loss((self.model(batch.digits) - batch.sums).square().sum()), None

    def evaluate(self, split: str) -> Result:
        return self._score(self.split(split))

    def evaluate_longer(self, split: str, factor: int) -> Result:
        """On sequences `factor` times as long as in training, which studies report as `mse_2x`."""
        return self._score(self._draw(split, factor))

    def _score(self, data: Batch) -> Result:
        self.model.eval()
        with torch.inference_mode():
            errors = self.model(data.digits) - data.sums
        self.model.train()
        values = {"mse": float(errors.square().mean()), "within_half": float((errors.abs() < 0.5).double().mean())}
        return Result(values, {"examples": data.count, "length": data.digits.shape[1]})

    def sample(self, seed: int) -> str:
        data = self.split("valid")
        return f"{data.digits[0].tolist()} -> {self.model(data.digits[:1]).item():.2f}"

    def fingerprint(self) -> dict[str, Any]:
        digests = {name: hashlib.sha256(self.split(name).digits.numpy().tobytes()) for name in ("train", "valid")}
        return {"data": {name: digest.hexdigest() for name, digest in digests.items()}}


anaphor.register_task(
    TaskDefinition(
        name="digit-sum",
        spec=DigitSumSpec,
        metrics=METRICS,
        unit="sequences",
        build=DigitSum,
        evaluate_longer=DigitSum.evaluate_longer,
    )
)
