"""Pretrained model: read from a folder of `transformers`, with its tokenizer and the names of its classes, or written
to one."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from anaphor.data.pretrained_tokenizer import PretrainedTokenizer, tokenizer_json
from anaphor.errors import ConfigError, DataError
from anaphor.interchange.decoders import GPT2, GPTNeoX
from anaphor.interchange.encoders import Bert, DistilBert, MPNet, Roberta
from anaphor.interchange.folder import TOKENIZER, Config, PretrainedFolder, Source, write_folder
from anaphor.interchange.gguf_source import GGUFSource
from anaphor.interchange.kind import Kind, collect, scatter
from anaphor.interchange.llama import Llama, Mistral, Qwen2, Qwen3
from anaphor.interchange.mamba2 import Mamba2
from anaphor.interchange.vision import ViT
from anaphor.training.pretrained import Pretrained
from anaphor.user_paths import user_path

ENCODERS: tuple[Kind, ...] = (Bert(), Roberta(), DistilBert(), MPNet())
DECODERS: tuple[Kind, ...] = (GPT2(), GPTNeoX(), Llama(), Mistral(), Qwen2(), Qwen3(), Mamba2())
KINDS: dict[str, Kind] = {kind.model_type: kind for kind in (*ENCODERS, *DECODERS, ViT())}
PREPROCESSOR = "preprocessor_config.json"
SHOWN = 3
MAX_SPARE_ROWS = 0.01
"""Rows of the table of embeddings without a token, as a share of the tokens: tables are filled up to round sizes."""
_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "mask_token_id")


class NoInitialization(TorchFunctionMode):
    """Inside, `torch.nn.init` draws no random numbers. On the meta device torch would import its compiler for them,
    which takes as long as to import torch."""

    def __torch_function__(
        self, function: Any, types: Any, arguments: Sequence[Any] = (), keywords: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = keywords or {}
        if getattr(function, "__module__", "") == "torch.nn.init":
            return arguments[0] if arguments else keywords["tensor"]
        return function(*arguments, **keywords)


def read_pretrained(folder: Path | str, *, dtype: torch.dtype = torch.float32) -> Pretrained:
    """The model in a folder or in a GGUF file, in evaluation mode. Nothing in it is executed."""
    source = open_source(folder)
    config = source.config
    kind = KINDS.get(str(config.get("model_type")))
    if kind is None:
        raise DataError(
            f"{config.file}: model_type={config.get('model_type')!r} cannot be converted (known: {', '.join(KINDS)})"
        )
    prefix = kind.prefix_in(source)
    layers = config.integer("num_hidden_layers", "n_layer", "n_layers")
    if layers > len(source):  # before a model of so many is built
        raise DataError(f"{config.file}: {layers:,} layers do not fit the {len(source):,} tensors that are there")
    try:
        spec = kind.spec(config, source)
        with torch.device("meta"), NoInitialization():
            model: nn.Module = spec.build()
    except ConfigError as error:
        raise DataError(f"{config.file}: {error}") from None
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    links = kind.links(spec, prefix)
    missing = set(shapes) - {one.ours for one in links}
    assert not missing, f"no tensors are known for {missing}"
    tensors = collect(
        links,
        shapes,
        lambda name: source.shape(name) if name in source else None,
        lambda name: source.read(name).to(dtype),
        str(source.path),
    )
    model.load_state_dict(tensors, assign=True)
    used = {name for one in links for name in one.theirs}
    unused = sorted(name for name in source if name not in used and not kind.is_ignored(name))
    warnings = [*_warn_about_ids(config, getattr(spec, "vocabulary", None)), *_warn_about_unused(source, unused)]
    classes = getattr(spec, "classes", None)
    text = source.tokenizer_json() if hasattr(spec, "vocabulary") else None
    mean, std = ((), ()) if hasattr(spec, "vocabulary") else _normalization(source, getattr(spec, "channels", 3))
    return Pretrained(
        model=model.eval(),
        tokenizer=None if text is None else _tokenizer(source, text, config),
        classes=None if classes is None else config.labels(classes),
        mean=mean,
        std=std,
        kind=kind.model_type,
        problem_type=config.get("problem_type"),
        warnings=tuple(warnings),
    )


def open_source(path: Path | str) -> Source:
    """A folder of `transformers`, or a GGUF file."""
    given = user_path(Path(path))
    return GGUFSource(given) if given.suffix.lower() == ".gguf" or given.is_file() else PretrainedFolder(given)


def _tokenizer(source: Source, text: str, config: Config) -> PretrainedTokenizer:
    size = config.integer("vocab_size")
    ids = {name: value for name in _TOKEN_IDS if type(value := config.get(name)) is int and 0 <= value < size}
    boundary = ids.get("cls_token_id", ids.get("bos_token_id", ids.get("eos_token_id")))
    ends = tuple(number for number in source.end_ids() if type(number) is int and 0 <= number < size)
    tokenizer = PretrainedTokenizer.from_text(
        text, where=str(source.tokenizer_path), boundary=boundary, pad=ids.get("pad_token_id"), ends=ends
    )
    if not len(tokenizer) <= size <= len(tokenizer) * (1 + MAX_SPARE_ROWS):
        raise DataError(
            f"{source.tokenizer_path} has {len(tokenizer):,} tokens, but the model has a vocabulary of {size:,}: "
            f"it is the tokenizer of another model"
        )
    return tokenizer.with_size(size)


def _warn_about_ids(config: Config, size: int | None) -> list[str]:
    return [
        f"{config.file}: {name}={config[name]} is outside the vocabulary of {size:,} tokens, and is ignored"
        for name in _TOKEN_IDS
        if size is not None and type(config.get(name)) is int and not 0 <= config[name] < size
    ]


def _warn_about_unused(source: Source, unused: Sequence[str]) -> list[str]:
    if not unused:
        return []
    more = f" and {len(unused) - SHOWN} more" if len(unused) > SHOWN else ""
    return [f"{source.path}: not converted: {', '.join(unused[:SHOWN])}{more}"]


def _normalization(source: Source, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation that pixels from 0 to 1 are normalized by; one half each where the folder does not
    say. Another scale of pixels is part of them."""
    extra = source.extra(PREPROCESSOR)
    found = []
    for name in ("image_mean", "image_std"):
        values = extra.get(name, [0.5] * channels)
        if (
            not isinstance(values, list)
            or len(values) != channels
            or not all(isinstance(one, float | int) for one in values)
        ):
            raise DataError(f"{source.path / PREPROCESSOR}: {name} must be {channels} numbers, but it is {values!r}")
        found.append(tuple(float(one) for one in values))
    if extra.get("do_normalize", True) is False:
        found = [(0.0,) * channels, (1.0,) * channels]
    factor = extra.get("rescale_factor", 1 / 255) if extra.get("do_rescale", True) is not False else 1.0
    if type(factor) not in (int, float) or not 0 < factor < math.inf:
        raise DataError(f"{source.path / PREPROCESSOR}: rescale_factor must be a number above 0, not {factor!r}")
    if not math.isclose(scale := 255 * factor, 1):
        found = [tuple(one / scale for one in values) for values in found]
    return found[0], found[1]


