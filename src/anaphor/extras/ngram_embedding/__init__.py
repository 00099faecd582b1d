"""Embeddings of character n-grams, added to those of the words (Takase, Suzuki and Nagata, 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from anaphor.registry import register_embedder


@dataclass(frozen=True, kw_only=True)
class NgramSettings:
    """Whether a model has them."""

    section: ClassVar[str] = "ngram_embedding"

    ngram_embedding: bool = False
    """Add embeddings of character n-grams to those of the words, in a tied head, too."""


def register() -> None:
    register_embedder("ngram-embedding", f"{__name__}.embedding:make_embedding", NgramSettings, tasks=("lm",))
