"""`anaphor evaluate RUN`: validation or test score of a trained model, at other lengths and by position too."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from anaphor.cli.table import print_table
from anaphor.cli.train import told_overlap, told_source_loss
from anaphor.cli.writing import make, writing
from anaphor.config import finite, look_up
from anaphor.errors import ConfigError
from anaphor.flags import parse

if TYPE_CHECKING:
    from anaphor.metrics.perplexity import Score
    from anaphor.studies.length import LengthScore
    from anaphor.tasks.dynamic_evaluation import Dynamic
    from anaphor.tasks.language_modelling import LanguageModelling, Protocol
    from anaphor.tasks.lm import LanguageRunSpec
    from anaphor.tasks.neural_cache import Cache
    from anaphor.training.language import PreparedLanguage
    from anaphor.training.prepared import Prepared

STATES = {"carried": True, "restarted": False}
SEARCHES = ("beam", "length_penalty")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Score a trained model on a split of its data.

    With --cache or --dynamic it is scored again while it adapts to that text, in rows of their own. Choose their
    numbers on valid, where several values give several rows; test takes one of each.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    split: str = "valid"
    """What to score: train, valid or test."""
    bptt: tuple[int, ...] = ()
    """Lengths of the segments; several give several scores. None given means the one of training."""
    carry: bool | None = None
    """Whether state is carried from one segment to the next; None means as in training."""
    state: tuple[str, ...] = ()
    """The same choice by name, so that both can be given: carried, restarted."""
    by_position: bool = False
    """Tell also how the loss goes along a segment, from its first token to its last."""
    out: Path | None = None
    """Folder for figures of perplexity by length and of loss by position."""
    batch_size: int | None = None
    """Rows that are scored side by side; None means as many as while it was trained."""
    protocol: str | None = None
    """How it is scored: complete (every token once) or example (as the well-known example script); None means as while
    it was trained."""
    cache: tuple[int, ...] = ()
    """Score also with a cache of so many past tokens of each row."""
    cache_weight: tuple[float, ...] = ()
    """Share of the probability that goes to the cache; none given means 0.1."""
    cache_flatness: tuple[float, ...] = ()
    """How much more count those tokens of the cache whose past looks alike; none given means 0.3."""
    dynamic: tuple[float, ...] = ()
    """Score also with weights that learn from each segment once it is scored, at this learning rate, in one row."""
    dynamic_decay: tuple[float, ...] = ()
    """Share of the way back to the trained weights that each of its steps goes; none given means 0."""
    dynamic_rule: str = "sgd"
    """How long its steps are: sgd (the same for all weights) or rms (shorter where training had large gradients)."""
    beam: int | None = None
    """Width of the beam that writes translations; None means as while it was trained."""
    length_penalty: float | None = None
    """Power of the length by which their log-probabilities are divided; None means as while it was trained."""
    device: str = "auto"
    """Where it runs: auto, cpu or cuda."""
    json: bool = False
    """Print one JSON list instead of a table."""

    def __post_init__(self) -> None:
        if any(length < 1 for length in self.bptt):
            raise ConfigError(f"bptt={self.bptt}: a segment has at least 1 token")
        if self.split not in ("train", "valid", "test"):
            raise ConfigError(f"unknown split {self.split!r} (known: train, valid, test)")
        for name in self.state:
            look_up(STATES, name, "state")
        if self.state and self.carry is not None:
            raise ConfigError(f"state={self.state} and carry={self.carry} say the same thing: give one of them")
        for name, owner, given in (
            ("cache_weight", "cache", bool(self.cache_weight)),
            ("cache_flatness", "cache", bool(self.cache_flatness)),
            ("dynamic_decay", "dynamic", bool(self.dynamic_decay)),
            ("dynamic_rule", "dynamic", self.dynamic_rule != "sgd"),
        ):
            if given and not getattr(self, owner):
                raise ConfigError(f"{name}={getattr(self, name)} means nothing without --{owner}")
        for name in ("cache", "cache_weight", "cache_flatness", "dynamic", "dynamic_decay"):
            values = getattr(self, name)
            if self.split == "test" and len(values) > 1:
                raise ConfigError(f"{name}={values} on test: choose among them on valid, then give one")


def run(words: Sequence[str]) -> int:
    options = _read(words)

    from anaphor.tasks.dynamic_evaluation import Dynamic
    from anaphor.tasks.language_modelling import LanguageModelling
    from anaphor.tasks.lm import PROTOCOLS
    from anaphor.tasks.neural_cache import Cache
    from anaphor.training.language import PreparedLanguage
    from anaphor.training.run import opened, tell

    if options.protocol is not None:
        look_up(PROTOCOLS, options.protocol, "protocol")
    caches = [
        Cache(window, weight, flatness)
        for window, flatness, weight in product(
            options.cache, options.cache_flatness or (0.3,), options.cache_weight or (0.1,)
        )
    ]
    dynamics = [
        Dynamic(lr, decay, options.dynamic_rule)
        for lr, decay in product(options.dynamic, options.dynamic_decay or (0.0,))
    ]
    rows, found, figures = [], [], []
    with opened(options.run, options.device) as made:
        for split in made.edited():
            tell(f"the text of {split} is another one than {options.run} was trained with")
        if not isinstance(made, PreparedLanguage):
            return tell_whole(made, options)
        _refuse(options, SEARCHES, f"is for translations; {options.run} is a language model's run")
        if not isinstance(made.task, LanguageModelling):
            _refuse_segments(options, bool(caches or dynamics))
        if options.out is not None:
            make(options.out)
        shared = {"overlap": made.shared_with_train()} if options.split == "test" else {}
        for row, one in scores(made, options, caches, dynamics):
            rows.append({**row, **_source(made, options.split, row), **shared})
            if one is not None:
                found.append(one)
            if not options.json and not row["refused"]:
                print(line_of(row, one, len(set(options.state)) > 1), flush=True)
        if options.out is not None:
            figures = _draw(found, options.out, made.spec.bptt)
    if options.json:
        print(json.dumps(finite(rows)))
        return 0
    for line in _refusals(found):
        print(line)
    for loss in dict.fromkeys(row["source_loss"] for row in rows if "source_loss" in row):
        print(told_source_loss(loss))
    if options.by_position:
        _print_positions(found)
    if shared:
        print(told_overlap(shared["overlap"]))
    for path in figures:
        print(f"figure: {path}")
    return 0


def _read(words: Sequence[str]) -> Options:
    try:
        return parse(Options, words, program="anaphor evaluate")
    except ConfigError as error:
        if str(error).startswith("Unrecognized options"):
            for flag in (f"--{field.name.replace('_', '-')}" for field in fields(Options) if _takes_one(field.type)):
                behind = words[words.index(flag) + 1 :] if flag in words else []
                values = list(takewhile(lambda word: not word.startswith("--"), behind))
                if len(values) > 1:
                    raise ConfigError(f"{flag} takes one value, but {', '.join(values)} stand behind it") from None
        raise


def _takes_one(kind: object) -> bool:
    return not str(kind).startswith(("Annotated", "bool", "tuple"))


def tell_whole(made: Prepared, options: Options) -> int:
    """The score of a task that has no segments, and so none of the choices about them."""
    from anaphor.cli.progress import Bar, Under
    from anaphor.progress import progress_listener

    segments = ("bptt", "state", "carry", "by_position", "cache", "dynamic", "out", "batch_size", "protocol")
    _refuse(options, segments, f"is for language models; {options.run} is another task's run")
    said = {name: getattr(options, name) for name in SEARCHES if getattr(options, name) is not None}
    with Bar("reading") as bar, progress_listener(Under(bar, alone=True)):
        score = replace(made, spec=replace(made.spec, **said)).score(options.split)
    if options.json:
        print(json.dumps(finite([score])))
        return 0
    print(f"{options.split}: perplexity {score['perplexity']:.2f}, loss {score['loss']:.4f} ({score['signature']})")
    print(f"  BLEU {score['bleu']:.2f} ({score['bleu_signature']})")
    print(f"  chrF {score['chrf']:.2f} ({score['chrf_signature']})")
    if "overlap" in score:
        print(f"  {told_overlap(score['overlap'])}")
    return 0


def scores(
    made: PreparedLanguage, options: Options, caches: Sequence[Cache], dynamics: Sequence[Dynamic]
) -> Iterator[tuple[dict[str, Any], LengthScore | None]]:
    """Rows of the plain scores of all lengths, each with its losses by position, then rows of the adapting model."""
    from anaphor.studies.length import refusal, score_at_length
    from anaphor.tasks.adaptation import strengths_in_training, with_caches, with_dynamic
    from anaphor.tasks.language_modelling import LanguageModelling

    task, model = made.task, made.model
    if not isinstance(task, LanguageModelling):
        yield row_of(None, task.evaluate(model, options.split)), None
        return
    protocols = _protocols(made.spec, task, options)
    reasons = [refusal(model, protocol) for protocol in protocols]
    if all(reasons):
        raise ConfigError("; ".join(dict.fromkeys(filter(None, reasons))))
    plain = []
    for protocol in protocols:
        one = score_at_length(task, model, options.split, protocol)
        if one.score is not None:
            plain.append((protocol, one.score))
        yield _plain_row(one, options.by_position), one
    scaled = any(dynamic.rule == "rms" for dynamic in dynamics)
    strengths = strengths_in_training(task, model) if scaled else None
    for protocol, score in plain:
        if caches:
            for adapted in with_caches(task, model, options.split, protocol, caches, score):
                yield row_of(protocol.bptt, adapted), None
        for dynamic in dynamics:
            adapted = with_dynamic(task, model, options.split, protocol, dynamic, score, strengths)
            yield row_of(protocol.bptt, adapted), None


def _protocols(spec: LanguageRunSpec, task: LanguageModelling, options: Options) -> list[Protocol]:
    from anaphor.tasks.language_modelling import Protocol

    usual = task.carry if options.carry is None else options.carry
    ways = [STATES[name] for name in options.state] or [usual]
    complete = (options.protocol or spec.protocol) == "complete"
    rows = spec.eval_batch_size if options.batch_size is None else options.batch_size
    tokens = len(task.splits(options.split).tokens)
    if complete and options.batch_size is not None and rows > tokens:  # else the signature would tell a wrong number
        raise ConfigError(f"batch_size={rows}: each row needs a token, and {options.split} has {tokens:,}")
    return [Protocol(rows, length, carry, complete) for carry in ways for length in options.bptt or [task.bptt]]


def _refuse_segments(options: Options, adapting: bool) -> None:
    reads = f"{options.run} reads padded examples, each by itself"
    if adapting:
        raise ConfigError(f"{reads}: --cache and --dynamic need a text that goes on")
    segments = ("bptt", "carry", "state", "by_position", "out", "batch_size", "protocol")
    _refuse(options, segments, f"needs a text that goes on, cut into segments, and {reads}")


def _refuse(options: Options, names: Sequence[str], why: str) -> None:
    """An error for the first of these options that was given."""
    for name in names:
        if getattr(options, name) != getattr(Options, name):
            raise ConfigError(f"--{name.replace('_', '-')} {why}")


def _source(made: PreparedLanguage, split: str, row: dict[str, Any]) -> dict[str, float]:
    """What whoever wrote the text loses on each token, where that is known and there is a perplexity to compare."""
    known = None if row["refused"] or row["perplexity"] is None else made.source_loss(split, row["tokens"])
    return {} if known is None else {"source_loss": known}


def row_of(length: int | None, score: Score) -> dict[str, Any]:
    return {
        "bptt": length,
        "state": score.facts.get("state", "restarted"),
        "adaptation": score.facts.get("adaptation"),
        **score.to_plain(),
        "refused": None,
    }


def _plain_row(one: LengthScore, by_position: bool) -> dict[str, Any]:
    row = {**one.to_plain(), "adaptation": None}
    if not by_position:
        del row["positions"]
    return row


def line_of(row: dict[str, Any], one: LengthScore | None, several_states: bool) -> str:
    """A row for people, who are told the state where it is not the same in all."""
    from anaphor.metrics.perplexity import format_perplexity

    adapted = f", adapted by {row['adaptation']}" if row["adaptation"] else ""
    perplexity = format_perplexity(row["perplexity"])
    what = "examples, each by itself" if row["bptt"] is None else f"bptt {row['bptt']}"
    state = f", state {row['state']}" if several_states else ""
    line = f"{what}{state}{adapted}: {perplexity}, loss {row['loss']:.4f} ({row['signature']})"
    if one is not None and len(one.positions) < one.length:
        count = f"{len(one.positions):,} token{'' if len(one.positions) == 1 else 's'}"
        line += f"\n  its segments have {count}, for no row of the text is longer"
    return line


def _refusals(found: Sequence[LengthScore]) -> list[str]:
    """What has no score, and why: lengths with the same reason in one line."""
    lengths: dict[tuple[str, str], list[int]] = {}
    for one in found:
        if one.refused is not None:
            lengths.setdefault((one.state, one.refused), []).append(one.length)
    return [
        f"bptt {' '.join(map(str, same))}, state {state}: no score: {why}" for (state, why), same in lengths.items()
    ]


def _print_positions(found: Sequence[LengthScore]) -> None:
    """A line for each length, a column for each bin of positions."""
    from rich.console import Console
    from rich.table import Table

    from anaphor.studies.length import binned

    curves = [(one, binned(one.positions)) for one in found if one.score is not None]
    longest = max((bins for _, bins in curves), key=lambda bins: bins[-1].last)
    table = Table(box=None, pad_edge=False)
    for heading in ("state", "bptt", *(part.name for part in longest)):
        table.add_column(heading, no_wrap=True, justify="right")
    for one, bins in curves:
        table.add_row(one.state, str(one.length), *(f"{part.total.loss:.2f}" for part in bins))
    print("loss by position within the segment")  # no title of the table, which would break it at its own width
    print_table(Console(highlight=False), table)


def _draw(found: Sequence[LengthScore], folder: Path, trained: int) -> list[Path]:
    from anaphor.studies.length import draw_lengths

    with writing(folder):
        return draw_lengths(found, folder, trained)
