"""Generation with carried state: a token costs the same work wherever it stands, for the past is never read again."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from anaphor.bench.finding import Finding
from anaphor.bench.timing import seconds
from anaphor.models import LanguageModel, build

SIZES = {"vocabulary": 256, "width": 256, "layers": 4}
TOKENS = 1024
EARLY, WINDOW = 64, 32
Times = list[float]  # seconds of each token, in order


def with_state(model: LanguageModel, tokens: torch.Tensor) -> Times:
    """One token at a time, the state carried on."""
    state = model.initial_state(len(tokens))
    times = []
    for token in tokens.split(1, dim=1):

        def step(token: torch.Tensor = token) -> None:
            nonlocal state
            x, state = model.features(token, state)
            model.head(x[:, -1])

        times.append(seconds(step))
    return times


def from_scratch(model: LanguageModel, tokens: torch.Tensor, tick: Callable[[], None]) -> Times:
    """The whole prefix again for every token; only the last logits are computed."""
    times = []
    for length in range(1, tokens.shape[1] + 1):

        def step(length: int = length) -> None:
            x, _ = model.features(tokens[:, :length])
            model.head(x[:, -1])

        times.append(seconds(step))
        tick()
    return times


def at(times: Times, position: int) -> float:
    """Typical seconds for a token near a position: the median of a window that ends or is centred there."""
    start = max(0, min(position - WINDOW // 2, len(times) - WINDOW))
    return statistics.median(times[start : start + WINDOW])


@torch.no_grad()
def measure(repeats: int, tick: Callable[[str], None]) -> tuple[list[Finding], dict[str, Times]]:
    """Findings, and the seconds of every token for each way, for the figure."""
    torch.manual_seed(0)
    tokens = torch.randint(0, SIZES["vocabulary"], (1, TOKENS))
    curves: dict[str, Times] = {}
    findings = []
    for name in ("transformer", "lstm", "linear"):
        model = build(name, **SIZES).eval()
        with_state(model, tokens[:, :EARLY])
        runs = []
        for _ in range(repeats):
            runs.append(with_state(model, tokens))
            tick(f"{name}, state carried")
        # The fastest of the repeats, token by token: what the work costs when nothing else disturbs.
        times = [min(column) for column in zip(*runs, strict=True)]
        curves[f"{name}, state carried"] = times
        early, late = at(times, EARLY), at(times, TOKENS)
        growing = name == "transformer"
        bound = 2.0 if growing else 1.1
        findings.append(
            Finding(
                what=f"{name}: ms per token at {TOKENS:,} over that at {EARLY}",
                peer="itself, early in the text",
                value=late / early,
                low=None,
                high=None,
                promise=f"at most {bound:g}" + ("" if growing else " (does not grow)"),
                kept=late / early <= bound,
                detail=f"{early * 1e3:.2f} ms at {EARLY}, {late * 1e3:.2f} ms at {TOKENS:,}",
            )
        )
        if name == "transformer":
            scratch = from_scratch(model, tokens, lambda: tick("transformer, prefix read again"))
            curves["transformer, prefix read again"] = scratch
            total, again = statistics.median(map(sum, runs)), sum(scratch)
            findings.append(
                Finding(
                    what=f"transformer: {TOKENS:,} tokens one by one with carried state",
                    peer="a full forward for every token",
                    value=again / total,
                    low=None,
                    high=None,
                    promise="at least 10 × faster",
                    kept=again / total >= 10,
                    detail=f"{total:.2f} s against {again:.1f} s; width 256, 4 layers, vocabulary 256, 1 row",
                )
            )
    return findings, curves
