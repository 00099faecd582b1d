"""`anaphor models`: what there is to choose from."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any

import tyro

from anaphor.cli.table import print_table
from anaphor.config import look_up
from anaphor.errors import ConfigError
from anaphor.flags import parse


@dataclass(frozen=True, kw_only=True)
class Options:
    """List models: their layers, how many parameters they have and how much they remember of a text.

    Those for translation follow in a table of their own.
    """

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Models to show; none means all of them."""
    vocabulary: int = 33_278
    """How many different tokens the model knows, in each of two languages; the default is WikiText-2's."""
    tokens: int = 1024
    """After how many tokens the size of the state is told; of a translation, with a source as long."""
    json: bool = False
    """Print one JSON list instead of a table."""

    def __post_init__(self) -> None:
        if self.tokens < 0:
            raise ConfigError(f"tokens={self.tokens}: a text has at least 0")


def run(words: Sequence[str]) -> int:
    options = parse(Options, words, program="anaphor models")

    from anaphor.models.presets import PRESETS, SEQ2SEQ_PRESETS

    names = options.names or (*PRESETS, *SEQ2SEQ_PRESETS)
    for name in names:
        look_up({**PRESETS, **SEQ2SEQ_PRESETS}, name, "model")
    rows = [language_row(name, options) if name in PRESETS else translation_row(name, options) for name in names]
    if options.json:
        print(json.dumps(rows))
        return 0
    language, translation = ([row for row in rows if row["name"] in table] for table in (PRESETS, SEQ2SEQ_PRESETS))
    if language:
        show_language(language, options.tokens)
    if language and translation:
        print()
    if translation:
        show_translation(translation)
    return 0


def language_row(name: str, options: Options) -> dict[str, Any]:
    from anaphor.models import summarize
    from anaphor.models.presets import preset

    summary = summarize(preset(name, vocabulary=options.vocabulary), options.tokens)
    return {"name": name, **dataclasses.asdict(summary)}


def translation_row(name: str, options: Options) -> dict[str, Any]:
    import torch

    from anaphor.models.presets import seq2seq_preset

    spec = seq2seq_preset(name, source_vocabulary=options.vocabulary, vocabulary=options.vocabulary)
    with torch.device("meta"):  # without any memory for its weights
        model = spec.build()
    return {
        "name": name,
        "encoder": spec.encoder_spec().mixers_by_layer,
        "decoder": spec.decoder_spec().mixers_by_layer,
        "width": spec.decoder_spec().widths_by_layer[-1],
        "parameters": model.count_parameters(),
        "state_bytes": model.state_bytes(options.tokens, options.tokens),
        "tokens": options.tokens,
        "state_grows": model.state_grows,
        "limit": model.limit,
    }


def show_language(rows: Sequence[dict[str, Any]], tokens: int) -> None:
    numbers = [
        (
            *_size(row),
            in_bytes(row["state_bytes"]),
            "yes" if row["state_grows"] else "no",
            "none" if row["limit"] is None else f"{row['limit']:,}",
        )
        for row in rows
    ]
    names = [(row["name"], shorten(row["layers"])) for row in rows]
    count = f"{tokens:,} token{'' if tokens == 1 else 's'}"
    remark = f"state: kept of one text after {count}; limit: known positions"
    _show(("model", "layers"), names, ("width", "parameters", "state", "grows", "limit"), numbers, remark)


def show_translation(rows: Sequence[dict[str, Any]]) -> None:
    # 'bidirectional-lstm' would not leave room for all columns in a terminal of 80.
    encoders = [[re.sub("^bidirectional-(.*)", r"\1 both ways", name) for name in row["encoder"]] for row in rows]
    names = [
        (row["name"], shorten(encoder), shorten(row["decoder"])) for row, encoder in zip(rows, encoders, strict=True)
    ]
    remark = "two vocabularies of the same size; --json tells state and limit, too"
    _show(("translation", "encoder", "decoder"), names, ("width", "parameters"), list(map(_size, rows)), remark)


def _size(row: dict[str, Any]) -> tuple[str, str]:
    return f"{row['width']:,}", f"{row['parameters'] / 1e6:,.1f} M"


def _show(
    left: Sequence[str],
    names: Sequence[Sequence[str]],
    right: Sequence[str],
    numbers: Sequence[Sequence[str]],
    remark: str,
) -> None:
    """A table of names on the left and numbers on the right, and a remark below."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in left:
        table.add_column(heading, no_wrap=True)
    for heading in right:
        table.add_column(heading, no_wrap=True, justify="right")
    for name, number in zip(names, numbers, strict=True):
        table.add_row(*name, *number)
    console = Console()
    print_table(console, table)
    console.print(remark, style="dim")


def shorten(layers: Sequence[str]) -> str:
    """'lstm, 3 × attention' for a stack of four."""
    runs = [(name, len(list(same))) for name, same in groupby(layers)]
    return ", ".join(name if count == 1 else f"{count} × {name}" for name, count in runs)


def in_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"
