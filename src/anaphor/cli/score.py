"""Options of `anaphor score RUN TEXT…`. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from anaphor.cli.run_options import RunOptions, import_torch, parse_options
from anaphor.flags import Positional
from anaphor.tasks.given_texts import check_texts


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions):
    """Score sentences with a trained language model, each on its own."""

    help_examples: ClassVar[tuple[str, ...]] = (
        'anaphor score runs/lstm "The value of this expression"',
        "anaphor score runs/lstm --file sentences.txt",
    )

    texts: Annotated[tuple[str, ...], Positional("TEXT…")] = ()
    """Sentences to score."""
    file: Path | None = None
    """File with a sentence on each line; - is standard input. Blank lines have no score."""

    def __post_init__(self) -> None:
        check_texts(self.texts, self.file)


def run(argv: Sequence[str]) -> int:
    options = parse_options("score", argv, Options)
    import_torch()
    from anaphor.cli.score_texts import print_scores

    return print_scores(options)
