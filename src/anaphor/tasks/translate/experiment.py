"""Translation: a model with its sentence pairs and tokenizers; batches, loss, beam search and scores."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anaphor.beam_search import Beam, Hypothesis, ensemble, make_step, search_rows
from anaphor.config import settings_of
from anaphor.data.batches import Batch
from anaphor.data.dataset import PAIR_COLUMNS, Dataset, count_row_overlap
from anaphor.data.datasets import open_dataset
from anaphor.data.padded_batches import PaddedBatches, batch_pairs
from anaphor.data.pairs import (
    EncodedPairs,
    PairSampler,
    PairTokenizers,
    build_pair_tokenizers,
    encode_pair_split,
    encode_pairs,
)
from anaphor.data.stored_pairs import StoredSentences
from anaphor.data.streamed_rows import StreamedRows
from anaphor.errors import ConfigError
from anaphor.evaluation import eval_mode
from anaphor.inspect.alignment import Alignment
from anaphor.metrics.bleu import BleuScore, ChrfScore, chrf, corpus_bleu
from anaphor.metrics.losses import LossMeter, LossResult, LossTotal, loss_result
from anaphor.metrics.result import Result
from anaphor.models import Seq2Seq
from anaphor.models.cross_entropy import token_losses
from anaphor.precision import to_double
from anaphor.progress_listener import report_progress, track_progress
from anaphor.registry import DATASETS, LOSS_TERMS, make_extras
from anaphor.row_draws import repeated_rows
from anaphor.tasks.model_options import pick_options
from anaphor.tasks.translate import Seq2SeqOptions, TranslationRunSpec
from anaphor.tasks.translate.look import align, write_alignment
from anaphor.tasks.unknown_words import describe_mostly_unknown
from anaphor.training.device import choose_device
from anaphor.training.distributed import current_ranks, gather_rows, local_batch
from anaphor.training.experiment import MAX_CROSS_ENTROPY, Experiment, Loss, require_splits
from anaphor.training.loss_terms import Penalty, count_passes, loss_with_terms
from anaphor.training.paths import resolve_data_path
from anaphor.training.random_state import use_seed

SAMPLES = 3
GREEDY = Beam(width=1, max_length=None)
TRANSLATED = ("bleu", "chrf")
"""Metrics of the model's own translations; the others are those of the given targets."""
ROWS, MAX_ROWS = 64, 512
"""Sentences that are translated at once, and the most on a GPU."""
MAX_LOGITS, MAX_TOKENS = 2**25, 2**15
"""Bounds of more than `ROWS`: the logits of a step, and the tokens of the sources with padding."""


@dataclass(frozen=True)
class PairSplit:
    """One split: batches, encoded pairs, and the texts."""

    batches: PaddedBatches
    pairs: EncodedPairs
    texts: Sequence[tuple[str, str]]

    def kept_texts(self) -> Iterator[tuple[str, str]]:
        """The texts of the pairs, without those that were left out."""
        kept = np.zeros(len(self.texts), bool)
        kept[self.pairs.indices] = True
        return compress(self.texts, kept.tolist())


