"""`anaphor convert DIR --out RUN`: weights of transformers, or of a GGUF file, as a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from anaphor.cli.train import warn
from anaphor.flags import Positional, parse


@dataclass(frozen=True, kw_only=True)
class Options:
    """Read a folder in the format of transformers (config.json, safetensors, tokenizer.json) and write it as a run,
    which every verb accepts. Known: BERT, RoBERTa, DistilBERT, MPNet, GPT-2, GPT-NeoX, Llama, Mistral, Qwen2, Qwen3,
    Mamba-2 and ViT; GGUF files of Llama, Qwen2 and Qwen3. Nothing in it is executed."""

    help_examples: ClassVar[tuple[str, ...]] = (
        "anaphor convert bert-base-uncased --out runs/bert",
        "anaphor convert SmolLM2-135M-Instruct.Q4_1.gguf --out runs/smollm2",
    )

    folder: Annotated[Path, Positional("DIR")]
    """Folder to read, or GGUF file."""
    out: Path
    """Run folder to write."""
    overwrite: bool = False
    """Replace a run that is in --out."""
    json: bool = False
    """Print one JSON value."""


def run(argv: Sequence[str]) -> int:
    options = parse(Options, argv, program="anaphor convert")

    from anaphor.interchange.conversion import convert

    converted = convert(options.folder, options.out, overwrite=options.overwrite, warn=warn)
    result, task = converted.result, converted.task.name
    if options.json:
        print(json.dumps({**result, "task": task}))
        return 0
    print(f"{options.out}: {result['kind']} with {result['parameters']:,} parameters, a run of `train {task}`")
    return 0
