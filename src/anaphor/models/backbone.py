"""Backbone: a stack of blocks on vectors. A block is a mixer and, where wanted, cross-attention and a feed-forward
network, each with a norm, dropout and a residual connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.config import look_up
from anaphor.errors import ConfigError
from anaphor.mixers.attention.layer import Attention, CrossAttention, CrossAttentionSpec, Source
from anaphor.mixers.attention.position import RelativeBuckets
from anaphor.mixers.base import DROPOUTS, Mixer, Span, count_bytes
from anaphor.mixers.input_feeding import InputFeeding
from anaphor.mixers.layers import NORM_KINDS, Linear, Norm
from anaphor.mixers.short_convolution import ShortConvolution, check_short_conv
from anaphor.mixers.spec import MixerSpec, check_probability
from anaphor.typecheck import check_types

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}
GATED_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu-tanh": ACTIVATIONS["gelu-tanh"],
}
"""The activation of the gate of a feed-forward network that has one."""
SOURCE_MIXERS = (CrossAttention, InputFeeding)
"""Mixers whose initial state is made from another sequence."""
# Steps of generation on a CPU: with so many rows of at least this width, a feed-forward network is faster by a tenth to
# a fifth if the products are computed transposed, the weights first. Fewer rows or a smaller width are slower so, and
# more rows the same (MKL, two threads).
TRANSPOSED_ROWS = range(16, 65)
TRANSPOSED_MIN_WIDTH = 256
PARALLEL_RESIDUALS = {
    "none": "the feed-forward network after the mixer",
    "two-norms": "both beside each other, each with a norm",
    "one-norm": "both beside each other behind one norm",
}
NORMS = {"before": "norm, then the layer", "after": "the layer, then norm", "none": "no norm"}


@dataclass(frozen=True, kw_only=True)
class BlockSpec:
    """One layer of a backbone."""

    mixer: MixerSpec
    """The mixer."""
    short_conv: int = 0
    """Kernel size of the short convolution before the mixer; 0 means none."""
    cross: CrossAttentionSpec | None = None
    """Cross-attention after the mixer; None means none."""
    norm: str = "before"
    """Place of the norm: before (pre-norm), after (post-norm) or none."""
    norm_kind: str = "layernorm"
    """Kind of norm: layernorm or rmsnorm."""
    residual: bool = True
    """Residual connection."""
    feedforward: int | None = None
    """Hidden width of the feed-forward network; None means none."""
    activation: str = "gelu"
    """Activation of the feed-forward network: relu, gelu, gelu-tanh or silu; gated: swiglu, geglu or geglu-tanh."""
    feedforward_bias: bool = True
    """Bias in the linear maps of the feed-forward network."""
    parallel_residual: str = "none"
    """Feed-forward network beside the mixer: none (after it), two-norms (as GPT-NeoX) or one-norm (as GPT-J)."""
    dropout: float = 0.0
    """Dropout probability of the outputs."""
    dropout_kind: str = "each"
    """What dropout zeroes: each value independently (each), or the same features of all tokens (locked)."""
    drop_path: float = 0.0
    """Stochastic depth: probability that a row skips a sublayer in training."""
    layer_scale: float | None = None
    """LayerScale: initial value of a learned factor for each feature of a sublayer's output; None means none."""
    norm_eps: float = 1e-5
    """Added to the variance in norms."""

    def __post_init__(self) -> None:
        check_types(self)
        check_short_conv(short_conv=self.short_conv)
        look_up(NORMS, self.norm, "norm")
        look_up(NORM_KINDS, self.norm_kind, "kind of norm")
        look_up({**ACTIVATIONS, **GATED_ACTIVATIONS}, self.activation, "activation")
        if self.feedforward is not None and self.feedforward < 1:
            raise ConfigError(f"feedforward={self.feedforward}: the hidden width must be at least 1")
        look_up(DROPOUTS, self.dropout_kind, "kind of dropout")
        check_probability(dropout=self.dropout, drop_path=self.drop_path)
        look_up(PARALLEL_RESIDUALS, self.parallel_residual, "parallel residual")
        if self.parallel_residual != "none":
            self._check_parallel()
        if self.drop_path and not self.residual:
            raise ConfigError("drop_path skips a layer, which needs residual=True")
        if self.residual and self.mixer.width != self.mixer.out:
            raise ConfigError(
                f"a residual connection adds input and output, but the mixer maps width {self.mixer.width} to "
                f"{self.mixer.out}: give it one width, or set residual=False"
            )
        if self.cross is not None and not self.residual:
            raise ConfigError("cross-attention needs residual=True: without, the tokens of the target would be lost")
        if self.cross is not None and not self.mixer.out == self.cross.width == self.cross.out:
            raise ConfigError(
                f"the mixer has output width {self.mixer.out}, but cross-attention maps {self.cross.width} to "
                f"{self.cross.out}: the three must be equal"
            )

    def _check_parallel(self) -> None:
        """Refuse a feed-forward network beside the mixer where it has no place."""
        option = f"parallel_residual={self.parallel_residual!r}"
        if not self.residual or self.feedforward is None:
            missing = "residual=True" if not self.residual else "a feed-forward network"
            raise ConfigError(
                f"{option} adds the mixer and a feed-forward network to the same input: it needs {missing}"
            )
        if self.cross is not None:
            raise ConfigError(f"{option} has no place for cross-attention, which comes between the two")
        if self.norm == "after" or (self.norm == "none" and self.parallel_residual == "one-norm"):
            needed = "norm='before'" + ("" if self.parallel_residual == "one-norm" else " or 'none'")
            raise ConfigError(f"{option} needs {needed}, not norm={self.norm!r}")


