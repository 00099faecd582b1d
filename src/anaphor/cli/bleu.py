"""`anaphor bleu HYP REF…`: BLEU of translations in a file, line by line against references in others."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from anaphor.cli.table import print_score
from anaphor.config import look_up
from anaphor.data.text import read_lines
from anaphor.errors import ConfigError, DataError, count_noun
from anaphor.flags import Positional, parse
from anaphor.metrics.bleu import TOKENIZERS


@dataclass(frozen=True, kw_only=True)
class Options:
    """Corpus BLEU of translations, without smoothing. Files have one sentence per line; .gz is decompressed."""

    help_examples: ClassVar[tuple[str, ...]] = (
        "anaphor bleu translations.txt reference.txt",
        "anaphor bleu translations.txt reference.txt --confidence --chrf",
    )

    hypotheses: Annotated[Path, Positional("HYP")]
    """File of translations."""
    references: Annotated[tuple[Path, ...], Positional("REF…")] = ()
    """Files of reference translations, with the same number of lines."""
    tokenize: str = "none"
    """Tokenizer: none (white space), 13a, intl, zh, char, ja-mecab or ko-mecab."""
    lowercase: bool = False
    """Ignore case."""
    chrf: bool = False
    """Also print chrF, on untokenized lines."""
    confidence: bool = False
    """Also print a 95 % interval of BLEU, by bootstrap resampling."""
    json: bool = False
    """Print one JSON value instead of a few lines."""

    def __post_init__(self) -> None:
        look_up(TOKENIZERS, self.tokenize, "tokenizer")
        if not self.references:
            raise ConfigError(f"no reference: give a file of references after {self.hypotheses}")


def run(argv: Sequence[str]) -> int:
    options = parse(Options, argv, program="anaphor bleu")

    from anaphor.metrics.bleu import chrf, corpus_bleu

    hypotheses = read_translations(options.hypotheses)
    references = [read_translations(path) for path in options.references]
    for path, lines in zip(options.references, references, strict=True):
        if len(lines) != len(hypotheses):
            raise DataError(
                f"{options.hypotheses} has {count_noun(len(hypotheses), 'line')}, but {path} has "
                f"{count_noun(len(lines), 'line')}: line by line, each translation needs its reference"
            )
    score = corpus_bleu(hypotheses, references, tokenize=options.tokenize, lowercase=options.lowercase)
    interval = score.interval() if options.confidence else None
    characters = chrf(hypotheses, references, lowercase=options.lowercase) if options.chrf else None

    if options.json:
        result = score.to_plain()
        if interval is not None:
            result["confidence"] = dataclasses.asdict(interval)
        if characters is not None:
            result |= {"chrf": characters.chrf, "chrf_signature": characters.signature}
        print(json.dumps(result))
        return 0
    interval_text = "" if interval is None else f" [{interval.low:.2f}, {interval.high:.2f}]"
    parts = " / ".join(f"{precision:.1f}" for precision in score.precisions)
    print_score(f"BLEU {score.bleu:.2f}{interval_text} ({score.signature})")
    print(f"  matching n-grams: {parts} % of 1, 2, 3 and 4 tokens")
    print(
        f"  brevity penalty: {score.brevity_penalty:.3f}, for {count_noun(score.tokens, 'token')} against "
        f"{score.reference_tokens:,} in {count_noun(len(hypotheses), 'line')}"
    )
    if characters is not None:
        print_score(f"chrF {characters.chrf:.2f} ({characters.signature})")
    return 0


def read_translations(path: Path) -> list[str]:
    """The lines of a text file, including empty ones, which are empty translations."""
    lines = read_lines(path)
    if not lines:
        raise DataError(f"{path} is empty: there is nothing to score")
    return lines
