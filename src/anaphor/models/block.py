"""Block: norm, residual and feed-forward round any mixer, each of them optional. Stack: blocks on top of each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.config import check_types, look_up
from anaphor.errors import ConfigError
from anaphor.mixers import CrossAttention, CrossAttentionSpec, InputFeeding, Mixer, MixerSpec, Span
from anaphor.mixers.attention.cross import Source
from anaphor.mixers.dropout import DROPOUTS
from anaphor.mixers.spec import check_probability

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
}
READERS = (CrossAttention, InputFeeding)
"""Mixers whose state is made from another sequence."""
NORMS = {"before": "norm, then the layer", "after": "the layer, then norm", "none": "no norm"}


@dataclass(frozen=True, kw_only=True)
class BlockSpec:
    """One layer of a stack."""

    mixer: MixerSpec
    """What moves information along time."""
    cross: CrossAttentionSpec | None = None
    """How tokens look at another sequence, after the mixer; None means that they do not."""
    norm: str = "before"
    """Where the norm stands: before, after or none."""
    residual: bool = True
    """Whether a layer's input is added to its output."""
    feedforward: int | None = None
    """Hidden width of the network that treats each token by itself; None means there is none."""
    activation: str = "gelu"
    """Nonlinearity of the feed-forward network: relu, gelu or gelu-tanh."""
    dropout: float = 0.0
    """Share of a layer's output set to zero in training."""
    dropout_kind: str = "each"
    """What is set to zero: each value by itself, or the same features for all tokens of a row (locked)."""

    def __post_init__(self) -> None:
        check_types(self)
        look_up(NORMS, self.norm, "norm")
        look_up(ACTIVATIONS, self.activation, "activation")
        if self.feedforward is not None and self.feedforward < 1:
            raise ConfigError(f"feedforward={self.feedforward}: its hidden width must be at least 1")
        look_up(DROPOUTS, self.dropout_kind, "kind of dropout")
        check_probability(dropout=self.dropout)
        if self.residual and self.mixer.width != self.mixer.out:
            raise ConfigError(
                f"a residual adds a layer's input to its output, but the mixer takes {self.mixer.width} and gives "
                f"{self.mixer.out}: let it enter at width {self.mixer.out}, or set residual to False"
            )
        if self.cross is not None and not self.residual:
            raise ConfigError("cross-attention without a residual would hand on the source and lose the tokens")
        if self.cross is not None and not self.mixer.out == self.cross.width == self.cross.out:
            raise ConfigError(
                f"the mixer gives {self.mixer.out}, but cross-attention takes {self.cross.width} and gives "
                f"{self.cross.out}: the three must be one width"
            )


class Frame(nn.Module):
    """What stands round a sublayer: norm, dropout and the residual connection."""

    def __init__(self, spec: BlockSpec, width_in: int, width_out: int) -> None:
        super().__init__()
        self.before = nn.LayerNorm(width_in) if spec.norm == "before" else None
        self.after = nn.LayerNorm(width_out) if spec.norm == "after" else None
        self.dropout, self.drop = spec.dropout, DROPOUTS[spec.dropout_kind]
        self.residual = spec.residual

    def enter(self, x: Tensor) -> Tensor:
        return x if self.before is None else self.before(x)

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        if self.training and self.dropout:
            y = self.drop(y, self.dropout)
        y = x + y if self.residual else y
        return y if self.after is None else self.after(y)


class FeedForward(nn.Module):
    """Two linear maps with a nonlinearity between them, the same for every token."""

    def __init__(self, width: int, hidden: int, activation: str, dropout: float, dropout_kind: str = "each") -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.activation = ACTIVATIONS[activation]
        self.dropout, self.drop = dropout, DROPOUTS[dropout_kind]
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.activation(self.up(x))
        if self.training and self.dropout:
            hidden = self.drop(hidden, self.dropout)
        y: Tensor = self.down(hidden)
        return y


class WithSource(NamedTuple):
    """State of a block with cross-attention."""

    own: Any
    """The mixer's."""
    source: Source