class Sublayer(nn.Module):
    """Norm, dropout and residual connection around a layer: `post(x, layer(pre(x)))`."""

    def __init__(self, spec: BlockSpec, width_in: int, width_out: int, *, has_norm: bool = True) -> None:
        super().__init__()
        self.is_pre_norm = spec.norm == "before"
        width_norm = width_in if self.is_pre_norm else width_out
        self.norm: Norm | None = None
        if spec.norm != "none" and has_norm:
            self.norm = NORM_KINDS[spec.norm_kind](width_norm, spec.norm_eps, for_layer=self.is_pre_norm)
        self.dropout, self.drop = spec.dropout, DROPOUTS[spec.dropout_kind]
        self.drop_path = spec.drop_path
        self.scale = None if spec.layer_scale is None else nn.Parameter(torch.full((width_out,), spec.layer_scale))
        self.residual = spec.residual

    def pre(self, x: Tensor) -> Tensor:
        """The layer's input."""
        norm = self.norm if self.is_pre_norm else None
        return x if norm is None else norm(x)

    def post(self, x: Tensor, y: Tensor) -> Tensor:
        """The sublayer's output, given its input x and the layer's output y."""
        if self.training and self.dropout:
            y = self.drop(y, self.dropout)
        if self.scale is not None:
            y = y * self.scale
        norm = None if self.is_pre_norm else self.norm
        if self.training and self.drop_path:
            y = torch.addcmul(x, y, drop_path_factors(y, self.drop_path))
        elif self.residual and norm is not None:
            normed: Tensor = norm(x, y)  # the sum is part of the same kernel on a GPU
            return normed
        elif self.residual:
            y = x + y
        return y if norm is None else norm(y)


def drop_path_factors(y: Tensor, p: float) -> Tensor:
    """Stochastic depth (Huang et al., 2016): a factor for each row, 0 with probability p; the others keep the mean.
    [B, T, D] -> [B, 1, 1]"""
    kept = torch.rand(len(y), 1, 1, device=y.device) >= p
    return (kept / (1 - p)).to(y.dtype)


