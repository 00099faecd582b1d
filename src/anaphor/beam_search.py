"""Beam search: the most probable sequences that a model, or several together, continue a start with.

All rows are searched at once; a step is a function of (tokens, state), so that the same search serves language models,
translation models and ensembles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anaphor.config import MAX_BEAM, check_at_least, check_range
from anaphor.errors import ConfigError
from anaphor.evaluation import eval_mode, prefill
from anaphor.generate import check_finite, check_prompt
from anaphor.mixers.base import select_rows
from anaphor.models.language_model import LanguageModel, ModelState
from anaphor.precision import to_double, widest_dtype
from anaphor.typecheck import check_types

StepFunction = Callable[[Tensor, Any], tuple[Tensor, Any]]
"""A token for each row [N] and a state in; log-probabilities of the next token [N, V] and the state after it out."""


@dataclass(frozen=True, kw_only=True)
class Beam:
    """Options of beam search."""

    width: int = 1
    """Beam width: number of hypotheses that are kept; 1 is greedy decoding."""
    max_length: int | None = 100
    """Maximum number of tokens without the end token; None means that each row has its own maximum."""
    end: int | None = None
    """The end-of-sequence token; None means that there is none."""
    length_penalty: float = 0.0
    """Length penalty: hypotheses are ranked by log-probability / length ** length_penalty."""

    def __post_init__(self) -> None:
        check_types(self)
        check_range(1, MAX_BEAM, beam=self.width)
        check_at_least(1, max_length=self.max_length)
        if not 0 <= self.length_penalty <= 10:  # beyond, a power of the length overflows
            raise ConfigError(f"length_penalty={self.length_penalty}: it must be from 0 to 10")

    def score(self, log_probability: float, tokens: int) -> float:
        return float(log_probability / max(tokens, 1) ** self.length_penalty)


@dataclass(frozen=True)
class Hypothesis:
    """A sequence that beam search found."""

    tokens: list[int]
    """Without the end token."""
    log_probability: float
    score: float
    """The log-probability after the length penalty."""
    finished: bool
    """Whether it ended with the end token; else it was cut at its maximum length."""


@torch.inference_mode()
def search_rows(
    step: StepFunction, first: Tensor, state: Any, beam: Beam, max_lengths: Sequence[int] | None = None
) -> list[list[Hypothesis]]:
    """Beam search in all rows at once. No row depends on the others. The greedy hypothesis is always among those
    compared, so that a wider beam never gives a worse one than greedy decoding.

    Args:
        step: One step of a model, or of several together.
        first: The first token of each row, [B].
        state: The state of each row before it.
        beam: Width, length penalty and maximum length.
        max_lengths: A maximum length for each row, where the beam has none.

    Returns:
        The hypotheses of each row, best first, at most `beam.width`.
    """
    if beam.max_length is not None:
        max_lengths = [beam.max_length] * len(first)
    if max_lengths is None:
        raise ConfigError("beam search needs a maximum length: give the beam a max_length, or max_lengths for each row")
    if not len(first):
        return []
    hypotheses = _search(step, first, state, beam, max_lengths)
    if beam.width == 1:
        return hypotheses
    greedy = _search(step, first, state, replace(beam, width=1), max_lengths)
    return [_best([*more, *one], beam.width) for more, one in zip(hypotheses, greedy, strict=True)]


def _search(step: StepFunction, first: Tensor, state: Any, beam: Beam, limits: Sequence[int]) -> list[list[Hypothesis]]:
    rows, width = len(first), beam.width
    finished: list[list[Hypothesis]] = [[] for _ in range(rows)]
    offset = torch.arange(rows, device=first.device)[:, None] * width  # of the hypotheses of each row
    state = select_rows(state, torch.arange(rows, device=first.device).repeat_interleave(width))
    # Each row starts with one hypothesis; the others are impossible until it has branched.
    scores = first.new_full((rows, width), -torch.inf, dtype=widest_dtype(first.device))
    scores[:, 0] = 0
    sequences = first.new_zeros(rows, width, 0)
    tokens = first.repeat_interleave(width)
    lengths = torch.tensor(limits, device=first.device)[:, None]
    for length in range(max(limits) + 1):
        full = lengths == length
        if beam.end is None and length in limits:  # these rows are finished without another step
            none, unlikely = torch.full_like(scores, -torch.inf), torch.zeros_like(scores, dtype=torch.bool)
            _cut(finished, sequences, scores.masked_fill(~full, -torch.inf), none, unlikely, beam)
            scores = scores.masked_fill(full, -torch.inf)
            if bool(torch.isneginf(scores).all()):
                break
        log_probs, state = step(tokens, state)
        vocabulary = log_probs.shape[-1]
        log_probs = scores[..., None] + to_double(log_probs).view(rows, width, vocabulary)
        if beam.end is not None and length in limits:  # in these rows only the end token may follow
            ended, maxima = log_probs[..., beam.end], log_probs.amax(-1)
            _cut(finished, sequences, scores.masked_fill(~full, -torch.inf), ended, ended >= maxima, beam)
            scores = scores.masked_fill(full, -torch.inf)
            log_probs = log_probs.masked_fill(full[..., None], -torch.inf)
            if _is_done(scores, maxima):
                break
        # Each hypothesis has one end, so that among twice as many there are enough that continue.
        best, indices = log_probs.flatten(1).topk(min(2 * width, width * vocabulary))  # [B, 2 W]
        parents, chosen = indices // vocabulary, indices % vocabulary
        ends = torch.zeros_like(chosen, dtype=torch.bool) if beam.end is None else chosen == beam.end
        _finish(finished, sequences, parents, best, ends, beam)
        scores, kept = best.masked_fill(ends, -torch.inf).topk(min(width, best.shape[1]))
        if missing := width - scores.shape[1]:  # a vocabulary smaller than the beam
            scores = torch.nn.functional.pad(scores, (0, missing), value=-torch.inf)
            kept = torch.nn.functional.pad(kept, (0, missing))
        parents, chosen = parents.gather(1, kept), chosen.gather(1, kept)
        done = torch.tensor([len(one) >= width for one in finished], dtype=torch.bool, device=first.device)
        scores = scores.masked_fill(done[:, None], -torch.inf)
        sequences = torch.cat(
            (sequences.gather(1, parents[..., None].expand(-1, -1, length)), chosen[..., None]), dim=2
        )
        if _is_done(scores, best):
            break
        tokens, state = chosen.flatten(), select_rows(state, (offset + parents).flatten())
    return [_best(one, width) for one in finished]


def _is_done(scores: Tensor, log_probs: Tensor) -> bool:
    """Whether no hypothesis is left. Log-probabilities that are NaN are refused; the host reads both at once."""
    is_done, is_nan = torch.stack((torch.isneginf(scores).all(), log_probs.isnan().any())).tolist()
    check_finite([math.nan] if is_nan else [])
    return bool(is_done)


def _finish(
    finished: list[list[Hypothesis]], sequences: Tensor, parents: Tensor, best: Tensor, ends: Tensor, beam: Beam
) -> None:
    """Keep the hypotheses that ended among the best of their row. The host reads all of them at once: on a GPU it would
    wait for each."""
    rows, ranks = (ends[:, : beam.width] & ~torch.isneginf(best[:, : beam.width])).nonzero(as_tuple=True)
    if not len(rows):
        return
    found = (rows, sequences[rows, parents[rows, ranks]], best[rows, ranks])
    for row, tokens, score in zip(*(tensor.tolist() for tensor in found), strict=True):
        finished[row].append(Hypothesis(tokens, score, beam.score(score, len(tokens) + 1), finished=True))


def _cut(
    finished: list[list[Hypothesis]], sequences: Tensor, scores: Tensor, ended: Tensor, likely: Tensor, beam: Beam
) -> None:
    """Keep hypotheses of maximum length, all of them: which are best is known only with their end. Where there is an
    end token it is added, with its probability; the hypothesis counts as finished if it was the most likely token."""
    rows, ranks = (~torch.isneginf(scores)).nonzero(as_tuple=True)
    found = (rows, *(tensor[rows, ranks] for tensor in (sequences, scores, ended, likely)))
    for row, tokens, score, with_end, is_likely in zip(*(tensor.tolist() for tensor in found), strict=True):
        has_end = with_end != -math.inf
        total = with_end if has_end else score
        length = len(tokens) + has_end
        finished[row].append(Hypothesis(tokens, total, beam.score(total, length), has_end and is_likely))


def _best(hypotheses: Sequence[Hypothesis], count: int) -> list[Hypothesis]:
    """Each sequence once, best first."""
    distinct = {tuple(one.tokens): one for one in hypotheses}
    return sorted(distinct.values(), key=lambda one: -one.score)[:count]


def make_step(model: Any) -> StepFunction:
    """One step of a model: anything that has `compute_hidden_states` and `predict_next` as a language model has."""

    def step(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        x, state = model.compute_hidden_states(tokens[:, None], state)
        return torch.log_softmax(to_double(model.predict_next(x[:, -1], state)), -1), state

    return step


def ensemble(steps: Sequence[StepFunction]) -> StepFunction:
    """Several models as one: the mean of their probabilities. Its state is a tuple with the state of each."""

    def single(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        log_probs, after = steps[0](tokens, state[0])  # the mean of one, without a pass over the vocabulary
        return log_probs, (after,)

    def step(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        outputs = [one(tokens, own) for one, own in zip(steps, state, strict=True)]
        log_probs = torch.stack([each for each, _ in outputs]).logsumexp(0) - math.log(len(steps))
        return log_probs, tuple(after for _, after in outputs)

    return single if len(steps) == 1 else step


@torch.inference_mode()
def beam_search(model: LanguageModel, prompt: Sequence[int], tokens: int, width: int) -> list[Hypothesis]:
    """The `width` most probable continuations of a prompt that beam search finds, best first.

    Args:
        model: A language model.
        prompt: Ids to begin with, the start token first.
        tokens: Maximum number of new tokens.
        width: Number of hypotheses that are kept at each step.
    """
    beam = Beam(width=width, max_length=tokens)
    check_prompt(model, prompt, tokens)
    tokens_in = torch.tensor([list(prompt)], device=model.device)
    state: ModelState | None = model.initial_state(1)
    with eval_mode(model):
        if len(prompt) > 1:
            _, state = prefill(model, tokens_in[:, :-1], state)
        (hypotheses,) = search_rows(make_step(model), tokens_in[:, -1], state, beam)
    return hypotheses
