"""`anaphor export RUN --out DIR`: a run as a folder of transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from anaphor.cli.imports import import_given
from anaphor.flags import Positional, parse


@dataclass(frozen=True, kw_only=True)
class Options:
    """Write a run as a folder that transformers loads, where one of its classes computes exactly the same: GPT-2,
    GPT-NeoX (rotary positions), Llama, Qwen2, Qwen3, Mamba-2, BERT, RoBERTa, DistilBERT, MPNet or ViT."""

    help_examples: ClassVar[tuple[str, ...]] = (
        "anaphor export runs/gpt2 --out exported",
        "anaphor export runs/bert --out exported --overwrite",
    )

    run: Annotated[Path, Positional("RUN")]
    """Run folder."""
    out: Path
    """Folder to write."""
    overwrite: bool = False
    """Replace files in --out."""
    imports: tuple[Path, ...] = field(default=(), metadata={"flag": "import", "repeated": True})
    """Python file that registers parts of your own; may be given several times."""
    force: bool = False
    """Accept imported files that were edited since the run was trained."""
    json: bool = False
    """Print one JSON value."""


def run(argv: Sequence[str]) -> int:
    import_given(argv)
    options = parse(Options, argv, program="anaphor export")

    from anaphor.interchange.conversion import export

    files = export(options.run, options.out, overwrite=options.overwrite, force=options.force)
    architecture = json.loads((options.out / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    if options.json:
        print(json.dumps({"class": architecture, "files": [str(path) for path in files]}))
        return 0
    print(f"{options.out}: {architecture} ({', '.join(path.name for path in files)})")
    return 0
