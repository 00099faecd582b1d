"""Language modelling: predict the next token of a stream of text, or of separate padded examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from anaphor.data.batches import Batch, EvaluationStream, PaddedBatches, Stream, epoch_offset
from anaphor.data.tokenizer import Tokenizer
from anaphor.errors import ConfigError, DataError
from anaphor.evaluation import losses_by_batch
from anaphor.generate import Sampler, generate
from anaphor.metrics.perplexity import LossTotal, Score, Tally
from anaphor.mixers import detach
from anaphor.models import LanguageModel, ModelState
from anaphor.models.head import IGNORE_INDEX, cross_entropy
from anaphor.tasks.base import Loss
from anaphor.tasks.restraint import Restraint

FREE = Restraint()


@dataclass(frozen=True)
class Split:
    """One split on the device, and how long its text is."""

    tokens: Tensor
    """[N]"""
    bytes: int
    unknowns: int


@dataclass(frozen=True)
class Protocol:
    """How a split is scored."""

    rows: int
    """Rows that are read side by side."""
    bptt: int
    """Tokens of a row that are read at once."""
    carry: bool
    """Whether the state goes on from one segment to the next; else each starts afresh."""
    complete: bool = True
    """Whether every token is scored once; else as the well-known example script does, which drops the rest of the text
    and the first token of every row."""

    def batches(self, tokens: Tensor, boundary: int) -> Sequence[Batch]:
        if self.complete:
            return EvaluationStream(tokens, boundary, self.rows, self.bptt)
        return Stream(tokens, self.rows, self.bptt)

    def facts(self) -> dict[str, Any]:
        return {
            "bptt": self.bptt,
            "state": "carried" if self.carry else "restarted",
            "batch": self.rows,
            "protocol": "complete" if self.complete else "example",
        }


def resolve_carry(model: LanguageModel, carry: bool | None, bptt: int) -> bool:
    """Whether state is carried across segments; None means wherever the model can. Refuses what cannot work."""
    able = model.causal and model.limit is None and not model.state_grows
    if carry is None:
        carry = able
    if carry and not model.causal:
        raise ConfigError("a layer that sees later tokens reads whole segments and carries no state: do not carry it")
    if carry and model.limit is not None:
        raise ConfigError(
            f"a carried state never ends, but the model knows {model.limit:,} positions: do not carry it, "
            f"or choose positions without end (sinusoidal, rotary, alibi, relative)"
        )
    if carry and model.state_grows:
        raise ConfigError(
            "a carried state of attention would grow for ever: give it a finite memory, or do not carry it"
        )
    if not carry and model.limit is not None and bptt > model.limit:
        raise ConfigError(f"bptt={bptt} is longer than the {model.limit:,} positions that the model knows")
    return carry


class LanguageModelling:
    """The next token of a stream of text, rows side by side, segment after segment, the state carried or not."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        splits: Callable[[str], Split],
        *,
        rows: int,
        bptt: int,
        carry: bool,
        shift: bool,
        protocol: Protocol,
        restraint: Restraint = FREE,
    ) -> None:
        """`splits` opens a split when it is asked for one, so that test text is not read before its time."""
        self.tokenizer, self.splits = tokenizer, splits
        self.rows, self.bptt, self.carry, self.shift = rows, bptt, carry, shift
        self.protocol, self.restraint = protocol, restraint

    def batches(self, epoch: int) -> Stream:
        offset = epoch_offset(epoch, self.rows, self.bptt) if self.shift else 0
        return Stream(self.splits("train").tokens, self.rows, self.bptt, offset)

    def empty_carry(self, model: LanguageModel) -> ModelState | None:
        return model.initial_state(self.rows) if self.carry else None

    def loss(self, model: LanguageModel, batch: Batch, carry: ModelState | None) -> tuple[Loss, ModelState | None]:
        state = carry if self.carry and not batch.restarts else None
        x, state = model.features(batch.input_ids, state, batch.lengths)
        penalty = self.restraint.of(x, batch.targets)
        loss = Loss(cross_entropy(x, model.head, batch.targets), penalty)
        return loss, detach(state) if self.carry else None

    def evaluate(self, model: LanguageModel, split: str) -> Score:
        return self.evaluate_by(model, split, self.protocol)

    def evaluate_by(self, model: LanguageModel, split: str, protocol: Protocol) -> Score:
        """The score under another protocol: other lengths, or the state carried or not."""
        return self.score_of(model, split, protocol, self.segment_losses(model, split, protocol))

    def segment_losses(self, model: LanguageModel, split: str, protocol: Protocol) -> Iterator[tuple[Batch, Tensor]]:
        """The segments of a split, each with the loss of its tokens [B, T]."""
        batches = protocol.batches(self.splits(split).tokens, self.tokenizer.boundary)
        return losses_by_batch(model, batches, protocol.carry)

    def score_of(
        self, model: LanguageModel, split: str, protocol: Protocol, found: Iterable[tuple[Batch, Tensor]]
    ) -> Score:
        """What the losses of all segments of a split come to."""
        text = self.splits(split)
        tally = Tally(causal=model.causal)
        for batch, losses in found:
            tally.add(losses.double().sum(), batch.count)
        total = tally.read(text.bytes if protocol.complete else None)
        facts = {**protocol.facts(), "tokens": total.tokens, **_vocabulary_facts(self.tokenizer, text.unknowns)}
        facts |= _sight_facts(model)
        return Score(total, facts)

    def sample(self, model: LanguageModel, seed: int) -> str:
        return sampled_text(model, self.tokenizer, seed)


