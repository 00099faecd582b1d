"""What is taken from sacreBLEU rather than written again: its tokenizers, and chrF."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anaphor.config import look_up
from anaphor.errors import ConfigError

TOKENIZERS = {
    "none": "the lines are tokens already, with white space between them",
    "13a": "words and punctuation of European languages; what most papers report",
    "intl": "the same by the properties of Unicode characters",
    "zh": "single characters of Chinese, the rest as 13a",
    "char": "single characters",
    "ja-mecab": "words of Japanese; needs sacrebleu[ja]",
    "ko-mecab": "words of Korean; needs sacrebleu[ko]",
}
"""Those of sacreBLEU that download nothing."""


@dataclass(frozen=True)
class ChrfScore:
    """How much two texts share of their characters' n-grams, from 0 to 100."""

    chrf: float
    signature: str


def tokenizer(name: str) -> Callable[[str], str]:
    """From a line to the same with white space between its tokens."""
    look_up(TOKENIZERS, name, "tokenizer")
    from sacrebleu import BLEU

    try:
        made: Callable[[str], str] = BLEU(tokenize=name).tokenizer
    except (ImportError, RuntimeError):
        language = name.partition("-")[0]
        raise ConfigError(f"tokenizer {name!r} needs more: pip install 'sacrebleu[{language}]'") from None
    return made


def chrf(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool = False) -> ChrfScore:
    """chrF2 of lines as they are written; `references` holds one list of lines for each reference translation."""
    from sacrebleu import CHRF

    metric = CHRF(lowercase=lowercase)
    score = metric.corpus_score(hypotheses, references).score
    return ChrfScore(float(score), f"{metric.get_signature()}")


def version() -> str:
    from sacrebleu import __version__

    return str(__version__)
