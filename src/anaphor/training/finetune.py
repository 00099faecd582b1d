"""Fine-tuning: initial weights of another run, frozen layers, low-rank adapters (LoRA)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from anaphor.errors import ConfigError
from anaphor.training.state_dicts import Mismatch, format_shape

LORA_ALPHA = 16.0
"""Adapters are scaled by this over their rank (Hu et al., 2022), so that the learning rate suits every rank."""
KEPT = ("embedder.", "layers.")
"""Parts of a model that are initialized from another one; heads are new."""


@dataclass(frozen=True)
class Initial:
    """Pretrained weights with what belongs to them."""

    name: str
    """Where they are from, for messages."""
    model: str
    """Model preset of the run."""
    options: Mapping[str, Any]
    """Options of its model, with the values used."""
    weights: Mapping[str, Tensor]
    tokenizer: Any
    """The tokenizer they were trained with."""


def load_initial(path: str) -> Initial:
    """The weights of a run, or of a folder of `transformers`."""
    from anaphor.training.load import load_run
    from anaphor.training.run_folder import RunFolder

    if not RunFolder(Path(path)).exists:
        if (Path(path) / "config.json").is_file():
            return read_initial(path)
        raise ConfigError(f"init={path}: there is no run in this folder, and no config.json of transformers")
    run = load_run(path, device="cpu")
    model: Any = run.model
    spec: Any = getattr(model, "spec", None)
    if not hasattr(spec, "resolved") or not hasattr(run.experiment, "tokenizer"):
        raise ConfigError(f"init={path}: runs of `train {run.spec.task}` hold no model of text")
    return Initial(path, run.spec.model, spec.resolved(), merged_weights(model), run.experiment.tokenizer)


def read_initial(folder: str) -> Initial:
    """The weights of a folder of `transformers`."""
    from anaphor.interchange import read_pretrained

    found = read_pretrained(folder)
    spec: Any = found.model.spec
    if found.tokenizer is None:
        raise ConfigError(f"init={folder}: the folder has no tokenizer.json, or holds no model of text")
    return Initial(folder, found.kind, spec.resolved(), found.model.state_dict(), found.tokenizer)


def check_vocabulary(initial: Initial) -> None:
    """Refuse a tokenizer and embeddings that do not belong together."""
    rows = len(initial.weights["embedder.embedding.weight"])
    if len(initial.tokenizer) != rows:
        raise ConfigError(
            f"init={initial.name}: the tokenizer has {len(initial.tokenizer):,} tokens and the embeddings have "
            f"{rows:,} rows: they do not belong together"
        )


def initialize_from(model: nn.Module, initial: Initial) -> None:
    """Copy embeddings, layers and, where both have one, the pooler; the head stays as it is."""
    own, mismatch = model.state_dict(), Mismatch()
    for name, tensor in own.items():
        if not name.startswith(KEPT) and not (name.startswith("pooler.") and name in initial.weights):
            continue
        if name not in initial.weights:
            if not name.startswith("embedder.dropped_word."):  # of word dropout, which may be new
                mismatch.missing.append(name)
            continue
        mismatch.compare(name, initial.weights[name], tensor)
        if format_shape(tensor) == format_shape(initial.weights[name]):
            tensor.copy_(initial.weights[name])
    mismatch.raise_if_any(initial.name)


class LowRank(nn.Module):
    """A weight plus B A · alpha / rank (Hu et al., 2022). B is zero at first, so that nothing changes."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.a = nn.Parameter(torch.empty(rank, columns, dtype=weight.dtype))
        self.b = nn.Parameter(torch.zeros(rows, rank, dtype=weight.dtype))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))
        self.scale = LORA_ALPHA / rank

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.scale * (self.b @ self.a)


def add_lora(model: Any, rank: int) -> None:
    """Freeze embeddings and layers, and add adapters to all linear maps of the layers. The head is trained as well."""
    linear = [part for block in model.blocks for part in block.modules() if isinstance(part, nn.Linear)]
    if not linear:
        raise ConfigError(
            f"lora={rank}: no layer has a linear map to adapt; attention and feed-forward networks have them"
        )
    for name, weight in model.named_parameters():
        if name.startswith(KEPT):
            weight.requires_grad_(False)
    for part in linear:
        parametrize.register_parametrization(part, "weight", LowRank(part.weight.detach(), rank))


def merged_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a model by name, adapters added to what they adapt."""
    weights = {name: tensor for name, tensor in model.state_dict().items() if ".parametrizations." not in name}
    for name, part in model.named_modules():
        if parametrize.is_parametrized(part):
            weights[f"{name}.weight"] = part.weight.detach()
    return weights


def freeze_layers(model: Any, count: int) -> None:
    """Freeze the embeddings and the first `count` layers."""
    if count > len(model.blocks):
        raise ConfigError(f"freeze={count}: the model has {len(model.blocks)} layers")
    for part in (model.embedder, *model.blocks[:count]):
        part.requires_grad_(False)


def prepare(model: Any, spec: Any) -> None:
    """Freeze layers and add adapters as the settings of a run say."""
    if spec.lora is not None:
        add_lora(model, spec.lora)
    if spec.freeze is not None:
        freeze_layers(model, spec.freeze)
