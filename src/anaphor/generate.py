"""Generate with a model: greedy decoding, sampling and beam search, one loop over (logits, state).

The prompt is processed once; after that every new token costs one step, whatever the model, for the state holds the
past.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anaphor.errors import ConfigError, Diverged, count_noun
from anaphor.evaluation import choose_threads, eval_mode, eval_modules, full_precision, prefill, prefill_padded
from anaphor.mixers.base import select_rows
from anaphor.models.language_model import WARM_UP, CUDAGraphDecoding, Decoding, LanguageModel, ModelState, can_capture
from anaphor.typecheck import check_types


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """How the next token is sampled from the logits."""

    temperature: float = 1.0
    """Sampling temperature; 0 is greedy decoding."""
    top_k: int | None = None
    """Sample from the k most likely tokens only."""
    top_p: float | None = None
    """Nucleus sampling: sample from the most likely tokens with this total probability."""

    def __post_init__(self) -> None:
        check_types(self)
        if not 0 <= self.temperature < math.inf:
            raise ConfigError(f"temperature={self.temperature}: it must be 0 or more, and finite")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k={self.top_k}: it must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p={self.top_p}: it must be above 0 and at most 1")

    def __call__(self, logits: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """[B, V] -> [B]. Each row has a generator of its own, so that its sample does not depend on the others."""
        if self.temperature == 0:
            maxima, chosen = logits.max(-1)
            check_finite(maxima.tolist())
            return chosen
        probabilities = torch.softmax(self.filter_logits(logits.double()), -1).cpu()
        check_finite([float(probabilities.sum())])
        # As torch.multinomial draws: the first of several alarms, each with the rate of a token's probability.
        waits = torch.empty_like(probabilities)
        for row, generator in zip(waits, generators, strict=True):
            row.exponential_(generator=generator)
        return (probabilities / waits).argmax(-1).to(logits.device)

    def filter_logits(self, logits: Tensor) -> Tensor:
        """Logits divided by the temperature, -inf for tokens that top-k or top-p exclude."""
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            best = logits.topk(self.top_k, dim=-1).indices  # by index: several may be equal to the last of them
            excluded = torch.ones_like(logits, dtype=torch.bool).scatter(-1, best, False)
            logits = logits.masked_fill(excluded, -torch.inf)
        # Minus the maximum, or a temperature near zero would make several of them infinite.
        logits = (logits - logits.max(-1, keepdim=True).values) / self.temperature
        if self.top_p is not None:
            ordered, indices = logits.sort(dim=-1, descending=True)
            before = torch.softmax(ordered, -1).cumsum(-1) - torch.softmax(ordered, -1)
            excluded = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, indices, before >= self.top_p)
            logits = logits.masked_fill(excluded, -torch.inf)  # never the first one, before which there is nothing
        return logits


def check_finite(maxima: Sequence[float]) -> None:
    """Refuse logits that are not finite, by the largest of each row: it is NaN if any of the row is."""
    if not all(map(math.isfinite, maxima)):
        raise Diverged("the logits of the model are not finite: its weights are too large, or damaged")


def generate(
    model: LanguageModel,
    prompt: Sequence[int],
    tokens: int,
    sampler: Sampler,
    *,
    seed: int = 0,
    cuda_graph: bool = False,
) -> Iterator[int]:
    """New tokens one by one, as they are sampled, without the prompt."""
    for (token,) in generate_rows(model, [prompt], tokens, sampler, seed=seed, cuda_graph=cuda_graph):
        yield token


def generate_rows(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    sampler: Sampler,
    *,
    seed: int = 0,
    cuda_graph: bool = False,
) -> Iterator[list[int]]:
    """The next token of each prompt, step by step, for prompts of any length. Row i is sampled with the seed
    `seed + i`: it is what `generate` gives for its prompt alone with that seed, up to rounding. `cuda_graph` replays
    the step as a CUDA graph where the model is on a GPU and allows it. The GPU then computes the next greedy token
    while the caller has this one, so that weights must not change between the two."""
    for prompt in prompts:
        _check_prompt(model, prompt, tokens)
    generators = [torch.Generator().manual_seed((seed + row) % 2**64) for row in range(len(prompts))]
    modules = list(model.modules())  # once: to walk through a small model at each token takes a tenth of its time
    precision = nullcontext if model.device.type == "cpu" else full_precision
    threads = choose_threads(model, len(prompts))
    is_greedy = sampler.temperature == 0
    decoding: Decoding | None = None
    pending: deque[Callable[[], list[list[Any]]]] = deque()  # tokens on their way to the host
    try:
        for _ in range(tokens if prompts else 0):
            # For each token anew: between two of them the caller has the model as it was.
            with eval_modules(modules), precision(), torch.inference_mode():
                if decoding is None:
                    x, state = _prefill_distinct(model, prompts)
                    decoding = build_decoding(model, state, tokens - 1) if cuda_graph else Decoding(model, state)
                    newest = sampler(model.predict_next(x, state), generators)
                    pending.append(send_to_host(newest))
                    steps = tokens - 1
                while steps and len(pending) <= (decoding.lag if is_greedy else 0):
                    with threads():
                        outputs = decoding.greedy(newest) if is_greedy else (sampler(decoding(newest), generators),)
                    newest = outputs[0]
                    pending.append(send_to_host(*outputs))
                    steps -= 1
                new, *arrived = pending.popleft()()
                check_finite([value for values in arrived for value in values])
            yield new
    finally:
        for read in pending:  # a device must be done with a step before its memory is given back
            read()


def send_to_host(*tensors: Tensor) -> Callable[[], list[list[Any]]]:
    """Start a copy of tensors, which may change afterwards. The function that is returned waits for it."""
    if not tensors[0].is_cuda:
        values = [tensor.tolist() for tensor in tensors]
        return lambda: values
    copies = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
    for copy, tensor in zip(copies, tensors, strict=True):
        copy.copy_(tensor, non_blocking=True)
    event = torch.cuda.Event()
    event.record()

    def read() -> list[list[Any]]:
        event.synchronize()
        return [copy.tolist() for copy in copies]

    return read


def generate_texts(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    sampler: Sampler,
    *,
    seed: int = 0,
    batch_size: int = 32,
    cuda_graph: bool = False,
) -> Iterator[list[int]]:
    """All new tokens of each prompt, in order, `batch_size` prompts at once. Seeds as in `generate_rows`."""
    for prompt in prompts:  # before the first batch, not between two
        _check_prompt(model, prompt, tokens)
    for start in range(0, len(prompts), batch_size):
        rows = prompts[start : start + batch_size]
        steps = generate_rows(model, rows, tokens, sampler, seed=seed + start, cuda_graph=cuda_graph)
        yield from map(list, zip(*steps, strict=True))


def _prefill_distinct(model: LanguageModel, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, ModelState]:
    """Features of the last token of each prompt and the state after it. A repeated prompt is processed once."""
    places = {prompt: place for place, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
    x, state = prefill_padded(model, list(places))
    if len(places) == len(prompts):
        return x, state
    rows = torch.tensor([places[tuple(prompt)] for prompt in prompts], device=x.device)
    return x[rows], select_rows(state, rows)


def build_decoding(model: LanguageModel, state: ModelState, steps: int) -> Decoding:
    """Steps after a state, captured as a CUDA graph where that is possible and worth it."""
    if model.device.type == "cuda" and steps > 2 * WARM_UP and can_capture(model):
        return CUDAGraphDecoding(model, state, steps)
    return Decoding(model, state)


def _check_prompt(model: LanguageModel, prompt: Sequence[int], tokens: int) -> None:
    if not model.causal:
        raise ConfigError("a model that sees later tokens cannot generate: there are none yet")
    if not len(prompt):
        raise ConfigError("a prompt needs at least one token: start with the tokenizer's boundary")
    # The last new token is not an input.
    largest = None if model.max_positions is None else model.max_positions - len(prompt) + 1
    if largest is not None and tokens > largest:
        raise ConfigError(
            f"the model has {model.max_positions:,} positions: after a prompt of {count_noun(len(prompt), 'token')} it "
            f"can generate {max(largest, 0):,} more, not {tokens:,}"
        )


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
        if self.width < 1:
            raise ConfigError(f"beam={self.width}: it must be at least 1")
        if self.max_length is not None and self.max_length < 1:
            raise ConfigError(f"max_length={self.max_length}: it must be at least 1")
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
    """Beam search in all rows at once: hypotheses after each row's first token [B], best first, at most `beam.width`.

    No row depends on the others: where the beam has no maximum length, `max_lengths` has one for each. The greedy
    hypothesis is always among those compared, so that a wider beam never gives a worse one than greedy decoding.
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
    scores = first.new_full((rows, width), -torch.inf, dtype=torch.float64)
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
        log_probs = scores[..., None] + log_probs.double().view(rows, width, vocabulary)
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
        return torch.log_softmax(model.predict_next(x[:, -1], state).double(), -1), state

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
    """The `width` most probable continuations of a prompt that beam search finds, best first."""
    beam = Beam(width=width, max_length=tokens)
    _check_prompt(model, prompt, tokens)
    tokens_in = torch.tensor([list(prompt)], device=model.device)
    state: ModelState | None = model.initial_state(1)
    with eval_mode(model):
        if len(prompt) > 1:
            _, state = prefill(model, tokens_in[:, :-1], state)
        (hypotheses,) = search_rows(make_step(model), tokens_in[:, -1], state, beam)
    return hypotheses
