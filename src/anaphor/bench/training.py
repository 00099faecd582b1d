"""Training as the recipes do it, against the loop that people write: modules of `torch.nn`, log-softmax and NLL."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.bench.finding import Finding
from anaphor.bench.timing import in_turns, ratio, several
from anaphor.config import from_yaml
from anaphor.data.batches import Stream
from anaphor.data.vocab import Byte
from anaphor.models import preset
from anaphor.tasks.language_modelling import LanguageModelling, Protocol, Split
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.training.recipes import recipe_file
from anaphor.training.run import build_step

VOCABULARY = 33_278
"""As WikiText-2 has it: the output layer is where most of the time goes."""
LEAST = {"cpu": 1.3, "cuda": 3.0}
STEPS = {"cpu": 2, "cuda": 50}
"""Updates that are timed as one: on a GPU the host runs ahead of the device, and single ones would not tell."""


class PlainLSTM(nn.Module):
    """Word vectors, the framework's LSTM, a linear layer."""

    def __init__(self, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(width, width, layers, dropout=dropout)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """[T, B] -> log-probabilities [T, B, V]"""
        x, state = self.lstm(self.dropout(self.embed(tokens)), state)
        return F.log_softmax(self.head(self.dropout(x)), dim=-1), tuple(tensor.detach() for tensor in state)


class PlainTransformer(nn.Module):
    """Word vectors and sinusoids, the framework's encoder under a causal mask, a linear layer."""

    def __init__(self, width: int, layers: int, heads: int, feedforward: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.dropout = nn.Dropout(dropout)
        place, speed = torch.arange(512.0)[:, None], torch.exp(torch.arange(0, width, 2) * (-math.log(10000) / width))
        waves = torch.stack(((place * speed).sin(), (place * speed).cos()), -1).flatten(1)
        self.register_buffer("waves", waves[:, None])
        layer = nn.TransformerEncoderLayer(width, heads, feedforward)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)
        self.scale = math.sqrt(width)

    def forward(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """[T, B] -> log-probabilities [T, B, V]"""
        mask = nn.Transformer.generate_square_subsequent_mask(len(tokens), device=tokens.device)
        x = self.dropout(self.embed(tokens) * self.scale + self.get_buffer("waves")[: len(tokens)])
        return F.log_softmax(self.head(self.encoder(x, mask=mask)), dim=-1), None


@dataclass
class PlainLoop:
    """The training loop of a course: forward, backward, clip, subtract, and look at the loss."""

    model: nn.Module
    batches: Iterator[Any]
    lr: float
    clip: float
    state: Any = None

    def step(self) -> float:
        batch = next(self.batches)
        self.model.zero_grad()
        output, self.state = self.model(batch.input_ids.t(), None if batch.restarts else self.state)
        loss = F.nll_loss(output.flatten(0, 1), batch.targets.t().flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        with torch.no_grad():
            for weight in self.model.parameters():
                if weight.grad is not None:
                    weight.add_(weight.grad, alpha=-self.lr)
        return loss.item()


@dataclass
class OurLoop:
    """The trainer's steps, and its way of reading a report while the next step runs."""

    step_once: Any
    batches: Iterator[Any]
    carry: Any = None
    report: Any = None

    def step(self) -> float | None:
        report, self.carry = self.step_once([next(self.batches)], self.carry)
        previous, self.report = self.report, report
        if not self.step_once.lag:
            previous, self.report = report, None
        return None if previous is None else float(previous.read().loss)


def recipe(name: str) -> LanguageRunSpec:
    return from_yaml(LanguageRunSpec, recipe_file(name, LanguageRunSpec.task))


def loops(name: str, device: torch.device, dtype: str = "float32") -> tuple[OurLoop, PlainLoop]:
    """Ours and the plain one at a recipe's sizes, on the same random tokens. The plain one is in single precision."""
    spec = dataclasses.replace(recipe(name), dtype=dtype)
    tokens = torch.randint(VOCABULARY, (spec.batch_size * (60 * spec.bptt + 1),), device=device)
    model = preset(spec.model, vocabulary=VOCABULARY, **spec.model_options()).build().to(device).train()
    task = LanguageModelling(
        Byte(),
        lambda split: Split(tokens, 0, 0),
        rows=spec.batch_size,
        bptt=spec.bptt,
        carry=spec.carry is not False,
        shift=False,
        protocol=Protocol(10, spec.bptt, True),
    )
    width, layers = spec.width or 0, spec.layers or 0
    peer: nn.Module
    if spec.model == "lstm":
        peer = PlainLSTM(width, layers, spec.dropout or 0.0)
    else:
        peer = PlainTransformer(width, layers, spec.heads or 1, spec.feedforward or 0, spec.input_dropout or 0.0)
    batches = list(Stream(tokens, spec.batch_size, spec.bptt))
    ours = OurLoop(build_step(spec, model, task, device), cycle(batches))
    return ours, PlainLoop(peer.to(device).train(), cycle(batches), lr=1e-3, clip=spec.clip)


def comparisons(device: torch.device) -> int:
    return len(RECIPES) * len(DTYPES[device.type])


def measure(pairs: int, device: torch.device, tick: Callable[[str], None]) -> list[Finding]:
    """One finding for each recipe."""
    torch.manual_seed(0)
    return [_compared(name, device, dtype, pairs, tick) for name in RECIPES for dtype in DTYPES[device.type]]


DTYPES = {"cpu": ("float32",), "cuda": ("float32", "bfloat16")}
"""What ours computes in: on a GPU as the recipes say, and as is the default there."""
RECIPES = {"word-language-model-lstm": "nn.LSTM", "word-language-model-transformer": "nn.TransformerEncoder"}


def _compared(name: str, device: torch.device, dtype: str, pairs: int, tick: Callable[[str], None]) -> Finding:
    ours, theirs = loops(name, device, dtype)
    count, least = STEPS[device.type], LEAST[device.type]

    first, second = (partial(several, step, count, device.type == "cuda") for step in (ours.step, theirs.step))
    times = in_turns(first, second, pairs, partial(tick, name))
    found = ratio(times)
    spec = recipe(name)
    tokens = spec.batch_size * spec.bptt * count
    speeds = [tokens * len(times) / sum(pair[which] for pair in times) for which in (0, 1)]
    return Finding(
        what=f"{name}: training, tokens/s on {'a GPU' if device.type == 'cuda' else 'CPU'}, {dtype}",
        peer=f"a plain loop over {RECIPES[name]}, log-softmax and NLL",
        value=found.value,
        low=found.low,
        high=found.high,
        promise=f"at least {least} ×",
        kept=found.value >= least,
        detail=(
            f"{speeds[0]:,.0f} against {speeds[1]:,.0f} tokens/s; {spec.batch_size} rows × {spec.bptt} tokens, width "
            f"{spec.width}, vocabulary {VOCABULARY:,}; {found.pairs} pairs in turns"
        ),
    )
