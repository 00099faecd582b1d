"""Scaled rotary positions: other frequencies, so that a model works on longer texts than those of its training.

A scaling is written as in `yarn(4, 2048)`: its name and its numbers in their order, or by name. Angles depend on the
position alone. A scaling that depends on the length of the sequence (dynamic NTK) would turn all tokens before anew
with each new one, and the outputs would depend on where the sequence was cut.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anaphor.config import look_up
from anaphor.errors import ConfigError

MAX_CHARACTERS = 200
"""Far more than any scaling needs."""


@dataclass(frozen=True)
class RopeScaling(ABC):
    """From the width that is rotated and the base θ to the angle between neighboring tokens, for each pair."""

    factor: float
    """How many times longer than in training texts become."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            self.check_number(field.name)
        if self.factor < 1:
            raise ConfigError(f"rope_scaling: factor={self.factor:g} must be at least 1")

    def check_number(self, name: str) -> None:
        """Refuse what is no positive number."""
        value = getattr(self, name)
        is_flag = type(value) is bool and name == "truncate"
        if value is not None and not is_flag and not (type(value) in (int, float) and 0 < value < math.inf):
            raise ConfigError(f"rope_scaling: {name}={value!r} must be a number above 0")

    @abstractmethod
    def inverse_frequencies(self, inv_freq: Tensor, theta: float) -> Tensor:
        """Scaled ones from those without scaling, θ^(-2i/K). [K/2] -> [K/2]"""

    @property
    def attention_factor(self) -> float:
        """Factor of rotated queries and of rotated keys."""
        return 1.0


class Linear(RopeScaling):
    """Positions divided by the factor (Chen et al., 2023)."""

    def inverse_frequencies(self, inv_freq: Tensor, theta: float) -> Tensor:
        return inv_freq / self.factor


class NTK(RopeScaling):
    """A larger base, so that the slowest pair turns more slowly by the factor and the fastest one as before."""

    def inverse_frequencies(self, inv_freq: Tensor, theta: float) -> Tensor:
        if len(inv_freq) == 1:
            return inv_freq
        share = torch.arange(len(inv_freq), dtype=inv_freq.dtype, device=inv_freq.device) / (len(inv_freq) - 1)
        return inv_freq * self.factor**-share


@dataclass(frozen=True)
class Yarn(RopeScaling):
    """Pairs that turn often within the length of training as before, those that turn seldom divided by the factor, and
    sharper attention (Peng et al., 2023)."""

    original_max_positions: int
    """Length of the texts in training."""
    beta_fast: float = 32.0
    """Pairs with more turns than this within that length are not scaled."""
    beta_slow: float = 1.0
    """Pairs with fewer turns than this are scaled by the factor."""
    attention: float | None = None
    """Factor of queries and keys; None means 0.1 ln(factor) + 1."""
    truncate: bool = True
    """Whether the ends of the range between are whole pairs."""

    def inverse_frequencies(self, inv_freq: Tensor, theta: float) -> Tensor:
        width = 2 * len(inv_freq)
        low, high = (self._pair_of(turns, width, theta) for turns in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        pairs = torch.arange(len(inv_freq), dtype=inv_freq.dtype, device=inv_freq.device)
        share = ((pairs - low) / (high - low if high != low else 0.001)).clamp(0, 1)
        return inv_freq / self.factor * share + inv_freq * (1 - share)

    def _pair_of(self, turns: float, width: int, theta: float) -> float:
        """The pair that turns so often within the length of training; a fraction if none does exactly."""
        return width * math.log(self.original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(theta))

    @property
    def attention_factor(self) -> float:
        return 0.1 * math.log(self.factor) + 1 if self.attention is None else self.attention


@dataclass(frozen=True)
class Llama3(RopeScaling):
    """Waves longer than `length / low_freq` divided by the factor, those shorter than `length / high_freq` as before,
    and a mixture between (Llama 3.1)."""

    original_max_positions: int
    """Length of the texts in training."""
    low_freq_factor: float = 1.0
    """Turns within that length below which a pair is scaled by the factor."""
    high_freq_factor: float = 4.0
    """Turns from which a pair is not scaled."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.high_freq_factor <= self.low_freq_factor:
            raise ConfigError(
                f"rope_scaling: high_freq_factor={self.high_freq_factor:g} must be above "
                f"low_freq_factor={self.low_freq_factor:g}"
            )

    def inverse_frequencies(self, inv_freq: Tensor, theta: float) -> Tensor:
        turns = self.original_max_positions * inv_freq / (2 * math.pi)
        kept = ((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
        return (1 - kept) * inv_freq / self.factor + kept * inv_freq


ROPE_SCALINGS: dict[str, type[RopeScaling]] = {"linear": Linear, "ntk": NTK, "yarn": Yarn, "llama3": Llama3}


def parse_rope_scaling(text: str) -> RopeScaling:
    """Parse `llama3(32, 8192, high_freq_factor=4)`: one of the names above and its numbers, nothing else."""
    shown = text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…"
    tree: ast.expr | None = None
    if len(text) <= MAX_CHARACTERS:
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            tree = ast.parse(text.strip(), mode="eval").body
    match tree:
        case ast.Name(id=name):
            return _build(name, [], {}, text)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
            numbers = [_parse_number(argument, text) for argument in arguments]
            return _build(name, numbers, {str(one.arg): _parse_number(one.value, text) for one in keywords}, text)
    raise ConfigError(f"rope_scaling={shown!r} cannot be parsed; write it like 'llama3(32, 8192)'")


def _build(name: str, numbers: list[Any], named: dict[str, Any], text: str) -> RopeScaling:
    if name == "dynamic":
        raise ConfigError(
            f"rope_scaling={text!r}: its angles depend on the length of the sequence, so that outputs would depend on "
            f"where it is cut; use ntk(factor), or yarn(factor, length)"
        )
    kind = look_up(ROPE_SCALINGS, name, "rope scaling")
    fields = {field.name: field.default is dataclasses.MISSING for field in dataclasses.fields(kind)}
    for given in named:
        look_up(fields, given, f"number of {name}")
    values = {**dict(zip(fields, numbers, strict=False)), **named}
    required = [field for field, is_required in fields.items() if is_required]
    if len(values) != len(numbers) + len(named) or not {*required} <= {*values}:
        raise ConfigError(f"rope_scaling={text!r}: write {name}({', '.join(required)})")
    return kind(**values)


def _parse_number(node: ast.expr, text: str) -> Any:
    match node:
        case ast.Constant(value=int() | float() | bool() as value):
            return value
    raise ConfigError(f"rope_scaling={text!r}: {ast.unparse(node)!r} is not a number")
