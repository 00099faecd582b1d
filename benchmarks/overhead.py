"""Stacks of our layers against the corresponding modules of `torch.nn`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from anaphor.mixers import AttentionSpec, LSTMSpec, Span
from anaphor.models import Backbone, BlockSpec
from benchmarks.timing import Finding, estimate_ratio, time_alternately

MIN_RATIO = 0.95


@dataclass(frozen=True)
class Setting:
    """Sizes of one comparison."""

    rows: int
    tokens: int
    width: int
    layers: int

    def __str__(self) -> str:
        return f"{self.rows} rows × {self.tokens} tokens, width {self.width}, {self.layers} layers"


LSTM_SETTINGS = (Setting(20, 35, 200, 2), Setting(32, 64, 256, 2))
ATTENTION_SETTINGS = (Setting(20, 35, 200, 2), Setting(16, 128, 256, 4))


def train_step(run: Callable[[Tensor], Tensor], x: Tensor, parameters: list[nn.Parameter]) -> Callable[[], None]:
    """Forward and backward pass of a stack, with the gradients of all its weights."""

    def step() -> None:
        for parameter in parameters:
            parameter.grad = None
        run(x).square().mean().backward()

    return step


def lstm_pair(setting: Setting) -> tuple[Backbone, nn.Module, Callable[[Tensor], Tensor]]:
    spec = BlockSpec(mixer=LSTMSpec(width=setting.width), norm="none", residual=False)
    peer = nn.LSTM(setting.width, setting.width, setting.layers, batch_first=True)
    return Backbone([spec] * setting.layers), peer, lambda x: peer(x)[0]


def attention_pair(setting: Setting) -> tuple[Backbone, nn.Module, Callable[[Tensor], Tensor]]:
    heads = setting.width // 50 if setting.width % 50 == 0 else setting.width // 64
    spec = BlockSpec(
        mixer=AttentionSpec(width=setting.width, heads=heads), norm="before", feedforward=4 * setting.width
    )
    layer = nn.TransformerEncoderLayer(
        setting.width, heads, 4 * setting.width, 0.0, activation="gelu", batch_first=True, norm_first=True
    )
    peer = nn.TransformerEncoder(layer, setting.layers, enable_nested_tensor=False)
    mask = nn.Transformer.generate_square_subsequent_mask(setting.tokens)
    return Backbone([spec] * setting.layers), peer, lambda x: peer(x, mask=mask, is_causal=True)


COMPARISONS = [
    *(("LSTM stack", "nn.LSTM", lstm_pair, setting) for setting in LSTM_SETTINGS),
    *(("attention stack", "nn.TransformerEncoder", attention_pair, setting) for setting in ATTENTION_SETTINGS),
]


def count_ticks(pairs: int, device: torch.device) -> int:
    return len(COMPARISONS) * pairs


def measure(pairs: int, device: torch.device, tick: Callable[[str], None]) -> list[Finding]:
    """Training of our stacks against those of `torch.nn`: one finding for each stack and size."""
    torch.manual_seed(0)
    findings = []
    for what, name, build_pair, setting in COMPARISONS:
        stack, peer, run_peer = build_pair(setting)
        x = torch.randn(setting.rows, setting.tokens, setting.width)

        def run_ours(x: Tensor, stack: Backbone = stack) -> Tensor:
            y: Tensor = stack(x, stack.initial_state(x), Span.whole(x))[0]
            return y

        ours = train_step(run_ours, x, list(stack.parameters()))
        theirs = train_step(run_peer, x, list(peer.parameters()))

        ratio = estimate_ratio(time_alternately(ours, theirs, pairs, partial(tick, what)))
        promise, kept = f"the interval reaches {MIN_RATIO}", ratio.high >= MIN_RATIO
        findings.append(
            ratio.to_finding(f"{what}: forward and backward", name, promise=promise, kept=kept, detail=str(setting))
        )
    return findings
