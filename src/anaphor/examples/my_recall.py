"""A task of your own on tokens: associative recall. Keys with values are read, then keys are asked for their values.

    anaphor train my-recall --import my_recall.py --model transformer --steps 500 --out runs/recall
    anaphor look runs/recall "k1 v5 k2 v3 k2 v3 k1 v5" --import my_recall.py --out runs/recall/look

A sequence is `k7 v2 k0 v9 … k0 v9 k7 v2 …`: every key once with its value, then every key once more in another order.
Only the answers count, the values after the keys of the second half.
"""

from dataclasses import dataclass
from typing import Any

import torch

import anaphor

SIZES = {"train": 4000, "valid": 500, "test": 500}


@dataclass(frozen=True, kw_only=True)
class RecallSpec(anaphor.LanguageModelSection, anaphor.RunSpec):
    """Train a model that recalls values by their keys."""

    section = "data"

    data: str = "recall"
    """Data set: recall, drawn at random, the same for every seed."""
    pairs: int = 6
    """Keys with values in a sequence."""
    keys: int = 32
    """Different keys; at least four times as many as pairs, so that longer sequences can be drawn."""
    values: int = 32
    """Different values."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (1 <= 4 * self.pairs <= self.keys and self.values >= 2):
            raise anaphor.ConfigError(
                f"pairs={self.pairs}, keys={self.keys}, values={self.values}: give at least 1 pair, 4 keys for each "
                f"pair, and 2 values"
            )


class Recall(anaphor.TokenExperiment):
    longer = (2, 4)

    def __init__(self, spec: RecallSpec, saved: dict[str, Any] | None = None, data_path: str | None = None) -> None:
        names = [f"{kind}{number}" for kind, count in (("k", spec.keys), ("v", spec.values)) for number in range(count)]
        super().__init__(spec, names, saved)

    def examples(self, split: str, times: int = 1) -> anaphor.MaskedBatch:
        spec, rows, pairs = self.spec, SIZES[split], times * self.spec.pairs
        generator = torch.Generator().manual_seed(10 * list(SIZES).index(split) + times)
        first = self.tokenizer.tokens.index("k0")
        keys = first + torch.rand(rows, spec.keys, generator=generator).argsort(1)[:, :pairs]
        values = first + spec.keys + torch.randint(spec.values, (rows, pairs), generator=generator)
        asked = torch.rand(rows, pairs, generator=generator).argsort(1)
        start = torch.full((rows, 1), self.tokenizer.boundary)
        told = torch.stack((keys, values), 2).flatten(1)
        answers = torch.stack((keys.gather(1, asked), values.gather(1, asked)), 2).flatten(1)
        tokens = torch.cat((start, told, answers), 1)
        place = torch.arange(tokens.shape[1])
        learned = (place > 2 * pairs) & (place % 2 == 0)  # the value after each key of the second half
        return anaphor.MaskedBatch.next_tokens(tokens, learned.expand_as(tokens))


anaphor.register_task(
    anaphor.TaskDefinition(
        name="my-recall", spec=RecallSpec, build=Recall, unit="answers", metrics=anaphor.position_metrics((2, 4)),
        look="anaphor.tasks.lm.verbs:LookOptions", page=Recall.page,
    )
)  # fmt: skip
