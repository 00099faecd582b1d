"""`anaphor look` for language models: attention maps, states and losses of a text, as figures and as a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from anaphor import inspect
from anaphor.data.tokenizer import UNKNOWN, Tokenizer
from anaphor.errors import ConfigError, DataError, count_noun
from anaphor.files import replace_file
from anaphor.inspect import HeadSummary, TextLook, compare_losses
from anaphor.inspect.figures import draw_attention, draw_units
from anaphor.inspect.look import layer_label
from anaphor.inspect.page import build_page
from anaphor.models.language_model import LanguageModel
from anaphor.progress_listener import track_progress
from anaphor.tasks.lm import describe_unknown
from anaphor.tasks.lm.verbs import LookOptions
from anaphor.tasks.metrics import LOSS, PERPLEXITY, format_text_values
from anaphor.tasks.tables import align_columns
from anaphor.user_paths import writing_to

if TYPE_CHECKING:
    from anaphor.tasks.lm.experiment import LanguageModelExperiment

HEADS_SHOWN = 12  # in the table, unless there are hardly more
MAX_WEIGHTS = 4_000_000  # in JSON


def look(
    experiment: LanguageModelExperiment,
    options: LookOptions,
    run: Path,
    out: Path,
    load: Callable[[Path], LanguageModelExperiment],
    warn: Callable[[str], None],
) -> tuple[dict[str, Any], list[str]]:
    """Write the page and the figures.

    Args:
        experiment: A run.
        options: The text, and what to show of it.
        run: The folder of the run.
        out: Folder for the page and the figures.
        load: Loads another run, to compare with.
        warn: Is called with each warning.

    Returns:
        All values as JSON, and lines for people.
    """
    first = look_at(experiment, _read(options, experiment), options.layers, warn)
    looks = {str(run): first}
    if options.compare is not None:
        other = load(options.compare)
        second = look_at(other, _read(options, other), options.layers, warn)
        missing = _missing(second, options.layer, options.head)
        # The layer and the head were chosen for the first run; the second need not have them.
        looks[str(options.compare)] = replace(second, notes=(*second.notes, missing)) if missing else second
    written, left_out = write(looks, out, options.layer, options.head)
    return _plain(looks, options, written, left_out), _describe(looks, written, left_out)


class TextModel(Protocol):
    """What a look needs of an experiment: other tasks than this one have language models, too."""

    @property
    def model(self) -> LanguageModel: ...

    @property
    def tokenizer(self) -> Tokenizer: ...


def look_at(experiment: TextModel, text: str, layers: Sequence[int], warn: Callable[[str], None]) -> TextLook:
    """A text in the model of a run, with its scores. Records all layers, or those in `layers`."""
    found = inspect.look_at(experiment.model, experiment.tokenizer, text, layers)
    total = found.scored.total
    values = {"loss": total.loss, "perplexity": total.perplexity}
    tokens = found.tokens[1:]  # after the boundary
    for line in describe_unknown(tokens.count(UNKNOWN), len(tokens), "text"):
        warn(line)
    return replace(found, summary=format_text_values((LOSS, PERPLEXITY), values))


def _read(options: LookOptions, experiment: LanguageModelExperiment) -> str:
    if options.file is None:
        assert options.text is not None, "one of the two was given"
        return options.text
    try:
        raw = options.file.read_bytes()
    except OSError as error:
        raise DataError(f"{options.file} cannot be read: {error.strerror}") from None
    return experiment.tokenizer.as_text(raw, where=str(options.file))


def write(
    looks: Mapping[str, TextLook], out: Path, layer: int | None = None, head: int | None = None
) -> tuple[list[Path], tuple[str, ...]]:
    """Write the page and the figures of one run or two, with the layer and the head that are drawn and shown first.

    Returns:
        The paths of the files, and a sentence for each thing that was left out.
    """
    shown_first = None
    if layer is not None:
        ((name, number), *others) = next(iter(looks.values())).heads_of(layer, head)
        shown_first = (name, None if others else number)
    page, left_out = build_page(looks, shown_first)
    written = [out / "attention.html"]
    with writing_to(out):
        replace_file(written[0], page.encode())
        named = [*zip(("", "-compared"), looks.items(), strict=False)]
        for ending, (name, found) in track_progress("drawing", named):
            title = name if len(looks) > 1 else ""
            if not _missing(found, layer, head):
                written += draw_attention(found, out, layer, head, stem=f"attention{ending}", run=title)
            written += draw_units(found, out, stem=f"states{ending}", run=title)
    return written, left_out


def _missing(look: TextLook, layer: int | None, head: int | None) -> str:
    """Why a run does not have the layer and the head that were chosen; empty where it has, or none were."""
    try:
        if layer is not None:
            look.heads_of(layer, head)
    except ConfigError as error:
        return str(error)
    return ""


def _plain(
    looks: Mapping[str, TextLook], options: LookOptions, written: Sequence[Path], left_out: Sequence[str]
) -> dict[str, Any]:
    """All values as JSON. `differences` are second losses minus first."""
    first, *others = looks.values()
    return {
        "runs": [{"run": name, **_plain_run(look, options.layer, options.head)} for name, look in looks.items()],
        "differences": list(compare_losses(first.scored, others[0].scored)) if others else None,
        "left_out": list(left_out),
        "written": [str(path) for path in written],
    }


def _plain_run(look: TextLook, layer: int | None, head: int | None) -> dict[str, Any]:
    weights, missing = _weights(look, layer, head)
    return {
        "model": look.model,
        "tokens": look.tokens,
        "losses": [None, *look.scored.losses],
        "loss": look.scored.total.loss,
        "perplexity": look.scored.total.perplexity,
        "notes": [*look.notes, *missing],
        "summary": [head.to_plain() for head in look.heads],
        "weights": weights,
        "units": {
            f"{one.layer}.{one.kind}.{one.part}": {"units": one.units, "of": one.of, "values": one.values.tolist()}
            for one in look.units
        },
    }


def _weights(look: TextLook, layer: int | None, head: int | None) -> tuple[dict[str, Any], list[str]]:
    """[H, T, T] by tap, of the layer and head that were chosen, as far as they are not too many."""
    heads = [(name, number) for name, maps in look.maps.items() for number in range(len(maps))]
    if layer is not None:
        heads = [] if _missing(look, layer, head) else look.heads_of(layer, head)
    found: dict[str, Any] = {}
    missing, count = [], 0
    for name in dict.fromkeys(name for name, _ in heads):
        maps = look.maps[name][[number for one, number in heads if one == name]]
        count += maps.numel()
        if count > MAX_WEIGHTS:
            missing.append(f"The weights of {name} are too many for JSON: choose --layer and --head.")
        else:
            found[name] = maps.tolist()
    return found, missing


def _describe(looks: Mapping[str, TextLook], written: Sequence[Path], left_out: Sequence[str]) -> list[str]:
    lines = []
    for name, look in looks.items():
        lines += [f"{name}: {look.model}", f"  {look.summary}, {count_noun(look.scored.total.tokens, 'token')}"]
        lines += _head_table(look.heads)
        lines += look.notes
    if len(looks) == 2:
        (first, one), (second, other) = looks.items()
        found = compare_losses(one.scored, other.scored)
        better = sum(value < 0 for value in found)
        mean = sum(found) / len(found)
        share = f"{better} of {count_noun(len(found), 'token')}"
        lines.append(f"{second} minus {first}: {mean:+.4f} nats per token; {second} is better on {share}")
    return [*lines, *left_out, *map(str, written)]


def _head_table(heads: Sequence[HeadSummary]) -> list[str]:
    if not heads:
        return ["  no layer has attention; the page shows states and gates"]
    shown = heads if len(heads) <= HEADS_SHOWN + 4 else heads[:HEADS_SHOWN]
    rows = [["layer", "head", "entropy", "distance", "itself", "previous", "first", "induction", "pattern"]]
    for head in shown:
        values = (head.entropy, head.distance, head.on_self, head.on_previous, head.on_first, head.induction)
        cells = ["–" if value is None else f"{value:.2f}" for value in values]
        rows.append([layer_label(head.name), str(head.head), *cells, head.pattern])
    patterns = max(len(row[-1]) for row in rows)
    lines = [line.rstrip() for line in align_columns([[*row[:-1], row[-1].ljust(patterns)] for row in rows])]
    if len(heads) > len(shown):
        lines.append(f"{count_noun(len(heads) - len(shown), 'more head')} on the page and with --json")
    return lines
