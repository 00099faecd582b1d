"""How a new model's weights are drawn: one place, one function for each scheme."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import nn

from anaphor.mixers import InputFeeding
from anaphor.mixers.attention.cross import CrossAttention
from anaphor.mixers.attention.heads import Headed
from anaphor.mixers.attention.layer import Attention
from anaphor.mixers.linear import Linear
from anaphor.models.block import Block

if TYPE_CHECKING:
    from anaphor.models.language_model import Trunk


def normal(model: Trunk) -> None:
    """GPT-2's: every matrix from a normal distribution of width 0.02; what is added to the residual stream from one
    that is narrower by the root of how many such additions there are."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
    # Scaled up on the way in, they then have the size of what positions add.
    if model.owns_embedding and model.embedding_scale != 1:
        nn.init.normal_(model.embed.weight, std=1 / model.embedding_scale)
    for own in _output_matrices(model):
        nn.init.normal_(own, std=0.02)
    _clear_biases(model)
    _reset_recurrent(model)
    additions = [matrix for block in model.modules() if isinstance(block, Block) for matrix in _last_matrices(block)]
    for matrix in additions:
        nn.init.normal_(matrix.weight, std=0.02 / math.sqrt(len(additions)))


def uniform(model: Trunk) -> None:
    """The word language model's: word vectors and output between -0.1 and 0.1, layers as the framework draws its own,
    among them attention, whose three projections are drawn as one matrix."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.uniform_(module.weight, -0.1, 0.1)
    for own in _output_matrices(model):
        nn.init.uniform_(own, -0.1, 0.1)
    for module in model.modules():
        if isinstance(module, Attention | CrossAttention):
            projections = [module.project] if isinstance(module, Attention) else [module.query, module.project]
            for linear in projections:
                nn.init.xavier_uniform_(linear.weight)
            for linear in (*projections, module.out):
                if linear.bias is not None:
                    nn.init.zeros_(linear.bias)
    _reset_recurrent(model)


INITIALISERS: dict[str, Callable[[Trunk], None]] = {"normal": normal, "uniform": uniform}


def _output_matrices(model: Trunk) -> list[nn.Parameter]:
    """The head's own matrix, where there is a head and it has one."""
    own = getattr(getattr(model, "head", None), "own", None)
    return [] if own is None else [own]


def _clear_biases(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def _reset_recurrent(model: nn.Module) -> None:
    """Uniform between ±1/√width: a normal of width 0.02 would let a recurrence forget within a few steps."""
    for module in model.modules():
        if isinstance(module, nn.RNNBase | InputFeeding):
            module.reset_parameters()


def _last_matrices(block: Block) -> list[nn.Linear]:
    """The matrices of a block whose output goes straight into the residual stream."""
    last = []
    if block.spec.residual:
        if isinstance(block.mixer, Headed | Linear):
            last.append(block.mixer.out)
        if block.cross is not None:
            last.append(block.cross.out)
        if block.feedforward is not None:
            last.append(block.feedforward.down)
    return last
