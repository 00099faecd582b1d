"""Training of a text classifier with the shape of a pretrained encoder against Hugging Face's Trainer."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from importlib import import_module
from itertools import cycle
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models

from anaphor.cuda_graphs import WARM_UP
from anaphor.data.labeled_batches import LabeledBatch, LabeledBatches
from anaphor.data.tokenizer import Byte, Ids
from anaphor.tasks.classify import ClassifyRunSpec
from anaphor.tasks.classify.experiment import ClassifyExperiment
from anaphor.training.build import build_step
from benchmarks.our_loop import OurLoop, no_dataset
from benchmarks.packages import require
from benchmarks.timing import Finding, estimate_ratio, mean_seconds, run_steps, time_alternately

PADDINGS = {"max_length": "to 512", "longest": "dynamic"}
"""How the Trainer pads its batches, as `transformers` and as people call it."""
MIN_RATIO = {"cpu": {"max_length": 2.0, "longest": 1.1}, "cuda": {"max_length": 2.0, "longest": 1.5}}
STEPS = {"cpu": {"max_length": 2, "longest": 6}, "cuda": {"max_length": 20, "longest": 40}}
"""Updates that are timed together."""
SHAPES: dict[str, dict[str, Any]] = {
    "cpu": {"layers": 6, "heads": 12, "width": 384},
    "cuda": {"layers": 12, "heads": 12, "width": 768},
}
"""Sizes of MiniLM-L6 and of BERT base."""
BATCH_SIZE = {"cpu": 16, "cuda": 32}
VOCABULARY, CLASSES, MAX_LENGTH = 30_522, 2, 512
TEXTS = 6920
LENGTHS = {
    0: 4, 10: 11, 20: 15, 30: 18, 40: 21, 50: 24, 60: 27, 70: 31, 80: 35, 90: 41, 95: 46, 98: 52, 99: 55, 99.5: 58,
    99.9: 63, 100: 80,
}  # fmt: skip
"""Percentiles of the lengths of the sentences in SST-2, in word pieces. The longest ones matter most: random batches
are padded to them."""
GOLDEN_RATIO = (5**0.5 - 1) / 2
LR = 1e-6
"""Small, so that no weight of a model that is trained on random labels explodes."""


def draw_texts() -> tuple[list[Ids], list[int]]:
    """Random tokens with the lengths of SST-2, and random labels."""
    random = np.random.default_rng(0)
    lengths = np.rint(np.interp(random.uniform(0, 100, TEXTS), list(LENGTHS), list(LENGTHS.values()))).astype(int)
    return [random.integers(1, VOCABULARY, n).astype(np.int32) for n in lengths], random.integers(0, 2, TEXTS).tolist()


def spread_lengths(batches: LabeledBatches) -> list[LabeledBatch]:
    """The batches in an order where short and long ones alternate, so that any few neighbors take the time of any
    others: their ranks by length grow by the golden ratio, modulo their number."""
    full = [batch for batch in batches if batch.count == batches[0].count]
    full.sort(key=lambda batch: batch.tokens.shape[1])
    ranks = np.argsort(np.arange(len(full)) * GOLDEN_RATIO % 1)  # of a sequence that fills an interval evenly
    return [full[rank] for rank in np.argsort(ranks)]


def build_ours(device: torch.device) -> OurLoop:
    texts, labels = draw_texts()
    spec = ClassifyRunSpec(
        model="bert-base", **SHAPES[device.type], dropout=0.1, batch_size=BATCH_SIZE[device.type], lr=LR
    )
    model = spec.model_spec(VOCABULARY, CLASSES).build().to(device).train()
    experiment = ClassifyExperiment(spec, model, Byte(), ("0", "1"), no_dataset, device=device)
    pad_to = experiment.pad_to  # as in a run
    batches = spread_lengths(LabeledBatches(texts, labels, pad=0, rows=spec.batch_size, pad_to=pad_to, device=device))
    loop = OurLoop(build_step(experiment), cycle(batches))
    if device.type == "cuda":
        capture_all(loop, batches)
    return loop


def capture_all(loop: OurLoop, batches: Sequence[LabeledBatch]) -> None:
    """Train on a batch of each shape until its step is captured, which would otherwise happen while it is timed."""
    for batch in {batch.tokens.shape: batch for batch in batches}.values():
        for _ in range(WARM_UP + 1):
            loop.step_once([batch], None)


class TrainerLoop:
    """Hugging Face's Trainer, one step at a time: it runs in a thread that waits after every step."""

    def __init__(self, padding: str, device: torch.device) -> None:
        require("finetune", "accelerate", "transformers")
        self._folder = tempfile.TemporaryDirectory(prefix="anaphor-bench-")
        self.trainer = build_trainer(padding, device, self._folder.name, self._pause)
        self.model = self.trainer.model
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1)
        self._training = self._thread.submit(self._train, torch.get_num_threads())
        self._training.add_done_callback(lambda _: self._done.release())

    def _train(self, threads: int) -> None:
        self._go.acquire()
        torch.set_num_threads(threads)  # of this thread
        if not self._is_closed:
            self.trainer.train()

    def _pause(self) -> bool:
        """Hand over to `step` until its next call. Returns whether to stop."""
        self._done.release()
        self._go.acquire()
        return self._is_closed

    def step(self) -> None:
        self._go.release()
        self._done.acquire()
        if self._training.done():
            self._training.result()  # raises what stopped it

    def close(self) -> None:
        self._is_closed = True
        self._go.release()
        self._thread.shutdown()
        self._folder.cleanup()


