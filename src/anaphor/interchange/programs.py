"""Models as programs without Python: of `torch.export`, and from these as ONNX files.

A program is for inputs of fixed shapes. The state goes in and comes out: the tensors of a state are its leaves, so that
one call continues from another. A state of attention grows: its program is for so many tokens of the past.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from anaphor.errors import ConfigError, describe_exception
from anaphor.evaluation import eval_modules
from anaphor.files import replace_file
from anaphor.mixers.base import KVBuffer
from anaphor.models.language_model import LanguageModel
from anaphor.user_paths import user_path, writing_to

_OPERATION = re.compile(r"target=torch\.ops\.((?:aten|prims)\.\w+)")


def export_program(model: nn.Module, *inputs: Any) -> ExportedProgram:
    """A model as a program of `torch.export`, for inputs of these shapes.

    `export_program(model, tokens, state)` takes ids [B, T] and a state of a language model, and its program returns
    logits and the state after them; without a state it begins with that before the first token. Other models take what
    their `forward` takes.
    """
    _register_buffers()
    if isinstance(model, LanguageModel) and len(inputs) == 1:
        inputs = (*inputs, model.initial_state(len(inputs[0])))
    # With gradients a state is made anew by every call, and never written to.
    with eval_modules(model.modules()), torch.enable_grad(), _quiet():
        model(*inputs)  # an error of the inputs is shown as it is
        try:
            return torch.export.export(model, inputs, strict=False)
        except Exception as error:
            raise ConfigError(f"{type(model).__name__} cannot be exported: {describe_exception(error, '')}") from error


def export_onnx(model: nn.Module, path: Path | str, *inputs: Any) -> Path:
    """A model as an ONNX file, for inputs of these shapes; see `export_program`. Needs `anaphor[onnx]`.

    Inputs and outputs of the file are the tensors of inputs and outputs in order: ids and those of the state, logits
    and those of the state after them.
    """
    file = user_path(path)
    if find_spec("onnx") is None or find_spec("onnxscript") is None:
        raise ConfigError("export_onnx needs the packages onnx and onnxscript: pip install 'anaphor[onnx]'")
    # Outputs of fused kernels have strides of their own, and views of them would not be possible in ONNX.
    with _quiet(), sdpa_kernel(SDPBackend.MATH):
        program = export_program(model, *inputs)
        try:
            program = program.run_decompositions(ONNX_FORMS)
            converted: Any = torch.onnx.export(program, dynamo=True, verbose=False)
        except Exception as error:
            found = _OPERATION.search(f"{error} {error.__cause__}")
            why = f"{found[1]} has no form in ONNX" if found else describe_exception(error.__cause__ or error, "")
            raise ConfigError(f"{type(model).__name__} cannot be exported to ONNX: {why}") from error
    with writing_to(file.parent):
        replace_file(file, converted.model_proto.SerializeToString())
    return file


def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """X with A X = B, by products: (I - N)⁻¹ = (I + N)(I + N²)(I + N⁴)…, where N is zero on and above the diagonal."""
    if upper or not left or not unitriangular:
        return NotImplemented  # type: ignore[no-any-return]  # then it is left as it is
    power = -A.tril(-1)
    X, reach = B + power @ B, 2
    while reach < A.shape[-1]:
        power = power @ power
        X, reach = X + power @ X, 2 * reach
    return X


def cummax(values: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The largest value so far and its place, the last one of equal ones: over 2, 4, 8, … values at a time."""
    count, reach = values.shape[dim], 1
    at = torch.arange(count, device=values.device).view(
        [-1 if axis == dim % values.ndim else 1 for axis in range(values.ndim)]
    )
    at = at.expand_as(values)
    while reach < count:
        before, place = (_shift(tensor, dim, reach) for tensor in (values, at))
        is_larger = values >= before
        values, at = torch.where(is_larger, values, before), torch.where(is_larger, at, place)
        reach *= 2
    return values, at


def _shift(tensor: Tensor, dim: int, count: int) -> Tensor:
    """What is so many places before; the first value where there is nothing."""
    first = tensor.narrow(dim, 0, 1)
    return torch.cat([first] * count + [tensor.narrow(dim, 0, tensor.shape[dim] - count)], dim)


ONNX_FORMS = {
    torch.ops.aten.linalg_solve_triangular.default: solve_triangular,
    torch.ops.aten.cummax.default: cummax,
}
"""Operations that ONNX lacks, in those that it has."""


def tensors_of_inputs(*values: Any) -> list[Tensor]:
    """The tensors of inputs or outputs, in the order in which a file of ONNX has them."""
    _register_buffers()
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def _register_buffers() -> None:
    """Tell torch which tensor a buffer of keys and values holds; named tuples, which all other states are, it knows."""
    if KVBuffer in pytree.SUPPORTED_NODES:
        return
    pytree.register_pytree_node(
        KVBuffer,
        lambda buffer: ([buffer.data], buffer.axis),
        lambda leaves, axis: KVBuffer(next(iter(leaves)), axis),
        serialized_type_name="anaphor.mixers.KVBuffer",
        flatten_with_keys_fn=lambda buffer: ([(pytree.GetAttrKey("data"), buffer.data)], buffer.axis),
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch prints about its own steps."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
