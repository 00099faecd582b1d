"""Generate with a model: greedy decoding and sampling, one loop over (logits, state). `beam_search.py` has the search.

The prompt is processed once; after that every new token costs one step, whatever the model, for the state holds the
past.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anaphor.config import check_at_least
from anaphor.errors import ConfigError, Diverged, count_noun
from anaphor.evaluation import choose_threads, eval_modules, full_precision, prefill_padded
from anaphor.mixers.base import select_rows
from anaphor.models.decoding import WARM_UP, CUDAGraphDecoding, Decoding, can_capture
from anaphor.models.language_model import LanguageModel, ModelState
from anaphor.precision import to_double
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
        check_at_least(1, top_k=self.top_k)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p={self.top_p}: it must be above 0 and at most 1")

    def __call__(self, logits: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """[B, V] -> [B]. Each row has a generator of its own, so that its sample does not depend on the others."""
        if self.temperature == 0:
            maxima, chosen = logits.max(-1)
            check_finite(maxima.tolist())
            return chosen
        probabilities = torch.softmax(self.filter_logits(to_double(logits)), -1).cpu()
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
    """New tokens one by one, as they are sampled, without the prompt.

    Args:
        model: A language model. It is in evaluation mode while it computes.
        prompt: Ids to begin with, the start token first.
        tokens: Number of new tokens.
        sampler: How the next token is chosen: temperature, top-k, top-p.
        seed: Seed of the samples.
        cuda_graph: Replay each step as a CUDA graph, on a GPU.
    """
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
    """The next token of each prompt, step by step.

    Args:
        model: A language model.
        prompts: Token ids, of any lengths.
        tokens: How many tokens are generated after each prompt.
        sampler: How they are chosen.
        seed: Row i is sampled with the seed `seed + i`: up to rounding it is what `generate` returns for its prompt
            alone with that seed.
        cuda_graph: Replay the step as a CUDA graph where the model is on a GPU and allows it. The GPU then computes the
            next greedy token while the caller has this one, so that weights must not change between the two.
    """
    for prompt in prompts:
        check_prompt(model, prompt, tokens)
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
    ends: Collection[int] = (),
) -> Iterator[list[int]]:
    """All new tokens of each prompt, in the order of the prompts.

    Args:
        model: A language model.
        prompts: Token ids, of any lengths.
        tokens: How many tokens are generated after each prompt.
        sampler: How they are chosen.
        seed: Prompt i is sampled with the seed `seed + i`.
        batch_size: How many prompts are continued at once.
        cuda_graph: As in `generate_rows`.
        ends: Tokens that end a text. It has those before the first of them.
    """
    for prompt in prompts:  # before the first batch, not between two
        check_prompt(model, prompt, tokens)
    for start in range(0, len(prompts), batch_size):
        rows = prompts[start : start + batch_size]
        steps = generate_rows(model, rows, tokens, sampler, seed=seed + start, cuda_graph=cuda_graph)
        yield from _collect_texts(steps, len(rows), ends)


def _collect_texts(steps: Iterator[list[int]], rows: int, ends: Collection[int]) -> list[list[int]]:
    """The texts of all rows, until each of them has ended."""
    texts: list[list[int]] = [[] for _ in range(rows)]
    running = set(range(rows))
    for step in steps:
        for row in tuple(running):
            if step[row] in ends:
                running.discard(row)
            else:
                texts[row].append(step[row])
        if not running:
            break
    return texts


def _prefill_distinct(model: LanguageModel, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, ModelState]:
    """Hidden states of the last token of each prompt and the state after it. A repeated prompt is processed once."""
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


def check_prompt(model: LanguageModel, prompt: Sequence[int], tokens: int) -> None:
    """Raise where a model cannot generate so many tokens after a prompt."""
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
