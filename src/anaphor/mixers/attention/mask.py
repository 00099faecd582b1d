"""Attention masks as predicates of two positions: may the token at one position attend to the token at the other?

The same predicate serves training, carried memory and cached generation. Masks combine with `&` and `|`, in Python and
in a spec: `causal & (window(64) | prefix(4))`.
"""

from __future__ import annotations

import ast
import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from anaphor.config import look_up
from anaphor.errors import ConfigError

MAX_CHARACTERS = 1000
"""Far less than what would exhaust the parser."""
MAX_DISTANCE = 2**62
"""Sums and differences of positions must fit into 64 bits."""


@dataclass(frozen=True)
class Mask:
    """Called with query and key positions that broadcast; True where the query attends to the key."""

    minimum: ClassVar[int] = 0
    """Of its numbers."""

    def __post_init__(self) -> None:
        for number in self._numbers():
            option = f"{type(self).__name__.lower()}({number})"
            if number < self.minimum:
                raise ConfigError(f"{option}: the number must be at least {self.minimum}")
            check_distance(option, number)

    @property
    def is_causal(self) -> bool:
        """Whether no token attends to a later one, so that a sequence may be cut anywhere."""
        return False

    @property
    def reach(self) -> int | None:
        """Number of tokens back that a token attends to, itself included; None means all."""
        return None

    @property
    def is_band(self) -> bool:
        """Whether a token attends to all tokens within reach, and nothing depends on where the sequence began."""
        return False

    def is_full(self, tokens: int) -> bool:
        """Whether every token of a sequence of that length attends to every other, so that no mask is needed."""
        return False

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")

    def __and__(self, other: Mask) -> Mask:
        return Intersection(self, other)

    def __or__(self, other: Mask) -> Mask:
        return Union(self, other)

    def __str__(self) -> str:
        numbers = ", ".join(map(str, self._numbers()))
        return type(self).__name__.lower() + (f"({numbers})" if numbers else "")

    def _numbers(self) -> list[int]:
        values = [value if isinstance(value, tuple) else (value,) for value in vars(self).values()]
        return [number for numbers in values for number in numbers if isinstance(number, int)]


@dataclass(frozen=True)
class Everything(Mask):
    """Every token attends to every token."""

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.ones_like(query == key)

    def is_full(self, tokens: int) -> bool:
        return True


@dataclass(frozen=True)
class Causal(Mask):
    """Itself and the tokens before."""

    is_causal = True
    is_band = True

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return key <= query


@dataclass(frozen=True)
class Window(Mask):
    """Itself, the `tokens - 1` tokens before it, and all later ones: combine with `causal`."""

    tokens: int
    minimum = 1
    is_band = True

    @property
    def reach(self) -> int:
        return self.tokens

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return query - key < self.tokens

    def is_full(self, tokens: int) -> bool:
        return tokens <= self.tokens


@dataclass(frozen=True)
class Band(Mask):
    """At most so many tokens before and after."""

    before: int
    after: int
    is_band = True

    @property
    def is_causal(self) -> bool:
        return self.after == 0

    @property
    def reach(self) -> int:
        return self.before + 1

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return (query - key <= self.before) & (key - query <= self.after)

    def is_full(self, tokens: int) -> bool:
        return tokens <= 1 + min(self.before, self.after)


@dataclass(frozen=True)
class Prefix(Mask):
    """The first tokens of the sequence: with `causal | prefix(8)` those eight attend to each other."""

    tokens: int
    minimum = 1

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return (key < self.tokens) & torch.ones_like(query == key)


@dataclass(frozen=True)
class Hidden(Mask):
    """All but the tokens at these positions, to which no token attends, themselves included."""

    positions: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.positions:
            raise ConfigError("hidden() needs at least one position, as in hidden(0)")
        super().__post_init__()

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        allowed = torch.ones_like(query == key)
        for position in self.positions:
            allowed = allowed & (key != position)
        return allowed


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
    def is_causal(self) -> bool:
        return self.first.is_causal or self.second.is_causal

    @property
    def reach(self) -> int | None:
        return min((mask.reach for mask in (self.first, self.second) if mask.reach is not None), default=None)

    @property
    def is_band(self) -> bool:
        return self.first.is_band and self.second.is_band

    def is_full(self, tokens: int) -> bool:
        return self.first.is_full(tokens) and self.second.is_full(tokens)

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return self.first(query, key) & self.second(query, key)

    def __str__(self) -> str:
        return " & ".join(f"({mask})" if isinstance(mask, Union) else str(mask) for mask in (self.first, self.second))


@dataclass(frozen=True)
class Union(Mask):
    first: Mask
    second: Mask

    @property
    def is_causal(self) -> bool:
        return self.first.is_causal and self.second.is_causal

    @property
    def reach(self) -> int | None:
        if self.first.reach is None or self.second.reach is None:
            return None
        return max(self.first.reach, self.second.reach)

    def is_full(self, tokens: int) -> bool:
        return self.first.is_full(tokens) or self.second.is_full(tokens)

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return self.first(query, key) | self.second(query, key)

    def __str__(self) -> str:
        return f"{self.first} | {self.second}"


MASKS: dict[str, type[Mask]] = {
    "everything": Everything,
    "causal": Causal,
    "window": Window,
    "band": Band,
    "prefix": Prefix,
    "hidden": Hidden,
}


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
        return Hidden(tuple(numbers)) if mask is Hidden else mask(*numbers)
    except TypeError:
        names = ", ".join(field.name for field in dataclasses.fields(mask))
        usage = f"{name}({names})" if names else name
        raise ConfigError(f"mask {text!r}: {name} does not take {len(numbers)} numbers: write {usage}") from None


def _parse_integer(node: ast.expr, text: str) -> int:
    match node:
        case ast.Constant(value=int(value)) if type(value) is int:
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_parse_integer(operand, text)
    raise ConfigError(f"mask {text!r}: {ast.unparse(node)!r} is not a whole number")


def check_distance(option: str, tokens: int) -> None:
    """Refuse a number too large to compare positions with. `option` is how it was given."""
    if tokens > MAX_DISTANCE:
        raise ConfigError(f"{option}: it must be at most {MAX_DISTANCE:,} tokens")
