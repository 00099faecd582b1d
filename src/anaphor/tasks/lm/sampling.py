"""Options of sampling, which beam search does not use. Imports no torch."""

from __future__ import annotations

from typing import Any

from anaphor.errors import ConfigError
from anaphor.training.spec import check_seed

WITHOUT_SAMPLING = {"temperature": 1.0, "top_k": None, "top_p": None, "seed": 0, "samples": 1, "cuda_graph": False}
"""Defaults of the options that beam search does not use."""


def check_sampling(beam: int | None, **sampling: Any) -> None:
    """Raise for a seed that no generator takes, and for options of sampling beside a beam."""
    check_seed(sampling["seed"])
    for name, value in sampling.items():
        if beam is not None and value != WITHOUT_SAMPLING[name]:
            raise ConfigError(f"{name}={value} has no effect with --beam, which does not sample")
