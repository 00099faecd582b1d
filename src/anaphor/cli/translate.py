"""`anaphor translate RUN TEXT…`: translate sentences with a trained model, or with several that vote."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from anaphor.cli.lines import read_lines
from anaphor.cli.writing import writing
from anaphor.errors import ConfigError, DataError
from anaphor.flags import parse

if TYPE_CHECKING:
    from anaphor.data.tokenizer import Tokenizer
    from anaphor.generate import Beam, Hypothesis
    from anaphor.inspect.alignment import Alignment
    from anaphor.training.translation import PreparedTranslation

NAMED = 5  # unknown words and sentences that a warning names


@dataclass(frozen=True, kw_only=True)
class Options:
    """Translate sentences with a trained model: one line out for each line in."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    texts: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Sentences to translate."""
    file: Path | None = None
    """A file with a sentence on each line, instead; .gz is decompressed, - is standard input. Empty lines stay where
    they are."""
    beam: int = 5
    """How many translations are kept while they grow; 1 is greedy."""
    length_penalty: float = 1.0
    """Translations are ranked by log-probability over length to this power: 0 favours short ones."""
    n_best: int = 1
    """How many translations of each sentence are told, best first, with their scores if more than one."""
    max_length: int | None = None
    """How many tokens a translation has at most; None means twice as many as its source, and 20."""
    ensemble: tuple[Path, ...] = ()
    """Further runs with the same tokenizers; the mean of all probabilities decides."""
    align: bool = False
    """Tell what each token looked at, too: by the first run's attention."""
    layer: int | None = None
    """Layer whose attention is told, from 0 on; none given means the last."""
    out: Path | None = None
    """Folder for the alignment of every sentence, as PNG, SVG and a page."""
    device: str = "auto"
    """Where it runs: auto, cpu or cuda."""
    json: bool = False
    """Print one JSON list with tokens, scores and alignments."""

    def __post_init__(self) -> None:
        if self.ensemble and not self.texts and self.file is None:
            raise ConfigError(
                "translate sentences or a file: --ensemble takes all words behind it, so sentences must stand before "
                "options that take several values, right behind the run, or name a file with --file"
            )
        if bool(self.texts) == (self.file is not None):
            raise ConfigError("translate sentences or a file: write sentences behind the run, or name one with --file")
        if self.beam < 1:
            raise ConfigError(f"beam={self.beam}: there must be at least 1")
        if not 1 <= self.n_best <= self.beam:
            raise ConfigError(f"n_best={self.n_best}: it must be at least 1, and a beam of {self.beam} finds no more")
        if self.layer is not None and not (self.align or self.out is not None or self.json):
            raise ConfigError(f"layer={self.layer} tells whose attention is shown: say --align, --out or --json, too")
        members = [self.run.resolve(), *(folder.resolve() for folder in self.ensemble)]
        for place, folder in enumerate(self.ensemble, start=1):
            if members[place] in members[:place]:
                raise ConfigError(f"ensemble={folder} votes already: a run has one vote")


def run(words: Sequence[str]) -> int:
    options = parse(Options, words, program="anaphor translate")

    from anaphor.cli.progress import Bar, Under
    from anaphor.generate import Beam
    from anaphor.progress import progress_listener
    from anaphor.training.run import opened_translation

    beam = Beam(width=options.beam, longest=options.max_length, length_penalty=options.length_penalty)
    # A sentence is a line, as in training: one that was written in several is read as if it stood in one.
    given = options.texts if options.file is None else read_lines(options.file)
    texts = [text.strip().replace("\n", " ") for text in given]
    with ExitStack() as stack:
        members = [
            stack.enter_context(opened_translation(folder, options.device))
            for folder in (options.run, *options.ensemble)
        ]
        for folder, member in zip(options.ensemble, members[1:], strict=True):
            if member.tokenizers != members[0].tokenizers:
                raise ConfigError(f"{folder} and {options.run} have different tokenizers: they cannot vote on a token")
        read = _read(texts, members, options.file)
        with Bar("reading") as bar, progress_listener(Under(bar, alone=True)):
            found = _translated(members, texts, read, beam)
        aligned = _aligned(members[0], texts, found, options)
    _warn(texts, read, found, members[0].tokenizers.source)
    target = members[0].tokenizers.target
    if options.json:
        print(json.dumps(_plain(given, found, aligned, target, options.n_best), allow_nan=False))
    else:
        _tell(found, aligned if options.align else {}, target, options.n_best)
    if options.out is not None:
        _write(aligned, options.out)
    return 0


def _read(texts: Sequence[str], members: Sequence[PreparedTranslation], file: Path | None) -> list[list[int]]:
    """The tokens of each text, none where there is nothing to translate; an error where a model cannot read one."""
    tokenizer = members[0].tokenizers.source
    limit = min((made.model.source_limit for made in members if made.model.source_limit is not None), default=None)
    read = []
    for number, text in enumerate(texts, 1):
        ids = tokenizer.encode_sentence(text).tolist()
        where = f"sentence {number}" if file is None else f"line {number} of {file}"
        if tokenizer.boundary in ids:
            raise DataError(
                f"{where} holds {tokenizer.tokens[tokenizer.boundary]!r}, which marks the end of a sentence"
            )
        if limit is not None and len(ids) > limit:
            raise DataError(f"{where} is too long: it has {len(ids):,} tokens, and the limit is {limit:,}")
        read.append(ids)
    return read


