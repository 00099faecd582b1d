"""What ran, as data: tensors, the calls that produced them, and how calls are written and classified."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

FIRST_ONLY = frozenset(("expand_as", "view_as", "reshape_as", "type_as", "to"))
"""Their other arguments give only a shape or a type."""


@dataclass(frozen=True)
class Ref:
    """Reference to a tensor in the arguments of a call: its index in the program."""

    number: int


@dataclass(eq=False)
class ModuleCall:
    """One call of an `nn.Module`. Its path in the traced function is known only at the end."""

    number: int
    path: str
    kind: str
    """Name of the class."""


@dataclass
class TracedTensor:
    """A tensor of the program."""

    tensor: Tensor
    kind: str
    """input, parameter, constant or result."""
    call: int | None = None
    """Index of the call that produced it; None for leaves."""
    position: int = 0
    """Its position among the results of that call."""
    name: str | None = None
    central: bool = False
    """Whether the name is a variable of the traced function itself, not of one that it calls."""
    varies: bool = False
    """Whether it depends on an input or a parameter."""
    fractions: Any = None
    """Exact value of an input given as a number or fraction."""

    @property
    def differentiable(self) -> bool:
        return self.tensor.requires_grad


@dataclass
class Call:
    """One call of a torch function, with references in place of tensors."""

    function: Callable[..., Any] | None
    """None for a custom autograd function, of which only the result is known."""
    op: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    results: tuple[int, ...] = ()
    where: str = ""
    """file:line of the caller."""
    modules: tuple[ModuleCall, ...] = ()
    """The modules it ran in, outermost first."""
    random_state: Tensor | None = None

    @cached_property
    def sources(self) -> tuple[int, ...]:
        """Indices of the tensors it reads, in order and with repetition."""
        leaves: list[Any] = []
        map_nested(leaves.append, (self.arguments, self.keywords))
        numbers = tuple(leaf.number for leaf in leaves if isinstance(leaf, Ref))
        return numbers[:1] if self.op in FIRST_ONLY else numbers


@dataclass
class Program:
    """All tensors and calls of one run, in order."""

    name: str
    tensors: list[TracedTensor] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def producer(self, number: int) -> Call | None:
        call = self.tensors[number].call
        return None if call is None else self.calls[call]

    def live(self) -> set[int]:
        """Tensors that an output depends on."""
        return self.ancestors(self.outputs, ())[0]

    def ancestors(self, ends: Iterable[int], stops: Container[int]) -> tuple[set[int], list[int]]:
        """Tensors that the ends depend on, back to and including the stops, and the calls between them in order. An end
        is not a stop."""
        ends = set(ends)
        found: set[int] = set()
        calls: set[int] = set()
        waiting = list(ends)
        while waiting:
            number = waiting.pop()
            if number in found:
                continue
            found.add(number)
            call = self.tensors[number].call
            if call is None or (number in stops and number not in ends):
                continue
            calls.add(call)
            waiting.extend(self.calls[call].sources)
        return found, sorted(calls)

    def replay(
        self, calls: Sequence[int], given: Mapping[int, Tensor], keep: Iterable[int] = (), precise: bool = False
    ) -> dict[int, Tensor]:
        """Run calls again on other tensors; tensors that are neither given nor recomputed keep their values.

        `keep` are tensors that calls do not overwrite; `precise` converts everything to float64.
        """
        values = dict(given)
        kept = set(keep)

        def now(number: int) -> Tensor:
            if number not in values:
                before = self.tensors[number].tensor.detach()
                values[number] = _to_double(before) if precise else before
            return values[number]

        for index in calls:
            call = self.calls[index]
            if call.function is None:
                raise NotImplementedError(call.op)
            arguments, keywords = resolve_refs((call.arguments, call.keywords), now)
            results = tensors_in(rerun(call, arguments, keywords))
            for number, tensor in zip(call.results, results, strict=True):
                if number not in kept:
                    values[number] = _to_double(tensor) if precise else tensor
        return values


def rerun(call: Call, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    assert call.function is not None, "checked by the caller"
    if call.random_state is None:
        return call.function(*arguments, **keywords)
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(call.random_state)
        return call.function(*arguments, **keywords)


def _to_double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def map_nested(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to all leaves of lists, tuples, dictionaries and slices, which torch's pytree does not enter."""
    if isinstance(value, list | tuple):
        parts = [map_nested(function, part) for part in value]
        kind = tuple if isinstance(value, torch.Size) else type(value)
        return kind(*parts) if hasattr(value, "_fields") else kind(parts)
    if isinstance(value, dict):
        return {key: map_nested(function, part) for key, part in value.items()}
    if isinstance(value, slice):
        return slice(*(map_nested(function, part) for part in (value.start, value.stop, value.step)))
    return function(value)


