"""Training a translator with input feeding, against the loop that people write: `nn.LSTMCell`, token after token."""

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

from anaphor.bench.finding import Finding
from anaphor.bench.timing import in_turns, ratio, several
from anaphor.bench.training import OurLoop
from anaphor.data.batches import IGNORE_INDEX, Batch, batch_pairs
from anaphor.data.corpus import EncodedPairs, EncodedSentences, PairTokenizers
from anaphor.data.vocab import Byte
from anaphor.models.presets import build_seq2seq
from anaphor.tasks.translate import TranslationRunSpec
from anaphor.tasks.translation import PairSplit, Translation
from anaphor.training.run import build_step

WIDTH, LAYERS, ROWS, VOCABULARY = 256, 2, 64, 8_000
SHORTEST, LONGEST = 6, 24
LEAST = {"cpu": 1.0, "cuda": 3.0}
STEPS = {"cpu": 1, "cuda": 25}


class PlainTranslator(nn.Module):
    """The framework's LSTM reads the source; its cells walk through the target, with attention after each step."""

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
        keys, hidden_by, absent = self.score(values), list(zip(hidden, cell, strict=True)), ~batch.source_mask
        x, fed, found = self.target(batch.input_ids), values.new_zeros(len(values), WIDTH), []
        for time in range(x.shape[1]):
            below = torch.cat((x[:, time], fed), dim=-1)
            for layer, step in enumerate(self.cells):
                hidden_by[layer] = step(below, hidden_by[layer])
                below = hidden_by[layer][0]
            scores = torch.bmm(keys, below[:, :, None]).squeeze(2).masked_fill(absent, -torch.inf)
            context = torch.bmm(torch.softmax(scores, -1)[:, None], values).squeeze(1)
            fed = torch.tanh(self.combine(torch.cat((context, below), dim=-1)))
            found.append(fed)
        logits: Tensor = self.head(torch.stack(found, dim=1))
        return logits


@dataclass
class PlainLoop:
    """Forward, backward, clip, update, and look at the loss."""

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


def drawn(pairs: int) -> EncodedPairs:
    """Pairs of random tokens; a target is about as long as its source."""
    draw, tokenizer = np.random.default_rng(0), Byte()
    lengths = draw.integers(SHORTEST, LONGEST + 1, pairs)
    nearby = np.clip(lengths + draw.integers(-2, 3, pairs), SHORTEST, LONGEST)
    source, target = (
        EncodedSentences(draw.integers(VOCABULARY, size=sizes.sum()), sizes, tokenizer, "drawn")
        for sizes in (lengths, nearby)
    )
    indices = np.arange(pairs)
    return EncodedPairs(source, target, indices, lines=indices + 1, target_bytes=nearby, digest="drawn")


def loops(device: torch.device) -> tuple[OurLoop, PlainLoop, float]:
    """Ours and the plain one on the same batches, both in single precision, and how many targets a batch has."""
    pairs, tokenizers = drawn(20 * ROWS), PairTokenizers(Byte(), Byte())
    batches = batch_pairs(pairs, rows=ROWS, pad_to=8, device=device)
    spec = TranslationRunSpec(model="luong", optimizer="adamw", lr=1e-3, clip=1.0, dtype="float32")
    sizes = {"source_vocabulary": VOCABULARY, "vocabulary": VOCABULARY, "width": WIDTH, "layers": LAYERS}
    model = build_seq2seq("luong", **sizes).to(device).train()
    task = Translation(tokenizers, lambda split: PairSplit(batches, pairs, ()))
    peer = PlainTranslator().to(device).train()
    made = list(batches)
    ours = OurLoop(build_step(spec, model, task, device), cycle(made))
    theirs = PlainLoop(peer, torch.optim.AdamW(peer.parameters(), lr=1e-3), cycle(made))
    return ours, theirs, sum(batch.count for batch in made) / len(made)


def measure(pairs: int, device: torch.device, tick: Callable[[str], None]) -> list[Finding]:
    torch.manual_seed(0)
    ours, theirs, targets = loops(device)
    count, least = STEPS[device.type], LEAST[device.type]

    if device.type == "cuda":  # so that every shape of batch is met often enough to be captured
        for _ in range(100):
            ours.step()
    first, second = (partial(several, step, count, device.type == "cuda") for step in (ours.step, theirs.step))
    times = in_turns(first, second, pairs, partial(tick, "feeding"))
    found = ratio(times)
    speeds = [targets * count * len(times) / sum(pair[which] for pair in times) for which in (0, 1)]
    return [
        Finding(
            what=f"training with input feeding, tokens/s on {'a GPU' if device.type == 'cuda' else 'CPU'}",
            peer="a loop over nn.LSTMCell with attention, cross-entropy and AdamW",
            value=found.value,
            low=found.low,
            high=found.high,
            promise=f"at least {least} ×" if device.type == "cuda" else "not slower",
            kept=found.value >= least,
            detail=(
                f"{speeds[0]:,.0f} against {speeds[1]:,.0f} target tokens/s; {ROWS} pairs of {SHORTEST} to {LONGEST} "
                f"tokens, {LAYERS} layers of width {WIDTH}, vocabulary {VOCABULARY:,}; {found.pairs} pairs in turns"
            ),
        )
    ]
