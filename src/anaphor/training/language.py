"""A language model and its text, ready to be trained or used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from anaphor.data.batches import PaddedBatches, batch_examples, batchify, max_offset
from anaphor.data.corpus import build_tokenizer, encode_split
from anaphor.data.dataset import EXAMPLE_SEPARATOR, LINE_SEPARATOR, TEXT_COLUMNS, Dataset, count_overlap
from anaphor.data.datasets import open_dataset
from anaphor.data.files import split_examples
from anaphor.data.grammar import GrammarDataset
from anaphor.data.tokenizer import Tokenizer
from anaphor.data.vocab import tokenizer_from_plain
from anaphor.errors import ConfigError, DataError
from anaphor.models import LanguageModel, preset
from anaphor.registry import DATASETS
from anaphor.tasks.language_modelling import (
    ExampleModelling,
    LanguageModelling,
    Protocol,
    Split,
    check_examples,
    resolve_carry,
)
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.tasks.restraint import Restraint
from anaphor.training.device import choose_device
from anaphor.training.place import at_hand
from anaphor.training.prepared import Prepared, check_splits


@dataclass(frozen=True)
class PreparedLanguage(Prepared):
    """A language model with its text and its tokenizer."""

    spec: LanguageRunSpec
    model: LanguageModel
    task: LanguageModelling | ExampleModelling
    opener: Callable[[], Dataset]
    tokenizer: Tokenizer

    @property
    def source(self) -> Dataset:
        """Its text, which is not opened before somebody asks."""
        return self.opener()

    def facts(self) -> dict[str, Any]:
        return {
            "tokenizer": self.tokenizer.to_plain(),
            "data": {split: self.source.digest(split) for split in ("train", "valid")},
        }

    def check(self, test: bool) -> None:
        check_splits(self.source, test)
        task = self.task
        if isinstance(task, LanguageModelling):
            task.protocol.batches(task.splits("valid").tokens, task.tokenizer.boundary)
            if task.shift:
                batchify(task.splits("train").tokens, task.rows, max_offset(task.rows, task.bptt))
        else:
            task.examples("valid")

    def score(self, split: str) -> dict[str, Any]:
        """Where the text was drawn from a grammar, the loss of whoever knows the grammar stands beside it."""
        found = self.task.evaluate(self.model, split)
        score = found.to_plain()
        known = self.source_loss(split, found.total.tokens)
        if known is not None:
            score["source_loss"] = known
        if split == "test":
            score["overlap"] = self.shared_with_train()
        return score

    def source_loss(self, split: str, scored: int) -> float | None:
        """Nats that the source itself loses on each token of this tokenizer. None: it is no grammar, or part of what it
        wrote is hidden behind unknown words, which are easier to predict."""
        if not isinstance(self.source, GrammarDataset):
            return None
        if isinstance(self.task, LanguageModelling):
            text = self.task.splits(split)
            # All tokens, also where the last few are not scored: the total is that of the whole text.
            tokens, unknowns = len(text.tokens), text.unknowns
        else:
            tokens, unknowns = scored, self.task.examples(split).count_token(self.tokenizer.unknown)
        total, _ = self.source.loss(self.source.text(split))
        return None if unknowns else total / tokens

    def notes(self) -> list[str]:
        if not isinstance(self.task, ExampleModelling) or self.spec.max_examples == 1:
            return []
        learnt = self.task.examples("train")
        if learnt.examples > 1:
            return []
        (batch,) = learnt
        return [
            f"{self.source.where('train')} holds no blank line, so it is one example of {batch.count:,} tokens: "
            f"examples are separated by blank lines"
        ]

    def padding_share(self) -> float | None:
        return self.task.examples("train").padding_share if isinstance(self.task, ExampleModelling) else None

    def shared_with_train(self) -> dict[str, Any]:
        """What of test stands in train too: whole examples where they are separate, else lines. It reads the test
        split."""
        separate = isinstance(self.task, ExampleModelling)
        found = count_overlap(self.source, EXAMPLE_SEPARATOR if separate else LINE_SEPARATOR)
        return {"unit": "examples" if separate else "lines", "test": found.total, "in_train": found.in_train}


def prepare_language(
    spec: LanguageRunSpec, known: dict[str, Any] | None = None, place: str | None = None
) -> PreparedLanguage:
    """Build the model for its data. A run that exists brings its own tokenizer, among its `known` facts, and the
    `place` where its data were; they are not opened before a split is read."""
    device = choose_device(spec.device)

    @cache
    def source() -> Dataset:
        begun = known is not None or place is not None
        return open_dataset(at_hand(spec.data, place, DATASETS) if begun else spec.data, TEXT_COLUMNS)

    if known is None:
        tokenizer = build_tokenizer(source(), spec.tokenizer, spec.vocabulary)
    else:
        tokenizer = tokenizer_from_plain(known["tokenizer"])
    torch.manual_seed(spec.seed)
    model = preset(spec.model, vocabulary=len(tokenizer), **spec.model_options()).build().to(device)
    task: LanguageModelling | ExampleModelling
    if spec.batching == "stream":
        task = _stream_task(spec, source, tokenizer, resolve_carry(model, spec.carry, spec.bptt), device)
    else:
        task = _padded_task(spec, source, tokenizer, model.limit, device)
    return PreparedLanguage(spec, model, task, device, source, tokenizer, known=known or {})


def _stream_task(
    spec: LanguageRunSpec, source: Callable[[], Dataset], tokenizer: Tokenizer, carry: bool, device: torch.device
) -> LanguageModelling:
    if spec.max_examples is not None:
        raise ConfigError(
            f"max_examples={spec.max_examples} counts examples, and a stream has none: use --batching padded"
        )

    @cache
    def split(name: str) -> Split:
        corpus = encode_split(source(), name, tokenizer)
        return Split(corpus.tensor(device), corpus.bytes, corpus.unknowns)

    protocol = Protocol(spec.eval_batch_size, spec.bptt, carry, spec.protocol == "complete")
    return LanguageModelling(
        tokenizer,
        split,
        rows=spec.batch_size,
        bptt=spec.bptt,
        carry=carry,
        shift=spec.random_offset,
        protocol=protocol,
        restraint=_restraint(spec),
    )


def _padded_task(
    spec: LanguageRunSpec,
    source: Callable[[], Dataset],
    tokenizer: Tokenizer,
    limit: int | None,
    device: torch.device,
) -> ExampleModelling:
    for name in ("carry", "random_offset"):
        if getattr(spec, name):
            raise ConfigError(f"{name}=True is about segments of a text, and examples have none: use --batching stream")

    @cache
    def examples(name: str) -> PaddedBatches:
        text = source()
        raw, where = text.read(name), text.where(name)
        texts = split_examples(tokenizer.as_text(raw, where=where, offset=text.byte_offset(name)))
        check_examples(texts, where)
        chosen = texts[: spec.max_examples] if name == "train" else texts
        ids = [np.concatenate(([tokenizer.boundary], tokenizer.encode_sentence(text))) for text in chosen]
        longest = max(map(len, ids)) - 1
        if limit is not None and longest > limit:
            raise DataError(
                f"the longest example of {where} has {longest:,} tokens, but the model knows {limit:,} "
                f"positions: choose a larger --max-positions, or positions without end"
            )
        told = [place for place, example in enumerate(ids) if len(example) > 1]
        return batch_examples(
            [ids[place] for place in told],
            pad=tokenizer.pad,
            rows=spec.batch_size,
            seed=spec.seed,
            device=device,
            text_bytes=sum(len(chosen[place].encode("utf-8", "surrogateescape")) for place in told),
        )

    return ExampleModelling(tokenizer, examples, _restraint(spec))


def _restraint(spec: LanguageRunSpec) -> Restraint:
    return Restraint(size=spec.activation_reg, change=spec.temporal_activation_reg)
