"""`anaphor evaluate RUN`: validation or test score of a trained model, at other lengths too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from anaphor.config import parse
from anaphor.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Options:
    """Score a trained model on a split of its data."""

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
    device: str = "auto"
    """Where it runs: auto, cpu or cuda."""
    json: bool = False
    """Print one JSON list instead of a table."""

    def __post_init__(self) -> None:
        if any(length < 1 for length in self.bptt):
            raise ConfigError(f"bptt={self.bptt}: a segment has at least 1 token")
        if self.split not in ("train", "valid", "test"):
            raise ConfigError(f"unknown split {self.split!r} (known: train, valid, test)")


def run(words: Sequence[str]) -> int:
    options = parse(Options, words, program="anaphor evaluate")

    from anaphor.config import look_up
    from anaphor.tasks.language_modelling import LanguageModelling, Protocol, resolve_carry
    from anaphor.training.run import opened
    from anaphor.training.spec import PROTOCOLS

    look_up(PROTOCOLS, options.protocol, "protocol")
    rows = []
    with opened(options.run, options.device) as made:
        if not isinstance(made.task, LanguageModelling):
            rows.append(
                {"bptt": None, "state": "restarted", **made.task.evaluate(made.model, options.split).to_plain()}
            )
        else:
            wanted = made.task.carry if options.carry is None else options.carry
            for length in options.bptt or (made.task.bptt,):
                carry = resolve_carry(made.model, wanted, length)
                protocol = Protocol(options.batch_size, length, carry, options.protocol == "complete")
                score = made.task.evaluate_by(made.model, options.split, protocol)
                rows.append({"bptt": length, "state": protocol.facts()["state"], **score.to_plain()})
    if options.json:
        print(json.dumps(rows))
        return 0
    for row in rows:
        print(f"bptt {row['bptt']}: perplexity {row['perplexity']:.2f}, loss {row['loss']:.4f} ({row['signature']})")
    return 0
