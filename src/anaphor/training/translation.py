"""A translation model and its sentence pairs, ready to be trained or used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from anaphor.data.pair_batches import PairBatches
from anaphor.data.pair_corpus import PairTokenizers, encoded_pairs, joint_tokenizers, separate_tokenizers
from anaphor.data.pair_source import PairSource, pair_overlap
from anaphor.data.pair_sources import PAIR_SOURCES, open_pairs
from anaphor.errors import ConfigError
from anaphor.generate import Beam
from anaphor.metrics.perplexity import Score
from anaphor.models.presets import seq2seq_preset
from anaphor.models.seq2seq import Seq2Seq, Seq2SeqSpec
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
    opener: Callable[[], PairSource]
    tokenizers: PairTokenizers

    @property
    def source(self) -> PairSource:
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
        found = pair_overlap(self.source, self._trained())
        return {"overlap": {"unit": "pairs", "test": found.parts, "in_train": found.in_train}}

    def _trained(self) -> list[tuple[str, str]]:
        """The pairs it was trained on: not those that were too many or too long."""
        train = self.task.splits("train")
        return [train.texts[place] for place in train.pairs.places.tolist()]

    def padding_share(self) -> float | None:
        """Of both sides together."""
        return self.task.splits("train").batches.padding.both

    def left_out(self) -> int:
        return self.task.splits("train").pairs.dropped


def prepare_translation(
    spec: TranslationRunSpec, known: dict[str, Any] | None = None, place: str | None = None
) -> PreparedTranslation:
    """Build the model for its pairs. A run that exists brings its own tokenizers, among its `known` facts, and the
    `place` where its pairs were; they are not opened before a split is read."""
    device = choose_device(spec.device)

    @cache
    def source() -> PairSource:
        begun = known is not None or place is not None
        data = at_hand(spec.data, place, PAIR_SOURCES) if begun else spec.data
        return open_pairs(data, spec.source, spec.target)

    if known is not None:
        tokenizers = PairTokenizers.from_plain(known["tokenizer"])
    else:
        build = joint_tokenizers if spec.joint else separate_tokenizers
        tokenizers = build(source(), spec.tokenizer, spec.vocabulary)
    if spec.tied == "all" and not tokenizers.joint:
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
    fit = spec.data in PAIR_SOURCES and source().fit  # to open those that have a name costs nothing
    task = Translation(
        tokenizers,
        _splits(spec, source, tokenizers, model, device),
        smoothing=spec.label_smoothing,
        disagreement=disagreement_of(spec, model.spec),
        select=spec.select,
        facts={"data": "fit"} if fit and spec.max_examples is None and spec.max_length is None else {},
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
    source: Callable[[], PairSource],
    tokenizers: PairTokenizers,
    model: Seq2Seq,
    device: torch.device,
) -> Any:
    @cache
    def split(name: str) -> PairSplit:
        pairs = encoded_pairs(source(), name, tokenizers)
        texts = source().pairs(name)
        if name == "train":
            pairs = pairs if spec.max_examples is None else pairs.first(spec.max_examples)
            pairs = pairs if spec.max_length is None else pairs.without_longer(spec.max_length)
        pairs.check_lengths(source=model.source_limit, target=model.limit)
        batches = PairBatches(
            pairs,
            rows=spec.batch_size if spec.batch_tokens is None else None,
            tokens=spec.batch_tokens,
            multiple=spec.pad_to,
            seed=spec.seed,
            device=device,
        )
        return PairSplit(batches, pairs, texts)

    return split