def _translated(
    members: Sequence[PreparedTranslation], texts: Sequence[str], read: Sequence[list[int]], beam: Beam
) -> list[list[Hypothesis]]:
    """The translations of each text, best first; none of an empty one."""
    real = [text for text, ids in zip(texts, read, strict=True) if ids]
    if not real:
        return [[] for _ in texts]
    found = iter(members[0].task.translate([made.model for made in members], real, beam))
    return [next(found) if ids else [] for ids in read]


def _aligned(
    made: PreparedTranslation, texts: Sequence[str], found: Sequence[list[Hypothesis]], options: Options
) -> dict[int, Alignment]:
    """The alignment of each best translation, by the place of its text. With --json where there is one anyway."""
    from anaphor.inspect.alignment import alignment, alignment_so_far, looking_layers

    asked = options.align or options.out is not None
    if not asked and not (options.json and looking_layers(made.model)):
        return {}
    aligned = {}
    for place, (text, several) in enumerate(zip(texts, found, strict=True)):
        if several:
            best = several[0]
            looked = alignment if best.finished else alignment_so_far
            aligned[place] = looked(made.model, made.tokenizers, text, best.tokens, options.layer)
    return aligned


def _plain(
    texts: Sequence[str],
    found: Sequence[list[Hypothesis]],
    aligned: dict[int, Alignment],
    target: Tokenizer,
    count: int,
) -> list[dict[str, Any]]:
    return [
        {
            "source": text,
            "translations": [
                {
                    "text": target.decode(one.tokens),
                    "tokens": [target.tokens[token] for token in one.tokens],
                    "score": one.score,
                    "log_probability": one.log_probability,
                    "finished": one.finished,
                }
                for one in several[:count]
            ],
            "alignment": _plain_alignment(aligned[place]) if place in aligned else None,
        }
        for place, (text, several) in enumerate(zip(texts, found, strict=True))
    ]


def _plain_alignment(one: Alignment) -> dict[str, Any]:
    return {"source": list(one.source), "target": list(one.target), "weights": one.weights.tolist()}


def _tell(found: Sequence[list[Hypothesis]], aligned: dict[int, Alignment], target: Tokenizer, count: int) -> None:
    """A line for each text; with several translations a line for each: number of the text, score, translation."""
    from anaphor.inspect.alignment import as_text

    for place, several in enumerate(found):
        if count == 1:
            print(target.decode(several[0].tokens) if several else "")
        elif not several:
            print(f"{place + 1}\t\t")  # an empty line has its place, and nothing to be said of it
        for one in several[:count] if count > 1 else ():
            print(f"{place + 1}\t{one.score:z.4f}\t{target.decode(one.tokens)}")
        if place in aligned:
            print("\n".join(f"  {line}" for line in as_text(aligned[place]).splitlines()))


def _write(aligned: dict[int, Alignment], folder: Path) -> None:
    from anaphor.inspect.alignment import alignment_page, draw_alignment
    from anaphor.training.files import replace_file

    with writing(folder):
        for place, one in aligned.items():
            stem = folder / f"alignment-{place + 1}"
            replace_file(stem.with_suffix(".html"), alignment_page(one).encode())
            draw_alignment(one, stem)
    count = f"{len(aligned):,} alignment{'' if len(aligned) == 1 else 's'}"
    print(f"anaphor: {count} in {folder}, each as PNG, SVG and HTML", file=sys.stderr)


def _warn(
    texts: Sequence[str],
    read: Sequence[list[int]],
    found: Sequence[list[Hypothesis]],
    tokenizer: Tokenizer,
) -> None:
    """One line for all words that nobody knows, and one for all translations that had to stop."""
    from anaphor.data.tokenizer import UNKNOWN

    unknown = dict.fromkeys(
        part
        for text, ids in zip(texts, read, strict=True)
        if tokenizer.unknown in ids
        for part in tokenizer.find_unknown(text)
    )
    if unknown:
        print(f"anaphor: read as {UNKNOWN}: {_some(list(unknown))}", file=sys.stderr)
    cut = [str(place) for place, several in enumerate(found, 1) if several and not several[0].finished]
    if cut:
        told = f"the translation of sentence {cut[0]} was" if len(cut) == 1 else "translations were"
        which = "" if len(cut) == 1 else f": of the sentences {_some(cut)}"
        print(f"anaphor: {told} cut at the longest length{which}", file=sys.stderr)


def _some(words: Sequence[str]) -> str:
    more = len(words) - NAMED
    return ", ".join(words[:NAMED]) + (f" and {more:,} more" if more > 0 else "")
