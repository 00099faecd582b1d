"""Translation: predict the target of each pair, given its source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from anaphor.data.batches import Batch, PaddedBatches, batch_pairs
from anaphor.data.corpus import EncodedPairs, PairTokenizers, encode_pairs
from anaphor.evaluation import eval_mode
from anaphor.generate import Beam, Hypothesis, ensemble, search_rows, step_function
from anaphor.metrics.bleu import BleuScore, ChrfScore, chrf, corpus_bleu
from anaphor.metrics.perplexity import LossTotal, Score
from anaphor.models.head import smoothed_cross_entropy, token_losses
from anaphor.models.seq2seq import Seq2Seq
from anaphor.progress import report_progress
from anaphor.tasks.base import Loss
from anaphor.tasks.disagreement import Disagreement

SHOWN = 3  # translations that a person sees while it trains
GREEDY = Beam(width=1, max_length=None)
FREE = Disagreement()


@dataclass(frozen=True)
class PairSplit:
    """One split: its batches, its numbers, and its sentences as people wrote them."""

    batches: PaddedBatches
    pairs: EncodedPairs
    texts: Sequence[tuple[str, str]]


class Translation:
    """The tokens of each target, one after the other, its source being known."""

    def __init__(
        self,
        tokenizers: PairTokenizers,
        splits: Callable[[str], PairSplit],
        *,
        smoothing: float = 0.0,
        disagreement: Disagreement = FREE,
        select: str = "perplexity",
        tokenize: str = "13a",
        facts: dict[str, Any] | None = None,
    ) -> None:
        """`splits` opens a split when it is asked for one; `tokenize` is how BLEU reads words; `facts` join every
        signature."""
        self.tokenizers, self.splits = tokenizers, splits
        self.smoothing, self.disagreement = smoothing, disagreement
        self.select, self.tokenize = select, tokenize
        self.facts = facts or {}

    def batches(self, epoch: int) -> PaddedBatches:
        return self.splits("train").batches.at_epoch(epoch)

    def empty_carry(self, model: Seq2Seq) -> None:
        return None

    def loss(self, model: Seq2Seq, batch: Batch, carry: None) -> tuple[Loss, None]:
        if self.disagreement.price:
            return self._loss_of_two(model, batch), None
        x = features(model, batch)
        return Loss(smoothed_cross_entropy(x, model.head, batch.targets, self.smoothing)), None

    def _loss_of_two(self, model: Seq2Seq, batch: Batch) -> Loss:
        """The mean loss of two readings, and what it costs that they differ. Both are rows of one batch: dropout draws
        for every row, and one call of the model costs less than two."""
        twice = batch.repeat()
        x = features(model, twice)
        total = smoothed_cross_entropy(x, model.head, twice.targets, self.smoothing) / 2
        return Loss(total, self.disagreement.of(x, model.head, batch.targets))

    def evaluate(self, model: Seq2Seq, split: str) -> Score:
        """The loss of the given targets; the BLEU of greedy translations too, where the best is chosen by it."""
        total = self.total(model, split)
        if self.select != "bleu":
            return Score(total, self.signature_facts(total))
        bleu = self.bleu(model, split, GREEDY)
        return Score(total, {**self.signature_facts(total), "search": "greedy"}, {"bleu": bleu.bleu}, by="bleu")

    def total(self, model: Seq2Seq, split: str) -> LossTotal:
        """What is lost on the targets of a split, their ends included."""
        found = self.splits(split)
        total = LossTotal(0.0, 0, found.pairs.bytes)
        with eval_mode(model), torch.inference_mode():
            ordered = found.batches.by_length()
            for number, batch in enumerate(ordered, 1):
                losses = token_losses(features(model, batch), model.head, batch.targets)
                total = total + LossTotal(float(losses.double().sum()), batch.count, 0)
                report_progress("scoring", number, len(ordered))
        return total

    def signature_facts(self, total: LossTotal) -> dict[str, Any]:
        source, target = self.tokenizers.source, self.tokenizers.target
        vocabulary = str(len(target)) if self.tokenizers.is_joint else f"{len(source)}+{len(target)}"
        return {"tokens": total.tokens, "tokenizer": target.kind, "vocab": vocabulary, **self.facts}

    def bleu(self, model: Seq2Seq, split: str, beam: Beam) -> BleuScore:
        """Corpus BLEU of the model's own translations of a split."""
        return self.bleu_of(self.written(model, split, beam), split)

    def written(self, model: Seq2Seq, split: str, beam: Beam) -> list[Hypothesis]:
        """The model's own translations of a split."""
        found = self.splits(split)
        best = self.translated([model], found.batches, beam)
        return [best[place][0] for place in found.pairs.indices.tolist()]

    def bleu_of(self, written: Sequence[Hypothesis], split: str) -> BleuScore:
        """Corpus BLEU of translations of a whole split, against its targets."""
        return corpus_bleu(self._texts(written), [self._targets(split)], tokenize=self.tokenize)

    def chrf_of(self, written: Sequence[Hypothesis], split: str) -> ChrfScore:
        """The same by characters."""
        return chrf(self._texts(written), [self._targets(split)])

    def _texts(self, written: Sequence[Hypothesis]) -> list[str]:
        return [self.tokenizers.target.decode(one.tokens) for one in written]

    def _targets(self, split: str) -> list[str]:
        found = self.splits(split)
        return [found.texts[place][1] for place in found.pairs.indices.tolist()]

    def translate(
        self, models: Sequence[Seq2Seq], sentences: Sequence[str], beam: Beam, rows: int = 64
    ) -> list[list[Hypothesis]]:
        """The translations that a beam finds for each sentence, best first; several models vote on every token."""
        pairs = encode_pairs([(sentence, "") for sentence in sentences], self.tokenizers)
        for model in models:
            pairs.check_lengths(source=model.source_limit)
        batches = batch_pairs(pairs, rows=rows, device=models[0].device)
        found = self.translated(models, batches, beam)
        return [found[place] for place in range(len(sentences))]

    def translated(self, models: Sequence[Seq2Seq], batches: PaddedBatches, beam: Beam) -> dict[int, list[Hypothesis]]:
        """What is found for each pair, by its place. Where the beam sets no bound, a translation may be twice as long
        as its source, and twenty tokens longer: within reason, whatever stands beside it."""
        end = self.tokenizers.target.boundary
        found: dict[int, list[Hypothesis]] = {}
        ordered, several = batches.by_length(), ensemble([step_function(model) for model in models])

        def step(number: int, tokens: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
            report_progress("translating", number, len(ordered))  # at every token: a batch may take long
            return several(tokens, state)

        chosen = replace(beam, max_length=None, end=end)
        with eval_mode(*models), torch.inference_mode():
            for number, batch in enumerate(ordered):
                source_ids, sizes = batch.source
                bounds = [2 * size + 20 if beam.max_length is None else beam.max_length for size in sizes.tolist()]
                limits = [model.limit - 1 for model in models if model.limit is not None]
                longest = [min([bound, *limits]) for bound in bounds]
                state = tuple(model.encode(source_ids, sizes) for model in models)
                first = source_ids.new_full((len(source_ids),), end)
                found.update(
                    zip(batch.indices, search_rows(partial(step, number), first, state, chosen, longest), strict=True)
                )
            report_progress("translating", len(ordered), len(ordered))
        return found

    def sample(self, model: Seq2Seq, seed: int) -> str:
        texts = [self.splits("valid").texts[place] for place in range(min(SHOWN, len(self.splits("valid").texts)))]
        found = self.translate([model], [source for source, _ in texts], GREEDY)
        lines = []
        for (source, target), (best, *_) in zip(texts, found, strict=True):
            lines += [f"source: {source}", f"target: {target}", f"model:  {self.tokenizers.target.decode(best.tokens)}"]
        return "\n".join(lines)


def features(model: Seq2Seq, batch: Batch) -> torch.Tensor:
    """What the head reads for every token of the targets. [B, T, D]"""
    x, _ = model.features(batch.input_ids, model.encode(*batch.source), batch.lengths)
    return x
