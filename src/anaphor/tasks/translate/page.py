"""What the live page shows of translation: a translation with its alignment, and the pairs of a split with the loss of
the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from anaphor.data.pairs import EncodedPairs
from anaphor.errors import ConfigError
from anaphor.inspect.alignment import cross_attention, cross_attention_taps
from anaphor.inspect.parts import ATTENTION, LookParts, check_tokens, describe_map
from anaphor.inspect.split_losses import Groups, SplitLosses
from anaphor.metrics.losses import LossMeter, loss_result
from anaphor.precision import to_double
from anaphor.tasks.translate.experiment import TranslationExperiment

LENGTHS = (5, 10, 20, 40, 80)
UNKNOWNS = (0, 1, 2)


def look(
    experiment: TranslationExperiment,
    *,
    text: str | None = None,
    example: int | None = None,
    length: int = 0,
    image: str | None = None,
) -> LookParts:
    """The translation of a sentence and its alignment; `example` is the index of a pair of validation."""
    if image is not None:
        raise ConfigError("a translation model reads no images: give a sentence")
    reference = None
    if text is None:
        valid = experiment.split("valid")
        assert example is not None, "one of them was given"
        if example >= len(valid.pairs):
            raise ConfigError(f"example={example}: validation has the pairs 0 to {len(valid.pairs) - 1:,}")
        text, reference = valid.texts[int(valid.pairs.indices[example])]
    sentence = text.strip().replace("\n", " ")
    if not sentence:
        raise ConfigError("the sentence is empty: there is nothing to translate")
    tokenizers = experiment.tokenizers
    ids = tokenizers.source.encode_sentence(sentence).tolist()
    check_tokens(len(ids))
    ((best, *_),) = experiment.translate([sentence], experiment.beam)
    taps = cross_attention_taps(experiment.model)
    source, target, maps = cross_attention(
        experiment.model, tokenizers, sentence, best.tokens, taps, finished=best.finished
    )
    notes = [] if taps else [f"condition={experiment.model.spec.condition}: there is no attention to the source"]
    plain = {
        "kind": "translation",
        "model": f"{experiment.spec.model}; {experiment.model.count_parameters():,} parameters",
        "text": sentence,
        "translation": tokenizers.target.decode(best.tokens),
        "reference": reference,
        "log_probability": best.log_probability,
        "tokens": source,
        "source": source,
        "target": target,
        "joined": tokenizers.source.is_joined,
        "unknown": [token == tokenizers.source.unknown for token in ids],
        "layers": [{**describe_map(tap, heads, {}), "causal": False} for tap, heads in maps.items()],
        "first": taps[-1] if taps else None,
        "heads": [],
        "units": [],
        "notes": notes,
    }
    return LookParts(plain, {ATTENTION: maps})


@dataclass(frozen=True)
class SentenceLosses(SplitLosses):
    """Sentence pairs, each with the mean loss of the tokens of its reference."""

    unit = "sentences"

    pairs: EncodedPairs
    texts: Sequence[tuple[str, str]]

    def mismatch(self, other: Any, names: tuple[str, str]) -> str:
        same = self.pairs.digest == other.pairs.digest and np.array_equal(self.pairs.indices, other.pairs.indices)
        if not same:
            return f"{names[0]} and {names[1]} were not scored on the same sentences: compare runs with the same data"
        if self.pairs.target.tokenizer != other.pairs.target.tokenizer:
            return f"{names[0]} and {names[1]} tokenize the targets differently: only losses of equal tokens compare"
        return ""

    def show(self, start: int, stop: int) -> dict[str, Any]:
        source, target = self.texts[int(self.pairs.indices[start])]
        return {"source": source, "reference": target}

    def predictions(self, indices: Sequence[int], experiment: TranslationExperiment) -> list[dict[str, Any]]:
        if not indices:
            return []
        sentences = [self.show(index, index + 1)["source"] for index in indices]
        found = experiment.translate(sentences, experiment.beam)
        decode = experiment.tokenizers.target.decode
        return [{"translations": decode(best.tokens)} for best, *_ in found]


def read_sentences(experiment: TranslationExperiment, split: str) -> SentenceLosses:
    """The pairs of a split before they are scored: each has a loss of 0."""
    loaded = experiment.split(split)
    losses, numbers = np.zeros(len(loaded.pairs), np.float32), np.arange(len(loaded.pairs), dtype=np.int32)
    return SentenceLosses(losses, numbers, {}, {}, (), loaded.pairs, loaded.texts)


def sentence_losses(experiment: TranslationExperiment, split: str) -> SentenceLosses:
    """The pairs of a split, by the length of the source and its unknown words."""
    loaded, read = experiment.split(split), read_sentences(experiment, split)
    pairs, meter = loaded.pairs, LossMeter()
    place = {index: number for number, index in enumerate(pairs.indices.tolist())}
    losses = np.empty(len(pairs), np.float32)
    for batch, found in experiment.losses_by_batch(split):
        meter.add(to_double(found).sum(), batch.count)
        means = to_double(found).sum(1) / (batch.targets >= 0).sum(1)
        for index, mean in zip(batch.indices, means.tolist(), strict=True):
            losses[place[index]] = mean
    groups = {"length": Groups.by_count("Tokens of the source", pairs.source.sizes, LENGTHS)}
    if (unknown := experiment.tokenizers.source.unknown) is not None:
        is_unknown = (np.asarray(pairs.source.tokens) == unknown).astype(np.int32)
        counts = np.add.reduceat(is_unknown, np.cumsum(pairs.source.sizes) - pairs.source.sizes)
        groups["unknown"] = Groups.by_count("Unknown tokens of the source", counts, UNKNOWNS)
    total = meter.read(pairs.bytes)
    result = loss_result(total, experiment.signature_metadata(total, split)).to_plain()
    notes = ("The loss of a sentence is the mean of its target's tokens.",)
    return replace(read, losses=losses, result=result, groups=groups, notes=notes)
