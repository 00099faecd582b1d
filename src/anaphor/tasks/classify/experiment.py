"""Text classification: a model with its texts and tokenizer; batches, loss, scores and predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from anaphor.data.buckets import Indices
from anaphor.data.corpus import build_sentence_tokenizer, build_tokenizer
from anaphor.data.dataset import ALL, TEST, TRAIN, VALID, Dataset, count_row_overlap
from anaphor.data.datasets import load_labeled
from anaphor.data.labeled_batches import LabeledBatch, LabeledBatches
from anaphor.data.labeled_text import LabeledTexts
from anaphor.data.labels import number_labels, order_classes
from anaphor.data.stored_texts import StoredTexts, encode_stored_texts, is_stored
from anaphor.data.streamed_rows import ColumnText, StreamedRows, count_streamed_row_overlap
from anaphor.data.streamed_text import is_large
from anaphor.data.tokenizer import Ids, Tokenizer, tokenizer_from_plain
from anaphor.draw.confusion import draw_confusion
from anaphor.errors import AnaphorError, ConfigError, DataError, count_noun
from anaphor.evaluation import eval_mode
from anaphor.inspect import hidden_states
from anaphor.inspect.look import ClassLook
from anaphor.metrics.accuracy import ClassScores, Outcomes, find_outcomes, score_outcomes
from anaphor.metrics.result import Result
from anaphor.models.bag_of_words import BagOfWords, bigram_keys
from anaphor.models.cross_entropy import widen
from anaphor.models.presets import TEXT_PRESETS
from anaphor.models.text_encoder import TextEncoder
from anaphor.precision import to_double
from anaphor.progress_listener import report_progress
from anaphor.tasks.classify import BAG_OF_WORDS, FREE, ClassifyModelOptions, ClassifyRunSpec
from anaphor.tasks.classify.figures import draw_learning
from anaphor.tasks.classify.look import look_at, write
from anaphor.tasks.metrics import check_top5
from anaphor.tasks.model_options import pick_options
from anaphor.tasks.own_stack import describe_own_stack
from anaphor.tasks.unknown_words import describe_mostly_unknown, list_some
from anaphor.training.device import choose_device
from anaphor.training.distributed import gather_rows, local_batches
from anaphor.training.experiment import MAX_CROSS_ENTROPY, Experiment, Loss, require_splits
from anaphor.training.finetune import adopt_model, load_initial, prepare_fine_tuning
from anaphor.training.paths import absolute_path, resolve_data_path
from anaphor.training.random_state import use_seed
from anaphor.training.run_folder import RunFolder

MAX_LENGTH = 512
EVAL_ROWS = 128
"""Texts that are scored at once."""
SAMPLES = 4
PAD_TO = {"cuda": 8}
"""Padded lengths are a multiple of this if not given, 1 on other devices. On a GPU every shape of a batch has a CUDA
graph of its own: there should be few, and each be used often."""


@dataclass(frozen=True)
class LabeledSplit:
    """One split: texts with labels, encoded and in batches."""

    values: Sequence[tuple[str, ...]]
    """Text and label of each."""
    digest: str
    """SHA-256 of the split."""
    batches: LabeledBatches
    truncated: int
    """Texts that were truncated."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def labels(self) -> Tensor:
        """[N]: index of each text's class."""
        return self.batches.labels