def write_pretrained(pretrained: Pretrained, folder: Path | str) -> list[Path]:
    """Write a model for `transformers`, where one of its classes computes exactly the same. Raises with the reason
    where none does.

    Returns:
        The paths of the files.
    """
    model = pretrained.model
    reasons = {name: kind.misfit(model) for name, kind in KINDS.items()}
    name = next((name for name, reason in reasons.items() if not reason), None)
    if name is None:
        raise ConfigError(
            f"no class of transformers computes what this model computes: {_nearest_reason(model, reasons)}"
        )
    kind = KINDS[name]
    spec: Any = model.spec
    tensors = scatter(kind.links(spec, _prefix(kind, spec)), dict(model.named_parameters()))
    if isinstance(kind, GPT2):
        tensors = kind.extend(model, tensors)
    config = kind.config(spec, pretrained.classes)
    config["dtype"] = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    return write_folder(Path(folder), config | _token_ids(pretrained), tensors, _files(pretrained, config))


def _prefix(kind: Kind, spec: Any) -> str:
    """Classes without a head have no prefix."""
    return "" if hasattr(spec, "vocabulary") and getattr(spec, "classes", 1) is None else kind.prefix


def _nearest_reason(model: nn.Module, reasons: dict[str, str]) -> str:
    """The reason of the kind that is nearest: not that it is another sort of model."""
    resembles = {name: KINDS[name].resembles(model) for name in reasons}
    nearest = [name for name in reasons if resembles[name]] or [name for name in reasons if resembles[name] is None]
    misfits = [reason for name, reason in reasons.items() if name in nearest and not reason.startswith("it is a ")]
    by_position = [reason for reason in misfits if not reason.startswith("its position encoding")]
    return "; ".join((by_position or misfits)[:1]) or next(iter(reasons.values()))


def _token_ids(pretrained: Pretrained) -> dict[str, Any]:
    tokenizer = pretrained.tokenizer
    if tokenizer is None:
        return {}
    first, *others = tokenizer.ends or (tokenizer.boundary,)
    return {"bos_token_id": tokenizer.boundary, "eos_token_id": [first, *others] if others else first}


def _files(pretrained: Pretrained, config: dict[str, Any]) -> dict[str, str]:
    """Files beside the configuration and the tensors, by name."""
    if pretrained.mean:
        size = config["image_size"]
        normalization = {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": {"height": size, "width": size},
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(pretrained.mean),
            "image_std": list(pretrained.std),
        }
        return {PREPROCESSOR: json.dumps(normalization, indent=2) + "\n"}
    text = None if pretrained.tokenizer is None else tokenizer_json(pretrained.tokenizer)
    return {} if text is None else {TOKENIZER: text}
