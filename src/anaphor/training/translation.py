"""A translation model and its sentence pairs, ready to be trained or used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from anaphor.data.batches import batch_pairs
from anaphor.data.corpus import PairTokenizers, encode_pair_split, joint_tokenizers, separate_tokenizers
from anaphor.data.dataset import PAIR_COLUMNS, Dataset, count_row_overlap
from anaphor.data.datasets import open_dataset
from anaphor.errors import ConfigError
from anaphor.generate import Beam
from anaphor.metrics.perplexity import Score
from anaphor.models.presets import seq2seq_preset
from anaphor.models.seq2seq import Seq2Seq, Seq2SeqSpec
from anaphor.registry import DATASETS
from anaphor.tasks.disagreement import Disagreement
from anaphor.tasks.translate import TranslationRunSpec
from anaphor.tasks.translation import PairSplit, Translation
from anaphor.training.device import choose_device
from anaphor.training.place import at_hand
from anaphor.training.prepared import Prepared, check_splits


@dataclass(frozen=True)
class PreparedTranslation(Prepared):
    """A translation model with its pairs and its tokenizers."""

    spec: TranslationRunSpec
    model: Seq2Seq
    task: Translation
    opener: Callable[[], Dataset]
    tokenizers: PairTokenizers

    @property
    def source(self) -> Dataset:
        """Its pairs, which are not opened before somebody asks."""
        return self.opener()

    def facts(self) -> dict[str, Any]:
        return {
            "tokenizer": self.tokenizers.to_plain(),
            "data": {split: self.source.digest(split) for split in ("train", "valid")},
        }

    def check(self, test: bool) -> None:
        check_splits(self.source, test)
        for split in ("train", "valid"):
            self.task.splits(split)

    def score(self, split: str) -> dict[str, Any]:
        """Loss and perplexity of the targets; BLEU and chrF of what the model writes itself."""
        score = self._score(split)
        return score | self._shared() if split == "test" else score

    def score_test(self, valid: dict[str, Any]) -> dict[str, Any]:
        """A text that is valid and test at once is not translated twice."""
        same = self.source.digest("test") == self.source.digest("valid")
        return (valid if same else self._score("test")) | self._shared()

    def _score(self, split: str) -> dict[str, Any]:
        total = self.task.total(self.model, split)
        beam = Beam(width=self.spec.beam, longest=None, length_penalty=self.spec.length_penalty)
        written = self.task.written(self.model, split, beam)
        bleu, characters = self.task.bleu_of(written, split), self.task.chrf_of(written, split)
        facts = {**self.task.signature_facts(total), "beam": beam.width, "penalty": f"{beam.length_penalty:g}"}
        if cut := sum(not one.finished for one in written):
            facts["cut"] = cut
        score = Score(total, facts, {"bleu": bleu.bleu, "chrf": characters.chrf}).to_plain()
        return score | {"bleu_signature": bleu.signature, "chrf_signature": characters.signature}

    def _shared(self) -> dict[str, Any]:
        found = count_row_overlap(self.source, self._trained())
        return {"overlap": {"unit": "pairs", "test": found.total, "in_train": found.in_train}}

    def _trained(self) -> list[tuple[str, str]]:
        """The pairs it was trained on: not those that were too many or too long."""
        train = self.task.splits("train")
        return [train.texts[place] for place in train.pairs.indices.tolist()]

    def padding_share(self) -> float | None:
        """Of both sides together."""
        return self.task.splits("train").batches.padding_share

    def left_out(self) -> int:
        return self.task.splits("train").pairs.dropped


def prepare_translation(
    spec: TranslationRunSpec, known: dict[str, Any] | None = None, place: str | None = None
) -> PreparedTranslation:
    """Build the model for its pairs. A run that exists brings its own tokenizers, among its `known` facts, and the
    `place` where its pairs were; they are not opened before a split is read."""
    device = choose_device(spec.device)

    @cache
    def source() -> Dataset:
        begun = known is not None or place is not None
        data = at_hand(spec.data, place, DATASETS) if begun else spec.data
        return open_dataset(data, PAIR_COLUMNS, source=spec.source, target=spec.target)

    if known is not None:
        tokenizers = PairTokenizers.from_plain(known["tokenizer"])
    else:
        build = joint_tokenizers if spec.joint else separate_tokenizers
        tokenizers = build(source(), spec.tokenizer, spec.vocabulary)
    if spec.tied == "all" and not tokenizers.is_joint:
        raise ConfigError(
            "tied='all' shares the word vectors of both languages: say --joint, so that they have the same"
        )
    torch.manual_seed(spec.seed)
    model = (
        seq2seq_preset(
            spec.model,
            source_vocabulary=len(tokenizers.source),
            vocabulary=len(tokenizers.target),
            **spec.model_options(),
        )
        .build()
        .to(device)
    )
    is_named = spec.data in DATASETS  # to open those that have a name costs nothing
    task = Translation(
        tokenizers,
        _splits(spec, source, tokenizers, model, device),
        smoothing=spec.label_smoothing,
        disagreement=disagreement_of(spec, model.spec),
        select=spec.select,
        facts=dict(source().facts) if is_named and spec.max_examples is None and spec.max_length is None else {},
    )
    return PreparedTranslation(spec, model, task, device, source, tokenizers, known=known or {})


def disagreement_of(spec: TranslationRunSpec, shares: Seq2SeqSpec) -> Disagreement:
    """Refused where both readings would be the same: words and weights are left out of a whole batch, not of a row."""
    made = Disagreement(spec.rdrop)
    if made.price and not (shares.dropout or shares.input_dropout or shares.output_dropout):
        raise ConfigError(
            f"rdrop={made.price} compares two readings that would be the same: "
            f"--dropout, --input-dropout or --output-dropout makes them differ"
        )
    return made


def _splits(
    spec: TranslationRunSpec,
    source: Callable[[], Dataset],
    tokenizers: PairTokenizers,
    model: Seq2Seq,
    device: torch.device,
) -> Any:
    @cache
    def split(name: str) -> PairSplit:
        pairs = encode_pair_split(source(), name, tokenizers)
        texts = source().rows(name).values
        if name == "train":
            pairs = pairs if spec.max_examples is None else pairs.first(spec.max_examples)
            pairs = pairs if spec.max_length is None else pairs.drop_longer(spec.max_length)
        pairs.check_lengths(source=model.source_limit, target=model.limit)
        batches = batch_pairs(
            pairs,
            rows=spec.batch_size if spec.batch_tokens is None else None,
            max_tokens=spec.batch_tokens,
            pad_to=spec.pad_to,
            seed=spec.seed,
            device=device,
        )
        return PairSplit(batches, pairs, texts)

    return split
