"""Interchange: weights of other libraries into our models and back, as folders of `transformers`, without importing it,
and from GGUF files.

`read_pretrained` reads a folder or file, `write_pretrained` writes a folder. A kind of model is a module here that says
how its configuration becomes a spec of ours, and which of its tensors are which of our parameters.
"""

from typing import TYPE_CHECKING, Any

from anaphor.registry import SERVICES, WEIGHTS, register_verb

if TYPE_CHECKING:
    from anaphor.interchange.pretrained import read_pretrained, write_pretrained
    from anaphor.training.pretrained import Pretrained

__all__ = ["Pretrained", "read_pretrained", "write_pretrained"]


def register() -> None:
    """Add the verbs, published weights and the reader of weights: the registry calls it when names are first needed."""
    SERVICES.add("read-pretrained", "anaphor.interchange.pretrained:read_pretrained")
    for name in ("minilm", "mpnet", "roberta", "gpt2", "smollm2"):
        WEIGHTS.add(name, f"anaphor.interchange.published:{name.upper()}")
    register_verb(
        "convert", "read weights of transformers, or GGUF, into a run", "anaphor.interchange.convert_verb:run"
    )
    register_verb("export", "write a run as a folder of transformers", "anaphor.interchange.export_verb:run")


if not TYPE_CHECKING:  # which would take every name for known

    def __getattr__(name: str) -> Any:
        """Public names are imported on first use, so that `anaphor --help` does not wait for torch."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

        from anaphor.interchange import pretrained

        return getattr(pretrained, name)