def tensors_in(value: Any) -> list[Tensor]:
    """Tensors in lists, tuples, dictionaries and slices, in order."""
    leaves: list[Any] = []
    map_nested(leaves.append, value)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def resolve_refs(value: Any, tensor_of: Callable[[int], Any]) -> Any:
    """The same arguments with references replaced by tensors."""
    return map_nested(lambda leaf: tensor_of(leaf.number) if isinstance(leaf, Ref) else leaf, value)


def replace_tensors(value: Any, number_of: Callable[[Tensor], int]) -> Any:
    """The same arguments with tensors replaced by references."""
    return map_nested(lambda leaf: Ref(number_of(leaf)) if isinstance(leaf, Tensor) else leaf, value)


RESHAPING = frozenset((
    "T", "H", "mT", "mH", "t", "transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "view",
    "view_as", "reshape", "reshape_as", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze", "expand",
    "expand_as", "broadcast_to", "contiguous", "clone", "to", "type", "type_as", "float", "double", "half",
    "bfloat16", "cpu", "cuda", "real", "atleast_1d", "atleast_2d", "atleast_3d", "alias",
))  # fmt: skip
"""The same numbers in another order, shape or type; not drawn."""
INDEXING = frozenset(("getitem", "select", "narrow", "unbind", "chunk", "split", "tensor_split", "index_select"))
"""A part of a tensor."""
SHAPE_ONLY = frozenset((
    "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like", "new_zeros",
    "new_ones", "new_empty", "new_full", "new_tensor",
))  # fmt: skip
"""Read shape and type of a tensor, but not its numbers."""
RANDOM = ("dropout", "rand", "bernoulli", "normal", "multinomial", "rrelu", "gumbel", "lstm", "gru", "rnn_")
_NUMBER = ("is read as a plain number", "are read as plain numbers")
PYTHON_CONVERSIONS = {
    **dict.fromkeys(("__float__", "__int__", "__index__", "item"), _NUMBER),
    "__bool__": ("decides a branch", "decide a branch"),
    "tolist": ("is read as plain numbers", "are read as plain numbers"),
    "numpy": ("leaves torch", "leave torch"),
}
"""Conversions to Python values, through which no gradient passes: what one tensor does, and what several do."""

SIGNS = {
    "mul": "×", "add": "+", "sub": "−", "div": "÷", "matmul": "@", "dot": "·", "pow": "^", "neg": "−", "square": "²",
    "relu": "ReLU", "gelu": "GELU", "sigmoid": "σ", "sum": "Σ", "sqrt": "√", "abs": "|·|", "norm": "‖·‖", "cat": "⊕",
    "eq": "=", "ne": "≠", "lt": "<", "le": "≤", "gt": ">", "ge": "≥", "logical_not": "not", "masked_fill": "mask",
    "layer_norm": "layer norm", "log_softmax": "log softmax", "cross_entropy": "cross-entropy",
    "binary_cross_entropy": "cross-entropy", "mse_loss": "mean square",
}  # fmt: skip
SAME = {
    "multiply": "mul", "subtract": "sub", "truediv": "div", "true_divide": "div", "divide": "div", "mm": "matmul",
    "bmm": "matmul", "mv": "matmul", "inner": "dot", "vdot": "dot", "concat": "cat", "concatenate": "cat",
    "negative": "neg", "absolute": "abs", "greater": "gt", "less": "lt", "invert": "logical_not",
    "and": "logical_and", "or": "logical_or", "rsub": "sub", "rdiv": "div", "rpow": "pow", "rmatmul": "matmul",
    "rmul": "mul", "radd": "add", "scaled_dot_product_attention": "attention",
}  # fmt: skip
REVERSED = frozenset(("rsub", "rdiv", "rpow", "rmatmul"))
"""Called with operands in reverse order."""
BINARY = frozenset(("mul", "add", "sub", "div", "pow", "eq", "ne", "lt", "le", "gt", "ge", "matmul", "dot"))


