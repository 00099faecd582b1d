"""Build models: check that they fit into memory, and initialize their weights by a scheme.

The system grants more memory than it has, and kills the program that uses it. So the parameters of a large model are
counted before anything is written to its weights.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from anaphor.errors import ConfigError
from anaphor.mixers.base import Mixer, reset_mixer
from anaphor.models.backbone import Backbone, Block
from anaphor.models.embedder import TokenEmbedder
from anaphor.models.head import Head
from anaphor.models.spec import BackboneSpec

Model = TypeVar("Model", bound=nn.Module)
Spec = TypeVar("Spec")

LARGE = 2**30
"""Bytes from which on a model is counted as a whole: counting takes longer than building a small one."""
# Parts of torch's messages about missing memory and about sizes that overflow an integer.
_SIZE_ERRORS = ("can't allocate memory", "out of memory", "calculation overflowed", "Overflow when unpacking")


def init_normal(model: nn.Module) -> None:
    """As GPT-2: matrices normal with std 0.02; those that write to the residual stream divided by the square root of
    their number. Mixers that do not follow the scheme initialize themselves."""
    modules, mixers = _modules_of_scheme(model), _outer_mixers(model)
    for module in modules:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
    for module in modules:  # scaled up, embeddings then have the size of the position encoding
        if isinstance(module, TokenEmbedder) and module.owns_embedding and module.scale != 1:
            nn.init.normal_(module.embedding.weight, std=1 / module.scale)
    for weight in _head_weights(model):
        nn.init.normal_(weight, std=0.02)
    for module in modules:
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for mixer in mixers:
        if not mixer.follows_init_scheme:
            reset_mixer(mixer)
    writers = [linear for block in model.modules() if isinstance(block, Block) for linear in _residual_writers(block)]
    for linear in writers:
        nn.init.normal_(linear.weight, std=0.02 / math.sqrt(len(writers)))


def init_uniform(model: nn.Module) -> None:
    """As PyTorch's word language model: embeddings and head uniform in ±0.1, layers as torch initializes its own. Every
    mixer initializes itself."""
    for module in _modules_of_scheme(model):
        if isinstance(module, nn.Embedding):
            nn.init.uniform_(module.weight, -0.1, 0.1)
    for weight in _head_weights(model):
        nn.init.uniform_(weight, -0.1, 0.1)
    # In this order, because every draw changes those after it: models that a seed gave stay what they are.
    for mixer in sorted(_outer_mixers(model), key=lambda mixer: not mixer.follows_init_scheme):
        reset_mixer(mixer)


INIT_SCHEMES: dict[str, Callable[[nn.Module], None]] = {"normal": init_normal, "uniform": init_uniform}


def _outer_mixers(model: nn.Module) -> list[Mixer]:
    """The mixers of a model without those inside another one, which decides on them."""
    mixers = [module for module in model.modules() if isinstance(module, Mixer)]
    inner = {id(part) for mixer in mixers for part in mixer.modules() if part is not mixer}
    return [mixer for mixer in mixers if id(mixer) not in inner]


def _modules_of_scheme(model: nn.Module) -> list[nn.Module]:
    """All modules but those of mixers that do not follow the scheme."""
    mixers = [mixer for mixer in _outer_mixers(model) if not mixer.follows_init_scheme]
    own = {id(part) for mixer in mixers for part in mixer.modules()}
    return [module for module in model.modules() if id(module) not in own]


def _head_weights(model: nn.Module) -> list[nn.Parameter]:
    return [module.own for module in model.modules() if isinstance(module, Head) and module.own is not None]


def _residual_writers(block: Block) -> list[nn.Linear]:
    """The linear maps of a block whose output is added to the residual stream."""
    writers = []
    if block.spec.residual:
        out = getattr(block.mixer, "out", None)
        if block.mixer.follows_init_scheme and isinstance(out, nn.Linear):
            writers.append(out)
        if block.cross is not None:
            writers.append(block.cross.out)
        if block.feedforward is not None:
            writers.append(block.feedforward.down)
    return writers


def build_backbone(spec: BackboneSpec) -> Backbone:
    """A backbone by itself, with initialized weights."""
    backbone = Backbone(spec.blocks(), spec.width_in, norm=spec.norm == "before")
    INIT_SCHEMES[spec.init_scheme](backbone)
    return backbone


def total_memory() -> int | None:
    """Bytes of memory of this machine; None where it is unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


class _NothingDrawn(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.init.normal_:
            return kwargs["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def without_weights() -> Iterator[None]:
    """Inside the block models have the shapes of their weights, but no memory and no values for them.

    Normal values would be drawn by Python code on torch's meta device, which imports torch's compiler: a second.
    """
    with torch.device("meta"), _NothingDrawn():
        yield


def build_checked(factory: Callable[[Spec], Model], spec: Spec) -> Model:
    """Build the model of a spec. Raises an error if it does not fit into the memory of this machine."""
    allocated = 0

    def count(module: nn.Module, name: str, weight: nn.Parameter) -> None:
        nonlocal allocated
        before, allocated = allocated, allocated + (weight.nbytes if weight.device.type == "cpu" else 0)
        if before <= LARGE < allocated:
            memory, parameters = total_memory(), _count_parameters(factory, spec)
            if parameters is None or (memory is not None and parameters * weight.element_size() > memory):
                raise _too_large(parameters)

    hook = register_module_parameter_registration_hook(count)
    try:
        return factory(spec)
    except (RuntimeError, TypeError) as error:
        if not _is_size_error(error):
            raise
    finally:
        hook.remove()
    raise _too_large(_count_parameters(factory, spec))


def _is_size_error(error: Exception) -> bool:
    return any(part in str(error) for part in _SIZE_ERRORS)


def _count_parameters(factory: Callable[[Spec], Model], spec: Spec) -> int | None:
    """Counted without memory for the weights; None means that the size of a single matrix overflows."""
    try:
        with without_weights():
            return sum(weight.numel() for weight in factory(spec).parameters())
    except (RuntimeError, TypeError) as error:
        if not _is_size_error(error):
            raise
        return None


def _too_large(parameters: int | None) -> ConfigError:
    count = "more than 10^18" if parameters is None else f"{parameters:,}"
    return ConfigError(
        f"the model would have {count} parameters, and the memory of this machine does not hold them: "
        f"use a smaller width, fewer layers or a smaller vocabulary"
    )