class Block(nn.Module):
    """One layer: a mixer and, if wanted, cross-attention and a feed-forward network, each in its frame."""

    def __init__(self, spec: BlockSpec, width_in: int | None = None) -> None:
        """`width_in` is the width of what comes in, where it differs from the mixer's."""
        super().__init__()
        self.spec = spec
        self.width_in = spec.mixer.width if width_in is None else width_in
        self.width_out = spec.mixer.out
        self.fit: nn.Linear | None = None
        if self.width_in != spec.mixer.width:
            self.fit = nn.Linear(self.width_in, spec.mixer.width, bias=False)
        self.mixer = spec.mixer.build()
        self.mixer_frame = Frame(spec, spec.mixer.width, spec.mixer.out)
        self.cross: CrossAttention | None = None
        if spec.cross is not None:
            self.cross = spec.cross.build()
            self.cross_frame = Frame(spec, self.width_out, self.width_out)
        self.feedforward: FeedForward | None = None
        if spec.feedforward is not None:
            self.feedforward = FeedForward(
                self.width_out, spec.feedforward, spec.activation, spec.dropout, spec.dropout_kind
            )
            self.feedforward_frame = Frame(spec, self.width_out, self.width_out)

    @property
    def reads_source(self) -> bool:
        """Whether its state is made from another sequence."""
        return self.cross is not None or isinstance(self.mixer, READERS)

    def initial_state(self, like: Tensor, source: Tensor | None = None, lengths: Tensor | None = None) -> Any:
        """`source` [B, S, D] is what it looks at, if it looks at anything, and `lengths` how much of it is real."""
        if not self.reads_source:
            return self.mixer.initial_state(like)
        if source is None:
            raise ConfigError("this model looks at a source: let encode(source_ids, source_lengths) make its state")
        if isinstance(self.mixer, READERS):
            own: Any = self.mixer.initial_state(source, lengths)
        else:
            own = self.mixer.initial_state(like)
        return own if self.cross is None else WithSource(own, self.cross.initial_state(source, lengths))

    def state_bytes(self, tokens: int, source_tokens: int = 0) -> int:
        """Bytes that one row's state holds after so many tokens, with a source of so many."""
        own = self.mixer.state_bytes(source_tokens if isinstance(self.mixer, READERS) else tokens)
        return own if self.cross is None else own + self.cross.state_bytes(source_tokens)

    def forward(self, x: Tensor, state: Any, span: Span) -> tuple[Tensor, Any]:
        if self.fit is not None:
            x = self.fit(x)
        own, source = self._parts(state)
        mixed, own = self.mixer(self.mixer_frame.enter(x), own, span)
        x = self.mixer_frame.leave(x, mixed)
        if self.cross is not None:
            found, source = self.cross(self.cross_frame.enter(x), source, span)
            x = self.cross_frame.leave(x, found)
        if self.feedforward is not None:
            x = self.feedforward_frame.leave(x, self.feedforward(self.feedforward_frame.enter(x)))
        return x, own if self.cross is None else WithSource(own, source)

    def _parts(self, state: Any) -> tuple[Any, Any]:
        if self.cross is None:
            return state, None
        if not isinstance(state, WithSource):
            raise ConfigError(f"a layer that looks at a source needs a state with one, not {type(state).__name__}")
        return state.own, state.source


class Stack(nn.ModuleList):
    """Blocks on top of each other. The state is a tuple with one private state for each block."""

    def __init__(self, specs: Sequence[BlockSpec], width_in: int | None = None) -> None:
        blocks: list[Block] = []
        for spec in specs:
            blocks.append(Block(spec, blocks[-1].width_out if blocks else width_in))
        super().__init__(blocks)

    @property
    def blocks(self) -> list[Block]:
        return [block for block in self if isinstance(block, Block)]

    @property
    def mixers(self) -> list[Mixer]:
        return [block.mixer for block in self.blocks]

    def initial_state(
        self, like: Tensor, source: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Any, ...]:
        """`source` and `lengths` are for blocks that look at another sequence."""
        return tuple(block.initial_state(like, source, lengths) for block in self.blocks)

    def forward(self, x: Tensor, state: tuple[Any, ...], span: Span) -> tuple[Tensor, tuple[Any, ...]]:
        if len(state) != len(self):
            raise ConfigError(f"the state is of {len(state)} layers, but there are {len(self)}")
        after = []
        for block, before in zip(self, state, strict=True):
            x, following = block(x, before, span)
            after.append(following)
        return x, tuple(after)