class TranslationExperiment(Experiment):
    """A translation model with its sentence pairs and tokenizers."""

    spec: TranslationRunSpec
    model: Seq2Seq
    largest_loss = MAX_CROSS_ENTROPY
    tokenize = "13a"
    """How BLEU splits text into words."""

    def __init__(
        self,
        spec: TranslationRunSpec,
        model: Seq2Seq,
        tokenizers: PairTokenizers,
        open_pairs: Callable[[], Dataset],
        *,
        device: torch.device | str = "cpu",
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        """`open_pairs` is called when a split is first read, so that a run can be used without its data."""
        self.spec, self.model, self.tokenizers = spec, model, tokenizers
        self.device, self.saved = torch.device(device), saved or {}
        self.loss_terms: list[Penalty] = make_extras(LOSS_TERMS, spec.task, partial(settings_of, spec))
        self.passes = count_passes(self.loss_terms)
        self._open_pairs = open_pairs
        self.split = cache(self.load_split)
        """Loads a split when it is first asked for, so that test is not read before it is scored."""

    @property
    def source(self) -> Dataset:
        return self._open_pairs()

    def load_split(self, name: str) -> PairSplit:
        spec, pairs = self.spec, encode_pair_split(self.source, name, self.tokenizers)
        is_stored = isinstance(pairs.target, StoredSentences)
        texts = StreamedRows(self.source, name, len(pairs)) if is_stored else self.source.rows(name).values
        if spec.max_examples is not None and (name == "train" or self.source.metadata.get("data") == "fit"):
            pairs = pairs.first(spec.max_examples)  # where valid repeats train, it repeats no more than was trained on
        if name == "train":
            pairs = pairs if spec.max_length is None else pairs.drop_longer(spec.max_length)
        pairs.check_lengths(source=self.model.max_source_positions, target=self.model.max_positions)
        return PairSplit(self._batch(pairs), pairs, texts)

    def _batch(self, pairs: EncodedPairs, epoch: int = 0) -> PaddedBatches:
        spec = self.spec
        return batch_pairs(
            pairs,
            rows=spec.batch_size if spec.batch_tokens is None else None,
            max_tokens=spec.batch_tokens,
            pad_to=spec.pad_to,
            seed=spec.seed,
            epoch=epoch,
            device=self.device,
        )

    @cached_property
    def _limits(self) -> dict[str, int]:
        """Maximum number of tokens of each side of a training pair."""
        given = (self.model.max_source_positions, self.model.max_positions, self.spec.max_length)
        source, target, both = (limit or sys.maxsize for limit in given)
        return {"source": min(source, both), "target": min(target - 1, both)}  # the end of a target needs a position

    @cached_property
    def _sampler(self) -> PairSampler:
        """Random segmentations of the training pairs that are no longer than a plain one may be."""
        return PairSampler(self.split("train").pairs, self.spec.bpe_dropout, self.spec.seed, **self._limits)

    def batches(self, epoch: int) -> PaddedBatches:
        spec, is_bidirectional = self.spec, epoch < self.spec.bidirectional_epochs
        if not spec.bpe_dropout and not is_bidirectional:
            return self.split("train").batches.at_epoch(epoch)
        pairs = self._sampler.at_epoch(epoch) if spec.bpe_dropout else self.split("train").pairs
        if is_bidirectional:
            pairs = pairs.swap_half(spec.seed, epoch, **self._limits)
        return self._batch(pairs, epoch)

    def loss(self, batch: Batch, carry: None) -> tuple[Loss, None]:
        # All passes are rows of one batch: dropout is drawn per row, and one call of the model is cheaper than two.
        read = batch if self.passes == 1 else batch.repeat(self.passes)
        with repeated_rows(self.passes):
            x = compute_hidden_states(self.model, read)
        return loss_with_terms(self.loss_terms, x, self.model.head, read, self.spec.label_smoothing), None

    def evaluate(self, split: str) -> LossResult:
        """Loss of the given targets; also BLEU and chrF of greedy translations where one of them selects."""
        total = self.total(split)
        if self.spec.select not in TRANSLATED:
            return loss_result(total, self.signature_metadata(total, split))
        hypotheses = self.translate_split(split, GREEDY)
        values = {"bleu": self.bleu(hypotheses, split).bleu, "chrf": self.chrf(hypotheses, split).chrf}
        return loss_result(total, {**self.signature_metadata(total, split), "search": "greedy"}, values)

    def score(self, split: str) -> Result:
        """Loss of the given targets; BLEU and chrF of translations by beam search; overlap of test and train."""
        return self._with_overlap(self._score(split)) if split == "test" else self._score(split)

    def score_test(self, valid: Result) -> Result:
        """The result on valid itself where test is the same text."""
        same = self.source.digest("test") == self.source.digest("valid")
        return self._with_overlap(valid if same else self._score("test"))

    def _score(self, split: str) -> LossResult:
        total, beam = self.total(split), self.beam
        hypotheses = self.translate_split(split, beam)
        bleu, characters = self.bleu(hypotheses, split), self.chrf(hypotheses, split)
        metadata = {**self.signature_metadata(total, split), "beam": beam.width, "penalty": f"{beam.length_penalty:g}"}
        if cut := sum(not hypothesis.finished for hypothesis in hypotheses):
            metadata["cut"] = cut
        values = {"bleu": bleu.bleu, "chrf": characters.chrf}
        signatures = {"bleu_signature": bleu.signature, "chrf_signature": characters.signature}
        return loss_result(total, metadata, values, **signatures)

    def _with_overlap(self, result: Result) -> Result:
        train = self.split("train")
        # The pairs it was trained on, without those left out.
        found = count_row_overlap(self.source, train.kept_texts())
        return replace(result, details={**result.details, "overlap": found.to_plain("pairs")})

    def total(self, split: str) -> LossTotal:
        """Total loss of the targets of a split, their ends included."""
        meter = LossMeter()
        for batch, losses in self.losses_by_batch(split):
            meter.add(to_double(losses).sum(), batch.count)
        return meter.read(self.split(split).pairs.bytes)

    def losses_by_batch(self, split: str) -> Iterator[tuple[Batch, Tensor]]:
        """Each batch of a split with the losses of its targets [B, T], zero where there is no target."""
        for batch in track_progress("scoring", self.split(split).batches.by_length()):
            part = local_batch(batch)
            with eval_mode(self.model), torch.inference_mode():
                losses = token_losses(compute_hidden_states(self.model, part), self.model.head, part.targets)
            yield batch, gather_rows(losses, len(batch.targets))

    def signature_metadata(self, total: LossTotal, split: str) -> dict[str, Any]:
        source, target = self.tokenizers.source, self.tokenizers.target
        vocabulary = str(len(target)) if self.tokenizers.is_joint else f"{len(source)}+{len(target)}"
        # Opening a named data set costs nothing; any other data are not opened for this.
        metadata = self.source.metadata if self.spec.data in DATASETS else {}
        limit = {} if self.spec.max_examples is None else {"max_examples": self.spec.max_examples}
        unknown = {"unk": "kept"} if self.split(split).pairs.target.count_tokens()[1] else {}
        return {"tokens": total.tokens, "tokenizer": target.kind, "vocab": vocabulary, **unknown, **metadata, **limit}

    def bleu(self, hypotheses: Sequence[Hypothesis], split: str) -> BleuScore:
        """Corpus BLEU of translations of a whole split."""
        return corpus_bleu(self._decode(hypotheses), [self._references(split)], tokenize=self.tokenize)

    def chrf(self, hypotheses: Sequence[Hypothesis], split: str) -> ChrfScore:
        """chrF of translations of a whole split."""
        return chrf(self._decode(hypotheses), [self._references(split)])

    def _decode(self, hypotheses: Sequence[Hypothesis]) -> list[str]:
        return [self.tokenizers.target.decode(hypothesis.tokens) for hypothesis in hypotheses]

    def _references(self, split: str) -> list[str]:
        loaded = self.split(split)
        return [loaded.texts[index][1] for index in loaded.pairs.indices.tolist()]

    def translate_split(self, split: str, beam: Beam) -> list[Hypothesis]:
        """The best translation of each sentence of a split."""
        loaded = self.split(split)
        best = self.translate_batches(loaded.batches, beam, [self.model])
        return [best[index][0] for index in loaded.pairs.indices.tolist()]

    def translate(
        self, sentences: Sequence[str], beam: Beam, models: Sequence[Seq2Seq] | None = None
    ) -> list[list[Hypothesis]]:
        """The translations that beam search finds for each sentence, best first; several models form an ensemble."""
        models = [self.model] if models is None else models
        pairs, device = encode_pairs([(sentence, "") for sentence in sentences], self.tokenizers), models[0].device
        for model in models:
            pairs.check_lengths(source=model.max_source_positions)
        rows = partial(count_rows, device, beam.width * len(self.tokenizers.target))
        found = self.translate_batches(batch_pairs(pairs, rows=rows, device=device), beam, models)
        return [found[index] for index in range(len(sentences))]

    def translate_batches(
        self, batches: PaddedBatches, beam: Beam, models: Sequence[Seq2Seq]
    ) -> dict[int, list[Hypothesis]]:
        """Translations of each pair by its index. Without a bound in the beam, a translation has at most twice as many
        tokens as its source, and 20."""
        end = self.tokenizers.target.boundary
        found: dict[int, list[Hypothesis]] = {}
        ordered, next_tokens = batches.by_length(), ensemble([make_step(model) for model in models])

        def step(number: int, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
            report_progress("translating", number, len(ordered))  # at every token: a batch may take long
            return next_tokens(tokens, state)

        unbounded = replace(beam, max_length=None, end=end)
        with eval_mode(*models), torch.inference_mode():
            for number, batch in enumerate(ordered):
                source_ids, sizes = batch.source
                bounds = [2 * size + 20 if beam.max_length is None else beam.max_length for size in sizes.tolist()]
                limits = [model.max_positions - 1 for model in models if model.max_positions is not None]
                lengths = [min([bound, *limits]) for bound in bounds]
                share = current_ranks().share(len(source_ids))
                rows = slice(share.start, share.stop)
                state = tuple(model.encode(source_ids[rows], sizes[rows]) for model in models)
                first = source_ids.new_full((len(share),), end)
                hypotheses = search_rows(partial(step, number), first, state, unbounded, lengths[rows])
                found.update(zip(batch.indices, gather_hypotheses(hypotheses, lengths, beam.width), strict=True))
            report_progress("translating", len(ordered), len(ordered))
        return found

    def sample(self, seed: int) -> str:
        """Greedy translations of the first sentences of valid."""
        texts = self.split("valid").texts[:SAMPLES]
        found = self.translate([source for source, _ in texts], GREEDY)
        lines = []
        for (source, target), (best, *_) in zip(texts, found, strict=True):
            lines += [f"source: {source}", f"target: {target}", f"model:  {self.tokenizers.target.decode(best.tokens)}"]
        return "\n".join(lines)

    def fingerprint(self) -> dict[str, Any]:
        return {
            "tokenizer": self.tokenizers.to_plain(),
            "data": {split: self.source.digest(split) for split in ("train", "valid")},
        }

    def validate(self, test: bool) -> None:
        require_splits(self.source, test)
        for split in ("train", "valid"):
            self.split(split)

    def notes(self) -> list[str]:
        pairs = {split: self.split(split).pairs for split in ("train", "valid")}
        sides = {f"the {side} of {split}": getattr(pairs[split], side) for split in pairs for side in PAIR_COLUMNS}
        counts = {name: side.count_tokens() for name, side in sides.items()}
        return describe_mostly_unknown(counts, self.spec.vocabulary)

    def chosen_settings(self) -> dict[str, Any]:
        in_tokens = {} if self.spec.batch_tokens is None else {"batch_size": None}
        # Left out where they are off, so that runs from before the options can be resumed.
        sampling = {name: getattr(self.spec, name) or None for name in ("bpe_dropout", "bidirectional_epochs")}
        return pick_options(Seq2SeqOptions, self.model.spec.used_settings()) | in_tokens | sampling

    @property
    def tokenizer(self) -> PairTokenizers:
        """The tokenizers of both languages, `source` and `target`."""
        return self.tokenizers

    def generate(self, prompt: str, *, tokens: int = 100, beam: int | None = None) -> str:
        """The translation of a sentence, of at most so many tokens, by the beam search of the run or a wider one."""
        search = replace(self.beam, max_length=tokens, width=self.spec.beam if beam is None else beam)
        ((best, *_),) = self.translate([prompt], search)
        return self.tokenizers.target.decode(best.tokens)

    def look(self, text: str, *, layer: int | None = None, out: Path | str | None = None) -> Alignment:
        """Attention of the translation of a sentence to its source. With `out`, the page and the figures of
        `anaphor look` are written into that folder."""
        ((best, *_),) = self.translate([text], self.beam)
        alignment = align(self, text, best, layer)
        if out is not None:
            write_alignment(alignment, Path(out), "alignment")
        return alignment

    @property
    def beam(self) -> Beam:
        """Beam search of the final evaluation."""
        return Beam(width=self.spec.beam, max_length=None, length_penalty=self.spec.length_penalty)

    def statistics(self) -> dict[str, Any]:
        left_out, vocabulary = self.split("train").pairs.dropped, len(self.tokenizers.target)
        return {"vocabulary": vocabulary, "padding_share": self.batches(0).padding_share, "left_out": left_out}


def build(
    spec: TranslationRunSpec, saved: Mapping[str, Any] | None = None, data_path: str | None = None
) -> TranslationExperiment:
    """Build the model for its data. A run that exists brings its `saved` fingerprint with the tokenizers, and the
    `data_path` where its data were; its data are not opened before a split is read."""
    device = choose_device(spec.device)

    @cache
    def open_data() -> Dataset:
        exists = saved is not None or data_path is not None
        data = resolve_data_path(spec.data, data_path) if exists else spec.data
        return open_dataset(data, PAIR_COLUMNS, source=spec.source, target=spec.target)

    if saved is not None:
        tokenizers = PairTokenizers.from_plain(saved["tokenizer"])
    else:
        tokenizers = build_pair_tokenizers(open_data(), spec.tokenizer, spec.vocabulary, joint=spec.joint)
    if spec.tied == "all" and not tokenizers.is_joint:
        raise ConfigError("tied='all' shares the embeddings of both languages: use --joint, for a joint vocabulary")
    sizes = {"source_vocabulary": len(tokenizers.source), "vocabulary": len(tokenizers.target)}
    with use_seed(spec.seed, keep_state=saved is not None):
        model = spec.model_spec(**sizes).build()
    return TranslationExperiment(spec, model.to(device), tokenizers, open_data, device=device, saved=saved)


def count_rows(device: torch.device, logits: int, longest: int) -> int:
    """Sentences translated at once, by the logits of each and the longest: many keep a GPU busy, if they fit."""
    return max(ROWS, min(MAX_ROWS, MAX_LOGITS // logits, MAX_TOKENS // longest)) if device.type == "cuda" else ROWS


def gather_hypotheses(found: list[list[Hypothesis]], lengths: Sequence[int], width: int) -> list[list[Hypothesis]]:
    """The hypotheses of all rows of a batch, of which each rank has searched some. `lengths` are the bounds of all."""
    if current_ranks().count == 1:
        return found
    # As numbers: how many tokens, the two scores, whether it is finished, and the tokens.
    table = torch.full((len(found), width, 4 + max(lengths)), -1.0, dtype=torch.float64)
    for row, hypotheses in zip(table, found, strict=True):
        for place, one in zip(row, hypotheses, strict=False):
            numbers = [len(one.tokens), one.log_probability, one.score, one.finished, *one.tokens]
            place[: len(numbers)] = torch.tensor(numbers, dtype=torch.float64)
    return [
        [
            Hypothesis(list(map(int, tokens[: int(count)])), log_probability, score, bool(finished))
            for count, log_probability, score, finished, *tokens in row
            if count >= 0
        ]
        for row in gather_rows(table, len(lengths)).tolist()
    ]


def compute_hidden_states(model: Seq2Seq, batch: Batch) -> Tensor:
    """Hidden states that the output layer reads for every token of the targets. [B, T, D]"""
    x, _ = model.compute_hidden_states(batch.input_ids, model.encode(*batch.source), batch.lengths)
    return x
