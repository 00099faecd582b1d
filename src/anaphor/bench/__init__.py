"""Speed, as ratios measured in the same run against a named peer; `scaling` alone has no peer and gives costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from anaphor.bench.timing import Finding

SCALING = "scaling"
PARTS = {
    "overhead": "our stacks against torch.nn",
    "generation": "generation with carried state",
    "decoding": "generation against `generate` of transformers",
    "recording": "cost of taps and of recording",
    "training": "the recipes against the loop of PyTorch's example",
    "adaptation": "dynamic evaluation of a language model against a plain loop",
    "images": "an image classifier against a plain loop",
    "finetune": "fine-tuning a text classifier against Hugging Face's Trainer",
    "feeding": "a translation model with input feeding against a loop over cells",
    "bleu": "BLEU against sacreBLEU",
    "start": "start of the command against `import torch`; with a GPU, time outside training",
    "packing": "several runs of a study on one device",
    "web": "the live page of many runs, in Chromium",
    SCALING: "cost of each recipe at larger batches, and the largest model that fits",
}
DEFAULT_PARTS = tuple(part for part in PARTS if part not in ("decoding", "finetune", "packing", "web", SCALING))
"""All but those that take long or need packages that are not installed with Anaphor."""


def count_ticks(parts: Sequence[str], pairs: int, device: torch.device) -> int:
    """How often `measure` calls `tick`. For `scaling.measure` see `scaling.count_ticks`."""
    from anaphor.bench import finetune, generation, images, processes, training, web

    sizes = {"overhead": 4 * pairs, "generation": 3 * pairs + 3 + generation.TOKENS, "recording": 2 * pairs}
    sizes |= {"training": training.count_comparisons(device) * pairs, "feeding": pairs, "bleu": pairs}
    sizes |= {"start": pairs + (device.type == "cuda")}
    sizes |= {"images": images.count_comparisons() * pairs}
    sizes |= {"adaptation": training.count_adaptations(device) * pairs}
    sizes |= {
        "decoding": generation.count_decoding_ticks(pairs, device),
        "finetune": finetune.count_comparisons() * pairs,
    }
    sizes |= {"packing": processes.count_packing_ticks(device), "web": web.count_ticks(pairs)}
    return sum(sizes[part] for part in parts if part != SCALING)


def measure(
    parts: Sequence[str], pairs: int, device: torch.device, tick: Callable[[str], None]
) -> tuple[list[Finding], dict[str, list[float]]]:
    """The findings of the parts but scaling, and the times per token of generation where it is among them."""
    from anaphor.bench import feeding, finetune, generation, images, overhead, processes, training, web

    measures: dict[str, Callable[[], list[Finding]]] = {
        "overhead": lambda: overhead.measure(pairs, tick),
        "recording": lambda: overhead.measure_recording(pairs, tick),
        "decoding": lambda: generation.measure_decoding(pairs, device, tick),
        "training": lambda: training.measure(pairs, device, tick),
        "adaptation": lambda: training.measure_adaptation(pairs, device, tick),
        "images": lambda: images.measure(pairs, device, tick),
        "finetune": lambda: finetune.measure(pairs, device, tick),
        "feeding": lambda: feeding.measure(pairs, device, tick),
        "bleu": lambda: overhead.measure_bleu(pairs, tick),
        "start": lambda: processes.measure_start(pairs, device, tick),
        "packing": lambda: processes.measure_packing(device, tick),
        "web": lambda: web.measure(pairs, tick),
    }
    findings: list[Finding] = []
    times: dict[str, list[float]] = {}
    for part in PARTS:
        if part == "generation" and part in parts:
            more, times = generation.measure(pairs, tick)
            findings += more
        elif part in parts and part != SCALING:
            findings += measures[part]()
    return findings, times
