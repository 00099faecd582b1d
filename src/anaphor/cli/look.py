"""`anaphor look RUN TEXT`: attention maps, gates and losses of a text, as figures and as one interactive page."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from anaphor.cli.table import print_table
from anaphor.cli.train import warn_of_unknown
from anaphor.cli.writing import writing
from anaphor.config import finite
from anaphor.errors import ConfigError, DataError
from anaphor.flags import parse

if TYPE_CHECKING:
    from anaphor.inspect import Look
    from anaphor.inspect.heads import HeadSummary
    from anaphor.training.language import PreparedLanguage

SHOWN = 12  # heads in the table, unless there are hardly more
MOST_CELLS = 4_000_000  # weights in JSON
BEFORE = "the text must stand before options that take several values, right behind the run"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Look at a text inside a trained model: who attends to whom, what gates do, what surprises.

    Writes attention.html, one page that needs no network, and figures in PNG and SVG; prints what each head does, those
    that continue what came before first.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    text: Annotated[str | None, tyro.conf.Positional] = None
    """The text to look at."""
    file: Path | None = None
    """A file that holds the text."""
    out: Path
    """Folder for the page and the figures."""
    layer: int | None = None
    """Layer to draw and to show first; none given means all in the figure, and the most remarkable head in the page."""
    head: int | None = None
    """Head of that layer; none given means all of them."""
    layers: tuple[int, ...] = ()
    """Layers to look at, for long texts in large models; none given means all."""
    compare: Path | None = None
    """Another run on the same text, with the same tokens; its figures are called attention-compared and
    states-compared."""
    device: str = "auto"
    """Where it runs: auto, cpu or cuda."""
    json: bool = False
    """Print one JSON value with the summary, the tokens, their losses and the weights."""

    def __post_init__(self) -> None:
        if self.layers and self.text is None and self.file is None:
            raise ConfigError(f"look at one text: --layers takes all words behind it, and {BEFORE}")
        if (self.text is None) == (self.file is None):
            raise ConfigError("look at one text: write it behind the run, or name a file with --file")
        if self.head is not None and self.layer is None:
            raise ConfigError(f"head={self.head} of which layer? Say --layer too")
        if self.layer is not None and self.layers and self.layer not in self.layers:
            raise ConfigError(f"layer={self.layer} is not among layers={self.layers}")
        if self.compare is not None and self.compare.resolve() == self.run.resolve():
            raise ConfigError(f"compare={self.compare} is the run itself")


def run(words: Sequence[str]) -> int:
    options = _read(words)

    from anaphor.inspect.figures import draw_attention, draw_units
    from anaphor.inspect.page import page_of
    from anaphor.training.files import replace_file

    look = _look(options.run, options)
    looks = {str(options.run): look}
    first = None
    if options.layer is not None:
        ((name, head), *others) = look.heads_of(options.layer, options.head)
        first = (name, None if others else head)
    if options.compare is not None:
        other = _look(options.compare, options)
        lacking = _lacking(other, options)
        # The first run was asked for a layer and a head; the second need not have them.
        looks[str(options.compare)] = replace(other, notes=(*other.notes, lacking)) if lacking else other
    page, left_out = page_of(looks, first)
    written = [options.out / "attention.html"]
    with writing(options.out):
        replace_file(written[0], page.encode())
        for ending, (name, one) in zip(("", "-compared"), looks.items(), strict=False):
            whose = name if len(looks) > 1 else ""
            if not _lacking(one, options):
                stem = f"attention{ending}"
                written += draw_attention(one, options.out, options.layer, options.head, stem=stem, run=whose)
            written += draw_units(one, options.out, stem=f"states{ending}", run=whose)
    if options.json:
        print(json.dumps(finite(_plain(looks, options, written, left_out)), allow_nan=False))
    else:
        _tell(looks, written, left_out)
    return 0


def _read(words: Sequence[str]) -> Options:
    try:
        return parse(Options, words, program="anaphor look")
    except ConfigError:
        text = _taken_for_a_layer(words)
        if text is None:
            raise
        raise ConfigError(f"--layers takes all words behind it, and {text!r} is no number: {BEFORE}") from None


def _taken_for_a_layer(words: Sequence[str]) -> str | None:
    """The first word behind --layers that is no number, if there is one."""
    if "--layers" not in words:
        return None
    behind = takewhile(lambda word: not word.startswith("--"), words[words.index("--layers") + 1 :])
    return next((word for word in behind if not word.lstrip("+-").isdecimal()), None)


def _lacking(look: Look, options: Options) -> str:
    """Why a run has not the layer and the head that were chosen; nothing where it has, or none were."""
    try:
        if options.layer is not None:
            look.heads_of(options.layer, options.head)
    except ConfigError as error:
        return str(error)
    return ""


def _look(folder: Path, options: Options) -> Look:
    from anaphor.data.tokenizer import UNKNOWN
    from anaphor.inspect import look_at
    from anaphor.training.language import PreparedLanguage
    from anaphor.training.run import opened

    with opened(folder, options.device) as made:
        if not isinstance(made, PreparedLanguage):
            raise ConfigError(
                f"the run in {folder} is no language model: it was trained by `train {made.spec.task}`; "
                f"`anaphor translate {folder} TEXT --align --out DIR` shows what it looked at"
            )
        look = look_at(made.model, made.tokenizer, _text(made, options), options.layers)
    text = look.tokens[1:]  # behind the boundary
    warn_of_unknown(text.count(UNKNOWN), len(text), "text")
    return look


def _text(made: PreparedLanguage, options: Options) -> str:
    if options.file is None:
        assert options.text is not None, "one of the two was given"
        return options.text
    try:
        raw = options.file.read_bytes()
    except OSError as error:
        raise DataError(f"{options.file} cannot be read: {error.strerror}") from None
    return made.tokenizer.as_text(raw, where=str(options.file))


def _plain(
    looks: Mapping[str, Look], options: Options, written: Sequence[Path], left_out: Sequence[str]
) -> dict[str, Any]:
    """Everything as JSON holds it. `differences` are second losses less first."""
    from anaphor.inspect import differences

    first, *others = looks.values()
    return {
        "runs": [{"run": name, **_run(look, options)} for name, look in looks.items()],
        "differences": list(differences(first.scored, others[0].scored)) if others else None,
        "left_out": list(left_out),
        "written": [str(path) for path in written],
    }


def _run(look: Look, options: Options) -> dict[str, Any]:
    weights, missing = _weights(look, options)
    return {
        "model": look.model,
        "tokens": look.tokens,
        "losses": [None, *look.scored.losses],
        "loss": look.scored.total.loss,
        "perplexity": look.scored.total.perplexity,
        "notes": [*look.notes, *missing],
        "summary": [{**dataclasses.asdict(head), "remarkable": head.remarkable} for head in look.heads],
        "weights": weights,
        "units": {
            f"{one.layer}.{one.kind}.{one.part}": {"units": one.units, "of": one.of, "values": one.values.tolist()}
            for one in look.units
        },
    }


def _weights(look: Look, options: Options) -> tuple[dict[str, Any], list[str]]:
    """[H, T, T] under each tap's name, of the layer and head that were chosen, as far as they are not too many."""
    heads = [(name, head) for name, maps in look.maps.items() for head in range(len(maps))]
    if options.layer is not None:
        heads = [] if _lacking(look, options) else look.heads_of(options.layer, options.head)
    found: dict[str, Any] = {}
    missing, cells = [], 0
    for name in dict.fromkeys(name for name, _ in heads):
        maps = look.maps[name][[head for one, head in heads if one == name]]
        cells += maps.numel()
        if cells > MOST_CELLS:
            missing.append(f"The weights of {name} are too many for JSON: choose --layer and --head.")
        else:
            found[name] = maps.tolist()
    return found, missing


