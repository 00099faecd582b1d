"""Run a model in evaluation mode: the losses of batches, of sentences and of whole texts, long texts in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from anaphor.cuda_graphs import CUDAGraphs, allows_capture
from anaphor.data.batches import Batch
from anaphor.data.tokenizer import Tokenizer
from anaphor.errors import ConfigError, DataError
from anaphor.metrics.losses import LossTotal
from anaphor.mixers.base import use_threads
from anaphor.models.decoding import has_hooks
from anaphor.models.language_model import LanguageModel, ModelState
from anaphor.precision import to_double
from anaphor.progress_listener import report_progress

# Attention may hold a number for each head and each pair of tokens, which does not fit into memory when a text is
# long. Each call of the model has a fixed cost, too, so a chunk has a minimum size.
PAIRS_PER_CHUNK = 2**24
MIN_CHUNK = 64
MIN_CAPTURED = 256  # batches of a text: a capture takes as long as about a hundred plain calls
# A step of generation on a CPU with at most so many multiplications runs on one thread: its operations are so short
# that waking the other threads for each takes longer than the work they take over.
MAX_PRODUCTS_ON_ONE_THREAD = 2**24
TOKENS_AT_ONCE = 2048  # on a GPU; with a large vocabulary their logits take half a gigabyte
QUOTED = 40  # characters of a text that an error message repeats


@contextmanager
def eval_mode(*models: nn.Module) -> Iterator[None]:
    """Models in evaluation mode inside the block; afterwards each submodule has its own mode back. Gradients are left
    to the caller.

    cuDNN computes in full single precision inside, so that scores are the same everywhere.
    """
    with full_precision(), eval_modules([module for model in models for module in model.modules()]):
        yield


@contextmanager
def full_precision() -> Iterator[None]:
    """cuDNN computes in full single precision inside the block."""
    kernels: tuple[Any, ...] = (torch.backends.cudnn.rnn, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
    precisions = [kernel.fp32_precision for kernel in kernels]
    for kernel in kernels:
        kernel.fp32_precision = "ieee"
    try:
        yield
    finally:
        for kernel, precision in zip(kernels, precisions, strict=True):
            kernel.fp32_precision = precision


@contextmanager
def eval_modules(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Single modules in evaluation mode inside the block."""
    in_training = [module for module in modules if module.training]
    for module in in_training:
        module.training = False
    try:
        yield
    finally:
        for module in in_training:
            module.training = True


def choose_threads(model: LanguageModel, rows: int) -> Callable[[], AbstractContextManager[None]]:
    """What a step of generation of so many rows runs in: one thread, or as many as there are. That depends on sizes
    alone, because sums are rounded by how many threads share them."""
    weights = sum(weight.numel() for weight in model.layers.parameters()) + model.head.weight.numel()
    is_small = model.device.type == "cpu" and rows * weights <= MAX_PRODUCTS_ON_ONE_THREAD
    return partial(use_threads, 1) if is_small else nullcontext