def function_name(function: Callable[..., Any]) -> str:
    """`mul` of `Tensor.__mul__`, `T` of the property that transposes."""
    name = getattr(function, "__name__", type(function).__name__)
    if name == "__get__":
        return str(getattr(getattr(function, "__self__", None), "__name__", name))
    return name.strip("_") if name.startswith("__") else name


def canonical_name(name: str) -> str:
    return SAME.get(name, name)


def writes_in_place(name: str, keywords: dict[str, Any]) -> bool:
    """Whether a call changes an existing tensor."""
    if keywords.get("inplace") is True or keywords.get("out") is not None:
        return True
    if name in ("setitem", "set_") or name in ("iadd", "isub", "imul", "itruediv", "ipow", "imatmul"):
        return True
    return name.endswith("_") and name not in ("requires_grad_", "retain_grad_")


def is_random(name: str, keywords: dict[str, Any]) -> bool:
    return name.startswith(RANDOM) or "dropout" in name or bool(keywords.get("dropout_p"))


def is_identity(call: Call) -> bool:
    """Whether it returns its input unchanged: inactive dropout, a factor of one, adding zero (as `sum` does)."""
    neutral = {"mul": 1, "div": 1, "add": 0, "sub": 0}.get(canonical_name(call.op))
    if neutral is not None:
        plain = [one for one in call.arguments[1:] if isinstance(one, int | float)]
        return call.op not in REVERSED and any(one == neutral for one in plain)
    if "dropout" not in call.op:
        return False
    named = dict(zip(("p", "training"), call.arguments[1:], strict=False)) | call.keywords
    return named.get("training", named.get("train")) is False or named.get("p") == 0


def call_label(call: Call, number_of: Callable[[int], str | None], dimensions: Callable[[int], int]) -> str:
    """The symbol of a call with its constant operands: `×`, `× 2`, `1 −`, `softmax`.

    `number_of` returns the text of a constant tensor that is not drawn as a node.
    """
    name = canonical_name(call.op)
    operands = call.arguments[:2]
    if name == "matmul" and all(isinstance(one, Ref) and dimensions(one.number) == 1 for one in operands):
        name = "dot"
    sign = SIGNS.get(name, name)
    if name not in BINARY or len(operands) < 2:
        return sign
    written = [_format_operand(operand, number_of) for operand in operands]
    if call.op in REVERSED:
        written.reverse()
    left, right = written
    return " ".join(part for part in (left, sign, right) if part)


def _format_operand(operand: Any, number_of: Callable[[int], str | None]) -> str | None:
    if isinstance(operand, Ref):
        return number_of(operand.number)
    if isinstance(operand, float):
        short = f"{operand:.4g}"
        # A number close to an integer must not look like one.
        return short if operand == float(short) or not float(short).is_integer() else f"{operand:.9g}"
    return str(operand) if isinstance(operand, int) else None


def edge_label(call: Call, position: int) -> str:
    """Label of an edge that passes through a view that is not drawn."""
    name = call.op
    if name in ("T", "mT", "t", "H", "mH") or (name in ("transpose", "swapaxes", "swapdims") and _swaps_last(call)):
        return "ᵀ"
    if name == "getitem":
        return f"[{format_index(call.arguments[1])}]"
    if name in ("unbind", "chunk", "split", "tensor_split"):
        place = 1 if name == "unbind" else 2
        return _format_index(
            call.keywords.get("dim", call.arguments[place] if len(call.arguments) > place else 0), position
        )
    if name == "select" and len(call.arguments) == 3:
        return _format_index(call.arguments[1], call.arguments[2])
    return ""


def _format_index(dimension: Any, place: Any) -> str:
    if dimension < 0:
        return f"[…, {', '.join([str(place)] + [':'] * (-dimension - 1))}]"
    return f"[{', '.join([':'] * dimension + [str(place)])}]"


def _swaps_last(call: Call) -> bool:
    numbers = [value for value in (*call.arguments[1:], *call.keywords.values()) if isinstance(value, int)]
    return sorted(numbers) in ([-2, -1], [0, 1])


def format_index(index: Any) -> str:
    if isinstance(index, tuple | list):
        return ", ".join(format_index(part) for part in index)
    if isinstance(index, slice):
        ends: Sequence[Any] = (index.start, index.stop) if index.step is None else (index.start, index.stop, index.step)
        return ":".join("" if end is None else format_index(end) for end in ends)
    if isinstance(index, Ref):
        return "·"
    return "…" if index is Ellipsis else str(index)