class ClassifyExperiment(Experiment):
    """A text classifier with its texts and tokenizer."""

    spec: ClassifyRunSpec
    model: TextEncoder | BagOfWords
    largest_loss = MAX_CROSS_ENTROPY

    def __init__(
        self,
        spec: ClassifyRunSpec,
        model: TextEncoder | BagOfWords,
        tokenizer: Tokenizer,
        classes: Sequence[str],
        open_texts: Callable[[], Dataset],
        *,
        device: torch.device | str = "cpu",
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        """`open_texts` is called when a split is first read, so that a run can be used without its data."""
        self.spec, self.model, self.tokenizer, self.classes = spec, model, tokenizer, tuple(classes)
        self.device, self.saved = torch.device(device), saved or {}
        self._open_texts = self._open_training_texts = open_texts
        self.split = cache(self.load_split)
        """Loads a split when it is first asked for, so that test is not read before it is scored."""
        self.class_weights = cache(self._class_weights)

    @property
    def source(self) -> Dataset:
        return self._open_texts()

    @property
    def max_length(self) -> int:
        """Largest number of tokens; longer texts are truncated."""
        wanted = MAX_LENGTH if self.spec.max_length is None else self.spec.max_length
        return wanted if self.model.max_positions is None else min(wanted, self.model.max_positions)

    @property
    def pad_to(self) -> int:
        """Padded lengths are a multiple of this."""
        return PAD_TO.get(self.device.type, 1) if self.spec.pad_to is None else self.spec.pad_to

    def encode_text(self, text: str) -> tuple[Ids, bool]:
        """Token ids of a text as the model reads it, and whether it was truncated."""
        return self.tokenizer.encode_truncated(text, self.max_length)

    def load_split(self, name: str) -> LabeledSplit:
        self.require_classes()
        spec, source = self.spec, self.source
        most = spec.max_examples if name == TRAIN else None
        batch_size = spec.batch_size if name == TRAIN else EVAL_ROWS
        if is_stored(source, name, self.tokenizer.kind):
            texts = encode_stored_texts(source, name, self.tokenizer, self.classes, self.max_length).first(most)
            batches = self._batches(texts, texts.labels, batch_size)
            rows_of_files = StreamedRows(source, name, len(texts))
            return LabeledSplit(rows_of_files, source.digest(name), batches, int(texts.is_truncated.sum()))
        rows = source.rows(name)
        values = rows.values[:most]
        place = rows.where[1].removeprefix("the label of ")
        labels = number_labels([label for _, label in values], rows.lines[:most], self.classes, place)
        encoded, cut = zip(*(self.encode_text(text) for text, _ in values), strict=True)
        return LabeledSplit(values, rows.digest, self._batches(encoded, labels, batch_size), sum(cut))

    def require_classes(self) -> None:
        """Refuse a model without a head: weights of an encoder that was converted and not yet fine-tuned."""
        if not self.classes:
            raise ConfigError("the model was converted without a head: train one with `anaphor train classify --init`")

    def _batches(
        self, texts: Sequence[Ids] | StoredTexts, labels: Sequence[int] | Indices, rows: int
    ) -> LabeledBatches:
        options: dict[str, Any] = {"pad": self.tokenizer.pad, "pad_to": self.pad_to, "seed": self.spec.seed}
        return LabeledBatches(texts, labels, rows=rows, device=self.device, **options)

    def batches(self, epoch: int) -> LabeledBatches:
        return self.split(TRAIN).batches.at_epoch(epoch)

    def _class_weights(self) -> Tensor | None:
        """[C]: weights with mean 1 over the training texts; None where every text counts once."""
        if self.spec.class_weights == "none":
            return None
        labels = self.split(TRAIN).labels
        counts = torch.bincount(labels, minlength=len(self.classes)).clamp(min=1)
        return len(labels) / (len(self.classes) * counts.float())

    def loss(self, batch: LabeledBatch, carry: None) -> tuple[Loss, None]:
        logits = widen(self.model(batch.tokens, batch.lengths))
        losses = F.cross_entropy(logits, batch.labels, reduction="none", label_smoothing=self.spec.label_smoothing)
        weights = self.class_weights()
        total = (losses if weights is None else losses * weights[batch.labels]).sum()
        return Loss(total, correct=(logits.argmax(-1) == batch.labels).sum()), None

    def logits(self, batches: LabeledBatches) -> Tensor:
        """Logits of all texts, in their own order. [N, C]"""
        (logits,) = self._compute(batches, lambda logits, labels: (logits,))
        return logits

    def _compute(
        self, batches: LabeledBatches, keep: Callable[[Tensor, Tensor], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """What `keep` makes of the logits and labels of each batch, for all texts, in their own order."""
        ordered = batches.by_length()
        found = []
        with eval_mode(self.model), torch.inference_mode():
            for number, (batch, part) in enumerate(zip(ordered, local_batches(ordered), strict=True), 1):
                logits = gather_rows(self.model(part.tokens, part.lengths), len(batch.labels))
                found.append(keep(logits, batch.labels))
                report_progress("scoring", number, len(ordered))
        columns = [torch.cat(column) for column in zip(*found, strict=True)]
        return tuple(torch.empty_like(column).index_copy_(0, ordered.order, column) for column in columns)

    def measure(self, split: str) -> ClassScores:
        loaded = self.split(split)
        # Of many texts with many classes, the logits of all would fill the memory.
        outcomes = Outcomes(*self._compute(loaded.batches, find_outcomes))
        return score_outcomes(outcomes, loaded.labels, len(self.classes))

    def evaluate(self, split: str) -> Result:
        return Result(self.measure(split).values, self.signature_metadata(split))

    def score(self, split: str) -> Result:
        """All metrics, with accuracy by class, the confusion matrix, and for test the overlap with train. Its outputs
        are the `ClassScores`."""
        details: dict[str, Any] = {"texts": len(self.split(split))}
        scores = self.measure(split)
        details |= scores.details(self.classes)
        if split in (TEST, ALL):
            details |= self.overlap(split)
        return Result(scores.values, self.signature_metadata(split), details, outputs=scores)

    def overlap(self, split: str = TEST) -> dict[str, Any]:
        """How many texts of test were trained on, as a detail of a result. Empty where those of training are gone."""
        source, most = self.source, self.spec.max_examples
        try:
            trained_on = self._open_training_texts()
            if is_large(source) or is_large(trained_on):
                found = count_streamed_row_overlap(source, trained_on, split, most)
            else:
                found = count_row_overlap(source, trained_on.rows(TRAIN).values[:most], split)
        except AnaphorError:
            return {}
        return {"overlap": found.to_plain("texts", split)}

    def use_data(self, data: str, text_column: str | None, label_column: str | None) -> None:
        """Score other data than those of training."""
        source = load_labeled(data, text_column, label_column, self.spec.split_seed)
        self._open_texts, self.split = lambda: source, cache(self.load_split)

    def signature_metadata(self, split: str) -> dict[str, Any]:
        loaded = self.split(split)
        limit = {} if self.spec.max_examples is None else {"max_examples": self.spec.max_examples}
        cut = {"truncated": f"{loaded.truncated}@{self.max_length}"} if loaded.truncated else {}
        metadata = {"texts": len(loaded), "classes": len(self.classes), "tokenizer": self.tokenizer.kind}
        return {**metadata, "vocab": len(self.tokenizer), **self.source.metadata, **limit, **cut}

    def predict(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """The label of each text, and the probabilities of all classes."""
        self.require_classes()
        if len(texts) == 0:
            raise DataError("no text was given: there is nothing to classify")
        for number, text in enumerate(texts, 1):
            if not text.strip():
                raise DataError(f"text {number} is empty: there is nothing to classify")
        encoded = [self.encode_text(text)[0] for text in texts]
        batches = self._batches(encoded, [0] * len(texts), EVAL_ROWS)
        rows = to_double(self.logits(batches)).softmax(-1).cpu()
        return [
            {
                "text": text,
                "label": self.classes[int(p.argmax())],
                "probabilities": dict(zip(self.classes, p.tolist(), strict=True)),
            }
            for text, p in zip(texts, rows, strict=True)
        ]

    def look(self, text: str, *, label: str | None = None, out: Path | str | None = None) -> ClassLook:
        """Attention, states and contributions of the tokens of a text. With `out`, the page and the figures of
        `anaphor look` are written into that folder."""
        found = look_at(self, text, label)
        if out is not None:
            write(found, self.spec.model, Path(out))
        return found

    def encode(self, text: str) -> Tensor:
        """Ids of a text for the model, [1, T]."""
        return torch.from_numpy(self.encode_text(text)[0]).long()[None].to(self.device)

    def hidden_states(self, text: str) -> tuple[Tensor, ...]:
        if not isinstance(self.model, TextEncoder):
            raise ConfigError("a bag of words has no hidden states")
        return hidden_states(self.model, self.encode(text))

    def draw(self, folder: Path, valid: Result) -> list[Path]:
        """Learning curves, and the confusion matrix of validation."""
        curves = draw_learning(RunFolder(folder).read_metrics(), folder / "learning")
        return curves + draw_confusion(valid.outputs.confusion.numpy(), self.classes, folder / "confusion")

    def sample(self, seed: int) -> str:
        """Predictions for the first texts of valid."""
        rows = self.split(VALID).values[:SAMPLES]
        lines = []
        for (text, label), found in zip(rows, self.predict([text for text, _ in rows]), strict=True):
            probability = found["probabilities"][found["label"]]
            lines.append(f"{label}: {found['label']} {probability:.3f}  {' '.join(text.split())[:100]}")
        return "\n".join(lines)

    def fingerprint(self) -> dict[str, Any]:
        bigrams = {"bigrams": len(self.model.keys)} if isinstance(self.model, BagOfWords) else {}
        digests = {split: self.source.digest(split) for split in (TRAIN, VALID)}
        return {"tokenizer": self.tokenizer.to_plain(), "classes": list(self.classes), **bigrams, "data": digests}

    def validate(self, test: bool) -> None:
        require_splits(self.source, test)
        check_top5(self.spec.select, self.classes)
        for split in (TRAIN, VALID):
            self.split(split)

    def notes(self) -> list[str]:
        loaded = {split: self.split(split) for split in (TRAIN, VALID) if split in self.source.splits}
        batches, unknown = {split: found.batches for split, found in loaded.items()}, self.tokenizer.unknown
        counts = {split: (found.tokens, found.count_token(unknown)) for split, found in batches.items()}
        notes = describe_own_stack(self.spec, TEXT_PRESETS, self.model)
        notes += [
            f"truncated to {count_noun(self.max_length, 'token')}: "
            f"{found.truncated:,} of {count_noun(len(found), 'text')} of {split}"
            for split, found in loaded.items()
            if found.truncated
        ]
        if (limit := self.spec.max_examples) is not None:
            present = set(loaded[TRAIN].labels.tolist())
            if absent := [name for number, name in enumerate(self.classes) if number not in present]:
                first = f"max_examples={limit}: the first {count_noun(limit, 'text')} of train"
                notes.append(f"{first} have no example of {list_some(absent)}: use more, or shuffle the data")
        notes += describe_other_split(self.spec, self.source)
        return notes + describe_mostly_unknown(counts, self.spec.vocabulary, self.spec.init)

    def chosen_settings(self) -> dict[str, Any]:
        is_bag = isinstance(self.model, BagOfWords)
        own = {} if self.model.spec is None else pick_options(ClassifyModelOptions, self.model.spec.used_settings())
        length = None if is_bag else self.max_length
        return own | {"tokenizer": self.tokenizer.kind, "max_length": length, "pad_to": self.pad_to}

    def statistics(self) -> dict[str, Any]:
        batches = self.split(TRAIN).batches
        return {
            "classes": len(self.classes),
            "vocabulary": len(self.tokenizer),
            "padding_share": batches.padding_share,
            "padding_share_at_max_length": batches.padding_share_at(self.max_length),
            "truncated": self.split(TRAIN).truncated,
        }


def describe_other_split(spec: ClassifyRunSpec, source: Dataset) -> list[str]:
    """A warning where initial weights were trained on texts that are held out here."""
    if spec.init is None or not getattr(source, "held_out", None) or not (run := RunFolder(Path(spec.init))).exists:
        return []
    settings = run.read_settings()
    seed, data = settings.get("split_seed"), run.read_data_path() or settings.get("data")
    if seed in (None, spec.split_seed) or data != (absolute_path(spec.data) or spec.data):
        return []
    return [
        f"init={spec.init} was trained on another split of the same data: its training texts are among those of valid "
        f"and test; use --split-seed {seed}"
    ]


def build(
    spec: ClassifyRunSpec, saved: Mapping[str, Any] | None = None, data_path: str | None = None
) -> ClassifyExperiment:
    """Build the model for its texts. A run that exists brings its `saved` fingerprint with classes and tokenizer, and
    the `data_path` where its data were; its data are not opened before a split is read."""
    device = choose_device(spec.device)

    @cache
    def open_texts() -> Dataset:
        exists = saved is not None or data_path is not None
        name = resolve_data_path(spec.data, data_path) if exists else spec.data
        return load_labeled(name, spec.text_column, spec.label_column, spec.split_seed)

    initial = load_initial(spec.init) if spec.init is not None and saved is None else None
    if saved is not None:
        classes, tokenizer = saved["classes"], tokenizer_from_plain(saved["tokenizer"])
    else:
        classes = class_names(open_texts())
        if len(classes) < 2:
            where = open_texts().where(TRAIN, "label")
            raise DataError(f"{where} has one class only, {classes[0]!r}: give at least two")
        tokenizer = build_text_tokenizer(spec, open_texts()) if initial is None else initial.tokenizer
    if initial is not None:
        spec = adopt_model(spec, initial, ClassifyModelOptions, TEXT_PRESETS, free=FREE)
        if spec.pooling is None:  # of a language model, whose last token has seen all others
            last: Any = {"pooling": "last"}
            spec = replace(spec, **last)
    with use_seed(spec.seed, keep_state=saved is not None):
        model: TextEncoder | BagOfWords
        if spec.model == BAG_OF_WORDS:
            keys = (
                _bigrams(spec, open_texts(), tokenizer, classes)
                if saved is None
                else np.zeros(saved["bigrams"], np.int64)
            )
            model = BagOfWords(len(tokenizer), len(classes), keys)
        else:
            model = spec.model_spec(len(tokenizer), len(classes) or None).build()
            prepare_fine_tuning(model, spec, initial)
    return ClassifyExperiment(spec, model.to(device), tokenizer, classes, open_texts, device=device, saved=saved)


def class_names(source: Dataset) -> tuple[str, ...]:
    """The labels of train in order."""
    if isinstance(source, LabeledTexts):
        return source.class_names()
    return order_classes(label for _, label in source.rows(TRAIN).values)


def build_text_tokenizer(spec: ClassifyRunSpec, source: Dataset) -> Tokenizer:
    """A tokenizer of the training texts."""
    kind = spec.tokenizer or "word"
    if is_stored(source, TRAIN, kind):
        return build_tokenizer(ColumnText(source, ["text"]), kind, spec.vocabulary)
    rows = source.rows(TRAIN)
    return build_sentence_tokenizer(rows.where[0], [text for text, _ in rows.values], kind, spec.vocabulary)


def _bigrams(spec: ClassifyRunSpec, source: Dataset, tokenizer: Tokenizer, classes: Sequence[str]) -> Any:
    longest = spec.max_length or MAX_LENGTH
    if is_stored(source, TRAIN, tokenizer.kind):
        texts = encode_stored_texts(source, TRAIN, tokenizer, classes, longest)
        return bigram_keys(texts.first(spec.max_examples), len(tokenizer))
    rows = source.rows(TRAIN).values[: spec.max_examples]
    return bigram_keys((np.array(tokenizer.encode_text(text)[:longest]) for text, _ in rows), len(tokenizer))
