"""A task of your own on sequences of tokens: a language model that is trained and scored on some of their positions."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from anaphor.data.batches import IGNORE_INDEX
from anaphor.data.masked_batches import MaskedBatch, MaskedBatches
from anaphor.data.tokenizer import END, UNKNOWN, Word
from anaphor.errors import ConfigError
from anaphor.evaluation import eval_mode
from anaphor.inspect import TextLook, hidden_states, look_at
from anaphor.metrics.positions import PositionMeter, PositionScores
from anaphor.metrics.result import Result
from anaphor.models.cross_entropy import widen
from anaphor.models.language_model import LanguageModel
from anaphor.progress_listener import report_progress
from anaphor.tasks.model_options import LanguageModelOptions, LanguageModelSection, pick_options
from anaphor.training.device import choose_device
from anaphor.training.distributed import gather_rows, local_batches
from anaphor.training.experiment import MAX_CROSS_ENTROPY, Experiment, Loss
from anaphor.training.random_state import use_seed

EVAL_ROWS = 256


def score_positions(model: LanguageModel, batches: Sequence[MaskedBatch]) -> PositionScores:
    """Accuracy and loss at the positions that have a target."""
    meter = PositionMeter()
    with eval_mode(model), torch.inference_mode():
        for number, (batch, part) in enumerate(zip(batches, local_batches(batches), strict=True), 1):
            logits, _ = model(part.input_ids, None, part.lengths)
            meter.add(gather_rows(logits, len(batch.targets)), batch.targets)
            report_progress("scoring", number, len(batches))
    return meter.read()


class TokenExperiment(Experiment):
    """A language model on sequences that a subclass makes. Loss and accuracy count the positions that have a target.

    `words` are the tokens of the task; two more stand before them: `<eos>`, with which a sequence begins, and `<unk>`.
    A subclass defines `examples`. The spec inherits `LanguageModelSection`.
    """

    spec: Any
    model: LanguageModel
    largest_loss = MAX_CROSS_ENTROPY
    longer: ClassVar[tuple[int, ...]] = ()
    """The final scores are also those of sequences so many times as long: `examples` is called with these `times`."""
    page: ClassVar[Mapping[str, str]] = {
        "look": "anaphor.tasks.token_page:look",
        "tokens": "anaphor.tasks.lm.page:score",
        "continue": "anaphor.tasks.lm.page:continue_text",
    }
    """What the live page shows of its models; for the definition of the task."""

    def __init__(self, spec: Any, words: Sequence[str], saved: Mapping[str, Any] | None = None) -> None:
        if not isinstance(spec, LanguageModelSection):
            raise ConfigError(f"{type(spec).__name__} has no settings of a model: let it inherit LanguageModelSection")
        self.spec, self.saved, self.device = spec, saved or {}, choose_device(spec.device)
        self.tokenizer = Word((END, UNKNOWN, *words))
        with use_seed(spec.seed, keep_state=saved is not None):
            self.model = spec.build_model(len(self.tokenizer), self.tokenizer.tokens).to(self.device)
        if not self.model.causal:
            raise ConfigError(f"model={spec.model!r} sees later tokens, and with them the answers")
        self.split = cache(self._load)

    @abstractmethod
    def examples(self, split: str, times: int = 1) -> MaskedBatch:
        """All examples of a split, the same in every call: train, valid or test. `times` is 1, or one of `longer`."""

    def ids(self, words: Iterable[str]) -> Tensor:
        """Ids of some words of the task. [N]"""
        return torch.tensor([self.tokenizer.tokens.index(word) for word in words])

    def _load(self, split: str, times: int = 1) -> MaskedBatch:
        return self.examples(split, times).to(self.device)

    def batches(self, epoch: int) -> MaskedBatches:
        examples = self.split("train")
        rows = len(examples.input_ids) if self.spec.max_examples is None else self.spec.max_examples
        order = torch.randperm(
            min(rows, len(examples.input_ids)), generator=torch.Generator().manual_seed(self.spec.seed + epoch)
        )
        return MaskedBatches(examples, self.spec.batch_size, order)

    def loss(self, batch: MaskedBatch, carry: None) -> tuple[Loss, None]:
        logits, _ = self.model(batch.input_ids, None, batch.lengths)
        total = F.cross_entropy(
            widen(logits).flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
        )
        right = (logits.argmax(-1) == batch.targets) & batch.has_target
        return Loss(total, correct=right.sum()), None

    def measure(self, split: str, times: int = 1) -> PositionScores:
        """The scores of a split."""
        return score_positions(self.model, MaskedBatches(self.split(split, times), EVAL_ROWS))

    def metadata(self, split: str) -> dict[str, Any]:
        """What a score depends on, for its signature. A subclass adds its own settings."""
        examples = self.split(split)
        return {"examples": len(examples.input_ids), "tokens": examples.input_ids.shape[1]}

    def evaluate(self, split: str) -> Result:
        found = self.measure(split)
        return Result(found.values, {**self.metadata(split), "targets": found.targets})

    def score(self, split: str) -> Result:
        """All metrics: those of longer sequences too, and the accuracy at each position."""
        found = self.measure(split)
        longer = {f"accuracy_{times}x": self.measure(split, times).accuracy for times in self.longer}
        details = {"accuracy_by_position": list(found.by_position)}
        return Result({**found.values, **longer}, {**self.metadata(split), "targets": found.targets}, details)

    def chosen_settings(self) -> dict[str, Any]:
        return pick_options(LanguageModelOptions, self.model.spec.used_settings())

    def encode(self, text: str) -> Tensor:
        """Ids of a text for the model, [1, T]: words of the task after `<eos>`."""
        return torch.tensor([self.tokenizer.encode_prompt(text)], device=self.device)

    def hidden_states(self, text: str) -> tuple[Tensor, ...]:
        return hidden_states(self.model, self.encode(text))

    def look(self, text: str, *, layers: Sequence[int] = ()) -> TextLook:
        """Attention maps, gates, states and losses of a text."""
        return look_at(self.model, self.tokenizer, text, layers)

    def sample(self, seed: int) -> str:
        """The first example of valid with what the model answers."""
        examples = self.split("valid").select(torch.tensor([0], device=self.device))
        with eval_mode(self.model), torch.inference_mode():
            predicted = self.model(examples.input_ids, None, examples.lengths)[0].argmax(-1)[0].tolist()
        names, targets = self.tokenizer.tokens, examples.targets[0].tolist()
        pairs = zip(examples.input_ids[0].tolist(), predicted, targets, strict=True)
        return " ".join(
            names[token] if target == IGNORE_INDEX else f"{names[token]} ({names[guess]}, right: {names[target]})"
            for token, guess, target in pairs
        )

    def fingerprint(self) -> dict[str, Any]:
        splits = {name: self.split(name) for name in ("train", "valid")}
        return {
            "tokenizer": self.tokenizer.to_plain(),
            "data": {
                name: hashlib.sha256(
                    torch.cat((one.input_ids.flatten(), one.targets.flatten())).cpu().numpy().tobytes()
                ).hexdigest()
                for name, one in splits.items()
            },
        }
