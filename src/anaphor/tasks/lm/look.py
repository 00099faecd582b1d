"""`anaphor look` and `anaphor models` for language models. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from anaphor.config import writing_to
from anaphor.errors import ConfigError, DataError, count_noun
from anaphor.flags import Positional
from anaphor.tasks import LOSS, PERPLEXITY, align_columns, format_size, format_text_values, join_layers
from anaphor.tasks.lm import describe_unknown
from anaphor.training.spec import ModelRow

if TYPE_CHECKING:
    from anaphor.inspect import HeadSummary, TextLook
    from anaphor.tasks.lm.experiment import LanguageModelExperiment

HEADS_SHOWN = 12  # in the table, unless there are hardly more
MAX_WEIGHTS = 4_000_000  # in JSON


@dataclass(frozen=True, kw_only=True)
class LookOptions:
    """Options for language models. Prints what each attention head does, heads that repeat earlier text first."""

    text: Annotated[str | None, Positional("TEXT")] = None
    """Text to look at."""
    file: Path | None = None
    """File with the text."""
    layer: int | None = None
    """Layer to draw and to show first (all in the figure, the clearest head on the page, if not given)."""
    head: int | None = None
    """Head of that layer (all if not given)."""
    layers: tuple[int, ...] = ()
    """Layers to record, for long texts in large models (all if not given)."""
    compare: Path | None = None
    """Another run on the same text with the same tokens; its figures end in -compared."""

    def validate(self, run: Path) -> None:
        """Refuse settings that do not fit together, before the run is loaded."""
        if self.layers and self.text is None and self.file is None:
            raise ConfigError("the text is missing: --layers takes all values behind it, so write the text before it")
        if (self.text is None) == (self.file is None):
            raise ConfigError("look at one text: write it behind the run, or name a file with --file")
        if self.head is not None and self.layer is None:
            raise ConfigError(f"head={self.head} needs --layer")
        if self.layer is not None and self.layers and self.layer not in self.layers:
            raise ConfigError(f"layer={self.layer} is not among layers={self.layers}")
        if self.compare is not None and self.compare.resolve() == run.resolve():
            raise ConfigError(f"compare={self.compare} is the run itself")

    def look(
        self,
        experiment: LanguageModelExperiment,
        run: Path,
        out: Path,
        load: Callable[[Path], LanguageModelExperiment],
        warn: Callable[[str], None],
    ) -> tuple[dict[str, Any], list[str]]:
        """Write the page and the figures. Gives all values as JSON, and lines for people. `load` loads another run."""
        look = self.look_at(experiment, warn)
        looks = {str(run): look}
        if self.compare is not None:
            other = self.look_at(load(self.compare), warn)
            missing = self._missing(other)
            # The layer and the head were chosen for the first run; the second need not have them.
            looks[str(self.compare)] = replace(other, notes=(*other.notes, missing)) if missing else other
        written, left_out = self.write(looks, out)
        return self._plain(looks, written, left_out), _describe(looks, written, left_out)

    def write(self, looks: Mapping[str, TextLook], out: Path) -> tuple[list[Path], tuple[str, ...]]:
        """Write the page and the figures. Gives their paths, and a sentence for each thing that was left out."""
        from anaphor.evaluation import track_progress
        from anaphor.inspect.figures import draw_attention, draw_units
        from anaphor.inspect.page import build_page
        from anaphor.training.files import replace_file

        shown_first = None
        if self.layer is not None:
            ((name, head), *others) = next(iter(looks.values())).heads_of(self.layer, self.head)
            shown_first = (name, None if others else head)
        page, left_out = build_page(looks, shown_first)
        written = [out / "attention.html"]
        with writing_to(out):
            replace_file(written[0], page.encode())
            named = [*zip(("", "-compared"), looks.items(), strict=False)]
            for ending, (name, look) in track_progress("drawing", named):
                title = name if len(looks) > 1 else ""
                if not self._missing(look):
                    written += draw_attention(look, out, self.layer, self.head, stem=f"attention{ending}", run=title)
                written += draw_units(look, out, stem=f"states{ending}", run=title)
        return written, left_out

    def look_at(self, experiment: LanguageModelExperiment, warn: Callable[[str], None]) -> TextLook:
        """The text in a run's model, with its scores."""
        from anaphor.data.tokenizer import UNKNOWN
        from anaphor.inspect import look_at

        look = look_at(experiment.model, experiment.tokenizer, self._read(experiment), self.layers)
        total = look.scored.total
        values = {"loss": total.loss, "perplexity": total.perplexity}
        look = replace(look, summary=format_text_values((LOSS, PERPLEXITY), values))
        tokens = look.tokens[1:]  # after the boundary
        for line in describe_unknown(tokens.count(UNKNOWN), len(tokens), "text"):
            warn(line)
        return look

    def _read(self, experiment: LanguageModelExperiment) -> str:
        if self.file is None:
            assert self.text is not None, "one of the two was given"
            return self.text
        try:
            raw = self.file.read_bytes()
        except OSError as error:
            raise DataError(f"{self.file} cannot be read: {error.strerror}") from None
        return experiment.tokenizer.as_text(raw, where=str(self.file))

    def _missing(self, look: TextLook) -> str:
        """Why a run does not have the layer and the head that were chosen; empty where it has, or none were."""
        try:
            if self.layer is not None:
                look.heads_of(self.layer, self.head)
        except ConfigError as error:
            return str(error)
        return ""

    def _plain(self, looks: Mapping[str, TextLook], written: Sequence[Path], left_out: Sequence[str]) -> dict[str, Any]:
        """All values as JSON. `differences` are second losses minus first."""
        from anaphor.inspect import compare_losses

        first, *others = looks.values()
        return {
            "runs": [{"run": name, **self._plain_run(look)} for name, look in looks.items()],
            "differences": list(compare_losses(first.scored, others[0].scored)) if others else None,
            "left_out": list(left_out),
            "written": [str(path) for path in written],
        }

    def _plain_run(self, look: TextLook) -> dict[str, Any]:
        weights, missing = self._weights(look)
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

    def _weights(self, look: TextLook) -> tuple[dict[str, Any], list[str]]:
        """[H, T, T] by tap, of the layer and head that were chosen, as far as they are not too many."""
        heads = [(name, head) for name, maps in look.maps.items() for head in range(len(maps))]
        if self.layer is not None:
            heads = [] if self._missing(look) else look.heads_of(self.layer, self.head)
        found: dict[str, Any] = {}
        missing, count = [], 0
        for name in dict.fromkeys(name for name, _ in heads):
            maps = look.maps[name][[head for one, head in heads if one == name]]
            count += maps.numel()
            if count > MAX_WEIGHTS:
                missing.append(f"The weights of {name} are too many for JSON: choose --layer and --head.")
            else:
                found[name] = maps.tolist()
        return found, missing


def _describe(looks: Mapping[str, TextLook], written: Sequence[Path], left_out: Sequence[str]) -> list[str]:
    from anaphor.inspect import compare_losses

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
    from anaphor.inspect.look import layer_label

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


def describe_model(name: str, vocabulary: int, tokens: int) -> ModelRow:
    """A model preset as `anaphor models` shows it: layers, size, and the state after some tokens."""
    from anaphor.models import preset, summarize

    summary = summarize(preset(name, vocabulary=vocabulary), tokens)
    numbers = {
        **format_size(summary.width, summary.parameters),
        "state": _format_bytes(summary.state_bytes),
        "grows": "yes" if summary.state_grows else "no",
        "limit": "none" if summary.limit is None else f"{summary.limit:,}",
    }
    remark = f"state: of one row after {count_noun(tokens, 'token')}; limit: number of learned positions"
    text = {"model": name, "layers": join_layers(summary.layers)}
    return ModelRow({"name": name, **dataclasses.asdict(summary)}, text, numbers, remark)


def _format_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"
