"""Generation with carried state: a token costs the same at any position, because the past is not read again."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from anaphor.models import LanguageModel, build
from benchmarks.timing import Finding, estimate_ratio, measure_seconds, time_alternately

MODELS = ("transformer", "lstm", "linear")
SIZES = {"vocabulary": 256, "width": 256, "layers": 4}
TOKENS = 1024
EARLY = 64
WINDOW = 16
"""Tokens that are timed together."""
Times = list[float]
"""Seconds of each token, in order."""


def time_with_state(model: LanguageModel, tokens: torch.Tensor) -> Times:
    """One token at a time, with carried state."""
    state = model.initial_state(len(tokens))
    times = []
    for token in tokens.split(1, dim=1):

        def step(token: torch.Tensor = token) -> None:
            nonlocal state
            x, state = model.compute_hidden_states(token, state)
            model.head(x[:, -1])

        times.append(measure_seconds(step))
    return times


def time_from_scratch(model: LanguageModel, tokens: torch.Tensor, tick: Callable[[], None]) -> Times:
    """The whole prefix again for every token; only the last logits are computed."""
    times = []
    for length in range(1, tokens.shape[1] + 1):

        def step(length: int = length) -> None:
            x, _ = model.compute_hidden_states(tokens[:, :length])
            model.head(x[:, -1])

        times.append(measure_seconds(step))
        tick()
    return times


def steps_before(model: LanguageModel, tokens: torch.Tensor, position: int) -> Callable[[], None]:
    """A function that generates the few tokens before a position, each time from the same state."""
    _, before = model.compute_hidden_states(tokens[:, : position - WINDOW])
    following = tokens[:, position - WINDOW : position].split(1, dim=1)

    def work() -> None:
        state = before
        for token in following:
            x, state = model.compute_hidden_states(token, state)
            model.head(x[:, -1])

    return work


def count_ticks(pairs: int, device: torch.device) -> int:
    return len(MODELS) * (pairs + 1) + TOKENS


@torch.inference_mode()
def measure(pairs: int, device: torch.device, tick: Callable[[str], None]) -> list[Finding]:
    """Late tokens against early ones, for each model; and carried state against a full forward for every token."""
    torch.manual_seed(0)
    tokens = torch.randint(0, SIZES["vocabulary"], (1, TOKENS))
    findings = []
    for name in MODELS:
        model = build(name, **SIZES).eval()
        time_with_state(model, tokens[:, :EARLY])  # warms up
        runs = [time_with_state(model, tokens) for _ in range(3)]
        tick(f"{name}, state carried")
        growth = compare_late_with_early(name, model, tokens, pairs, partial(tick, f"{name}, late and early"))
        # The minimum over the runs, token by token, to exclude disturbances.
        fastest = [min(column) for column in zip(*runs, strict=True)]
        findings.append(replace(growth, token_seconds={f"{name}, state carried": fastest}))
        if name == "transformer":
            scratch = time_from_scratch(model, tokens, partial(tick, f"{name}, no state"))
            findings.append(compare_with_scratch(name, statistics.median(map(sum, runs)), scratch))
    return findings


def compare_late_with_early(
    name: str, model: LanguageModel, tokens: torch.Tensor, pairs: int, tick: Callable[[], None]
) -> Finding:
    """How much more a late token costs than an early one."""
    ratio = estimate_ratio(
        time_alternately(steps_before(model, tokens, EARLY), steps_before(model, tokens, TOKENS), pairs, tick)
    )
    grows = model.state_grows
    return ratio.to_finding(
        f"{name}: time per token at {TOKENS:,} over that at {EARLY}",
        "itself, early in the text",
        promise="at most 2" if grows else "does not grow: the interval reaches 1.05",
        kept=ratio.value <= 2 if grows else ratio.low <= 1.05,
        detail=f"{WINDOW} tokens each time",
    )


def compare_with_scratch(name: str, seconds: float, scratch: Times) -> Finding:
    """Seconds of all tokens with carried state against those of each token with the whole text before it."""
    value = sum(scratch) / seconds
    return Finding(
        what=f"{name}: {TOKENS:,} tokens one by one with carried state",
        peer="a full forward for every token",
        value=value,
        low=None,
        high=None,
        promise="at least 10 × faster",
        kept=value >= 10,
        detail=f"{seconds:.2f} s against {sum(scratch):.1f} s; width 256, 4 layers, vocabulary 256, 1 row",
        token_seconds={f"{name}, no state": scratch},
    )
