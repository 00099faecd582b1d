"""Word embeddings plus the embeddings of the words' character n-grams (Takase, Suzuki and Nagata, 2019).

A small text has few examples of most of its words. Words with similar spelling share n-grams, and so learn from each
other; a tied head computes its logits with the same sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.errors import ConfigError
from anaphor.extras.ngram_embedding import NgramSettings
from anaphor.models.embedding import Embedding
from anaphor.models.language_model_spec import LanguageModelSpec

SIZES = (3, 4, 5)
"""Characters of an n-gram; the boundaries of a word count as one each."""
MIN_WORDS, MAX_WORDS, MAX_NUMBERS = 4, 400, 1500
"""How many words may share an n-gram: with fewer it adds nothing to their own embeddings, with more it tells them
apart from few others. The last is the maximum for the shapes of numbers."""


def character_ngrams(word: str) -> set[str]:
    """The n-grams of a word in lower case, and the whole word in lower case. A number has its shape and length instead,
    and a special token such as `<unk>` has none."""
    if word.startswith("<") and word.endswith(">"):
        return set()
    lower = word.lower()
    if any(character.isdigit() for character in word):
        return {f"#{len(word)}", "#" + "".join("0" if character.isdigit() else character for character in lower)}
    bounded = f"^{lower}$"
    return {f"={lower}"} | {bounded[i : i + size] for size in SIZES for i in range(len(bounded) - size + 1)}


class NgramIndex(NamedTuple):
    """Which words contain which n-grams."""

    by_word: list[list[int]]
    """The n-grams of each word."""
    by_ngram: list[list[int]]
    """The words of each n-gram."""

    @classmethod
    def build(cls, words: Sequence[str]) -> NgramIndex:
        """The index of a vocabulary. A pure function of the words."""
        ngrams = [character_ngrams(word) for word in words]
        shared = Counter(ngram for several in ngrams for ngram in several)
        kept = sorted(ngram for ngram, count in shared.items() if _is_useful(ngram, count))
        numbers = {ngram: number for number, ngram in enumerate(kept)}
        by_word = [[numbers[ngram] for ngram in sorted(several) if ngram in numbers] for several in ngrams]
        by_ngram: list[list[int]] = [[] for _ in kept]
        for word, several in enumerate(by_word):
            for number in several:
                by_ngram[number].append(word)
        return cls(by_word, by_ngram)


def _is_useful(ngram: str, words: int) -> bool:
    fewest = 2 if ngram.startswith("=") else MIN_WORDS
    return fewest <= words <= (MAX_NUMBERS if ngram.startswith("#") else MAX_WORDS)


class NgramEmbedding(Embedding):
    """`weight` holds the words' own embeddings, `table()` the sums with those of their n-grams.

    The index is computed from the words, which a checkpoint holds with the tokenizer.
    """

    def __init__(self, words: Sequence[str], width: int) -> None:
        super().__init__(len(words), width)
        index = NgramIndex.build(words)
        if not index.by_ngram:
            raise ConfigError(
                f"ngram_embedding: no character n-gram is shared by {MIN_WORDS} to {MAX_WORDS} of the {len(words):,} "
                f"tokens; use a larger text, --tokenizer word, or no n-grams"
            )
        # Zero at first, so that training starts as without n-grams.
        self.ngrams = nn.Parameter(torch.zeros(len(index.by_ngram), width))
        for name, bags in zip(index._fields, index, strict=True):
            members = torch.tensor([member for bag in bags for member in bag], dtype=torch.long)
            offsets = torch.tensor([0, *map(len, bags)]).cumsum(0)[:-1]
            self.register_buffer(f"{name}_members", members, persistent=False)
            self.register_buffer(f"{name}_offsets", offsets, persistent=False)
        # The sum of n vectors grows with the square root of n.
        scale = torch.tensor([max(1, len(bag)) ** -0.5 for bag in index.by_word])
        self.register_buffer("scale", scale[:, None], persistent=False)
        self._shared: Tensor | None = None

    def table(self) -> Tensor:
        """[V, D]"""
        if self._shared is not None:
            return self._shared
        names = ("by_word_members", "by_word_offsets", "by_ngram_members", "by_ngram_offsets")
        total: Tensor = _BagSum.apply(self.ngrams, *map(self.get_buffer, names))  # type: ignore[no-untyped-call]
        return self.weight + self.get_buffer("scale") * total

    @contextmanager
    def share_table(self) -> Iterator[None]:
        self._shared = self.table()
        try:
            yield
        finally:
            self._shared = None

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.table())

    @torch.no_grad()
    def fold(self) -> Embedding:
        table = self.table()
        return Embedding(len(table), table.shape[1], _weight=table)


def make_embedding(settings: NgramSettings, spec: LanguageModelSpec) -> NgramEmbedding | None:
    """The embeddings of a model; None where it has no n-grams."""
    if not settings.ngram_embedding:
        return None
    if spec.words is None:
        raise ConfigError("ngram_embedding needs the words of the vocabulary: give words=tokenizer.tokens")
    return NgramEmbedding(spec.words, spec.width_in)


class _BagSum(torch.autograd.Function):
    """Sums of rows of a table. The gradient is such a sum over the transposed index; the backward pass of
    `embedding_bag` itself would sort all members at every step."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, *index: Tensor) -> Tensor:
        members, offsets, *transposed = index
        ctx.save_for_backward(*transposed)
        return F.embedding_bag(members, table, offsets, mode="sum")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        members, offsets = ctx.saved_tensors
        return F.embedding_bag(members, grad.contiguous(), offsets, mode="sum"), None, None, None, None