def build_trainer(padding: str, device: torch.device, folder: str, pause: Callable[[], bool]) -> Any:
    """The Trainer with its defaults on a model of the same shape; texts are tokenized beforehand. `pause` is called
    after every step and returns whether to stop."""
    transformers: Any = import_module("transformers")
    texts, labels = draw_texts()
    rows = [
        {"input_ids": text.tolist(), "attention_mask": [1] * len(text), "labels": label}
        for text, label in zip(texts, labels, strict=True)
    ]
    shape = SHAPES[device.type]
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=shape["width"], num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"], intermediate_size=4 * shape["width"], num_labels=CLASSES,
    )  # fmt: skip
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1}, "[UNK]")), pad_token="[PAD]"
    )
    tokenizer.deprecation_warnings["Asking-to-pad-a-fast-tokenizer"] = True  # the texts are tokenized already

    class Pause(transformers.TrainerCallback):  # type: ignore[misc] # imported as Any
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
            control.should_training_stop = pause()
            return control

    arguments = transformers.TrainingArguments(
        output_dir=folder, per_device_train_batch_size=BATCH_SIZE[device.type],
        learning_rate=LR, lr_scheduler_type="constant", max_steps=10**6, save_strategy="no", report_to="none",
        disable_tqdm=True, use_cpu=device.type == "cpu", bf16=device.type == "cuda", seed=0,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=transformers.BertForSequenceClassification(config), args=arguments, train_dataset=rows,
        data_collator=transformers.DataCollatorWithPadding(tokenizer, padding=padding, max_length=MAX_LENGTH),
        callbacks=[Pause()],
    )  # fmt: skip
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def count_ticks(pairs: int, device: torch.device) -> int:
    return len(PADDINGS) * pairs


def measure(pairs: int, device: torch.device, tick: Callable[[str], None]) -> list[Finding]:
    """One finding for each way to pad."""
    return [_compare(padding, device, pairs, tick) for padding in PADDINGS]


def _compare(padding: str, device: torch.device, pairs: int, tick: Callable[[str], None]) -> Finding:
    torch.manual_seed(0)
    kind = device.type
    count, minimum = STEPS[kind][padding], MIN_RATIO[kind][padding]
    with closing(TrainerLoop(padding, device)) as theirs:
        ours = build_ours(device)
        first, second = (partial(run_steps, step, count, kind == "cuda") for step in (ours.step, theirs.step))
        times = time_alternately(first, second, pairs, partial(tick, f"padding {PADDINGS[padding]}"))
    ratio = estimate_ratio(times)
    speeds = [BATCH_SIZE[kind] * count / seconds for seconds in mean_seconds(times)]
    where, dtype = ("a GPU", "bfloat16") if kind == "cuda" else ("CPU", "float32")
    shape = SHAPES[kind]
    return ratio.to_finding(
        f"fine-tuning an encoder: sentences/s on {where}, {dtype}",
        f'Hugging Face\'s Trainer with padding="{padding}"',
        promise=f"at least {minimum} ×",
        kept=ratio.value >= minimum,
        detail=(
            f"{speeds[0]:,.1f} against {speeds[1]:,.1f} sentences/s; BERT with {shape['layers']} layers of width "
            f"{shape['width']}, {BATCH_SIZE[kind]} sentences with the lengths of SST-2, AdamW"
        ),
    )