class ExampleModelling:
    """The tokens of separate examples, padded to the longest of a batch. Nothing is carried from one to the next."""

    def __init__(
        self, tokenizer: Tokenizer, examples: Callable[[str], PaddedBatches], restraint: Restraint = FREE
    ) -> None:
        self.tokenizer, self.examples, self.restraint = tokenizer, examples, restraint

    def batches(self, epoch: int) -> PaddedBatches:
        return self.examples("train").at_epoch(epoch)

    def empty_carry(self, model: LanguageModel) -> None:
        return None

    def loss(self, model: LanguageModel, batch: Batch, carry: None) -> tuple[Loss, None]:
        x, _ = model.features(batch.input_ids, None, batch.lengths)
        penalty = self.restraint.of(x, batch.targets)
        return Loss(cross_entropy(x, model.head, batch.targets), penalty), None

    def evaluate(self, model: LanguageModel, split: str) -> Score:
        batches = self.examples(split)
        total = LossTotal(0.0, 0, batches.text_bytes, causal=model.causal)
        for batch, losses in losses_by_batch(model, batches, carry=False):
            total = total + LossTotal(float(losses.double().sum()), int((batch.targets != IGNORE_INDEX).sum()), 0)
        unknowns = batches.count_token(self.tokenizer.unknown)
        facts = {"batching": "padded", "tokens": total.tokens, **_vocabulary_facts(self.tokenizer, unknowns)}
        facts |= _sight_facts(model)
        return Score(total, facts)

    def sample(self, model: LanguageModel, seed: int) -> str:
        return sampled_text(model, self.tokenizer, seed)


def sampled_text(model: LanguageModel, tokenizer: Tokenizer, seed: int, tokens: int = 50) -> str:
    """A short text the model writes from nothing."""
    if not model.causal:
        return "(nothing: a model that sees later tokens cannot write)"
    most = tokens if model.limit is None else min(tokens, model.limit)
    ids = list(generate(model, [tokenizer.boundary], most, Sampler(temperature=1.0), seed=seed))
    return tokenizer.decode(ids)


def _vocabulary_facts(tokenizer: Tokenizer, unknowns: int) -> dict[str, Any]:
    return {"tokenizer": tokenizer.kind, "vocab": len(tokenizer), "unk": "none" if not unknowns else "kept"}


def _sight_facts(model: LanguageModel) -> dict[str, Any]:
    return {} if model.causal else {"causal": "no"}


def check_examples(examples: Sequence[Any], where: str) -> None:
    if not examples:
        raise DataError(f"{where} holds no examples: they are separated by blank lines")
