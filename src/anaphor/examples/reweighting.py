"""Why re-weighting heads by a norm explodes on single samples: four readings of it, trained and scored alike.

    python -m anaphor.examples.reweighting

Each model is a gpt-nano on text from a grammar, trained on batches of 16 rows of 64 tokens. It is scored in such
batches, on single rows of the same length and on single samples of 8 tokens; then once more with every factor frozen at
its mean over training batches. Later tokens are seen, so the numbers are losses in nats and no perplexities.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.data.corpus import build_tokenizer, encode_split
from anaphor.data.datasets import open_dataset
from anaphor.mixers import Attention, Span
from anaphor.mixers.attention.heads import MERGES, Merge
from anaphor.models import LanguageModel, build

ROWS, TOKENS, STEPS, RATE, SHORT = 16, 64, 800, 1e-3, 8


class BatchNorm(Merge):
    """Each head times the norm of its outputs for all rows and tokens of the batch."""

    causal = False

    def rearrange(self, heads: Tensor, span: Span) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(heads, dim=(0, 2, 3), keepdim=True)
        return heads * norm


class ShareOfAll(Merge):
    """Each head of each row times its part of the sum of all norms in the batch."""

    causal = False

    def rearrange(self, heads: Tensor, span: Span) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(heads, dim=(2, 3), keepdim=True)  # [B, H, 1, 1]
        return heads * norm / norm.sum()


class Frozen(Merge):
    """Each head times a constant."""

    def __init__(self, factors: Tensor) -> None:
        super().__init__()
        self.factors = nn.Buffer(factors[:, None, None])

    def rearrange(self, heads: Tensor, span: Span) -> Tensor:
        return heads * self.factors


MERGES |= {"batch-norm": BatchNorm, "share-of-all": ShareOfAll}


def windows(text: Tensor, length: int, count: int, generator: torch.Generator) -> Tensor:
    starts = torch.randint(0, len(text) - length - 1, (count,), generator=generator)
    return text[starts[:, None] + torch.arange(length + 1)]


def loss_of(model: LanguageModel, rows: Tensor) -> Tensor:
    logits, _ = model(rows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def train_model(merge: str, text: Tensor, vocabulary: int) -> LanguageModel:
    torch.manual_seed(0)
    model = build("gpt-nano", vocabulary=vocabulary, max_positions=TOKENS, merge=merge, causal=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        warm, cool = min(1, (step + 1) / (0.05 * STEPS)), 0.5 * (1 + math.cos(math.pi * step / STEPS))
        optimizer.param_groups[0]["lr"] = RATE * warm * cool
        optimizer.zero_grad()
        loss_of(model, windows(text, TOKENS, ROWS, generator)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


@torch.no_grad()
def scores(model: LanguageModel, text: Tensor) -> list[float]:
    """Nats a token: in batches as in training, one row at a time, one short sample at a time."""
    generator = torch.Generator().manual_seed(7)
    batches = [windows(text, TOKENS, ROWS, generator) for _ in range(4)]
    singles = [row[None] for row in torch.cat(batches)[:32]]
    shorts = windows(text, SHORT, 64, generator).split(1)
    return [sum(float(loss_of(model, one)) for one in some) / len(some) for some in (batches, singles, shorts)]


@torch.no_grad()
def factors(model: LanguageModel, batches: list[Tensor]) -> list[Tensor]:
    """By how much each head of each layer is multiplied, on average."""
    found: list[list[Tensor]] = [[] for _ in model.layers]

    def watch(place: int, merge: nn.Module, given: tuple[Tensor, Span]) -> None:
        assert isinstance(merge, Merge)
        before, after = given[0], merge.rearrange(*given)
        sizes = [torch.linalg.vector_norm(one, dim=(0, 2, 3)) for one in (after, before)]
        found[place].append(sizes[0] / sizes[1])

    merges = [mixer.merge for mixer in model.layers.mixers if isinstance(mixer, Attention)]
    hooks = [
        merge.register_forward_pre_hook(lambda merge, given, place=place: watch(place, merge, given))
        for place, merge in enumerate(merges)
    ]
    for batch in batches:
        model(batch[:, :-1])
    for hook in hooks:
        hook.remove()
    return [torch.stack(layer).mean(0) for layer in found]


def main() -> None:
    source = open_dataset("grammar")
    tokenizer = build_tokenizer(source, "word")
    text, held_out = (encode_split(source, split, tokenizer).tensor() for split in ("train", "valid"))
    names = ("in batches", "single rows", "single short samples", "the same, frozen", "factor in batches", "short")
    print(f"| re-weighting | {' | '.join(names)} |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for merge in ("concatenate", "reweight", "reweight-matrix", "batch-norm", "share-of-all"):
        model = train_model(merge, text, len(tokenizer))
        found = scores(model, held_out)
        generator = torch.Generator().manual_seed(3)
        usual = factors(model, [windows(text, TOKENS, ROWS, generator) for _ in range(4)])
        short = factors(model, [windows(held_out, SHORT, 1, generator) for _ in range(16)])
        for mixer, constant in zip(model.layers.mixers, usual, strict=True):
            mixer.merge = Frozen(constant)
        frozen = scores(model, held_out)[-1]
        means = [float(torch.cat(one).mean()) for one in (usual, short)]
        cells = [*(f"{one:.2f}" for one in (*found, frozen)), *(f"{one:.3g}" for one in means)]
        print(f"| {merge} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
