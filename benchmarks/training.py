"""Training of the recipes against the loop of PyTorch's word_language_model example, written anew: the same modules,
log-softmax and NLL, clipping, and an update of each weight in turn; on a CPU in a process of its own."""

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

from anaphor.data.batches import Batch, Stream
from anaphor.data.tokenizer import Byte
from anaphor.flags import from_yaml
from anaphor.tasks.lm import TASK, LanguageRunSpec
from anaphor.tasks.lm.experiment import StreamExperiment
from anaphor.training.build import build_step
from anaphor.training.task import recipe_file
from benchmarks.our_loop import OurLoop, no_dataset
from benchmarks.processes import start_peer
from benchmarks.timing import Finding, estimate_ratio, mean_seconds, run_steps, time_alternately

VOCABULARY = 33_278
"""That of WikiText-2: most of the time is spent in the output layer."""
MIN_RATIO = {
    "cpu": {("word-language-model-lstm", "float32"): 1.4, ("word-language-model-transformer", "float32"): 1.4},
    "cuda": {
        ("word-language-model-lstm", "float32"): 4.5,
        ("word-language-model-lstm", "bfloat16"): 6.0,
        ("word-language-model-transformer", "float32"): 6.0,
        ("word-language-model-transformer", "bfloat16"): 8.0,
    },
}
"""For each recipe and data type of ours: on a GPU that of the recipes, and the default there."""
STEPS = {"cpu": 2, "cuda": 50}
"""Updates that are timed together."""


