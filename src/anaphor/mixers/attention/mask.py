"""Attention masks as predicates of two positions: may the token at one position attend to the token at the other?

The same predicate serves training, carried memory and cached generation. Masks combine with `&` and `|`, in Python and
in a spec: `causal & (window(64) | prefix(4))`.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field

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

    text: str
    """The mask as a spec has it."""
    allows: Callable[[Tensor, Tensor], Tensor] = field(compare=False, repr=False)
    is_causal: bool = False
    """Whether no token attends to a later one, so that a sequence may be cut anywhere."""
    reach: float = math.inf
    """Number of tokens back that a token attends to, itself included."""
    is_band: bool = False
    """Whether a token attends to all tokens within reach, and nothing depends on where the sequence began."""
    full_up_to: float = 0
    """Length up to which every token of a sequence attends to every other, so that no mask is needed."""
    is_union: bool = False

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return self.allows(query, key)

    def __and__(self, other: Mask) -> Mask:
        return Mask(
            " & ".join(f"({mask})" if mask.is_union else str(mask) for mask in (self, other)),
            lambda query, key: self(query, key) & other(query, key),
            is_causal=self.is_causal or other.is_causal,
            reach=min(self.reach, other.reach),
            is_band=self.is_band and other.is_band,
            full_up_to=min(self.full_up_to, other.full_up_to),
        )

    def __or__(self, other: Mask) -> Mask:
        return Mask(
            f"{self} | {other}",
            lambda query, key: self(query, key) | other(query, key),
            is_causal=self.is_causal and other.is_causal,
            reach=max(self.reach, other.reach),
            full_up_to=max(self.full_up_to, other.full_up_to),
            is_union=True,
        )

    def __str__(self) -> str:
        return self.text


def _all_pairs(query: Tensor, key: Tensor) -> Tensor:
    return torch.ones_like(query == key)


def everything() -> Mask:
    """Every token attends to every token."""
    return Mask("everything", _all_pairs, full_up_to=math.inf)


def causal() -> Mask:
    """Itself and the tokens before."""
    return Mask("causal", lambda query, key: key <= query, is_causal=True, is_band=True, full_up_to=1)


def window(tokens: int) -> Mask:
    """Itself, the `tokens - 1` tokens before it, and all later ones: combine with `causal`."""
    _check_numbers("window", 1, tokens)
    allows = lambda query, key: query - key < tokens  # noqa: E731
    return Mask(f"window({tokens})", allows, reach=tokens, is_band=True, full_up_to=tokens)


def band(before: int, after: int) -> Mask:
    """At most so many tokens before and after."""
    _check_numbers("band", 0, before, after)
    return Mask(
        f"band({before}, {after})",
        lambda query, key: (query - key <= before) & (key - query <= after),
        is_causal=after == 0,
        reach=before + 1,
        is_band=True,
        full_up_to=1 + min(before, after),
    )


def prefix(tokens: int) -> Mask:
    """The first tokens of the sequence: with `causal | prefix(8)` those eight attend to each other."""
    _check_numbers("prefix", 1, tokens)
    return Mask(f"prefix({tokens})", lambda query, key: _all_pairs(query, key) & (key < tokens))


def hidden(*positions: int) -> Mask:
    """All but the tokens at these positions, to which no token attends, themselves included."""
    if not positions:
        raise ConfigError("hidden() needs at least one position, as in hidden(0)")
    _check_numbers("hidden", 0, *positions)

    def allows(query: Tensor, key: Tensor) -> Tensor:
        allowed = _all_pairs(query, key)
        for position in positions:
            allowed = allowed & (key != position)
        return allowed

    return Mask(f"hidden({', '.join(map(str, positions))})", allows)


def matrix_mask(matrix: Tensor) -> Mask:
    """A 0/1 matrix for whole sequences: row t marks the tokens that token t attends to. [T, S] or [B, T, S]"""

    def allows(query: Tensor, key: Tensor) -> Tensor:
        pairs = torch.broadcast_shapes(query.shape, key.shape)
        if matrix.ndim not in (2, 3) or matrix.shape[-2:] != pairs[-2:]:
            tokens, keys = pairs[-2:]
            raise ConfigError(f"the mask is {list(matrix.shape)}, but there are {tokens} tokens and {keys} keys")
        return matrix.to(query.device) != 0

    return Mask("matrix", allows)


MASKS: dict[str, Callable[..., Mask]] = {
    function.__name__: function for function in (everything, causal, window, band, prefix, hidden)
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
    part = ast.unparse(node)
    raise ConfigError(f"mask {text!r} has a part that is not a mask: {part!r} (known: {', '.join(MASKS)})")


def _build_mask(name: str, numbers: list[int], text: str) -> Mask:
    mask = look_up(MASKS, name, "mask")
    names = list(inspect.signature(mask).parameters)
    if name != "hidden" and len(numbers) != len(names):
        usage = f"{name}({', '.join(names)})" if names else name
        raise ConfigError(f"mask {text!r}: {name} does not take {len(numbers)} numbers: write {usage}")
    return mask(*numbers)


def _parse_integer(node: ast.expr, text: str) -> int:
    match node:
        case ast.Constant(value=int(value)) if type(value) is int:
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_parse_integer(operand, text)
    raise ConfigError(f"mask {text!r}: {ast.unparse(node)!r} is not a whole number")


def _check_numbers(name: str, minimum: int, *numbers: int) -> None:
    for number in numbers:
        if number < minimum:
            raise ConfigError(f"{name}({number}): the number must be at least {minimum}")
        check_distance(f"{name}({number})", number)


def check_distance(option: str, tokens: int) -> None:
    """Refuse a number too large to compare positions with. `option` is how it was given."""
    if tokens > MAX_DISTANCE:
        raise ConfigError(f"{option}: it must be at most {MAX_DISTANCE:,} tokens")
