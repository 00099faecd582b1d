"""Attention masks as predicates of two positions: may the token at one position attend to the token at the other?

The same predicate serves training, carried memory and cached generation. Masks combine with `&` and `|`, in Python and
in a spec: `causal & (window(64) | prefix(4))`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from anaphor.config import look_up
from anaphor.errors import ConfigError


class Mask:
    """Called with query and key positions that broadcast; True where the query attends to the key."""

    is_causal = False
    """Whether no token attends to a later one, so that a sequence may be cut anywhere."""
    reach: int | None = None
    """Number of tokens back that a token attends to, itself included; None means all."""
    is_band = False
    """Whether a token attends to all tokens within reach, and nothing depends on where the sequence began."""

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")

    def is_full(self, tokens: int) -> bool:
        """Whether every token of a sequence of that length attends to every other, so that no mask is needed."""
        return False

    def __and__(self, other: Mask) -> Mask:
        return Intersection(self, other)

    def __or__(self, other: Mask) -> Mask:
        return Union(self, other)


@dataclass(frozen=True)
class Everything(Mask):
    """Every token attends to every token."""

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.ones_like(query == key)

    def is_full(self, tokens: int) -> bool:
        return True

    def __str__(self) -> str:
        return "everything"


@dataclass(frozen=True)
class Causal(Mask):
    """Itself and the tokens before."""

    is_causal = True
    is_band = True

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return key <= query

    def __str__(self) -> str:
        return "causal"


@dataclass(frozen=True)
class Window(Mask):
    """Itself, the `size - 1` tokens before it, and all later ones: combine with `causal`."""

    size: int
    is_band = True

    def __post_init__(self) -> None:
        _check_integer(1, self.size, "window")

    @property
    def reach(self) -> int:  # type: ignore[override]
        return self.size

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return query - key < self.size

    def is_full(self, tokens: int) -> bool:
        return tokens <= self.size

    def __str__(self) -> str:
        return f"window({self.size})"


@dataclass(frozen=True)
class Band(Mask):
    """At most so many tokens before and after."""

    before: int
    after: int
    is_band = True

    def __post_init__(self) -> None:
        _check_integer(0, self.before, "band")
        _check_integer(0, self.after, "band")

    @property
    def is_causal(self) -> bool:  # type: ignore[override]
        return self.after == 0

    @property
    def reach(self) -> int:  # type: ignore[override]
        return self.before + 1

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return (query - key <= self.before) & (key - query <= self.after)

    def is_full(self, tokens: int) -> bool:
        return tokens <= 1 + min(self.before, self.after)

    def __str__(self) -> str:
        return f"band({self.before}, {self.after})"


@dataclass(frozen=True)
class Prefix(Mask):
    """The first `length` tokens of the sequence: with `causal | prefix(8)` those eight attend to each other."""

    length: int

    def __post_init__(self) -> None:
        _check_integer(1, self.length, "prefix")

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return (key < self.length) & torch.ones_like(query == key)

    def __str__(self) -> str:
        return f"prefix({self.length})"


@dataclass(frozen=True)
class Hidden(Mask):
    """All but the tokens at these positions, to which no token attends, themselves included."""

    positions: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.positions:
            raise ConfigError("hidden() needs at least one position, as in hidden(0)")
        for position in self.positions:
            _check_integer(0, position, "hidden")

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        allowed = torch.ones_like(query == key)
        for position in self.positions:
            allowed = allowed & (key != position)
        return allowed

    def __str__(self) -> str:
        return f"hidden({', '.join(map(str, self.positions))})"


@dataclass(frozen=True, eq=False)
class MatrixMask(Mask):
    """A 0/1 matrix for whole sequences: row t marks the tokens that token t attends to. [T, S] or [B, T, S]"""

    matrix: Tensor

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        pairs = torch.broadcast_shapes(query.shape, key.shape)
        if self.matrix.ndim not in (2, 3) or self.matrix.shape[-2:] != pairs[-2:]:
            raise ConfigError(
                f"the mask is {list(self.matrix.shape)}, but there are {pairs[-2]} tokens and {pairs[-1]} keys"
            )
        return self.matrix.to(query.device) != 0


@dataclass(frozen=True)
class Intersection(Mask):
    first: Mask
    second: Mask

    @property
    def is_causal(self) -> bool:  # type: ignore[override]
        return self.first.is_causal or self.second.is_causal

    @property
    def reach(self) -> int | None:  # type: ignore[override]
        reaches = [mask.reach for mask in (self.first, self.second) if mask.reach is not None]
        return min(reaches, default=None)

    @property
    def is_band(self) -> bool:  # type: ignore[override]
        return self.first.is_band and self.second.is_band

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return self.first(query, key) & self.second(query, key)

    def is_full(self, tokens: int) -> bool:
        return self.first.is_full(tokens) and self.second.is_full(tokens)

    def __str__(self) -> str:
        return " & ".join(f"({mask})" if isinstance(mask, Union) else str(mask) for mask in (self.first, self.second))


@dataclass(frozen=True)
class Union(Mask):
    first: Mask
    second: Mask

    @property
    def is_causal(self) -> bool:  # type: ignore[override]
        return self.first.is_causal and self.second.is_causal

    @property
    def reach(self) -> int | None:  # type: ignore[override]
        if self.first.reach is None or self.second.reach is None:
            return None
        return max(self.first.reach, self.second.reach)

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return self.first(query, key) | self.second(query, key)

    def is_full(self, tokens: int) -> bool:
        return self.first.is_full(tokens) or self.second.is_full(tokens)

    def __str__(self) -> str:
        return f"{self.first} | {self.second}"


MASKS: dict[str, Callable[..., Mask]] = {
    "everything": Everything,
    "causal": Causal,
    "window": Window,
    "band": Band,
    "prefix": Prefix,
    "hidden": lambda *positions: Hidden(positions),
}


USAGE = {
    "everything": "everything",
    "causal": "causal",
    "window": "window(tokens)",
    "band": "band(before, after)",
    "prefix": "prefix(tokens)",
    "hidden": "hidden(position, …)",
}
MAX_CHARACTERS = 1000
"""Far less than what would exhaust the parser."""
MAX_DISTANCE = 2**62
"""Sums and differences of positions must fit into 64 bits."""


def parse_mask(text: str) -> Mask:
    """Parse `causal & (window(64) | prefix(4))`: the names above, integers, `&`, `|` and parentheses, nothing else."""
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"a mask of {len(text):,} characters is longer than the maximum of {MAX_CHARACTERS:,}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConfigError(f"mask {text!r} cannot be parsed; write it like 'causal & window(64)'") from None
    return _parse_node(tree, text)


def _parse_node(node: ast.expr, text: str) -> Mask:
    match node:
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return _parse_node(left, text) & _parse_node(right, text)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _parse_node(left, text) | _parse_node(right, text)
        case ast.Name(id=name):
            return _build_mask(name, [], text)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return _build_mask(name, [_parse_integer(argument, text) for argument in arguments], text)
    raise ConfigError(f"mask {text!r} has a part that is not a mask: {ast.unparse(node)!r} (known: {', '.join(MASKS)})")


def _build_mask(name: str, numbers: list[int], text: str) -> Mask:
    mask = look_up(MASKS, name, "mask")
    try:
        return mask(*numbers)
    except TypeError:
        raise ConfigError(f"mask {text!r}: {name} does not take {len(numbers)} numbers: write {USAGE[name]}") from None


def _parse_integer(node: ast.expr, text: str) -> int:
    match node:
        case ast.Constant(value=int(value)) if type(value) is int:
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_parse_integer(operand, text)
    raise ConfigError(f"mask {text!r}: {ast.unparse(node)!r} is not a whole number")


def _check_integer(least: int, given: int, name: str) -> None:
    if given < least:
        raise ConfigError(f"{name}({given}): the number must be at least {least}")
    check_distance(f"{name}({given})", given)


def check_distance(option: str, tokens: int) -> None:
    """Refuse a number too large to compare positions with. `option` is how it was given."""
    if tokens > MAX_DISTANCE:
        raise ConfigError(f"{option}: it must be at most {MAX_DISTANCE:,} tokens")