class PlainLSTM(nn.Module):
    """Embedding, `nn.LSTM`, linear layer."""

    def __init__(self, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(width, width, layers, dropout=dropout)
        self.head = nn.Linear(width, VOCABULARY)
        initialize(self.embed, self.head)

    def forward(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """[T, B] -> log-probabilities [T · B, V]"""
        x, state = self.lstm(self.dropout(self.embed(tokens)), state)
        return F.log_softmax(self.head(self.dropout(x)).view(-1, VOCABULARY), dim=1), state


class PlainTransformer(nn.Module):
    """Embedding and sinusoids, `nn.TransformerEncoder` with a causal mask, linear layer."""

    def __init__(self, width: int, layers: int, heads: int, feedforward: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.dropout = nn.Dropout(dropout)
        position = torch.arange(5000.0)[:, None]
        angle = position * torch.exp(torch.arange(0, width, 2) * (-math.log(10000) / width))
        waves = torch.stack((angle.sin(), angle.cos()), -1).flatten(1)
        self.register_buffer("waves", waves[:, None])
        layer = nn.TransformerEncoderLayer(width, heads, feedforward)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)
        self.scale = math.sqrt(width)
        self.mask: Tensor | None = None
        initialize(self.embed, self.head)

    def forward(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """[T, B] -> log-probabilities [T · B, V]"""
        if self.mask is None or len(self.mask) != len(tokens):
            self.mask = nn.Transformer.generate_square_subsequent_mask(len(tokens), device=tokens.device)
        x = self.dropout(self.embed(tokens) * self.scale + self.get_buffer("waves")[: len(tokens)])
        return F.log_softmax(self.head(self.encoder(x, mask=self.mask)), dim=-1).view(-1, VOCABULARY), None


def initialize(embed: nn.Embedding, head: nn.Linear) -> None:
    """As the example does: uniform up to 0.1, no bias."""
    nn.init.uniform_(embed.weight, -0.1, 0.1)
    nn.init.uniform_(head.weight, -0.1, 0.1)
    nn.init.zeros_(head.bias)


@dataclass
class PlainLoop:
    """The example's training loop: forward, backward, clip, update each weight, read the loss."""

    model: nn.Module
    batches: Iterator[tuple[Tensor, Tensor]]
    """Tokens [T, B] and targets [T · B]."""
    lr: float
    clip: float
    state: Any = None

    def step(self) -> float:
        tokens, targets = next(self.batches)
        self.model.zero_grad()
        if self.state is not None:
            self.state = tuple(tensor.detach() for tensor in self.state)
        output, self.state = self.model(tokens, self.state)
        loss = F.nll_loss(output, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        for weight in self.model.parameters():
            assert weight.grad is not None, "all weights are used"
            weight.data.add_(weight.grad, alpha=-self.lr)
        return loss.item()


def load_recipe(name: str) -> LanguageRunSpec:
    return from_yaml(LanguageRunSpec, recipe_file(name, TASK))


def draw_batches(spec: LanguageRunSpec, device: torch.device) -> list[Batch]:
    """The same tokens for both loops."""
    size = (spec.batch_size * (60 * spec.bptt + 1),)
    tokens = torch.randint(VOCABULARY, size, generator=torch.Generator().manual_seed(0)).to(device)
    return list(Stream(tokens, spec.batch_size, spec.bptt))


def build_our_loop(name: str, device: torch.device, dtype: str = "float32") -> OurLoop:
    """Ours with the sizes of a recipe, on random tokens."""
    spec = dataclasses.replace(load_recipe(name), dtype=dtype)
    model = spec.model_spec(vocabulary=VOCABULARY).build().to(device).train()
    experiment = StreamExperiment(spec, model, Byte(), no_dataset, device=device)
    return OurLoop(build_step(experiment), cycle(draw_batches(spec, device)))


def build_plain_loop(name: str, device: torch.device) -> PlainLoop:
    """The example's with the sizes of a recipe, on the same tokens, in float32."""
    spec = load_recipe(name)
    batches = [(batch.input_ids.t().contiguous(), batch.targets.t().flatten()) for batch in draw_batches(spec, device)]
    return PlainLoop(build_peer(spec).to(device).train(), cycle(batches), lr=spec.lr or 1.0, clip=spec.clip)


def load_plain_steps(name: str, device: torch.device, count: int) -> Callable[[], None]:
    torch.manual_seed(0)
    return partial(run_steps, build_plain_loop(name, device).step, count, device.type == "cuda")


def build_peer(spec: LanguageRunSpec) -> nn.Module:
    """The example's model with the sizes of a recipe."""
    width, layers = spec.width or 0, spec.layers or 0
    if spec.model == "lstm":
        return PlainLSTM(width, layers, spec.dropout or 0.0)
    return PlainTransformer(width, layers, spec.heads or 1, spec.feedforward or 0, spec.input_dropout or 0.0)


def count_ticks(pairs: int, device: torch.device) -> int:
    return len(MIN_RATIO[device.type]) * pairs


def measure(pairs: int, device: torch.device, tick: Callable[[str], None]) -> list[Finding]:
    """One finding for each recipe and data type."""
    torch.manual_seed(0)
    return [_compare(*case, minimum, device, pairs, tick) for case, minimum in MIN_RATIO[device.type].items()]


RECIPES = {"word-language-model-lstm": "nn.LSTM", "word-language-model-transformer": "nn.TransformerEncoder"}


def _compare(
    name: str, dtype: str, minimum: float, device: torch.device, pairs: int, tick: Callable[[str], None]
) -> Finding:
    count = STEPS[device.type]
    ours = partial(run_steps, build_our_loop(name, device, dtype).step, count, device.type == "cuda")
    with start_peer(device, load_plain_steps, name, device, count) as theirs:
        times = time_alternately(ours, theirs, pairs, partial(tick, name))
    ratio = estimate_ratio(times)
    spec = load_recipe(name)
    seconds = [total / count for total in mean_seconds(times)]
    speeds = [spec.batch_size * spec.bptt / one for one in seconds]
    return ratio.to_finding(
        f"{name}: training, tokens/s on {'a GPU' if device.type == 'cuda' else 'CPU'}, {dtype}",
        f"the loop of PyTorch's example, written anew: {RECIPES[name]}, log-softmax and NLL",
        promise=f"at least {minimum} ×",
        kept=ratio.value >= minimum,
        detail=(
            f"{speeds[0]:,.0f} against {speeds[1]:,.0f} tokens/s, {1000 * seconds[0]:.2f} against "
            f"{1000 * seconds[1]:.2f} ms a step; {spec.batch_size} rows × {spec.bptt} tokens, width "
            f"{spec.width}, vocabulary {VOCABULARY:,}"
        ),
    )
