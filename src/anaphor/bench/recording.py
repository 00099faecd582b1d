"""What looking costs: a plain forward pass against one that records a layer, and against one without any taps."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial

import torch
from torch import nn

from anaphor.bench.finding import Finding
from anaphor.bench.timing import Ratio, in_turns, ratio
from anaphor.inspect import recorded
from anaphor.models import build
from anaphor.taps import Tap

LAYERS, WIDTH, ROWS, TOKENS = 6, 256, 8, 128
MOST_FOR_ONE, MOST_FOR_NONE = 1.5, 1.05


class Blind(nn.Module):
    """Stands where a tap stood. Nobody can watch it, so nobody has to be asked for."""

    watched = False


def without_taps(model: nn.Module) -> nn.Module:
    """A copy of the model in which nobody can look."""
    bare = deepcopy(model)
    for part in list(bare.modules()):
        for name, child in part.named_children():
            if isinstance(child, Tap):
                setattr(part, name, Blind())
    return bare


def measure(pairs: int, tick: Callable[[str], None]) -> list[Finding]:
    torch.manual_seed(0)
    model = build("transformer", vocabulary=1000, width=WIDTH, layers=LAYERS).eval()
    bare = without_taps(model)
    tokens = torch.randint(1000, (ROWS, TOKENS))

    @torch.no_grad()
    def plain() -> None:
        model(tokens)

    @torch.no_grad()
    def blind() -> None:
        bare(tokens)

    @torch.no_grad()
    def watched() -> None:
        with recorded(model, f"layers.{LAYERS // 2}.mixer.weights"):
            model(tokens)

    one = ratio(in_turns(plain, watched, pairs, partial(tick, "recording one layer")))
    none = ratio(in_turns(blind, plain, pairs, partial(tick, "recording nothing")))
    what = "time of a forward pass"
    return [
        _finding(f"recording one layer's attention: {what}", "recording nothing", one, MOST_FOR_ONE),
        _finding(f"taps that nobody watches: {what}", "the same model without taps", none, MOST_FOR_NONE),
    ]


def _finding(what: str, peer: str, found: Ratio, most: float) -> Finding:
    return Finding(
        what=what,
        peer=peer,
        value=found.value,
        low=found.low,
        high=found.high,
        promise=f"at most {most} ×",
        kept=found.value <= most,
        detail=f"{LAYERS} layers, width {WIDTH}, {ROWS} rows × {TOKENS} tokens; {found.pairs} pairs in turns",
    )
