"""Generation against `generate` of transformers: the same weights, greedy, with its cache.

On a CPU transformers has a process of its own, and a step is also compared with the time it takes to read the weights.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from anaphor.errors import ConfigError
from anaphor.generate import Sampler, generate_rows
from anaphor.interchange import Pretrained, write_pretrained
from anaphor.models import LanguageModel, preset
from benchmarks.packages import require
from benchmarks.processes import start_peer
from benchmarks.timing import Finding, Ratio, estimate_ratio, mean_seconds, measure_seconds, time_alternately

NEW_TOKENS = 256
ROWS = 32
PROMPT = 16
"""Tokens of a prompt; of prompts of unequal length the mean."""
VOCABULARY = 512
MODELS: dict[str, dict[str, Any]] = {
    "gpt-nano": {"name": "gpt-nano"},
    "7.5 M parameters": {"name": "gpt2", "width": 256, "layers": 9, "heads": 8},
}
MIN_RATIO = {
    "cpu": {
        "gpt-nano": {"one": 1.5, "samples": 1.5, "prompts": 1.5},
        "7.5 M parameters": {"one": 1.0, "samples": 1.5, "prompts": 1.5},
    },
    "cuda": {name: {"one": 6.0, "samples": 3.0, "prompts": 3.0} for name in MODELS},
}
"""By device, model and case."""
CASES = {
    "one": "one prompt",
    "samples": f"{ROWS} samples of one prompt",
    "prompts": f"{ROWS} prompts of unequal length",
}
DECISIVE = 8.0
"""Factor of the head: the logits of random weights are so close that rounding would decide between tokens."""
READS = 20


def build_ours(name: str) -> LanguageModel:
    settings = dict(MODELS[name])
    model = preset(settings.pop("name"), vocabulary=VOCABULARY, tied=False, **settings).build().eval()
    with torch.no_grad():
        model.head.weight.mul_(DECISIVE)
    return model


def load_theirs(folder: Path, device: torch.device) -> Callable[[Sequence[list[int]], int], list[list[int]]]:
    """`generate` with the weights of a folder."""
    require("decoding", "transformers")  # in this process, too
    transformers: Any = import_module("transformers")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return partial(run_theirs, transformers.GPT2LMHeadModel.from_pretrained(folder).eval().to(device))


def draw_prompts(case: str) -> list[list[int]]:
    lengths = range(PROMPT // 2, PROMPT // 2 + ROWS) if case == "prompts" else [PROMPT]
    prompts = [torch.randint(VOCABULARY, (length,)).tolist() for length in lengths]
    return prompts * ROWS if case == "samples" else prompts


def run_ours(model: LanguageModel, prompts: Sequence[list[int]]) -> list[list[int]]:
    steps = generate_rows(model, prompts, NEW_TOKENS, Sampler(temperature=0), cuda_graph=True)
    return list(map(list, zip(*steps, strict=True)))


def run_theirs(model: Any, prompts: Sequence[list[int]], count: int) -> list[list[int]]:
    """Padded on the left, as it must be there."""
    longest, device = max(map(len, prompts)), model.device
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    with torch.inference_mode():
        output: torch.Tensor = model.generate(
            ids, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False,
            use_cache=True, pad_token_id=0,
        )  # fmt: skip
    rows: list[list[int]] = output[:, longest:].tolist()
    return rows


def count_ticks(pairs: int, device: torch.device) -> int:
    return pairs * sum(map(len, MIN_RATIO[device.type].values()))


def measure(pairs: int, device: torch.device, tick: Callable[[str], None]) -> list[Finding]:
    """One finding for each model and case, and on a CPU the share of the limit that reading the weights sets."""
    torch.manual_seed(0)
    require("decoding", "transformers")
    findings = []
    for name, cases in MIN_RATIO[device.type].items():
        with tempfile.TemporaryDirectory() as folder:
            model = build_ours(name)
            write_pretrained(Pretrained(model), Path(folder))
            model = model.to(device)
            with start_peer(device, load_theirs, Path(folder), device) as generate:
                for case, minimum in cases.items():
                    prompts, what = draw_prompts(case), f"{name}, {CASES[case]}"
                    ours, theirs = partial(run_ours, model, prompts), partial(generate, prompts, NEW_TOKENS)
                    if ours() != theirs():
                        raise ConfigError(f"{what}: the two generate different tokens, so their times do not compare")
                    times = time_alternately(ours, theirs, pairs, partial(tick, what))
                    findings.append(_describe(model, name, case, minimum, estimate_ratio(times), times))
                    if device.type == "cpu" and case == "one" and name != "gpt-nano":
                        findings.append(_compare_with_reading(model, name, times))
    return findings


def _describe(
    model: LanguageModel, name: str, case: str, minimum: float, ratio: Ratio, times: Sequence[tuple[float, float]]
) -> Finding:
    rows = 1 if case == "one" else ROWS
    ours, theirs = (rows * NEW_TOKENS / seconds for seconds in mean_seconds(times))
    where = "a GPU" if model.device.type == "cuda" else "CPU"
    return ratio.to_finding(
        f"{name}: {NEW_TOKENS} tokens, greedy, {CASES[case]}, on {where}",
        "`generate` of transformers, with its cache",
        promise="not slower: the interval reaches 1" if minimum == 1 else f"at least {minimum} ×",
        kept=ratio.high >= 1 if minimum == 1 else ratio.value >= minimum,
        detail=(
            f"{ours:,.0f} against {theirs:,.0f} tokens/s, all equal; {model.count_parameters():,} parameters, float32"
        ),
    )


def _compare_with_reading(model: LanguageModel, name: str, times: Sequence[tuple[float, float]]) -> Finding:
    """The rate at which weights are read, over that at which the same bytes are read where nothing is computed."""
    weights = [parameter for key, parameter in model.named_parameters() if key not in _find_lookup_tables(model)]
    size = sum(weight.numel() * weight.element_size() for weight in weights)
    ours = size * NEW_TOKENS / mean_seconds(times)[0]
    with torch.inference_mode():
        # As a step does: each weight once, in order; the fastest of several times, as the limit.
        reading = size / min(measure_seconds(lambda: [weight.sum() for weight in weights]) for _ in range(READS))
    return Finding(
        f"{name}: bytes of weights × tokens/s, one prompt",
        "the sum of the same weights",
        ours / reading,
        None,
        None,
        promise="none: the limit is 1",
        kept=True,
        detail=f"{size / 1e6:.1f} MB a token, {ours / 1e9:.1f} GB/s against {reading / 1e9:.1f} GB/s",
    )


def _find_lookup_tables(model: LanguageModel) -> set[str]:
    """Tables of which a step reads one row."""
    tables = (model.embedder.embedding.weight, getattr(getattr(model.embedder.position, "table", None), "weight", None))
    return {key for key, parameter in model.named_parameters() if any(parameter is table for table in tables)}
