"""Torch functions as people write them: their plain names, their signs, and what each is to a drawing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anaphor.inspect.graph.program import Call, Ref

ARRANGING = frozenset((
    "T", "H", "mT", "mH", "t", "transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "view",
    "view_as", "reshape", "reshape_as", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze", "expand",
    "expand_as", "broadcast_to", "contiguous", "clone", "to", "type", "type_as", "float", "double", "half",
    "bfloat16", "cpu", "cuda", "real", "atleast_1d", "atleast_2d", "atleast_3d", "alias",
))  # fmt: skip
"""The same numbers in another order, shape or type: nothing that one draws by hand."""
PICKING = frozenset(("getitem", "select", "narrow", "unbind", "chunk", "split", "tensor_split", "index_select"))
"""A part of a tensor."""
SHAPE_ONLY = frozenset((
    "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like", "new_zeros",
    "new_ones", "new_empty", "new_full", "new_tensor",
))  # fmt: skip
"""Read the shape and the type of a tensor, but not its numbers."""
RANDOM = ("dropout", "rand", "bernoulli", "normal", "multinomial", "rrelu", "gumbel", "lstm", "gru", "rnn_")
READING = {
    "__bool__": "decides a branch", "__float__": "is read as a plain number", "__int__": "is read as a plain number",
    "__index__": "is read as a plain number", "item": "is read as a plain number", "tolist": "is read as plain numbers",
    "numpy": "leaves torch",
}  # fmt: skip
"""How a number leaves the graph, so that no gradient comes back."""

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
TURNED = frozenset(("rsub", "rdiv", "rpow", "rmatmul"))
"""Called on their second operand."""
CALCULATING = frozenset(("mul", "add", "sub", "div", "pow", "eq", "ne", "lt", "le", "gt", "ge", "matmul", "dot"))


def plain_name(function: Callable[..., Any]) -> str:
    """`mul` of `Tensor.__mul__`, `T` of the property that transposes."""
    name = getattr(function, "__name__", type(function).__name__)
    if name == "__get__":
        return str(getattr(getattr(function, "__self__", None), "__name__", name))
    return name.strip("_") if name.startswith("__") else name


def canonical(name: str) -> str:
    return SAME.get(name, name)


def writes_in_place(name: str, keywords: dict[str, Any]) -> bool:
    """Whether a call changes a tensor that exists already."""
    if keywords.get("inplace") is True or keywords.get("out") is not None:
        return True
    if name in ("setitem", "set_") or name in ("iadd", "isub", "imul", "itruediv", "ipow", "imatmul"):
        return True
    return name.endswith("_") and name not in ("requires_grad_", "retain_grad_")


def is_random(name: str, keywords: dict[str, Any]) -> bool:
    return name.startswith(RANDOM) or "dropout" in name or bool(keywords.get("dropout_p"))


def passes_on(call: Call) -> bool:
    """Whether it hands its input on with nothing done: dropout while it is switched off, a factor of one, and the zero
    that Python's `sum` begins with."""
    nothing = {"mul": 1, "div": 1, "add": 0, "sub": 0}.get(canonical(call.op))
    if nothing is not None:
        plain = [one for one in call.arguments[1:] if isinstance(one, int | float)]
        return call.op not in TURNED and any(one == nothing for one in plain)
    if "dropout" not in call.op:
        return False
    named = dict(zip(("p", "training"), call.arguments[1:], strict=False)) | call.keywords
    return named.get("training", named.get("train")) is False or named.get("p") == 0


def label_of(call: Call, number_of: Callable[[int], str | None], dimensions: Callable[[int], int]) -> str:
    """The sign of a call with the plain numbers it was given: `×`, `× 2`, `1 −`, `softmax`.

    `number_of` a tensor is what is written in the sign's place for it, where it is not drawn by itself.
    """
    name = canonical(call.op)
    operands = call.arguments[:2]
    if name == "matmul" and all(isinstance(one, Ref) and dimensions(one.number) == 1 for one in operands):
        name = "dot"
    sign = SIGNS.get(name, name)
    if name not in CALCULATING or len(operands) < 2:
        return sign
    written = [_written(operand, number_of) for operand in operands]
    if call.op in TURNED:
        written.reverse()
    left, right = written
    return " ".join(part for part in (left, sign, right) if part)


def _written(operand: Any, number_of: Callable[[int], str | None]) -> str | None:
    if isinstance(operand, Ref):
        return number_of(operand.number)
    if isinstance(operand, float):
        short = f"{operand:.4g}"
        # What is nearly a whole number is not to be read as one.
        return short if operand == float(short) or not float(short).is_integer() else f"{operand:.9g}"
    return str(operand) if isinstance(operand, int) else None


def route_of(call: Call, position: int) -> str:
    """How an edge tells that a tensor went through a call that is not drawn."""
    name = call.op
    if name in ("T", "mT", "t", "H", "mH") or (name in ("transpose", "swapaxes", "swapdims") and _swaps_last(call)):
        return "ᵀ"
    if name == "getitem":
        return f"[{index_text(call.arguments[1])}]"
    if name in ("unbind", "chunk", "split", "tensor_split"):
        place = 1 if name == "unbind" else 2
        return _at(call.keywords.get("dim", call.arguments[place] if len(call.arguments) > place else 0), position)
    if name == "select" and len(call.arguments) == 3:
        return _at(call.arguments[1], call.arguments[2])
    return ""


def _at(dimension: Any, place: Any) -> str:
    if dimension < 0:
        return f"[…, {', '.join([str(place)] + [':'] * (-dimension - 1))}]"
    return f"[{', '.join([':'] * dimension + [str(place)])}]"


def _swaps_last(call: Call) -> bool:
    numbers = [value for value in (*call.arguments[1:], *call.keywords.values()) if isinstance(value, int)]
    return sorted(numbers) in ([-2, -1], [0, 1])


def index_text(index: Any) -> str:
    if isinstance(index, tuple | list):
        return ", ".join(index_text(part) for part in index)
    if isinstance(index, slice):
        ends: Sequence[Any] = (index.start, index.stop) if index.step is None else (index.start, index.stop, index.step)
        return ":".join("" if end is None else index_text(end) for end in ends)
    if isinstance(index, Ref):
        return "·"
    return "…" if index is Ellipsis else str(index)
