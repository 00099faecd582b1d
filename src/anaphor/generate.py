"""Write with a model: greedy, sampling and beam, one loop over (logits, state).

The prompt is read once; after that every new token costs one step, whatever the model, for the state holds the past.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anaphor.config import check_types
from anaphor.errors import ConfigError
from anaphor.evaluation import eval_mode, prefill
from anaphor.mixers import select_rows
from anaphor.models import LanguageModel, ModelState


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
        if not 0 <= self.temperature < math.inf:
            raise ConfigError(f"temperature={self.temperature}: it must be 0 or more, and finite")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k={self.top_k}: there must be at least 1 token to choose from")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p={self.top_p}: it must be above 0 and at most 1")

    def __call__(self, logits: Tensor, generator: torch.Generator) -> Tensor:
        """[B, V] -> [B]"""
        if self.temperature == 0:
            return logits.argmax(-1)
        probabilities = torch.softmax(self.kept(logits.double()), -1).cpu()
        return torch.multinomial(probabilities, 1, generator=generator).squeeze(-1).to(logits.device)

    def kept(self, logits: Tensor) -> Tensor:
        """Logits divided by the temperature, -inf where a token is out of the question."""
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            best = logits.topk(self.top_k, dim=-1).indices  # by place: several may be as good as the last of them
            out = torch.ones_like(logits, dtype=torch.bool).scatter(-1, best, False)
            logits = logits.masked_fill(out, -torch.inf)
        # Less the largest, or a temperature near zero would make infinities that cannot be told apart.
        logits = (logits - logits.max(-1, keepdim=True).values) / self.temperature
        if self.top_p is not None:
            ordered, places = logits.sort(dim=-1, descending=True)
            before = torch.softmax(ordered, -1).cumsum(-1) - torch.softmax(ordered, -1)
            out = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, places, before >= self.top_p)
            logits = logits.masked_fill(out, -torch.inf)  # the first one is always kept: nothing stands before it
        return logits


def generate(
    model: LanguageModel, prompt: Sequence[int], tokens: int, choice: Choice, *, seed: int = 0
) -> Iterator[int]:
    """New tokens one by one, as they are chosen. The prompt itself is not repeated."""
    _check_prompt(model, prompt, tokens)
    generator = torch.Generator().manual_seed(seed)
    given = torch.tensor([list(prompt)], device=model.device)
    state = None
    for _ in range(tokens):
        # For each token anew: between two of them the model is in the hands of whoever waits for the next.
        with eval_mode(model), torch.inference_mode():
            x, state = prefill(model, given, state)
            token = choice(model.head(x), generator)
            given = token[:, None]
        yield int(token)


def _check_prompt(model: LanguageModel, prompt: Sequence[int], tokens: int) -> None:
    if not model.causal:
        raise ConfigError("a model that sees later tokens cannot write: there are none yet")
    if not len(prompt):
        raise ConfigError("a prompt needs at least one token: begin with the tokenizer's boundary")
    most = None if model.limit is None else model.limit - len(prompt) + 1  # the last token is written and not read
    if most is not None and tokens > most:
        raise ConfigError(
            f"the model knows {model.limit:,} positions: after a prompt of {len(prompt):,} tokens it can write "
            f"{max(most, 0):,} more, not {tokens:,}"
        )


Step = Callable[[Tensor, Any], tuple[Tensor, Any]]
"""A token for each row [N] and a state in; log-probabilities of what follows [N, V] and the state after it out."""


@dataclass(frozen=True, kw_only=True)
class Beam:
    """How the most probable text is looked for."""

    width: int = 1
    """How many texts are kept while they grow; 1 is greedy."""
    longest: int | None = 100
    """How many tokens a text has at most, its end not counted; None means that each row has a bound of its own."""
    end: int | None = None
    """The token that ends a text; None means that none does."""
    length_penalty: float = 0.0
    """Texts are ranked by log-probability over length to this power: 0 favours short ones, 1 ranks by the mean."""

    def __post_init__(self) -> None:
        check_types(self)
        if self.width < 1:
            raise ConfigError(f"beam={self.width}: there must be at least 1")
        if self.longest is not None and self.longest < 1:
            raise ConfigError(f"longest={self.longest}: there must be room for at least 1 token")
        if not 0 <= self.length_penalty <= 10:  # beyond it a power of the length is no number any more
            raise ConfigError(f"length_penalty={self.length_penalty}: it must be from 0 to 10")

    def score(self, log_probability: float, tokens: int) -> float:
        return float(log_probability / max(tokens, 1) ** self.length_penalty)


@dataclass(frozen=True)
class Hypothesis:
    """One of the texts that a search found."""

    tokens: list[int]
    """Without the token that ends it."""
    log_probability: float
    score: float
    """By what it is ranked."""
    finished: bool
    """Whether it came to its end by itself; else it was cut where it was as long as it may be."""


@torch.inference_mode()
def search(
    step: Step, first: Tensor, state: Any, beam: Beam, longest: Sequence[int] | None = None
) -> list[list[Hypothesis]]:
    """For each row the texts found after its first token [B], best first, at most as many as the beam is wide.

    All rows are searched at once, and none depends on its neighbours: where the beam has no bound, `longest` has one
    for each. The greedy text is always among those compared, so that a wider beam never gives a worse one than greedy.
    """
    if beam.longest is not None:
        longest = [beam.longest] * len(first)
    if longest is None:
        raise ConfigError("how long may a text be? Neither the beam says it for all rows, nor `longest` for each")
    if not len(first):
        return []
    found = _search(step, first, state, beam, longest)
    if beam.width == 1:
        return found
    greedy = _search(step, first, state, replace(beam, width=1), longest)
    return [_ranked([*more, *one], beam.width) for more, one in zip(found, greedy, strict=True)]


def _search(step: Step, first: Tensor, state: Any, beam: Beam, limits: Sequence[int]) -> list[list[Hypothesis]]:
    rows, width = len(first), beam.width
    over: list[list[Hypothesis]] = [[] for _ in range(rows)]
    origin = torch.arange(rows, device=first.device)[:, None] * width  # where the texts of each row begin
    state = select_rows(state, torch.arange(rows, device=first.device).repeat_interleave(width))
    # One text of each row is there at the beginning; the others are impossible until it has branched.
    scores = first.new_full((rows, width), -torch.inf, dtype=torch.float64)
    scores[:, 0] = 0
    written = first.new_zeros(rows, width, 0)
    tokens = first.repeat_interleave(width)
    bounds = torch.tensor(limits, device=first.device)[:, None]
    for place in range(max(limits) + 1):
        full = bounds == place
        if beam.end is None and place in limits:  # these rows are over, and nobody asks what would follow
            never, unlikely = torch.full_like(scores, -torch.inf), torch.zeros_like(scores, dtype=torch.bool)
            _cut(over, written, scores.masked_fill(~full, -torch.inf), never, unlikely, beam)
            scores = scores.masked_fill(full, -torch.inf)
            if bool(torch.isneginf(scores).all()):
                break
        odds, state = step(tokens, state)
        vocabulary = odds.shape[-1]
        odds = scores[..., None] + odds.double().view(rows, width, vocabulary)
        if beam.end is not None and place in limits:  # in these rows only the end fits now
            ended = odds[..., beam.end]
            _cut(over, written, scores.masked_fill(~full, -torch.inf), ended, ended >= odds.amax(-1), beam)
            scores, odds = scores.masked_fill(full, -torch.inf), odds.masked_fill(full[..., None], -torch.inf)
            if bool(torch.isneginf(scores).all()):
                break
        # Each text has one end, so that among twice as many there are enough that go on.
        best, places = odds.flatten(1).topk(min(2 * width, width * vocabulary))  # [B, 2 W]
        parents, chosen = places // vocabulary, places % vocabulary
        ends = torch.zeros_like(chosen, dtype=torch.bool) if beam.end is None else chosen == beam.end
        _finish(over, written, parents, best, ends, beam)
        scores, kept = best.masked_fill(ends, -torch.inf).topk(min(width, best.shape[1]))
        if missing := width - scores.shape[1]:  # fewer words than places in the beam
            scores = torch.nn.functional.pad(scores, (0, missing), value=-torch.inf)
            kept = torch.nn.functional.pad(kept, (0, missing))
        parents, chosen = parents.gather(1, kept), chosen.gather(1, kept)
        done = torch.tensor([len(one) >= width for one in over], dtype=torch.bool, device=first.device)
        scores = scores.masked_fill(done[:, None], -torch.inf)
        written = torch.cat((written.gather(1, parents[..., None].expand(-1, -1, place)), chosen[..., None]), dim=2)
        if bool(torch.isneginf(scores).all()):
            break
        tokens, state = chosen.flatten(), select_rows(state, (origin + parents).flatten())
    return [_ranked(one, width) for one in over]


def _finish(
    over: list[list[Hypothesis]], written: Tensor, parents: Tensor, best: Tensor, ends: Tensor, beam: Beam
) -> None:
    """Set aside the texts that ended among the best of their row."""
    places = (ends[:, : beam.width] & ~torch.isneginf(best[:, : beam.width])).nonzero().tolist()
    for row, rank in places:
        if len(over[row]) < beam.width:
            text = written[row, int(parents[row, rank])].tolist()
            score = float(best[row, rank])
            over[row].append(Hypothesis(text, score, beam.score(score, len(text) + 1), finished=True))


def _cut(
    over: list[list[Hypothesis]], written: Tensor, scores: Tensor, ended: Tensor, likely: Tensor, beam: Beam
) -> None:
    """Texts that are as long as they may be. The end is added where there is one, and costs what it costs; whether it
    would have come anyway, being the likeliest, is told."""
    for row, rank in (~torch.isneginf(scores)).nonzero().tolist():
        if len(over[row]) >= beam.width:
            continue
        text, has_end = written[row, rank].tolist(), not bool(torch.isneginf(ended[row, rank]))
        score = float(ended[row, rank] if has_end else scores[row, rank])
        finished = has_end and bool(likely[row, rank])
        over[row].append(Hypothesis(text, score, beam.score(score, len(text) + has_end), finished))


def _ranked(found: Sequence[Hypothesis], count: int) -> list[Hypothesis]:
    """Each text once, best first."""
    distinct = {tuple(one.tokens): one for one in found}
    return sorted(distinct.values(), key=lambda one: -one.score)[:count]


def stepper(model: Any) -> Step:
    """One step of a model: anything that has `features` and `head` as a language model has."""

    def step(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        x, state = model.features(tokens[:, None], state)
        return torch.log_softmax(model.head(x[:, -1]).double(), -1), state

    return step


def together(steps: Sequence[Step]) -> Step:
    """Several models as one: the mean of their probabilities. Its state is a tuple with the state of each."""

    def alone(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        odds, after = steps[0](tokens, state[0])  # the mean of one, without a pass over all words
        return odds, (after,)

    def step(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        both = [one(tokens, own) for one, own in zip(steps, state, strict=True)]
        odds = torch.stack([odds for odds, _ in both]).logsumexp(0) - math.log(len(steps))
        return odds, tuple(after for _, after in both)

    return alone if len(steps) == 1 else step


@torch.inference_mode()
def beam_search(model: LanguageModel, prompt: Sequence[int], tokens: int, width: int) -> list[Hypothesis]:
    """The `width` most probable continuations of a prompt that it finds, best first."""
    beam = Beam(width=width, longest=tokens)
    _check_prompt(model, prompt, tokens)
    given = torch.tensor([list(prompt)], device=model.device)
    state: ModelState | None = model.initial_state(1)
    with eval_mode(model):
        if len(prompt) > 1:
            _, state = prefill(model, given[:, :-1], state)
        (found,) = search(stepper(model), given[:, -1], state, beam)
    return found
