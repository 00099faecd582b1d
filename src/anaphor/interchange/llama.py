"""Llama, Mistral, Qwen2 and Qwen3: language models with RMSNorm, SwiGLU, rotary positions and grouped heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar

from torch import nn

from anaphor.errors import DataError
from anaphor.interchange.decoders import FIXED_POSITIONS, Decoder
from anaphor.interchange.folder import Config, Source
from anaphor.interchange.kind import Link, block_shape, link
from anaphor.mixers.attention.rope_scaling import Linear, Llama3, RopeScaling, Yarn, parse_rope_scaling
from anaphor.models.language_model import LanguageModel
from anaphor.models.language_model_spec import LanguageModelSpec

FREE = (
    "norm_kind", "qk_norm", "bias", "out_bias", "kv_heads", "head_width", "rope_theta", "rope_scaling",
    "activation", "feedforward_bias",
)  # fmt: skip
"""Options of a stack of attention that these classes have as well."""
_YARN = {"beta_fast": "beta_fast", "beta_slow": "beta_slow", "attention": "attention_factor", "truncate": "truncate"}
_LLAMA3 = {name: name for name in ("low_freq_factor", "high_freq_factor")}
LENGTH = "original_max_position_embeddings"
SCALINGS: Mapping[type[RopeScaling], tuple[str, Mapping[str, str]]] = {
    Linear: ("linear", {}),
    Yarn: ("yarn", _YARN),
    Llama3: ("llama3", _LLAMA3),
}
"""By class: the `rope_type` of `transformers`, and what it calls the numbers, by our names; all have a factor, and
those with such names a length."""


class Llama(Decoder):
    """`LlamaForCausalLM`, and the base of the others, which differ in their biases and in the norm of queries."""

    model_type, prefix, probe = "llama", "model.", "embed_tokens.weight"
    positions = ("rotary",)
    own_head = "lm_head.weight"
    is_tied_by_default = False
    stock_class: ClassVar[str] = "LlamaForCausalLM"
    has_qk_norm: ClassVar[bool] = False

    def check(self, config: Config) -> None:
        """Refuse what our models do not have."""
        config.require("hidden_act", "silu", default="silu")
        config.require("use_sliding_window", False, default=False)
        config.require("partial_rotary_factor", 1.0, default=1.0)

    def biases(self, config: Config) -> tuple[bool, bool, bool]:
        """Whether there are biases in the projections of attention, in its output, and in feed-forward networks."""
        attention = config.get("attention_bias", False) is True
        return attention, attention, config.get("mlp_bias", False) is True

    def biases_misfit(self, bias: bool, out_bias: bool, feedforward_bias: bool) -> str:
        """Why the class cannot have these."""
        return "" if bias == out_bias else "its attention has biases in one of its projections only"

    def biases_config(self, bias: bool, feedforward_bias: bool) -> dict[str, Any]:
        return {"attention_bias": bias, "mlp_bias": feedforward_bias}

    def spec(self, config: Config, source: Source) -> LanguageModelSpec:
        self.check(config)
        width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
        bias, out_bias, feedforward_bias = self.biases(config)
        theta, scaling = read_rotary(config)
        return LanguageModelSpec(
            vocabulary=config.integer("vocab_size"),
            width=width,
            layers=config.integer("num_hidden_layers"),
            heads=heads,
            kv_heads=config.integer("num_key_value_heads", default=heads),
            head_width=config.integer("head_dim", default=width // heads if heads > 0 else 0),
            bias=bias,
            out_bias=out_bias,
            qk_norm="rmsnorm" if self.has_qk_norm else "none",
            feedforward=config.integer("intermediate_size"),
            activation="swiglu",
            feedforward_bias=feedforward_bias,
            position="rotary",
            rope_theta=theta,
            rope_scaling=scaling,
            norm_kind="rmsnorm",
            norm_eps=config.number("rms_norm_eps", default=1e-6),
            tied=self.is_tied(config, source),
        )

    def links(self, spec: LanguageModelSpec, prefix: str) -> list[Link]:
        block: Any = spec.blocks()[0]
        links = [
            *link("embedder.embedding", f"{prefix}embed_tokens", bias=False),
            *link("layers.norm", f"{prefix}norm", bias=False),
        ]
        sizes = block.mixer.sizes
        kv_width = (sizes.kv_heads or sizes.heads) * sizes.head_width
        parts = (sizes.heads * sizes.head_width, kv_width, kv_width)
        out_bias = block.mixer.bias if block.mixer.out_bias is None else block.mixer.out_bias
        for number in range(len(spec.mixers_by_layer)):
            ours, theirs = f"layers.{number}", f"{prefix}layers.{number}"
            projections = [f"{theirs}.self_attn.{name}_proj" for name in "qkv"]
            links += link(f"{ours}.mixer.project", *projections, sizes=parts, bias=block.mixer.bias)
            links += link(f"{ours}.mixer.out", f"{theirs}.self_attn.o_proj", bias=out_bias)
            for name in ("gate", "up", "down"):
                links += link(f"{ours}.feedforward.{name}", f"{theirs}.mlp.{name}_proj", bias=spec.feedforward_bias)
            links += link(f"{ours}.mixer_sublayer.norm", f"{theirs}.input_layernorm", bias=False)
            links += link(f"{ours}.feedforward_sublayer.norm", f"{theirs}.post_attention_layernorm", bias=False)
            if self.has_qk_norm:
                for name in ("q_norm", "k_norm"):
                    links += link(f"{ours}.mixer.{name}", f"{theirs}.self_attn.{name}", bias=False)
        return links if spec.tied else [*links, Link("head.own", (self.own_head,))]

    def misfit(self, model: nn.Module) -> str:
        reason = self.decoder_misfit(model, free=FREE)
        if reason:
            return reason
        assert isinstance(model, LanguageModel), "the reason would say so"
        spec, block = model.spec, model.blocks[0]
        mixer: Any = block.spec.mixer
        out_bias = mixer.bias if mixer.out_bias is None else mixer.out_bias
        scaling = None if spec.rope_scaling is None else parse_rope_scaling(spec.rope_scaling)
        if block.spec.norm_kind != "rmsnorm":
            return f"its norm_kind is {block.spec.norm_kind!r}, and the stock class has 'rmsnorm'"
        if block.spec.activation != "swiglu":
            return f"its activation is {block.spec.activation!r}, and the stock class has 'swiglu'"
        if (wanted := "rmsnorm" if self.has_qk_norm else "none") != (mixer.qk_norm or "none"):
            return f"its qk_norm is {mixer.qk_norm or 'none'!r}, and the stock class has {wanted!r}"
        if scaling is not None and type(scaling) not in SCALINGS:
            return f"its rope_scaling is {spec.rope_scaling!r}"
        return self.biases_misfit(mixer.bias, out_bias, spec.feedforward_bias)

    def resembles(self, model: nn.Module) -> bool:
        if not isinstance(model, LanguageModel) or model.spec.norm_kind != "rmsnorm":
            return False
        return (model.spec.qk_norm == "rmsnorm") == self.has_qk_norm

    def config(self, spec: LanguageModelSpec, labels: Sequence[str] | None) -> dict[str, Any]:
        layers, heads, hidden = block_shape(spec)
        mixer: Any = spec.blocks()[0].mixer
        return {
            "architectures": [self.stock_class],
            "model_type": self.model_type,
            "vocab_size": spec.vocabulary,
            "hidden_size": spec.width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": mixer.sizes.kv_heads or heads,
            "head_dim": mixer.sizes.head_width,
            "intermediate_size": hidden,
            "hidden_act": "silu",
            "rms_norm_eps": spec.norm_eps,
            "max_position_embeddings": FIXED_POSITIONS,
            "rope_parameters": write_rotary(mixer.sizes.rope_theta, spec.rope_scaling),
            "attention_dropout": spec.dropout,
            "tie_word_embeddings": spec.tied,
            **self.biases_config(mixer.bias, spec.feedforward_bias),
        }


class Mistral(Llama):
    """Llama, where no window slides."""

    model_type, stock_class = "mistral", "MistralForCausalLM"

    def check(self, config: Config) -> None:
        super().check(config)
        config.require("sliding_window", None, default=None)


class Qwen2(Llama):
    """Llama with a bias in queries, keys and values."""

    model_type, stock_class = "qwen2", "Qwen2ForCausalLM"

    def biases(self, config: Config) -> tuple[bool, bool, bool]:
        return True, False, False

    def biases_misfit(self, bias: bool, out_bias: bool, feedforward_bias: bool) -> str:
        fits = (bias, out_bias, feedforward_bias) == (True, False, False)
        return "" if fits else "it does not have biases in queries, keys and values alone"

    def biases_config(self, bias: bool, feedforward_bias: bool) -> dict[str, Any]:
        return {}


class Qwen3(Llama):
    """Llama with a norm of queries and keys."""

    model_type, stock_class = "qwen3", "Qwen3ForCausalLM"
    has_qk_norm = True

    def biases(self, config: Config) -> tuple[bool, bool, bool]:
        return (*super().biases(config)[:2], False)

    def biases_misfit(self, bias: bool, out_bias: bool, feedforward_bias: bool) -> str:
        if feedforward_bias:
            return "its feed-forward networks have biases"
        return super().biases_misfit(bias, out_bias, feedforward_bias)

    def biases_config(self, bias: bool, feedforward_bias: bool) -> dict[str, Any]:
        return {"attention_bias": bias}


def read_rotary(config: Config) -> tuple[float, str | None]:
    """Base and scaling of rotary positions. Older files have the base beside `rope_scaling`, not in it."""
    name = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    given = config.get(name) or {}
    if not isinstance(given, Mapping):
        raise DataError(f"{config.file}: {name}={given!r} must hold names and values")
    values = Config({**config, **given}, config.file)
    theta = values.number("rope_theta", default=10000.0)
    kind = values.get("rope_type", values.get("type", "default"))
    if kind == "default":
        return theta, None
    known = {theirs: (ours, names) for ours, (theirs, names) in SCALINGS.items()}
    if not isinstance(kind, str) or kind not in known:
        raise DataError(f"{config.file}: rope_type={kind!r} cannot be converted; known: default, {', '.join(known)}")
    scaling, names = known[kind]
    defaults = {field.name: field.default for field in fields(scaling)}
    numbers = [_show(values.number("factor", default=1.0))]
    if names:
        numbers.append(str(values.integer(LENGTH, "max_position_embeddings")))
    for ours, theirs in names.items():
        if (value := given.get(theirs)) is not None and value != defaults[ours]:
            numbers.append(f"{ours}={value if type(value) is bool else _show(values.number(theirs, default=1.0))}")
    for theirs in ("mscale", "mscale_all_dim"):
        Config(given, config.file).require(theirs, None, default=None)
    return theta, f"{kind}({', '.join(numbers)})"


def _show(number: float) -> str:
    return str(int(number)) if number == int(number) else repr(number)


def write_rotary(theta: float, scaling: str | None) -> dict[str, Any]:
    """The same as `transformers` has it."""
    if scaling is None:
        return {"rope_type": "default", "rope_theta": theta}
    parsed: Any = parse_rope_scaling(scaling)
    kind, names = SCALINGS[type(parsed)]
    given = {theirs: getattr(parsed, ours) for ours, theirs in names.items() if getattr(parsed, ours) is not None}
    length = {LENGTH: parsed.original_max_positions} if names else {}
    return {"rope_type": kind, "rope_theta": theta, "factor": parsed.factor, **length, **given}