def _tell(looks: Mapping[str, Look], written: Sequence[Path], left_out: Sequence[str]) -> None:
    from rich.console import Console

    from anaphor.inspect import differences
    from anaphor.metrics.perplexity import format_perplexity

    console = Console(highlight=False)
    for name, look in looks.items():
        total = look.scored.total
        print(f"{name}: {look.model}")
        print(f"  loss {total.loss:.4f}, {format_perplexity(total.perplexity)}, {_counted(total.tokens, 'token')}")
        if look.heads:
            print_table(console, _table(look.heads))
            if len(look.heads) > _rows(look.heads):
                print(f"{_counted(len(look.heads) - _rows(look.heads), 'more head')} in the page and with --json")
        else:
            print("  no layer has attention; the page shows states and gates")
        for note in look.notes:
            print(note)
    if len(looks) == 2:
        (first, one), (second, other) = looks.items()
        found = differences(one.scored, other.scored)
        better = sum(value < 0 for value in found)
        mean = sum(found) / len(found)
        share = f"{better} of {_counted(len(found), 'token')}"
        print(f"{second} less {first}: {mean:+.4f} nats a token; {second} is better on {share}")
    for line in left_out:
        print(line)
    for path in written:
        print(path)


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


def _rows(heads: Sequence[HeadSummary]) -> int:
    return len(heads) if len(heads) <= SHOWN + 4 else SHOWN


def _table(heads: Sequence[HeadSummary]) -> Any:
    from rich.table import Table

    from anaphor.inspect.look import place_of

    table = Table(box=None, pad_edge=False)
    for heading in ("layer", "head", "entropy", "distance", "itself", "previous", "first", "induction"):
        table.add_column(heading, no_wrap=True, justify="right")
    table.add_column("remarkable")
    for head in heads[: _rows(heads)]:
        numbers = (head.entropy, head.distance, head.on_self, head.on_previous, head.on_first, head.induction)
        table.add_row(
            place_of(head.name),
            str(head.head),
            *("–" if number is None else f"{number:.2f}" for number in numbers),
            head.remarkable,
        )
    return table