class FeedForward(nn.Module):
    """Two linear maps with an activation between them, applied to each token."""

    def __init__(
        self,
        width: int,
        hidden: int,
        activation: str,
        dropout: float,
        dropout_kind: str = "each",
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.up = Linear(width, hidden, bias=bias)
        self.activation = ACTIVATIONS[activation]
        self.dropout, self.drop = dropout, DROPOUTS[dropout_kind]
        self.down = Linear(hidden, width, bias=bias)
        self.can_transpose = bias and width >= TRANSPOSED_MIN_WIDTH

    def forward(self, x: Tensor) -> Tensor:
        if self.can_transpose and self._is_faster_transposed(x):
            return self._forward_transposed(x)
        hidden = self.activation(self.up(x))
        if self.training and self.dropout:
            hidden = self.drop(hidden, self.dropout)
        y: Tensor = self.down(hidden)
        return y

    def _is_faster_transposed(self, x: Tensor) -> bool:
        is_step = x.shape[1] == 1 and x.shape[0] in TRANSPOSED_ROWS and x.device.type == "cpu"
        if not is_step or self.training or torch.is_grad_enabled():
            return False
        return not any(layer._forward_hooks or layer._forward_pre_hooks for layer in (self.up, self.down))

    def _forward_transposed(self, x: Tensor) -> Tensor:
        """The same for one token of each row, with the weights as the left factors. [B, 1, D] -> [B, 1, D]"""
        hidden = self.activation(torch.addmm(self.up.bias[:, None], self.up.weight, x[:, 0].mT))
        return torch.addmm(self.down.bias[:, None], self.down.weight, hidden).mT.contiguous()[:, None]


class GatedFeedForward(nn.Module):
    """A gate and two linear maps, `down(activation(gate(x)) * up(x))`, applied to each token (Shazeer, 2020)."""

    def __init__(self, spec: BlockSpec, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = Linear(width, hidden, bias=spec.feedforward_bias)
        self.up = Linear(width, hidden, bias=spec.feedforward_bias)
        self.activation = GATED_ACTIVATIONS[spec.activation]
        self.dropout, self.drop = spec.dropout, DROPOUTS[spec.dropout_kind]
        self.down = Linear(hidden, width, bias=spec.feedforward_bias)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.activation(self.gate(x)) * self.up(x)
        if self.training and self.dropout:
            hidden = self.drop(hidden, self.dropout)
        y: Tensor = self.down(hidden)
        return y


def build_feedforward(spec: BlockSpec, width: int) -> FeedForward | GatedFeedForward | None:
    """The feed-forward network of a block; None where it has none."""
    if spec.feedforward is None:
        return None
    if spec.activation in GATED_ACTIVATIONS:
        return GatedFeedForward(spec, width, spec.feedforward)
    return FeedForward(
        width, spec.feedforward, spec.activation, spec.dropout, spec.dropout_kind, bias=spec.feedforward_bias
    )


class CrossState(NamedTuple):
    """State of a block with cross-attention."""

    mixer: Any
    """State of the mixer."""
    source: Source


class ConvolvedState(NamedTuple):
    """State of a mixer behind a short convolution."""

    mixer: Any
    """State of the mixer."""
    inputs: Tensor
    """[B, kernel size - 1, D]: the newest inputs of the convolution."""


def mixer_state(state: Any) -> Any:
    """The mixer's part of the state of a block."""
    return mixer_state(state.mixer) if isinstance(state, CrossState | ConvolvedState) else state


def replace_mixer_state(state: Any, own: Any) -> Any:
    """The state of a block with another one for its mixer."""
    if isinstance(state, CrossState | ConvolvedState):
        return state._replace(mixer=replace_mixer_state(state.mixer, own))
    return own


class Block(nn.Module):
    """One layer: a mixer and, if wanted, cross-attention and a feed-forward network, each in a sublayer."""

    def __init__(self, spec: BlockSpec, width_in: int | None = None) -> None:
        """`width_in` is the width of the input, where it differs from the mixer's."""
        super().__init__()
        self.spec = spec
        self.width_in = spec.mixer.width if width_in is None else width_in
        self.width_out = width = spec.mixer.out
        self.in_proj: nn.Linear | None = None
        if self.width_in != spec.mixer.width:
            self.in_proj = nn.Linear(self.width_in, spec.mixer.width, bias=False)
        self.mixer = spec.mixer.build()
        self.convolution = ShortConvolution(spec.mixer.width, spec.short_conv) if spec.short_conv else None
        self.mixer_sublayer = Sublayer(spec, spec.mixer.width, width)
        self.cross: CrossAttention | None = None
        if spec.cross is not None:
            self.cross = spec.cross.build()
            self.cross_sublayer = Sublayer(spec, width, width)
        self.feedforward = build_feedforward(spec, width)
        if self.feedforward is not None:
            has_norm = spec.parallel_residual != "one-norm"
            self.feedforward_sublayer = Sublayer(spec, width, width, has_norm=has_norm)

    @property
    def needs_source(self) -> bool:
        """Whether its initial state is made from another sequence."""
        return self.cross is not None or isinstance(self.mixer, SOURCE_MIXERS)

    def initial_state(self, like: Tensor, source: Tensor | None = None, lengths: Tensor | None = None) -> Any:
        """State before the first token. `source` [B, S, D] is what it attends to, with `lengths` of real tokens."""
        if not self.needs_source:
            return self._with_inputs(self.mixer.initial_state(like), len(like))
        if source is None:
            raise ConfigError("this model needs a source: use the state that encode(source_ids, source_lengths) gives")
        if isinstance(self.mixer, SOURCE_MIXERS):
            state: Any = self.mixer.initial_state(source, lengths)
        else:
            state = self.mixer.initial_state(like)
        state = self._with_inputs(state, len(like))
        return state if self.cross is None else CrossState(state, self.cross.initial_state(source, lengths))

    def _with_inputs(self, state: Any, rows: int) -> Any:
        return state if self.convolution is None else ConvolvedState(state, self.convolution.initial_state(rows))

    def state_bytes(self, tokens: int, source_tokens: int = 0) -> int:
        """Bytes of one row's state after so many tokens, with a source of so many."""
        size = self.mixer.state_bytes(source_tokens if isinstance(self.mixer, SOURCE_MIXERS) else tokens)
        if self.convolution is not None:
            size += count_bytes(self.convolution.initial_state(1))
        return size if self.cross is None else size + self.cross.state_bytes(source_tokens)

    def forward(self, x: Tensor, state: Any, span: Span) -> tuple[Tensor, Any]:
        if self.in_proj is not None:
            x = self.in_proj(x)
        source = None
        if self.cross is not None:
            if not isinstance(state, CrossState):
                raise ConfigError(
                    f"a layer with cross-attention needs a state with a source, not {type(state).__name__}"
                )
            state, source = state
        normed = self.mixer_sublayer.pre(x)
        mixed, state = self._mix(normed, state, span)
        if self.spec.parallel_residual != "none":
            return self._add_both(x, normed, mixed), state
        x = self.mixer_sublayer.post(x, mixed)
        if self.cross is not None:
            context, source = self.cross(self.cross_sublayer.pre(x), source, span)
            x = self.cross_sublayer.post(x, context)
            state = CrossState(state, source)
        return self._feed_forward(x), state

    def _mix(self, x: Tensor, state: Any, span: Span) -> tuple[Tensor, Any]:
        """The mixer, with the short convolution added to its input where there is one."""
        if self.convolution is None:
            mixed: tuple[Tensor, Any] = self.mixer(x, state, span)
            return mixed
        if not isinstance(state, ConvolvedState):
            raise ConfigError(f"a layer with a short convolution needs its own state, not {type(state).__name__}")
        recent, inputs = self.convolution(x, state.inputs, span)
        y, state = self.mixer(x + recent, state.mixer, span)
        return y, ConvolvedState(state, inputs)

    def _feed_forward(self, x: Tensor) -> Tensor:
        if self.feedforward is None:
            return x
        return self.feedforward_sublayer.post(x, self.feedforward(self.feedforward_sublayer.pre(x)))

    def _add_both(self, x: Tensor, normed: Tensor, mixed: Tensor) -> Tensor:
        """The mixer's output and that of the feed-forward network for the same input, added to it."""
        assert self.feedforward is not None, "a spec with a parallel residual has a feed-forward network"
        is_shared = self.spec.parallel_residual == "one-norm"
        y = self.feedforward(normed if is_shared else self.feedforward_sublayer.pre(x))
        return self.feedforward_sublayer.post(self.mixer_sublayer.post(x, mixed), y)

    def forward_first(self, x: Tensor, count: int, span: Span) -> Tensor:
        """Outputs of the first tokens of whole sequences, without the work for the others where the mixer is
        attention. [B, T, D] -> [B, count, D]"""
        mixer = self.mixer
        is_plain = self.cross is None and self.convolution is None
        if not isinstance(mixer, Attention) or not is_plain or not mixer.can_mix_first(x.shape[1]):
            y: Tensor = self(x, self.initial_state(x), span)[0]
            return y[:, :count]
        if self.in_proj is not None:
            x = self.in_proj(x)
        normed = self.mixer_sublayer.pre(x)
        mixed = mixer.mix_first(normed, count, span)
        if self.spec.parallel_residual != "none":
            return self._add_both(x[:, :count], normed[:, :count], mixed)
        return self._feed_forward(self.mixer_sublayer.post(x[:, :count], mixed))


def share_buckets(mixers: Sequence[Mixer]) -> None:
    """One table of relative positions for all layers: that of the first one that has it."""
    found = [mixer.position for mixer in mixers if isinstance(mixer, Attention)]
    tables = [position for position in found if isinstance(position, RelativeBuckets)]
    for position in tables[1:]:
        position.share(tables[0])


class Backbone(nn.Module):
    """Blocks on top of each other, and after the last one a norm and a projection where wanted.

    Vectors and a state in, hidden states and a state out: `y, state = backbone(x, state, span)`. No state means a
    fresh one, and no span whole sequences without padding. The state is a tuple with the private state of each block.
    """

    def __init__(
        self,
        blocks: Sequence[BlockSpec],
        width_in: int | None = None,
        *,
        norm: bool = False,
        width_out: int | None = None,
    ) -> None:
        """`width_in`: width of the input. `width_out`: width of the hidden states. By default those of the blocks."""
        super().__init__()
        self.count = len(blocks)
        for number, spec in enumerate(blocks):
            block = Block(spec, width_in)
            self.add_module(str(number), block)
            width_in = block.width_out
        assert width_in is not None, "a backbone has at least one block"
        share_buckets(self.mixers)
        last = blocks[-1]
        self.norm = NORM_KINDS[last.norm_kind](width_in, last.norm_eps) if norm else None
        self.out_proj = nn.Linear(width_in, width_out, bias=False) if width_out not in (None, width_in) else None
        self.width_out = width_in if width_out is None else width_out
        limits = [spec.mixer.limit for spec in blocks]
        self.max_positions = min((limit for limit in limits if limit is not None), default=None)
        """Maximum number of positions; None means unbounded."""

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Block]:
        return iter(self.blocks)

    def __getitem__(self, number: int) -> Block:
        return self.blocks[number]

    @property
    def blocks(self) -> list[Block]:
        """The layers, from the first to the last."""
        return [block for block in self._modules.values() if isinstance(block, Block)]

    @property
    def mixers(self) -> list[Mixer]:
        """The mixer of each layer."""
        return [block.mixer for block in self.blocks]

    @property
    def device(self) -> torch.device:
        """Device of its weights."""
        return next(self.parameters()).device

    @property
    def causal(self) -> bool:
        """Whether no token sees a later one."""
        return all(mixer.streams for mixer in self.mixers)

    @property
    def state_grows(self) -> bool:
        """Whether the state grows with every token, without bound."""
        return any(block.spec.mixer.grows for block in self.blocks)

    def state_bytes(self, tokens: int, source_tokens: int = 0) -> int:
        """Bytes of one row's state after so many tokens, with a source of so many."""
        return sum(block.state_bytes(tokens, source_tokens) for block in self.blocks)

    def initial_state(
        self, like: Tensor, source: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Any, ...]:
        """State for rows as in `like` [B, T, D]. `source` and `lengths` are for blocks that attend to a source."""
        return tuple(block.initial_state(like, source, lengths) for block in self.blocks)

    def forward(
        self, x: Tensor, state: tuple[Any, ...] | None = None, span: Span | None = None
    ) -> tuple[Tensor, tuple[Any, ...]]:
        """[B, T, D] -> [B, T, D]"""
        span = Span.whole(x) if span is None else span
        state = self.initial_state(x) if state is None else state
        if len(state) != len(self):
            raise ConfigError(f"the state is of {len(state)} layers, but there are {len(self)}")
        after = []
        for block, before in zip(self.blocks, state, strict=True):
            x, following = block(x, before, span)
            after.append(following)
        return self._finish(x), tuple(after)

    def _finish(self, x: Tensor) -> Tensor:
        if self.norm is not None:
            x = self.norm(x)
        return x if self.out_proj is None else self.out_proj(x)

    def forward_first(self, x: Tensor, count: int, span: Span | None = None) -> Tensor:
        """Hidden states of the first tokens of whole sequences: the last block does not compute those of the others,
        which nothing reads. [B, T, D] -> [B, count, D]"""
        span = Span.whole(x) if span is None else span
        *others, last = self.blocks
        for block in others:
            x, _ = block(x, block.initial_state(x), span)
        return self._finish(last.forward_first(x, count, span))
