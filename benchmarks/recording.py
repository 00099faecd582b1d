"""What looking inside costs: taps and recording in a forward pass against none."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial

import torch
from torch import nn

from anaphor.inspect import recorded
from anaphor.models import build
from anaphor.taps import Tap
from benchmarks.timing import Finding, estimate_ratio, time_alternately

LAYERS, WIDTH, ROWS, TOKENS = 6, 256, 8, 128
MAX_RECORDING, MAX_UNUSED_TAPS = 1.5, 1.05


class NoTap(nn.Module):
    """Replaces a tap; it cannot be watched."""

    is_recorded = False


def remove_taps(model: nn.Module) -> nn.Module:
    """A copy of the model without taps."""
    bare = deepcopy(model)
    for part in list(bare.modules()):
        for name, child in part.named_children():
            if isinstance(child, Tap):
                setattr(part, name, NoTap())
    return bare


def count_ticks(pairs: int, device: torch.device) -> int:
    return 2 * pairs


def measure(pairs: int, device: torch.device, tick: Callable[[str], None]) -> list[Finding]:
    """A forward pass that records a layer against a plain one, and a plain one against one without taps."""
    torch.manual_seed(0)
    model = build("transformer", vocabulary=1000, width=WIDTH, layers=LAYERS).eval()
    bare = remove_taps(model)
    tokens = torch.randint(1000, (ROWS, TOKENS))

    @torch.no_grad()
    def run_plain() -> None:
        model(tokens)

    @torch.no_grad()
    def run_bare() -> None:
        bare(tokens)

    @torch.no_grad()
    def run_recorded() -> None:
        with recorded(model, f"layers.{LAYERS // 2}.mixer.weights"):
            model(tokens)

    comparisons = (
        ("recording one layer's attention", "no recording", run_plain, run_recorded, MAX_RECORDING),
        ("unwatched taps", "the same model without taps", run_bare, run_plain, MAX_UNUSED_TAPS),
    )
    findings = []
    for what, peer, first, second, limit in comparisons:
        ratio = estimate_ratio(time_alternately(first, second, pairs, partial(tick, what)))
        promise, kept = f"at most {limit} ×", ratio.value <= limit
        detail = f"{LAYERS} layers, width {WIDTH}, {ROWS} rows × {TOKENS} tokens"
        findings.append(
            ratio.to_finding(f"{what}: time of a forward pass", peer, promise=promise, kept=kept, detail=detail)
        )
    return findings