def chunk_slices(rows: int, tokens: int) -> Iterator[slice]:
    """Where to split a batch of so many rows and tokens so that each chunk fits into memory. A causal model whose state
    is passed from chunk to chunk gives what it gives for the whole."""
    size = max(PAIRS_PER_CHUNK // max(rows * tokens, 1), MIN_CHUNK)
    for start in range(0, max(tokens, 1), size):
        yield slice(start, min(start + size, tokens))


def prefill(model: LanguageModel, tokens: Tensor, state: ModelState | None) -> tuple[Tensor, ModelState]:
    """Hidden states of the last token [B, D] and the state after it. [B, T], with at least one token."""
    for chunk in chunk_slices(*tokens.shape):
        x, state = model.compute_hidden_states(tokens[:, chunk], state)
    assert state is not None, "there is at least one chunk"
    return x[:, -1], state


def prefill_padded(model: LanguageModel, rows: Sequence[Sequence[int]]) -> tuple[Tensor, ModelState]:
    """The same for rows of any length, each with at least one token, from their first token on."""
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    tokens = tokens.to(model.device)
    if int(lengths.min()) == tokens.shape[1]:
        return prefill(model, tokens, None)
    last, state = None, None
    for chunk in chunk_slices(*tokens.shape):
        inside = (lengths - chunk.start).clamp(0, chunk.stop - chunk.start).to(model.device)
        x, state = model.compute_hidden_states(tokens[:, chunk], state, inside)
        newest = x[torch.arange(len(rows), device=x.device), (inside - 1).clamp(min=0)]
        last = newest if last is None else torch.where(inside[:, None] > 0, newest, last)
    assert last is not None, "there is at least one chunk"
    assert state is not None, "there is at least one chunk"
    return last, state


def losses_by_batch(
    model: LanguageModel, batches: Sequence[Batch], carry: bool, *, cuda_graph: bool = False
) -> Iterator[tuple[Batch, Tensor]]:
    """Each batch with the losses of its targets [B, T], zero where there is no target. Nothing is kept after a batch.

    The model is in evaluation mode while a batch is computed, and as it was while the caller has the losses.

    Args:
        model: A language model.
        batches: The batches of a split.
        carry: Whether a batch continues the state of the one before.
        cuda_graph: Replay a batch as a CUDA graph where the model is on a GPU and nothing watches it.
    """
    on_gpu = model.device.type == "cuda" and not has_hooks(model)
    # Long batches keep a GPU busy, and give what short ones do.
    at_once = max(1, TOKENS_AT_ONCE // batches[0].targets.numel()) if on_gpu and len(batches) else 1
    can_capture = cuda_graph and on_gpu and allows_capture(model) and len(batches) // at_once >= MIN_CAPTURED
    return score_batches(model, batches, carry, CUDAGraphs() if can_capture else None, at_once)


def score_batches(
    model: LanguageModel, batches: Sequence[Batch], carry: bool, graphs: CUDAGraphs | None, at_once: int = 1
) -> Iterator[tuple[Batch, Tensor]]:
    """The losses of each batch, as `losses_by_batch` returns them.

    Args:
        model: A language model.
        batches: Batches of a text.
        carry: Whether the state is carried from one batch to the next.
        graphs: Captures the computation of batches; None computes each anew.
        at_once: How many batches are computed together: one after the other where state is carried, else as further
            rows.
    """
    axis = 1 if carry else 0
    run = partial(_compute_losses, model, axis)
    state, number = None, 0
    for group in _group_batches(batches, at_once):
        state = state if carry and not group[0].restarts else None
        with eval_mode(model), torch.inference_mode():
            # Lengths are read on the host, which a graph cannot do; only the last batch of a stream has them.
            if graphs is None or group[0].lengths is not None:
                losses, state = run(group, state)
            else:
                losses, state = graphs.call(run, group, state)
                losses = losses.clone()  # the next replay writes over it
        sizes = [batch.targets.shape[axis] for batch in group]
        for batch, its_losses in zip(group, losses.split(sizes, axis), strict=True):
            number += 1
            report_progress("scoring", number, len(batches))
            yield batch, its_losses


def _group_batches(batches: Iterable[Batch], at_once: int) -> Iterator[list[Batch]]:
    """So many consecutive batches of equal shape without padding, or fewer; any other batch alone."""
    group: list[Batch] = []
    for batch in batches:
        if group and (len(group) == at_once or not _can_join(batch, group[0])):
            yield group
            group = []
        group.append(batch)
    if group:
        yield group


def _can_join(batch: Batch, first: Batch) -> bool:
    return batch.lengths is first.lengths is None and batch.targets.shape == first.targets.shape and not batch.restarts


def _compute_losses(
    model: LanguageModel, axis: int, group: Sequence[Batch], state: ModelState | None
) -> tuple[Tensor, ModelState | None]:
    """Losses of a group, whose batches are joined along an axis, and the state after it. Reads nothing on the host."""
    batch = group[0]
    if len(group) > 1:
        inputs, targets = [one.input_ids for one in group], [one.targets for one in group]
        batch = Batch(torch.cat(inputs, axis), torch.cat(targets, axis))
    losses = []
    for chunk in split_batch(batch) if _can_split(model, batch) else [batch]:
        x, state = model.compute_hidden_states(chunk.input_ids, state, chunk.lengths)
        losses.append(model.token_losses(x, chunk.targets, state))
    return torch.cat(losses, dim=1), state


def _can_split(model: LanguageModel, batch: Batch) -> bool:
    # A batch beyond the learned positions is passed as a whole, so that the model's error names its whole length.
    return model.causal and (model.max_positions is None or batch.input_ids.shape[1] <= model.max_positions)


def split_batch(batch: Batch) -> Iterator[Batch]:
    """A batch in chunks of tokens that fit into memory."""
    chunks = list(chunk_slices(*batch.targets.shape))
    if len(chunks) == 1:
        yield batch
        return
    for chunk in chunks:
        lengths = None if batch.lengths is None else (batch.lengths - chunk.start).clamp(0, chunk.stop - chunk.start)
        restarts = batch.restarts and chunk.start == 0
        yield Batch(batch.input_ids[:, chunk], batch.targets[:, chunk], lengths, restarts)


@dataclass(frozen=True)
class ScoredText:
    """A text with the loss of each of its tokens."""

    text: str
    tokens: tuple[str, ...]
    losses: tuple[float, ...]
    unknown: tuple[bool, ...]
    """Which tokens are unknown to the tokenizer."""
    causal: bool = True
    """Whether the model saw no token before it predicted it."""

    @property
    def total(self) -> LossTotal:
        return LossTotal(sum(self.losses), len(self.losses), causal=self.causal)


def score_sentences(model: LanguageModel, tokenizer: Tokenizer, sentences: Sequence[str]) -> Iterator[ScoredText]:
    """Score each sentence on its own. It starts after the tokenizer's boundary, and its end is not scored.

    One after the other rather than in a batch: the kernels of a padded batch need not give the same bits as those of a
    single row, and a sentence's score must not depend on its neighbors.
    """
    for text in sentences:
        yield replace(score_text(model, tokenizer, text.rstrip("\n")), text=text)


def score_text(model: LanguageModel, tokenizer: Tokenizer, text: str) -> ScoredText:
    """Score every token of a text, ends of lines included, after the tokenizer's boundary."""
    row = tokenizer.encode_prompt(text)
    ids = row[1:]
    if not ids:
        raise DataError(f"{text!r} has no tokens to score")
    check_length(model, len(ids), repr(text if len(text) <= QUOTED else f"{text[: QUOTED - 1]}…"))
    read = torch.tensor([row], device=model.device)
    ((_, (losses,)),) = losses_by_batch(model, [Batch(read[:, :-1], read[:, 1:])], carry=False)
    return ScoredText(
        text,
        tuple(tokenizer.tokens[token] for token in ids),
        tuple(to_double(losses).tolist()),
        tuple(token == tokenizer.unknown for token in ids),
        model.causal,
    )


def check_length(model: LanguageModel, tokens: int, name: str) -> None:
    """Raise an error for a text with more tokens than a trained model has positions."""
    if model.max_positions is not None and tokens > model.max_positions:
        raise ConfigError(
            f"{name} is too long: {tokens:,} tokens are more than the {model.max_positions:,} learned positions of "
            f"the model; cut it"
        )
