"""Language modeling: a model, its text and its tokenizer; batches, loss and scores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anaphor.beam_search import beam_search
from anaphor.config import settings_of
from anaphor.data.batches import Batch, Stream, row_length
from anaphor.data.corpus import encode_split
from anaphor.data.dataset import ALL, EXAMPLE_SEPARATOR, LINE_SEPARATOR, TEST, TEXT_COLUMNS, Dataset, count_overlap
from anaphor.data.datasets import open_dataset
from anaphor.data.grammar_dataset import GrammarDataset
from anaphor.data.padded_batches import PaddedBatches, batch_examples, batch_stored_examples
from anaphor.data.stored_tokens import load_tokens
from anaphor.data.stream_order import StreamOrder
from anaphor.data.streamed_text import can_stream, count_streamed_overlap, encode_streamed_examples, is_large
from anaphor.data.text import split_examples
from anaphor.data.tokenizer import Tokenizer
from anaphor.errors import AnaphorError, ConfigError, DataError, count_noun, print_warning
from anaphor.evaluation import losses_by_batch
from anaphor.generate import Sampler, generate
from anaphor.inspect import TextLook, hidden_states
from anaphor.metrics.losses import LossMeter, LossResult, loss_result
from anaphor.mixers.base import detach
from anaphor.models.language_model import LanguageModel, ModelState
from anaphor.models.presets import PRESETS
from anaphor.precision import to_double
from anaphor.registry import LOSS_TERMS, STREAM_ORDERS, changed_settings, make_extras
from anaphor.tasks.lm import STREAM_ONLY, LanguageRunSpec
from anaphor.tasks.lm.look import look_at, write
from anaphor.tasks.lm.protocol import Protocol, Split, choose_carry
from anaphor.tasks.lm.recall_tokens import RecallMeter, repeated_by_segment
from anaphor.tasks.lm.sampling import check_sampling
from anaphor.tasks.model_options import LanguageModelOptions, pick_options
from anaphor.tasks.own_stack import describe_own_stack
from anaphor.tasks.unknown_words import describe_mostly_unknown
from anaphor.training.distributed import gather_rows, local_batches
from anaphor.training.experiment import MAX_CROSS_ENTROPY, Experiment, Loss, require_splits
from anaphor.training.loss_terms import Penalty, count_passes, sum_penalties

SAMPLE_TOKENS = 50


class LanguageModelExperiment(Experiment):
    """A language model with its text and tokenizer. Subclasses say how the text becomes batches."""

    spec: LanguageRunSpec
    model: LanguageModel
    largest_loss = MAX_CROSS_ENTROPY

    def __init__(
        self,
        spec: LanguageRunSpec,
        model: LanguageModel,
        tokenizer: Tokenizer,
        open_text: Callable[[], Dataset],
        *,
        device: torch.device | str = "cpu",
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        """`open_text` is called when a split is first read, so that a run can be used without its data."""
        self.spec, self.model, self.tokenizer = spec, model, tokenizer
        self.device, self.saved = torch.device(device), saved or {}
        self.loss_terms: list[Penalty] = make_extras(LOSS_TERMS, spec.task, partial(settings_of, spec))
        if count_passes(self.loss_terms) > 1:
            raise ConfigError("a loss term wants several passes of a batch, which language models do not make")
        self._open_text = self._open_training_text = open_text
        self.split = cache(self.load_split)
        """Loads a split when it is first asked for, so that test is not read before it is scored."""
        self.setup()

    def setup(self) -> None:
        """Refuse settings that do not fit together, and derive others."""

    def use_data(self, name: str) -> None:
        """Score other text from now on."""
        self._open_text = cache(lambda: open_dataset(name, TEXT_COLUMNS))
        self.split.cache_clear()

    @property
    def source(self) -> Dataset:
        return self._open_text()

    @abstractmethod
    def load_split(self, name: str) -> Any: ...

    @abstractmethod
    def evaluate(self, split: str) -> LossResult: ...

    @abstractmethod
    def evaluate_with_recall(self, split: str) -> LossResult:
        """The result with the perplexity of recall tokens."""

    @abstractmethod
    def count_tokens(self, split: str) -> tuple[int, int]:
        """All tokens of a split, and how many of them are unknown."""

    overlap_unit: str
    overlap_separator: bytes
    scored_unit: str
    """What `evaluate` calls a row of its table that is no segment length."""

    def score(self, split: str) -> LossResult:
        """Also the perplexity of recall tokens, the loss of the grammar itself, where the text was drawn from one, and
        the overlap of test and train."""
        result, loss = self.evaluate_with_recall(split), self.source_loss(split)
        found: dict[str, Any] = {} if loss is None else {"source_loss": loss}
        found |= self.overlap(split) if split in (TEST, ALL) else {}
        return replace(result, details={**result.details, **found})

    def source_loss(self, split: str) -> float | None:
        """Loss of the grammar that the text was drawn from, in nats per token of this tokenizer. None: the text is not
        from a grammar, or has unknown words, which are easier to predict than what they stand for."""
        if not isinstance(self.source, GrammarDataset):
            return None
        tokens, unknowns = self.count_tokens(split)
        total, _ = self.source.loss(self.source.text(split))
        return None if unknowns else total / tokens

    def overlap(self, split: str = TEST) -> dict[str, Any]:
        """How much of test is in train, as a detail of a result; empty for other data where train is gone."""
        try:
            trained_on = self._open_training_text()
            count = count_streamed_overlap if is_large(self.source) or is_large(trained_on) else count_overlap
            found = count(self.source, self.overlap_separator, trained_on, split)
        except AnaphorError:
            if self._open_training_text is self._open_text:
                raise
            return {}
        return {"overlap": found.to_plain(self.overlap_unit, split)}

    def fingerprint(self) -> dict[str, Any]:
        return {
            "tokenizer": self.tokenizer.to_plain(),
            "data": {split: self.source.digest(split) for split in ("train", "valid")},
        }

    def validate(self, test: bool) -> None:
        require_splits(self.source, test)

    def chosen_settings(self) -> dict[str, Any]:
        return pick_options(LanguageModelOptions, self.model.spec.used_settings())

    def sample(self, seed: int) -> str:
        """A short text generated from the empty prompt."""
        if not self.model.causal:
            return "(none: a model that sees later tokens cannot generate text)"
        tokens = SAMPLE_TOKENS if self.model.max_positions is None else min(SAMPLE_TOKENS, self.model.max_positions)
        return self.generate(tokens=tokens, seed=seed)

    def generate(
        self,
        prompt: str = "",
        *,
        tokens: int = 100,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        beam: int | None = None,
        seed: int = 0,
    ) -> str:
        """Text that continues a prompt, as `anaphor generate` gives it."""
        check_sampling(beam, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        ids = self.tokenizer.encode_prompt(prompt)
        if beam is not None:
            new: Iterable[int] = beam_search(self.model, ids, tokens, beam)[0].tokens
        else:
            sampler = Sampler(temperature=temperature, top_k=top_k, top_p=top_p)
            new = generate(self.model, ids, tokens, sampler, seed=seed)
        return self.tokenizer.decode(list(self.tokenizer.until_end(new)))

    def encode(self, text: str) -> Tensor:
        """Ids of a text after the start token, as `score`, `look` and `generate` read it. [1, T]"""
        return torch.tensor([self.tokenizer.encode_prompt(text)], device=self.model.device)

    def hidden_states(self, text: str) -> tuple[Tensor, ...]:
        return hidden_states(self.model, self.encode(text))

    def look(self, text: str, *, layers: Sequence[int] = (), out: Path | str | None = None) -> TextLook:
        """Attention maps, states and losses of a text, of all or some layers; `out`: a folder for page and figures."""
        found = look_at(self, text, layers, print_warning)
        if out is not None:
            write({self.spec.model: found}, Path(out))
        return found

    def notes(self) -> list[str]:
        counts = {split: self.count_tokens(split) for split in ("train", "valid")}
        unknown = describe_mostly_unknown(counts, self.spec.vocabulary, self.spec.init)
        return describe_own_stack(self.spec, PRESETS, self.model) + unknown

    def statistics(self) -> dict[str, Any]:
        return {"vocabulary": len(self.tokenizer), "padding_share": None, "left_out": 0}

    def compute_loss(self, batch: Batch, state: ModelState | None) -> tuple[Loss, ModelState]:
        """Loss of a batch after a state, and the next state."""
        with self.model.share_embeddings():
            x, state = self.model.compute_hidden_states(batch.input_ids, state, batch.lengths)
            penalty = sum_penalties(self.loss_terms, x, self.model.head, batch)
            return Loss(self.model.cross_entropy(x, batch.targets, state), penalty), state

    def losses_by_batch(
        self, batches: Sequence[Batch], carry: bool = False, cuda_graph: bool = False
    ) -> Iterator[tuple[Batch, Tensor]]:
        """Each batch with the losses of its targets [B, T]; of several ranks each computes some rows."""
        computed = losses_by_batch(self.model, local_batches(batches), carry, cuda_graph=cuda_graph)
        for batch, (_, losses) in zip(batches, computed, strict=True):
            yield batch, gather_rows(losses, len(batch.targets))

    def prepare_for_inference(self) -> None:
        super().prepare_for_inference()
        self.model.fold_embeddings()

    def model_metadata(self) -> dict[str, Any]:
        """Facts of the model that are part of every signature."""
        return self.model.head_metadata() | ({} if self.model.causal else {"causal": "no"})

    def common_metadata(self, tokens: int, unknowns: int) -> dict[str, Any]:
        """Part of every signature."""
        vocabulary = {"tokenizer": self.tokenizer.kind, "vocab": len(self.tokenizer)}
        return {"tokens": tokens, **vocabulary, "unk": "kept" if unknowns else "none", **self.model_metadata()}


class StreamExperiment(LanguageModelExperiment):
    """The text as one stream in parallel rows, segment after segment, with the state carried or not."""

    overlap_unit, overlap_separator = "lines", LINE_SEPARATOR
    scored_unit = "text"

    def setup(self) -> None:
        spec = self.spec
        if spec.max_examples is not None:
            raise ConfigError(
                f"max_examples={spec.max_examples} counts examples, and a stream has none: use --batching padded"
            )
        self.orders: list[StreamOrder] = make_extras(STREAM_ORDERS, spec.task, partial(settings_of, spec), spec)
        self.carry = choose_carry(self.model, spec.carry, spec.bptt)
        self.protocol = Protocol(spec.eval_batch_size, spec.bptt, self.carry, spec.protocol == "complete")

    def chosen_settings(self) -> dict[str, Any]:
        return super().chosen_settings() | {"carry": self.carry}

    def load_split(self, name: str) -> Split:
        corpus = encode_split(self.source, name, self.tokenizer)
        return Split(load_tokens(corpus, self.device), corpus.bytes, corpus.unknowns)

    def batches(self, epoch: int) -> Stream:
        tokens, spec = self.split("train").tokens, self.spec
        return Stream(tokens, spec.batch_size, spec.bptt, orders=self.orders, epoch=epoch)

    def initial_carry(self) -> ModelState | None:
        return self.model.initial_state(self.spec.batch_size) if self.carry else None

    def loss(self, batch: Batch, carry: ModelState | None) -> tuple[Loss, ModelState | None]:
        loss, state = self.compute_loss(batch, carry if self.carry and not batch.restarts else None)
        return loss, detach(state) if self.carry else None

    def validate(self, test: bool) -> None:
        super().validate(test)
        self.eval_batches("valid", self.protocol)
        if self.orders:  # the text must be long enough in every epoch
            offset = sum(order.max_offset for order in self.orders)
            row_length(len(self.split("train").tokens), self.spec.batch_size, offset)

    def evaluate(self, split: str) -> LossResult:
        return self.evaluate_with(split, self.protocol)

    def evaluate_with(self, split: str, protocol: Protocol) -> LossResult:
        """The result under another protocol: other segment lengths, or another choice of carrying."""
        return self.result_of(split, protocol, self.segment_losses(split, protocol))

    def evaluate_with_recall(self, split: str) -> LossResult:
        recall = RecallMeter(causal=self.model.causal)
        losses = self.listen(recall, split, self.protocol)
        return recall.add_to(self.result_of(split, self.protocol, losses))

    def listen(self, recall: RecallMeter, split: str, protocol: Protocol) -> Iterator[tuple[Batch, Tensor]]:
        """The segments of a split, each with the losses of its tokens, while a meter adds up those of recall tokens."""
        repeated = repeated_by_segment(protocol, self.split(split).tokens, self.tokenizer.boundary)
        return recall.listen(self.segment_losses(split, protocol), repeated)

    def eval_batches(self, split: str, protocol: Protocol) -> Sequence[Batch]:
        """The segments of a split, as the protocol reads them."""
        return protocol.batches(self.split(split).tokens, self.tokenizer.boundary)

    def segment_losses(self, split: str, protocol: Protocol) -> Iterator[tuple[Batch, Tensor]]:
        """The segments of a split, each with the losses of its tokens [B, T]."""
        return self.losses_by_batch(self.eval_batches(split, protocol), protocol.carry, self.spec.cuda_graph)

    def result_of(self, split: str, protocol: Protocol, losses: Iterable[tuple[Batch, Tensor]]) -> LossResult:
        """The result of the losses of all segments of a split."""
        meter = LossMeter(causal=self.model.causal)
        for batch, values in losses:
            meter.add(to_double(values).sum(), batch.count)
        return self.result_of_meter(split, protocol, meter)

    def result_of_meter(self, split: str, protocol: Protocol, meter: LossMeter, **metadata: Any) -> LossResult:
        """The result of the losses that a meter has added up; further `metadata` go into its signature."""
        text = self.split(split)
        total = meter.read(text.bytes if protocol.complete else None)
        return loss_result(
            total, protocol.metadata(total.tokens) | self.common_metadata(total.tokens, text.unknowns) | metadata
        )

    def count_tokens(self, split: str) -> tuple[int, int]:
        # All tokens, although the example protocol drops a few: the grammar's total is that of the whole text.
        text = self.split(split)
        return len(text.tokens), text.unknowns


class PaddedExperiment(LanguageModelExperiment):
    """Separate examples, padded to the longest one of a batch. No state is carried from one to the next."""

    overlap_unit, overlap_separator = "examples", EXAMPLE_SEPARATOR
    scored_unit = "padded examples"

    def setup(self) -> None:
        given = {"carry": True} if self.spec.carry else {}
        given |= changed_settings(STREAM_ORDERS, self.spec.task, partial(settings_of, self.spec))
        for name, value in given.items():
            raise ConfigError(
                f"{name}={value} applies to segments of a stream, and examples have none: use --batching stream"
            )

    def chosen_settings(self) -> dict[str, Any]:
        return super().chosen_settings() | dict.fromkeys((*STREAM_ONLY, "carry"))

    def load_split(self, name: str) -> PaddedBatches:
        where, tokenizer = self.source.where(name), self.tokenizer
        if can_stream(self.source, tokenizer.kind):
            return self._load_stored(name)
        text = tokenizer.as_text(self.source.read(name), where=where, offset=self.source.byte_offset(name))
        examples = split_examples(text)
        self._require_examples(where, len(examples))
        if name == "train":
            examples = examples[: self.spec.max_examples]
        ids = [np.concatenate(([tokenizer.boundary], tokenizer.encode_sentence(example))) for example in examples]
        self._check_longest(where, max(map(len, ids)) - 1)
        kept = [index for index, example in enumerate(ids) if len(example) > 1]
        return batch_examples(
            [ids[index] for index in kept],
            pad=tokenizer.pad,
            rows=self.spec.batch_size,
            seed=self.spec.seed,
            device=self.device,
            text_bytes=sum(len(examples[index].encode("utf-8", "surrogateescape")) for index in kept),
        )

    def _load_stored(self, name: str) -> PaddedBatches:
        """The same for a text that is larger than memory."""
        where, spec = self.source.where(name), self.spec
        examples = encode_streamed_examples(self.source, name, self.tokenizer)
        self._require_examples(where, len(examples.lengths))
        if name == "train":
            examples = examples.select(slice(spec.max_examples))
        self._check_longest(where, int(examples.lengths.max()) - 1)
        kept = examples.select(examples.lengths > 1)
        options: dict[str, Any] = {"rows": spec.batch_size, "seed": spec.seed, "device": self.device}
        return batch_stored_examples(kept, pad=self.tokenizer.pad, **options)

    def _require_examples(self, where: str, count: int) -> None:
        if not count:
            raise DataError(f"{where} holds no examples: they are separated by blank lines")

    def _check_longest(self, where: str, longest: int) -> None:
        max_positions = self.model.max_positions
        if max_positions is not None and longest > max_positions:
            raise DataError(
                f"the longest example of {where} has {longest:,} tokens, but the model has {max_positions:,} learned "
                f"positions: use a larger --max-positions, or another --position"
            )

    def batches(self, epoch: int) -> PaddedBatches:
        batches: PaddedBatches = self.split("train").at_epoch(epoch)
        return batches

    def loss(self, batch: Batch, carry: None) -> tuple[Loss, None]:
        return self.compute_loss(batch, None)[0], None

    def validate(self, test: bool) -> None:
        super().validate(test)
        self.split("valid")

    def evaluate(self, split: str) -> LossResult:
        return self.result_of(split, self.losses_by_batch(self.split(split)))

    def evaluate_with_recall(self, split: str) -> LossResult:
        recall = RecallMeter(causal=self.model.causal)
        losses = self.losses_by_batch(self.split(split))
        return recall.add_to(self.result_of(split, recall.listen(losses)))

    def result_of(self, split: str, losses: Iterable[tuple[Batch, Tensor]]) -> LossResult:
        """The result of the losses of all examples of a split."""
        examples = self.split(split)
        meter = LossMeter(causal=self.model.causal)
        for batch, values in losses:
            meter.add(to_double(values).sum(), batch.count)
        total = meter.read(examples.text_bytes)
        unknowns = examples.count_token(self.tokenizer.unknown)
        limit = {} if self.spec.max_examples is None else {"max_examples": self.spec.max_examples}
        return loss_result(total, {"batching": "padded", **self.common_metadata(total.tokens, unknowns), **limit})

    def count_tokens(self, split: str) -> tuple[int, int]:
        examples = self.split(split)
        return examples.tokens, examples.count_token(self.tokenizer.unknown)

    def notes(self) -> list[str]:
        examples, notes = self.split("train"), super().notes()
        if self.spec.max_examples == 1 or examples.examples > 1:
            return notes
        return [
            *notes,
            f"{self.source.where('train')} has no blank line, so it is one example of "
            f"{count_noun(examples.tokens, 'token')}: separate examples by blank lines",
        ]

    def statistics(self) -> dict[str, Any]:
        return super().statistics() | {"padding_share": self.split("train").padding_share}
