"""What `anaphor translate` does: translate sentences with a trained model or an ensemble, with alignments."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anaphor.beam_search import Beam, Hypothesis
from anaphor.cli.run_options import load_experiment, warn
from anaphor.cli.table import for_terminal
from anaphor.cli.translate import Options
from anaphor.data.text import read_lines
from anaphor.data.tokenizer import Tokenizer
from anaphor.errors import ConfigError, DataError, count_noun
from anaphor.inspect.alignment import Alignment, as_text, cross_attention_taps
from anaphor.progress import Bar, SecondBar
from anaphor.progress_listener import progress_listener
from anaphor.tasks.translate.experiment import TranslationExperiment
from anaphor.tasks.translate.look import align, plain_alignment, write_alignment
from anaphor.tasks.unknown_words import describe_unknown_words, list_some
from anaphor.user_paths import create_folder


def print_translations(options: Options) -> int:
    """Print the translations, and write the alignments. Returns the exit code."""
    beam = Beam(width=options.beam, max_length=options.max_length, length_penalty=options.length_penalty)
    # A sentence is one line, as in training: line ends within one are read as spaces.
    given = options.texts if options.file is None else read_lines(options.file)
    texts = [text.strip().replace("\n", " ") for text in given]
    members = [load_experiment(options, folder, task="translate") for folder in (options.run, *options.ensemble)]
    first = members[0]
    for folder, member in zip(options.ensemble, members[1:], strict=True):
        if member.tokenizers != first.tokenizers:
            raise ConfigError(f"{folder} and {options.run} have different tokenizers: they cannot form an ensemble")
    ids = _encode(texts, members, options.file)
    with Bar("translating") as bar, progress_listener(SecondBar(bar, alone=True)):
        translations = _translate(members, texts, ids, beam)
    alignments = _align(first, texts, translations, options)
    _warn(texts, ids, translations, first.tokenizers.source)
    target = first.tokenizers.target
    if options.json:
        print(json.dumps(_plain(given, translations, alignments, target, options.n_best), allow_nan=False))
    else:
        _print(translations, alignments if options.align else {}, target, options.n_best)
    if options.out is not None:
        create_folder(options.out)
        for index, alignment in alignments.items():
            write_alignment(alignment, options.out, f"alignment-{index + 1}")
        warn(f"{count_noun(len(alignments), 'alignment')} in {options.out}, each as PNG, SVG and HTML")
    return 0


def _encode(texts: Sequence[str], members: Sequence[TranslationExperiment], file: Path | None) -> list[list[int]]:
    """The tokens of each text, none of an empty one. A text that is too long for a model is refused."""
    tokenizer = members[0].tokenizers.source
    limits = [member.model.max_source_positions for member in members if member.model.max_source_positions is not None]
    encoded = []
    for number, text in enumerate(texts, 1):
        ids = tokenizer.encode_sentence(text).tolist()
        where = f"sentence {number}" if file is None else f"line {number} of {file}"
        if tokenizer.boundary in ids:
            raise DataError(
                f"{where} holds {tokenizer.tokens[tokenizer.boundary]!r}, which marks the end of a sentence"
            )
        if limits and len(ids) > min(limits):
            raise DataError(f"{where} is too long: it has {len(ids):,} tokens, and the limit is {min(limits):,}")
        encoded.append(ids)
    return encoded


def _translate(
    members: Sequence[TranslationExperiment], texts: Sequence[str], ids: Sequence[list[int]], beam: Beam
) -> list[list[Hypothesis]]:
    """The translations of each text, best first; none of an empty one."""
    sentences = [text for text, tokens in zip(texts, ids, strict=True) if tokens]
    if not sentences:
        return [[] for _ in texts]
    found = iter(members[0].translate(sentences, beam, [member.model for member in members]))
    return [next(found) if tokens else [] for tokens in ids]


def _align(
    experiment: TranslationExperiment, texts: Sequence[str], found: Sequence[list[Hypothesis]], options: Options
) -> dict[int, Alignment]:
    """The alignment of each best translation by the index of its text. With --json only where the model has any."""
    asked = options.align or options.out is not None
    if not asked and not (options.json and cross_attention_taps(experiment.model)):
        return {}
    pairs = enumerate(zip(texts, found, strict=True))
    return {index: align(experiment, text, best[0], options.layer) for index, (text, best) in pairs if best}


def _plain(
    texts: Sequence[str],
    found: Sequence[list[Hypothesis]],
    alignments: dict[int, Alignment],
    target: Tokenizer,
    count: int,
) -> list[dict[str, Any]]:
    return [
        {
            "source": text,
            "translations": [
                {
                    "text": target.decode(hypothesis.tokens),
                    "tokens": [target.tokens[token] for token in hypothesis.tokens],
                    "score": hypothesis.score,
                    "log_probability": hypothesis.log_probability,
                    "finished": hypothesis.finished,
                }
                for hypothesis in hypotheses[:count]
            ],
            "alignment": plain_alignment(alignments[index]) if index in alignments else None,
        }
        for index, (text, hypotheses) in enumerate(zip(texts, found, strict=True))
    ]


def _print(found: Sequence[list[Hypothesis]], alignments: dict[int, Alignment], target: Tokenizer, count: int) -> None:
    """A line for each text. With several translations a line for each: number of the text, score, translation."""
    for index, hypotheses in enumerate(found):
        if count == 1:
            print(for_terminal(target.decode(hypotheses[0].tokens) if hypotheses else "", sys.stdout))
        elif not hypotheses:
            print(f"{index + 1}\t\t")
        for hypothesis in hypotheses[:count] if count > 1 else ():
            text = for_terminal(target.decode(hypothesis.tokens), sys.stdout)
            print(f"{index + 1}\t{hypothesis.score:z.4f}\t{text}")
        if index in alignments:
            print("\n".join(f"  {line}" for line in as_text(alignments[index]).splitlines()))


def _warn(
    texts: Sequence[str], ids: Sequence[list[int]], found: Sequence[list[Hypothesis]], tokenizer: Tokenizer
) -> None:
    """One line about all unknown words, and one about all translations that reached their maximum length."""
    with_unknown = [text for text, tokens in zip(texts, ids, strict=True) if tokenizer.unknown in tokens]
    for line in describe_unknown_words(with_unknown, tokenizer):
        warn(line)
    cut = [str(number) for number, hypotheses in enumerate(found, 1) if hypotheses and not hypotheses[0].finished]
    if cut:
        warn(f"cut at the maximum length: translation of sentence {list_some(cut)}")
