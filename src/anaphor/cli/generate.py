"""Options of `anaphor generate RUN`. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from anaphor.cli.run_options import RunOptions, import_torch, parse_options
from anaphor.config import MAX_BEAM, check_at_least, check_range
from anaphor.errors import ConfigError
from anaphor.flags import before_end
from anaphor.tasks.lm.sampling import WITHOUT_SAMPLING, check_sampling

MAX_SAMPLES = 1_000_000
MAX_COLLECTED_TOKENS = 1_000_000  # of texts that are printed when they are complete


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions):
    """Generate text with a trained language model, token by token."""

    help_examples: ClassVar[tuple[str, ...]] = (
        "anaphor generate runs/lstm --tokens 100",
        'anaphor generate runs/lstm --prompt "The value of" --temperature 0.7',
    )

    prompt: str = ""
    """Text to continue; empty for none."""
    file: Path | None = None
    """File with a prompt on each line; .gz is decompressed, - is standard input. An empty line is an empty prompt."""
    samples: int = 1
    """Number of texts for each prompt, generated at once; each has a seed of its own, counted from --seed."""
    batch_size: int = 32
    """Maximum number of texts generated at once."""
    tokens: int = 100
    """Number of tokens to generate."""
    temperature: float = 1.0
    """Sampling temperature; 0 is greedy."""
    top_k: int | None = None
    """Sample from the k most likely tokens only."""
    top_p: float | None = None
    """Sample from the most likely tokens with this total probability (nucleus sampling)."""
    beam: int | None = None
    """Beam search of this width in place of sampling."""
    seed: int = 0
    """Random seed."""
    cuda_graph: bool = False
    """Replay the step of a token as a CUDA graph, on a GPU."""

    def __post_init__(self) -> None:
        check_at_least(1, tokens=self.tokens, batch_size=self.batch_size)
        check_range(1, MAX_SAMPLES, samples=self.samples)
        check_range(1, MAX_BEAM, beam=self.beam)
        if self.beam is not None or self.samples > 1 or self.file is not None:  # one text is printed as it is drawn
            check_range(1, MAX_COLLECTED_TOKENS, tokens=self.tokens)
        if self.prompt and self.file is not None:
            raise ConfigError(f"prompt={self.prompt!r} and file={self.file}: give one of them")
        check_sampling(self.beam, **{name: getattr(self, name) for name in WITHOUT_SAMPLING})


def run(argv: Sequence[str]) -> int:
    if "--greedy" in before_end(argv):
        raise ConfigError("there is no --greedy: use --temperature 0")
    options = parse_options("generate", argv, Options)
    import_torch()
    from anaphor.cli.generate_texts import print_texts

    return print_texts(options)
