"""Training of a translation model with input feeding against a plain loop over `nn.LSTMCell`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from anaphor.data.batches import IGNORE_INDEX, Batch
from anaphor.data.padded_batches import batch_pairs
from anaphor.data.pairs import EncodedPairs, EncodedSentences, PairTokenizers
from anaphor.data.tokenizer import Byte
from anaphor.models.presets import build_seq2seq
from anaphor.tasks.translate import TranslationRunSpec
from anaphor.tasks.translate.experiment import TranslationExperiment
from anaphor.training.build import build_step
from benchmarks.our_loop import OurLoop, no_dataset
from benchmarks.timing import Finding, estimate_ratio, mean_seconds, run_steps, time_alternately

WIDTH, LAYERS, ROWS, VOCABULARY = 256, 2, 64, 8_000
MIN_LENGTH, MAX_LENGTH = 6, 24
MIN_RATIO = {"cpu": 1.0, "cuda": 3.0}
STEPS = {"cpu": 1, "cuda": 25}


class PlainTranslator(nn.Module):
    """`nn.LSTM` for the source; `nn.LSTMCell` for the target, token by token, with attention after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.source = nn.Embedding(VOCABULARY, WIDTH)
        self.target = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder = nn.LSTM(WIDTH, WIDTH, LAYERS, batch_first=True)
        self.cells = nn.ModuleList(nn.LSTMCell(WIDTH * (2 if layer == 0 else 1), WIDTH) for layer in range(LAYERS))
        self.score = nn.Linear(WIDTH, WIDTH, bias=False)
        self.combine = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, batch: Batch) -> Tensor:
        """-> logits [B, T, V]"""
        source_ids, lengths = batch.source
        packed = pack_padded_sequence(self.source(source_ids), lengths.cpu(), batch_first=True, enforce_sorted=False)
        encoded, (hidden, cell) = self.encoder(packed)
        values, _ = pad_packed_sequence(encoded, batch_first=True, total_length=source_ids.shape[1])
        keys, states, absent = self.score(values), list(zip(hidden, cell, strict=True)), ~batch.source_mask
        x, fed, hidden_states = self.target(batch.input_ids), values.new_zeros(len(values), WIDTH), []
        for time in range(x.shape[1]):
            below = torch.cat((x[:, time], fed), dim=-1)
            for layer, step in enumerate(self.cells):
                states[layer] = step(below, states[layer])
                below = states[layer][0]
            scores = torch.bmm(keys, below[:, :, None]).squeeze(2).masked_fill(absent, -torch.inf)
            context = torch.bmm(torch.softmax(scores, -1)[:, None], values).squeeze(1)
            fed = torch.tanh(self.combine(torch.cat((context, below), dim=-1)))
            hidden_states.append(fed)
        logits: Tensor = self.head(torch.stack(hidden_states, dim=1))
        return logits


@dataclass
class PlainLoop:
    """Forward, backward, clip, update, read the loss."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: Iterator[Batch]

    def step(self) -> float:
        batch = next(self.batches)
        self.optimizer.zero_grad()
        logits = self.model(batch)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE_INDEX)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()


def draw_pairs(pairs: int) -> EncodedPairs:
    """Pairs of random tokens; a target is about as long as its source."""
    generator, tokenizer = np.random.default_rng(0), Byte()
    lengths = generator.integers(MIN_LENGTH, MAX_LENGTH + 1, pairs)
    nearby = np.clip(lengths + generator.integers(-2, 3, pairs), MIN_LENGTH, MAX_LENGTH)
    source, target = (
        EncodedSentences(generator.integers(VOCABULARY, size=sizes.sum()), sizes, tokenizer, "drawn")
        for sizes in (lengths, nearby)
    )
    indices = np.arange(pairs)
    return EncodedPairs(source, target, indices, lines=indices + 1, target_bytes=nearby, digest="drawn")


def build_loops(device: torch.device) -> tuple[OurLoop, PlainLoop, float]:
    """Our loop and the plain one on the same batches, both in float32, and the mean number of targets of a batch."""
    batches = list(batch_pairs(draw_pairs(20 * ROWS), rows=ROWS, pad_to=8, device=device))
    spec = TranslationRunSpec(model="luong", optimizer="adamw", lr=1e-3, clip=1.0, dtype="float32")
    sizes = {"source_vocabulary": VOCABULARY, "vocabulary": VOCABULARY, "width": WIDTH, "layers": LAYERS}
    model = build_seq2seq("luong", **sizes).to(device).train()
    experiment = TranslationExperiment(spec, model, PairTokenizers(Byte(), Byte()), no_dataset, device=device)
    peer = PlainTranslator().to(device).train()
    ours = OurLoop(build_step(experiment), cycle(batches))
    theirs = PlainLoop(peer, torch.optim.AdamW(peer.parameters(), lr=1e-3), cycle(batches))
    return ours, theirs, sum(batch.count for batch in batches) / len(batches)


def count_ticks(pairs: int, device: torch.device) -> int:
    return pairs


def measure(pairs: int, device: torch.device, tick: Callable[[str], None]) -> list[Finding]:
    """One finding: target tokens per second."""
    torch.manual_seed(0)
    ours, theirs, targets = build_loops(device)
    count, minimum = STEPS[device.type], MIN_RATIO[device.type]

    if device.type == "cuda":  # until a CUDA graph is captured for every shape of batch
        for _ in range(100):
            ours.step()
    first, second = (partial(run_steps, step, count, device.type == "cuda") for step in (ours.step, theirs.step))
    times = time_alternately(first, second, pairs, partial(tick, "feeding"))
    ratio = estimate_ratio(times)
    speeds = [targets * count / seconds for seconds in mean_seconds(times)]
    return [
        ratio.to_finding(
            f"training with input feeding, tokens/s on {'a GPU' if device.type == 'cuda' else 'CPU'}",
            "a loop over nn.LSTMCell with attention, cross-entropy and AdamW",
            promise=f"at least {minimum} ×" if device.type == "cuda" else "not slower",
            kept=ratio.value >= minimum,
            detail=(
                f"{speeds[0]:,.0f} against {speeds[1]:,.0f} target tokens/s; {ROWS} pairs of {MIN_LENGTH} to "
                f"{MAX_LENGTH} tokens, {LAYERS} layers of width {WIDTH}, vocabulary {VOCABULARY:,}"
            ),
        )
    ]
