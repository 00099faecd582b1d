"""Write with a model: greedy, sampling and beam, one loop over (logits, state).

The prompt is read once; after that every new token costs one step, whatever the model, for the state holds the past.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anaphor.config import check_types
from anaphor.errors import ConfigError
from anaphor.mixers import select_rows
from anaphor.models import LanguageModel


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How the next token is chosen from the logits."""

    temperature: float = 1.0
    """Above one flattens the odds, below one sharpens them; 0 always takes the most likely token."""
    top_k: int | None = None
    """Choose among so many most likely tokens only."""
    top_p: float | None = None
    """Choose among the most likely tokens that together have this probability."""

    def __post_init__(self) -> None:
        check_types(self)
        if self.temperature < 0:
            raise ConfigError(f"temperature={self.temperature}: it must be 0 or more")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k={self.top_k}: there must be at least 1 token to choose from")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p={self.top_p} is not a probability above 0")

    def __call__(self, logits: Tensor, generator: torch.Generator) -> Tensor:
        """[B, V] -> [B]"""
        if self.temperature == 0:
            return logits.argmax(-1)
        probabilities = torch.softmax(self.kept(logits.double()), -1).cpu()
        return torch.multinomial(probabilities, 1, generator=generator).squeeze(-1).to(logits.device)

    def kept(self, logits: Tensor) -> Tensor:
        """Logits divided by the temperature, -inf where a token is out of the question."""
        logits = logits / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k, dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        if self.top_p is not None:
            ordered, places = logits.sort(dim=-1, descending=True)
            before = torch.softmax(ordered, -1).cumsum(-1) - torch.softmax(ordered, -1)
            out = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, places, before >= self.top_p)
            logits = logits.masked_fill(out, -torch.inf)  # the first one is always kept: nothing stands before it
        return logits


@torch.inference_mode()
def generate(
    model: LanguageModel, prompt: Sequence[int], tokens: int, choice: Choice, *, seed: int = 0
) -> Iterator[int]:
    """New tokens one by one, as they are chosen. The prompt itself is not repeated."""
    _check_prompt(model, prompt)
    was_training = model.training
    model.eval()
    device = model.embed.weight.device
    generator = torch.Generator().manual_seed(seed)
    given = torch.tensor([list(prompt)], device=device)
    state = None
    try:
        for _ in range(tokens):
            with torch.inference_mode():
                x, state = model.features(given, state)
                token = choice(model.head(x[:, -1]), generator)
            given = token[:, None]
            yield int(token)
    finally:
        model.train(was_training)


def _check_prompt(model: LanguageModel, prompt: Sequence[int]) -> None:
    if not model.causal:
        raise ConfigError("a model that sees later tokens cannot write: there are none yet")
    if not len(prompt):
        raise ConfigError("a prompt needs at least one token: begin with the tokenizer's boundary")


@dataclass(frozen=True)
class Hypothesis:
    """One of the continuations that a beam search keeps."""

    tokens: list[int]
    log_probability: float


@torch.inference_mode()
def beam_search(model: LanguageModel, prompt: Sequence[int], tokens: int, width: int) -> list[Hypothesis]:
    """The `width` most probable continuations that it finds, best first."""
    if width < 1:
        raise ConfigError(f"beam={width}: there must be at least 1")
    _check_prompt(model, prompt)
    was_training = model.training
    model.eval()
    device = model.embed.weight.device
    x, state = model.features(torch.tensor([list(prompt)], device=device))
    scores, written = (
        torch.zeros(1, device=device, dtype=torch.float64),
        torch.zeros(1, 0, dtype=torch.long, device=device),
    )
    for _ in range(tokens):
        odds = scores[:, None] + torch.log_softmax(model.head(x[:, -1]).double(), -1)  # [beams, V]
        scores, places = odds.flatten().topk(min(width, odds.numel()))
        rows, chosen = places // odds.shape[-1], places % odds.shape[-1]
        written = torch.cat((written[rows], chosen[:, None]), dim=1)
        x, state = model.features(chosen[:, None], select_rows(state, rows))
    model.train(was_training)
    return [Hypothesis(row.tolist(), float(score)) for row, score in zip(written, scores, strict=True)]
