"""Mask: a question about two positions. May the token at this position see the token at that one?

The same answer serves training, carried memory and cached generation, because it never asks how the keys got there.
Masks combine with `&` and `|`, and are written the same way in a spec: `causal & (window(64) | prefix(4))`.
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
    """Called with query and key positions that broadcast against each other; True where the key may be seen."""

    causal = False
    """Whether no token ever sees a later one, so that a sequence may be cut anywhere."""
    reach: int | None = None
    """How many tokens back a token may see, itself included; None means all of them."""
    banded = False
    """Whether all tokens within reach may be seen: no holes, and nothing depends on where the sequence began."""

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")

    def is_full(self, tokens: int) -> bool:
        """Whether every token of a sequence of that length attends to every other, so that no mask is needed."""
        return False

    def __and__(self, other: Mask) -> Mask:
        return Both(self, other)

    def __or__(self, other: Mask) -> Mask:
        return Either(self, other)


@dataclass(frozen=True)
class Everything(Mask):
    """Every token sees every token."""

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.ones_like(query == key)

    def is_full(self, tokens: int) -> bool:
        return True

    def __str__(self) -> str:
        return "everything"


@dataclass(frozen=True)
class Causal(Mask):
    """Itself and what came before."""

    causal = True
    banded = True

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return key <= query

    def __str__(self) -> str:
        return "causal"


@dataclass(frozen=True)
class Window(Mask):
    """Itself and the `size - 1` tokens before it; says nothing about later ones."""

    size: int
    banded = True

    def __post_init__(self) -> None:
        _at_least(1, self.size, "window")

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
    banded = True

    def __post_init__(self) -> None:
        _at_least(0, self.before, "band")
        _at_least(0, self.after, "band")

    @property
    def causal(self) -> bool:  # type: ignore[override]
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
    """The first `length` tokens of the sequence, for everyone: `causal | prefix(8)` reads eight tokens both ways."""

    length: int

    def __post_init__(self) -> None:
        _at_least(1, self.length, "prefix")

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return (key < self.length) & torch.ones_like(query == key)

    def __str__(self) -> str:
        return f"prefix({self.length})"


@dataclass(frozen=True)
class Hidden(Mask):
    """All but the tokens at these positions, which nobody sees, themselves included."""

    positions: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.positions:
            raise ConfigError("hidden() hides nothing: name at least one position, as in hidden(0)")
        for position in self.positions:
            _at_least(0, position, "hidden")

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        seen = torch.ones_like(query == key)
        for position in self.positions:
            seen = seen & (key != position)
        return seen

    def __str__(self) -> str:
        return f"hidden({', '.join(map(str, self.positions))})"


@dataclass(frozen=True, eq=False)
class Given(Mask):
    """A 0/1 matrix that is told for whole sequences: row t says which tokens token t may see. [T, S] or [B, T, S]"""

    matrix: Tensor

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        pairs = torch.broadcast_shapes(query.shape, key.shape)
        if self.matrix.ndim not in (2, 3) or self.matrix.shape[-2:] != pairs[-2:]:
            raise ConfigError(
                f"the mask is {list(self.matrix.shape)}, but there are {pairs[-2]} tokens and {pairs[-1]} keys"
            )
        return self.matrix.to(query.device) != 0


@dataclass(frozen=True)
class Both(Mask):
    first: Mask
    second: Mask

    @property
    def causal(self) -> bool:  # type: ignore[override]
        return self.first.causal or self.second.causal

    @property
    def reach(self) -> int | None:  # type: ignore[override]
        reaches = [mask.reach for mask in (self.first, self.second) if mask.reach is not None]
        return min(reaches, default=None)

    @property
    def banded(self) -> bool:  # type: ignore[override]
        return self.first.banded and self.second.banded

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return self.first(query, key) & self.second(query, key)

    def is_full(self, tokens: int) -> bool:
        return self.first.is_full(tokens) and self.second.is_full(tokens)

    def __str__(self) -> str:
        return " & ".join(f"({mask})" if isinstance(mask, Either) else str(mask) for mask in (self.first, self.second))


@dataclass(frozen=True)
class Either(Mask):
    first: Mask
    second: Mask

    @property
    def causal(self) -> bool:  # type: ignore[override]
        return self.first.causal and self.second.causal

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
# Far more than a person writes, and far less than what would exhaust the parser.
LONGEST = 1000
# Positions are 64 bits long, and so must be what is made of them by adding or taking away.
FARTHEST = 2**62


def parse_mask(text: str) -> Mask:
    """Read `causal & (window(64) | prefix(4))`: the names above, whole numbers, `&`, `|` and brackets, nothing else."""
    if len(text) > LONGEST:
        raise ConfigError(f"a mask of {len(text):,} characters is longer than {LONGEST:,}: it cannot be meant")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConfigError(f"mask {text!r} cannot be read; write it like 'causal & window(64)'") from None
    return _mask_of(tree, text)


def _mask_of(node: ast.expr, text: str) -> Mask:
    match node:
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return _mask_of(left, text) & _mask_of(right, text)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _mask_of(left, text) | _mask_of(right, text)
        case ast.Name(id=name):
            return _built(name, [], text)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return _built(name, [_number(argument, text) for argument in arguments], text)
    raise ConfigError(f"mask {text!r} has a part that is no mask: {ast.unparse(node)!r} (known: {', '.join(MASKS)})")


def _built(name: str, numbers: list[int], text: str) -> Mask:
    maker = look_up(MASKS, name, "mask")
    try:
        return maker(*numbers)
    except TypeError:
        raise ConfigError(f"mask {text!r}: {name} does not take {len(numbers)} numbers: write {USAGE[name]}") from None


def _number(node: ast.expr, text: str) -> int:
    match node:
        case ast.Constant(value=int(value)) if type(value) is int:
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand, text)
    raise ConfigError(f"mask {text!r}: {ast.unparse(node)!r} is not a whole number")


def _at_least(least: int, given: int, name: str) -> None:
    if given < least:
        raise ConfigError(f"{name}({given}): the number must be at least {least}")
    check_far(f"{name}({given})", given)


def check_far(said: str, tokens: int) -> None:
    """Refuse numbers that positions cannot be compared with. `said` is how it was given."""
    if tokens > FARTHEST:
        raise ConfigError(f"{said}: no text has more than {FARTHEST:,} tokens")
