"""Fine-tuning: initial weights of another run, frozen layers, low-rank adapters (LoRA)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from anaphor.errors import ConfigError, NotInstalled, count_noun
from anaphor.models.language_model import LanguageModel
from anaphor.registry import EMBEDDERS, SERVICES
from anaphor.training.load import load_run
from anaphor.training.mismatch import Mismatch
from anaphor.training.run_folder import RunFolder
from anaphor.user_paths import user_path

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
    """The weights of a run, or of a folder of `transformers`, with the tokenizer they were trained with."""
    folder = user_path(path)
    if not folder.is_dir():
        raise ConfigError(f"init={path}: there is no such folder")
    if (folder / "config.json").is_file() and not RunFolder(folder).exists:
        if "read-pretrained" not in SERVICES:
            raise NotInstalled(f"init={path}: a folder of transformers", "anaphor.interchange")
        pretrained = SERVICES["read-pretrained"](folder)
        model: Any = pretrained.model
        if pretrained.tokenizer is None:
            raise ConfigError(f"init={path}: the folder has no tokenizer.json, which belongs to the weights")
        return check_vocabulary(
            Initial(path, pretrained.kind, model.spec.used_settings(), model.state_dict(), pretrained.tokenizer)
        )
    if not RunFolder(folder).exists:
        raise ConfigError(f"init={path}: there is no run in this folder, and no config.json of transformers")
    run = load_run(folder, device="cpu")
    model = run.model
    spec: Any = getattr(model, "spec", None)
    if not hasattr(spec, "vocabulary") or not hasattr(run.experiment, "tokenizer"):
        raise ConfigError(f"init={path}: a run of `train {run.spec.task}` has no layers that read text")
    return check_vocabulary(
        Initial(path, run.spec.model, spec.used_settings(), merged_weights(model), run.experiment.tokenizer)
    )


def check_vocabulary(initial: Initial) -> Initial:
    """Refuse a tokenizer and embeddings that do not belong together."""
    rows = len(initial.weights["embedder.embedding.weight"])
    if len(initial.tokenizer) != rows:
        raise ConfigError(
            f"init={initial.name}: the tokenizer has {len(initial.tokenizer):,} tokens and the embeddings have "
            f"{rows:,} rows: they do not belong together"
        )
    return initial


def adopt_model(spec: Any, initial: Initial, options: Any, presets: Collection[str], free: Collection[str] = ()) -> Any:
    """The settings of a run with the model of pretrained weights.

    Args:
        spec: The settings as they were given.
        initial: The pretrained weights.
        options: The class with the options of the model.
        presets: Names of the model presets of the task.
        free: Options that stay as they were given.
    """
    kept = {field.name for field in fields(options) if field.name in free and getattr(spec, field.name) is not None}
    names = {field.name for field in fields(options)} - kept
    adopted = {name: value for name, value in initial.options.items() if name in names}
    for settings in initial.options.get("extras", ()):
        if not is_embedder(settings):  # what an embedder computed is a plain table in the weights of a loaded run
            adopted |= {name: value for name, value in vars(settings).items() if hasattr(spec, name)}
    model = initial.model if initial.model in presets else "transformer"
    return replace(spec, model=model, **adopted)


def is_embedder(settings: Any) -> bool:
    """Whether these are settings of the embedder of an extra."""
    return any(type(settings) is EMBEDDERS[name].settings for name in EMBEDDERS)


def initialize_from(model: nn.Module, initial: Initial) -> None:
    """Copy embeddings, layers, the pooler where both have one, and the head of a language model; that of a classifier
    stays as it is."""
    own, mismatch = model.state_dict(), Mismatch()
    parts = (*KEPT, "head.") if isinstance(model, LanguageModel) else KEPT
    for name, tensor in own.items():
        if not name.startswith(parts) and not (name.startswith("pooler.") and name in initial.weights):
            continue
        if name not in initial.weights:
            if not name.startswith("embedder.dropped_word."):  # of word dropout, which may be new
                mismatch.missing.append(name)
            continue
        mismatch.compare(name, initial.weights[name], tensor)
        if tensor.shape == initial.weights[name].shape:
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
        raise ConfigError(f"freeze={count}: the model has {count_noun(len(model.blocks), 'layer')}")
    for part in (model.embedder, *model.blocks[:count]):
        part.requires_grad_(False)


def prepare_fine_tuning(model: Any, spec: Any, initial: Initial | None = None) -> None:
    """Copy initial weights, freeze layers and add adapters, as the settings of a run say."""
    if initial is not None:
        initialize_from(model, initial)
    if spec.lora is not None:
        add_lora(model, spec.lora)
    if spec.freeze is not None:
        freeze_layers(model, spec.freeze)
