"""Dynamic evaluation of a language model, which trains on one row of text, against the loop of its definition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anaphor.data.batches import Batch, EvaluationStream
from anaphor.extras.adaptation.dynamic_evaluation import Dynamic
from anaphor.extras.adaptation.steps import AdaptiveStep
from anaphor.mixers.base import detach
from anaphor.models import LanguageModel, build
from benchmarks.timing import Finding, estimate_ratio, mean_seconds, time_alternately
from benchmarks.training import VOCABULARY

ADAPTED: dict[str, dict[str, dict[str, Any]]] = {
    "cpu": {
        "lstm": {"vocabulary": 10_000, "width": 128, "layers": 2},
        "transformer-xl": {"vocabulary": 10_000, "width": 128, "layers": 4, "heads": 4, "memory": 72},
    },
    "cuda": {
        "lstm": {"vocabulary": VOCABULARY, "width": 1024, "layers": 3},
        "transformer-xl": {"vocabulary": VOCABULARY, "width": 512, "layers": 12, "heads": 8, "memory": 144},
    },
}
"""Models by device; those for a GPU have 30 to 70 million parameters."""
MIN_RATIO = {"cpu": 1.0, "cuda": 5.0}
SEGMENTS = {"cpu": 5, "cuda": 60}
BPTT = 72
DYNAMIC = Dynamic(0.001, 0.001)


def count_ticks(pairs: int, device: torch.device) -> int:
    return len(ADAPTED[device.type]) * pairs


def measure(pairs: int, device: torch.device, tick: Callable[[str], None]) -> list[Finding]:
    """One finding for each model: dynamic evaluation, on a GPU as a CUDA graph."""
    torch.manual_seed(0)
    findings = []
    for name, sizes in ADAPTED[device.type].items():
        model = build(name, tied=True, **sizes).to(device).eval()
        tokens = torch.randint(sizes["vocabulary"], (SEGMENTS[device.type] * BPTT,), device=device)
        batches = EvaluationStream(tokens, 0, 1, BPTT)
        step = AdaptiveStep(model, carry=True)
        first, second = (partial(_read_all, adapt, batches) for adapt in (step.losses, partial(adapt_plainly, model)))
        times = time_alternately(first, second, pairs, partial(tick, f"{name}, dynamic evaluation"))
        ratio = estimate_ratio(times)
        speeds = [len(tokens) / seconds for seconds in mean_seconds(times)]
        minimum = MIN_RATIO[device.type]
        findings.append(
            ratio.to_finding(
                f"{name}: dynamic evaluation, tokens/s on {'a GPU' if device.type == 'cuda' else 'CPU'}",
                "a plain loop: forward, gradients, scores, an update of each weight in turn",
                promise="not slower: the interval reaches 1" if minimum == 1 else f"at least {minimum} ×",
                kept=ratio.high >= 1 if minimum == 1 else ratio.value >= minimum,
                detail=(
                    f"{speeds[0]:,.0f} against {speeds[1]:,.0f} tokens/s; {model.count_parameters():,} parameters, "
                    f"segments of {BPTT} tokens, float32"
                ),
            )
        )
    return findings


def adapt_plainly(model: LanguageModel, batches: Sequence[Batch], dynamic: Dynamic) -> Iterator[tuple[Batch, Tensor]]:
    """Dynamic evaluation as it is defined, kernel by kernel; without cuDNN, whose recurrent layers have no gradient in
    evaluation mode."""
    weights = list(model.parameters())
    initial = [weight.detach().clone() for weight in weights]
    state = None
    for batch in batches:
        with torch.backends.cudnn.flags(enabled=False):
            x, state = model.compute_hidden_states(batch.input_ids, state)
            mean = model.cross_entropy(x, batch.targets, state) / batch.count
            gradients = torch.autograd.grad(mean, weights)
        state = detach(state)
        losses = model.token_losses(x, batch.targets, state)
        with torch.no_grad():
            for weight, start, gradient in zip(weights, initial, gradients, strict=True):
                weight.lerp_(start, dynamic.decay)
                weight.sub_(dynamic.lr * gradient)
        yield batch, losses[None]
    with torch.no_grad():
        for weight, start in zip(weights, initial, strict=True):
            weight.copy_(start)


def _read_all(adapt: Callable[..., Iterator[tuple[Batch, Tensor]]], batches: Sequence[Batch]) -> float:
    """The sum of all losses; reading it waits for the device."""
    return float(torch.stack([losses.double().sum() for _, losses in adapt(batches, DYNAMIC)]).sum())
