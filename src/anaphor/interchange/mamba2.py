"""Mamba-2: language models of state space layers alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from anaphor.errors import DataError
from anaphor.interchange.decoders import Decoder
from anaphor.interchange.folder import Config, Source
from anaphor.interchange.kind import Link, first_difference, layers_misfit, link
from anaphor.models.language_model import LanguageModel
from anaphor.models.language_model_spec import LanguageModelSpec

EXPAND = 2
"""Width of all heads together, as a multiple of the width."""
EPS = 1e-5
"""Added to the mean square in the norm of the outputs of a layer."""

NO_LIMITS = ("[0.0, inf]", "[0, inf]", "[0.0, {'__float__': 'Infinity'}]")
"""Limits of the step size that are none, as JSON has them."""


class Mamba2(Decoder):
    """`Mamba2ForCausalLM` whose heads share keys and queries."""

    model_type, prefix, probe = "mamba2", "backbone.", "embeddings.weight"
    positions = ("none",)
    own_head = "lm_head.weight"
    is_tied_by_default = False

    def spec(self, config: Config, source: Source) -> LanguageModelSpec:
        config.require("n_groups", 1, default=8)
        config.require("expand", EXPAND, default=EXPAND)
        config.require("hidden_act", "silu", default="silu")
        config.require("use_bias", False, default=False)
        config.require("use_conv_bias", True, default=True)
        config.require("layer_norm_epsilon", EPS, default=EPS)
        if (limits := config.get("time_step_limit")) is not None and str(limits) not in NO_LIMITS:
            raise DataError(f"{config.file}: time_step_limit={limits!r} cannot be converted; only none can")
        width, heads = config.integer("hidden_size"), config.integer("num_heads", default=128)
        if heads * config.integer("head_dim", default=64) != EXPAND * width:
            raise DataError(
                f"{config.file}: {heads} heads of head_dim do not have {EXPAND} × {width} dimensions together"
            )
        return LanguageModelSpec(
            vocabulary=config.integer("vocab_size"),
            mixers=("mamba2",),
            width=width,
            layers=config.integer("num_hidden_layers"),
            heads=heads,
            d_state=config.integer("state_size", default=128),
            short_conv=config.integer("conv_kernel", default=4),
            feedforward=0,
            norm_kind="rmsnorm",
            norm_eps=EPS,
            tied=self.is_tied(config, source),
        )

    def links(self, spec: LanguageModelSpec, prefix: str) -> list[Link]:
        links = [
            *link("embedder.embedding", f"{prefix}embeddings", bias=False),
            *link("layers.norm", f"{prefix}norm_f", bias=False),
        ]
        for number in range(len(spec.mixers_by_layer)):
            ours, theirs = f"layers.{number}", f"{prefix}layers.{number}"
            links += link(f"{ours}.mixer_sublayer.norm", f"{theirs}.norm", bias=False)
            for name in ("A_log", "dt_bias", "D"):
                links.append(Link(f"{ours}.mixer.{name}", (f"{theirs}.mixer.{name}",)))
            for part, name in {"project": "in_proj", "norm": "norm", "out": "out_proj"}.items():
                links += link(f"{ours}.mixer.{part}", f"{theirs}.mixer.{name}", bias=False)
            links += link(f"{ours}.mixer.convolution", f"{theirs}.mixer.conv1d", form="depthwise")
        return links if spec.tied else [*links, Link("head.own", (self.own_head,))]

    def misfit(self, model: nn.Module) -> str:
        if not isinstance(model, LanguageModel):
            return f"it is a {type(model).__name__}, not a language model"
        spec = model.spec
        if reason := layers_misfit(spec, "mamba2"):
            return reason
        block = model.blocks[0].spec
        mixer: Any = block.mixer
        wanted = {
            "norm": (spec.norm, "before"),
            "norm_kind": (spec.norm_kind, "rmsnorm"),
            "norm_eps": (spec.norm_eps, EPS),
            "residual": (spec.residual, True),
            "feedforward": (block.feedforward or 0, 0),
            "position": (spec.position, "none"),
            "data_dependent_rope": (mixer.data_dependent_rope, False),
            "embedding": (spec.width_in, spec.width),
            "head_bias": (spec.head_bias, False),
            "extras": (spec.extras, ()),
        }
        return first_difference(wanted) or ("" if mixer.short_conv else "it has no short convolution")

    def resembles(self, model: nn.Module) -> bool:
        return isinstance(model, LanguageModel) and set(model.spec.mixers_by_layer) == {"mamba2"}

    def config(self, spec: LanguageModelSpec, labels: Sequence[str] | None) -> dict[str, Any]:
        mixer: Any = spec.blocks()[0].mixer
        return {
            "architectures": ["Mamba2ForCausalLM"],
            "model_type": self.model_type,
            "vocab_size": spec.vocabulary,
            "hidden_size": spec.width,
            "num_hidden_layers": len(spec.mixers_by_layer),
            "num_heads": mixer.heads,
            "head_dim": mixer.inner_width // mixer.heads,
            "state_size": mixer.d_state,
            "conv_kernel": mixer.short_conv,
            "expand": EXPAND,
            "n_groups": 1,
            "use_bias": False,
            "use_conv_bias": True,
            "hidden_act": "silu",
            "layer_norm_epsilon": EPS,
            "tie_word_embeddings": spec.tied,
        }
