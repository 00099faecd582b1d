"""`anaphor evaluate RUN`: validation or test score of a trained model, at other lengths too."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from anaphor.cli.train import told_overlap
from anaphor.config import parse
from anaphor.errors import ConfigError

if TYPE_CHECKING:
    from anaphor.metrics.perplexity import Score
    from anaphor.tasks.dynamic_evaluation import Dynamic
    from anaphor.tasks.neural_cache import Cache
    from anaphor.training.run import Prepared


@dataclass(frozen=True, kw_only=True)
class Options:
    """Score a trained model on a split of its data.

    With --cache or --dynamic it is scored again while it adapts to that text, in rows of their own. Choose their
    numbers on valid, where several values give several rows; test takes one of each.
    """

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    split: str = "valid"
    """What to score: train, valid or test."""
    bptt: tuple[int, ...] = ()
    """Lengths of the segments; several give several scores. None given means the one of training."""
    carry: bool | None = None
    """Whether state is carried from one segment to the next; None means as in training."""
    batch_size: int = 10
    """Rows that are scored side by side."""
    protocol: str = "complete"
    """How it is scored: complete (every token once) or example (as the well-known example script)."""
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
    device: str = "auto"
    """Where it runs: auto, cpu or cuda."""
    json: bool = False
    """Print one JSON list instead of a table."""

    def __post_init__(self) -> None:
        if any(length < 1 for length in self.bptt):
            raise ConfigError(f"bptt={self.bptt}: a segment has at least 1 token")
        if self.split not in ("train", "valid", "test"):
            raise ConfigError(f"unknown split {self.split!r} (known: train, valid, test)")
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
    options = parse(Options, words, program="anaphor evaluate")

    from anaphor.config import look_up
    from anaphor.tasks.dynamic_evaluation import Dynamic
    from anaphor.tasks.neural_cache import Cache
    from anaphor.training.run import opened, shared_with_train
    from anaphor.training.spec import PROTOCOLS

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
    rows = []
    with opened(options.run, options.device) as made:
        shared = {"overlap": shared_with_train(made)} if options.split == "test" else {}
        for length, score in scores(made, options, caches, dynamics):
            row = {**row_of(length, score), **shared}
            rows.append(row)
            if not options.json:
                print(line_of(row), flush=True)
    if options.json:
        print(json.dumps(rows))
    elif shared:
        print(told_overlap(shared["overlap"]))
    return 0


def scores(
    made: Prepared, options: Options, caches: Sequence[Cache], dynamics: Sequence[Dynamic]
) -> Iterator[tuple[int | None, Score]]:
    """The plain scores of all lengths, then those of the adapting model; each with its length of segments."""
    from anaphor.tasks.adaptation import strengths_in_training, with_caches, with_dynamic
    from anaphor.tasks.language_modelling import LanguageModelling, Protocol, resolve_carry

    task = made.task
    if not isinstance(task, LanguageModelling):
        if caches or dynamics:
            raise ConfigError(
                f"{options.run} reads padded examples, each by itself: --cache and --dynamic need a text that goes on"
            )
        yield None, task.evaluate(made.model, options.split)
        return
    wanted = task.carry if options.carry is None else options.carry
    plain = []
    for length in options.bptt or (task.bptt,):
        carry = resolve_carry(made.model, wanted, length)
        protocol = Protocol(options.batch_size, length, carry, options.protocol == "complete")
        plain.append((protocol, task.evaluate_by(made.model, options.split, protocol)))
        yield length, plain[-1][1]
    scaled = any(dynamic.rule == "rms" for dynamic in dynamics)
    strengths = strengths_in_training(task, made.model) if scaled else None
    for protocol, score in plain:
        if caches:
            for adapted in with_caches(task, made.model, options.split, protocol, caches, score):
                yield protocol.bptt, adapted
        for dynamic in dynamics:
            yield (
                protocol.bptt,
                with_dynamic(task, made.model, options.split, protocol, dynamic, score, strengths),
            )


def row_of(length: int | None, score: Score) -> dict[str, Any]:
    return {
        "bptt": length,
        "state": score.facts.get("state", "restarted"),
        "adaptation": score.facts.get("adaptation"),
        **score.to_plain(),
    }


def line_of(row: dict[str, Any]) -> str:
    from anaphor.metrics.perplexity import perplexity_in_words

    adapted = f", adapted by {row['adaptation']}" if row["adaptation"] else ""
    perplexity = perplexity_in_words(row["perplexity"])
    return f"bptt {row['bptt']}{adapted}: {perplexity}, loss {row['loss']:.4f} ({row['signature']})"
