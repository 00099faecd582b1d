"""Options of `anaphor translate RUN TEXT…`. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from anaphor.cli.run_options import RunOptions, import_torch, parse_options
from anaphor.config import MAX_BEAM, check_range
from anaphor.errors import ConfigError
from anaphor.flags import Positional
from anaphor.tasks.given_texts import check_texts


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions):
    """Translate sentences with a trained model: one line out for each line in."""

    help_examples: ClassVar[tuple[str, ...]] = (
        'anaphor translate runs/luong "a dog runs"',
        "anaphor translate runs/luong --file sentences.txt --beam 4",
    )

    texts: Annotated[tuple[str, ...], Positional("TEXT…")] = ()
    """Sentences to translate."""
    file: Path | None = None
    """File with a sentence on each line; .gz is decompressed, - is standard input. Empty lines stay empty."""
    beam: int = 5
    """Beam width; 1 is greedy."""
    length_penalty: float = 1.0
    """Length penalty: log-probabilities are divided by the length to this power; 0 favors short translations."""
    n_best: int = 1
    """Translations per sentence, best first; with their scores if more than one."""
    max_length: int | None = None
    """Maximum number of tokens of a translation (twice the source and 20 if not given)."""
    ensemble: tuple[Path, ...] = ()
    """Further runs with the same tokenizers; their probabilities are averaged."""
    align: bool = False
    """Also print the attention of each token to the source, of the first run."""
    layer: int | None = None
    """Decoder layer whose attention is used (the last one if not given)."""
    out: Path | None = None
    """Folder for the alignment of every sentence, as PNG, SVG and HTML."""

    def __post_init__(self) -> None:
        if self.ensemble and not self.texts and self.file is None:
            raise ConfigError(
                "the sentences are missing: --ensemble takes all values after it, so write the sentences before it, "
                "or name a file with --file"
            )
        check_texts(self.texts, self.file)
        check_range(1, MAX_BEAM, beam=self.beam)
        if not 1 <= self.n_best <= self.beam:
            raise ConfigError(f"n_best={self.n_best}: it must be at least 1 and at most the beam of {self.beam}")
        if self.layer is not None and not (self.align or self.out is not None or self.json):
            raise ConfigError(f"layer={self.layer} has no effect without --align, --out or --json")
        members = [self.run.resolve(), *(folder.resolve() for folder in self.ensemble)]
        for index, folder in enumerate(self.ensemble, start=1):
            if members[index] in members[:index]:
                raise ConfigError(f"ensemble={folder} is given twice: a run counts once")


def run(argv: Sequence[str]) -> int:
    options = parse_options("translate", argv, Options)
    import_torch()
    from anaphor.cli.translate_texts import print_translations

    return print_translations(options)
