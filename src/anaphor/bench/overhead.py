"""Parts against what people use instead: stacks against modules of `torch.nn`, taps and recording in a forward pass
against none, BLEU against sacreBLEU."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from anaphor.bench.timing import Finding, estimate_ratio, mean_seconds, time_alternately
from anaphor.inspect import recorded
from anaphor.metrics.bleu import corpus_bleu
from anaphor.mixers import AttentionSpec, LSTMSpec, Span
from anaphor.models import Backbone, BlockSpec, build
from anaphor.taps import Tap

MIN_RATIO = 0.95
# Of the recording benchmark.
LAYERS, WIDTH, ROWS, TOKENS = 6, 256, 8, 128
MAX_RECORDING, MAX_UNUSED_TAPS = 1.5, 1.05


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


def measure(pairs: int, tick: Callable[[str], None]) -> list[Finding]:
    """Training of our stacks against those of `torch.nn`: one finding for each stack and size."""
    torch.manual_seed(0)
    findings = []
    comparisons = [
        *(("LSTM stack", "nn.LSTM", lstm_pair, setting) for setting in LSTM_SETTINGS),
        *(("attention stack", "nn.TransformerEncoder", attention_pair, setting) for setting in ATTENTION_SETTINGS),
    ]
    for what, name, build_pair, setting in comparisons:
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
            ratio.finding(f"{what}: forward and backward", name, promise=promise, kept=kept, detail=str(setting))
        )
    return findings


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


def measure_recording(pairs: int, tick: Callable[[str], None]) -> list[Finding]:
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
            ratio.finding(f"{what}: time of a forward pass", peer, promise=promise, kept=kept, detail=detail)
        )
    return findings


# Of the benchmark of BLEU.
SENTENCES = 30_000
WORDS = 10_000
MIN_LENGTH, MAX_LENGTH = 4, 24


def draw_lines(sentences: int) -> tuple[list[str], list[str]]:
    """Hypotheses and references: words as frequent as in a language, every fourth one mistranslated."""
    generator = np.random.default_rng(0)
    share = 1 / np.arange(1, WORDS + 1)
    lengths = generator.integers(MIN_LENGTH, MAX_LENGTH + 1, sentences)
    right, wrong = generator.choice(WORDS, (2, lengths.sum()), p=share / share.sum())
    translated = np.where(generator.random(len(right)) < 0.25, wrong, right)
    ends = np.cumsum(lengths)[:-1]
    hypotheses, references = (
        [" ".join(f"w{word}" for word in line) for line in np.split(side, ends)] for side in (translated, right)
    )
    return hypotheses, references


def run_ours(hypotheses: list[str], references: list[str]) -> float:
    return corpus_bleu(hypotheses, [references]).bleu


def run_sacrebleu(hypotheses: list[str], references: list[str]) -> float:
    from sacrebleu import BLEU

    # `force` turns off its warning about tokenized text.
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    return float(metric.corpus_score(hypotheses, [references]).score)


def measure_bleu(pairs: int, tick: Callable[[str], None]) -> list[Finding]:
    """Corpus BLEU against sacreBLEU's, on the same lines and with the same result."""
    lines = draw_lines(SENTENCES)
    times = time_alternately(partial(run_ours, *lines), partial(run_sacrebleu, *lines), pairs, partial(tick, "BLEU"))
    ratio = estimate_ratio(times)
    ours, theirs = mean_seconds(times)
    return [
        ratio.finding(
            f"BLEU of {SENTENCES:,} sentence pairs",
            "sacreBLEU, tokenize=none, no smoothing",
            promise="at least as fast",
            kept=ratio.value >= 1,
            detail=f"{ours:.2f} s against {theirs:.2f} s; {MIN_LENGTH} to {MAX_LENGTH} tokens each, one reference",
        )
    ]
