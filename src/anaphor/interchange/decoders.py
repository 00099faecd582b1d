"""GPT-2 and GPT-NeoX: language models."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anaphor.errors import DataError
from anaphor.interchange.folder import Config, Source
from anaphor.interchange.kind import ACTIVATIONS, Kind, Link, block_shape, link, stack_misfit, their_activation
from anaphor.models.language_model import LanguageModel
from anaphor.models.language_model_spec import LanguageModelSpec

FIXED_POSITIONS = 1024
"""Positions of an exported model whose position encoding has no limit."""


class Decoder(Kind):
    """What the two have in common: pre-norm layers of causal attention and a head over the vocabulary."""

    positions: tuple[str, ...]
    """Position encodings that the stock class has."""
    own_head: str
    """Matrix of the head, where it is not tied to the embeddings."""
    is_tied_by_default: ClassVar[bool] = True

    def is_tied(self, config: Config, source: Source) -> bool:
        """By what the file has, and by the configuration where it has no head: a model without one is tied."""
        given = config.get("tie_word_embeddings")
        if given is False and self.own_head not in source and self.prefix_in(source):
            raise DataError(f"{source.path} lacks {self.own_head!r}, and {config.file} says that it is not tied")
        tied = self.is_tied_by_default if given is None else given is not False
        return tied or self.own_head not in source

    def misfit(self, model: nn.Module) -> str:
        return self.decoder_misfit(model)

    def decoder_misfit(self, model: nn.Module, free: Collection[str] = ()) -> str:
        """Why a model is no stack of pre-norm layers with a head, apart from the options in `free`."""
        if not isinstance(model, LanguageModel):
            return f"it is a {type(model).__name__}, not a language model"
        spec = model.spec
        reason = stack_misfit(spec, norm="before", mask="causal", free=free)
        if reason:
            return reason
        if spec.position not in self.positions:
            return f"its position encoding is {spec.position!r}"
        if spec.head_bias:
            return "its head has a bias, and the stock class has none"
        if spec.extras:
            return f"it has extras: {', '.join(settings.section for settings in spec.extras)}"
        return ""


class GPT2(Decoder):
    model_type, prefix, probe = "gpt2", "transformer.", "wte.weight"
    positions = ("learned", "sinusoidal", "sinusoidal-unpaired")
    own_head = "lm_head.weight"

    def spec(self, config: Config, source: Source) -> LanguageModelSpec:
        config.require("scale_attn_weights", True, default=True)
        config.require("scale_attn_by_inverse_layer_idx", False, default=False)
        config.require("add_cross_attention", False, default=False)
        width = config.integer("n_embd", "hidden_size")
        dropout = config.number("resid_pdrop", default=0.1)
        return LanguageModelSpec(
            vocabulary=config.integer("vocab_size"),
            width=width,
            layers=config.integer("n_layer", "num_hidden_layers"),
            heads=config.integer("n_head", "num_attention_heads"),
            feedforward=config.integer("n_inner", default=4 * width),
            activation=config.translate("activation_function", ACTIVATIONS, "gelu_new"),
            position="learned",
            max_positions=config.integer("n_positions", "max_position_embeddings", default=1024),
            norm_eps=config.number("layer_norm_epsilon", default=1e-5),
            dropout=dropout,
            input_dropout=config.number("embd_pdrop", default=0.1),
            tied=self.is_tied(config, source),
        )

    def links(self, spec: LanguageModelSpec, prefix: str) -> list[Link]:
        links = [*link("embedder.embedding", f"{prefix}wte", bias=False), *link("layers.norm", f"{prefix}ln_f")]
        if spec.position == "learned":
            links += link("embedder.position.table", f"{prefix}wpe", bias=False)
        for number in range(len(spec.mixers_by_layer)):
            ours, theirs = f"layers.{number}", f"{prefix}h.{number}"
            for part, name in {
                "mixer.project": "attn.c_attn",
                "mixer.out": "attn.c_proj",
                "feedforward.up": "mlp.c_fc",
                "feedforward.down": "mlp.c_proj",
            }.items():
                links += link(f"{ours}.{part}", f"{theirs}.{name}", form="transposed")
            links += link(f"{ours}.mixer_sublayer.norm", f"{theirs}.ln_1")
            links += link(f"{ours}.feedforward_sublayer.norm", f"{theirs}.ln_2")
        return links if spec.tied else [*links, Link("head.own", (self.own_head,))]

    def config(self, spec: LanguageModelSpec, labels: Sequence[str] | None) -> dict[str, Any]:
        layers, heads, hidden = block_shape(spec)
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": self.model_type,
            "vocab_size": spec.vocabulary,
            "n_embd": spec.width,
            "n_layer": layers,
            "n_head": heads,
            "n_inner": hidden,
            "n_positions": spec.max_positions if spec.position == "learned" else FIXED_POSITIONS,
            "activation_function": their_activation(spec.activation),
            "resid_pdrop": spec.dropout,
            "attn_pdrop": spec.dropout,
            "embd_pdrop": spec.embedding_dropout,
            "layer_norm_epsilon": spec.norm_eps,
            "tie_word_embeddings": spec.tied and spec.position == "learned",
        }

    def extend(self, model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """With the table of fixed positions. Embeddings are scaled then, so that a tied head gets its own matrix."""
        if not isinstance(model, LanguageModel) or model.spec.position == "learned":
            return tensors
        embeddings = tensors[f"{self.prefix}wte.weight"]
        table = model.embedder.position.embed(torch.arange(FIXED_POSITIONS, device=embeddings.device))
        assert table is not None, "a sinusoidal encoding is added to the embeddings"
        head = {self.own_head: embeddings} if model.spec.tied else {}
        return {
            **head,
            **tensors,
            f"{self.prefix}wte.weight": math.sqrt(model.spec.width_in) * embeddings,
            f"{self.prefix}wpe.weight": table.to(embeddings.dtype),
        }


class GPTNeoX(Decoder):
    model_type, prefix, probe = "gpt_neox", "gpt_neox.", "embed_in.weight"
    positions = ("rotary",)
    own_head = "embed_out.weight"

    def spec(self, config: Config, source: Source) -> LanguageModelSpec:
        config.require("attention_bias", True, default=True)
        values = Config({**config, **self._rotary(config)}, config.file)
        share = values.number("partial_rotary_factor", "rotary_pct", default=0.25)
        base = values.number("rope_theta", "rotary_emb_base", default=10000.0)
        return LanguageModelSpec(
            vocabulary=config.integer("vocab_size"),
            width=config.integer("hidden_size"),
            layers=config.integer("num_hidden_layers"),
            heads=config.integer("num_attention_heads"),
            feedforward=config.integer("intermediate_size"),
            activation=config.translate("hidden_act", ACTIVATIONS, "gelu"),
            position="rotary",
            rope_theta=None if base == 10000 else base,
            partial_rotary_factor=None if share == 1 else share,
            parallel_residual="none" if config.get("use_parallel_residual", True) is False else "two-norms",
            norm_eps=config.number("layer_norm_eps", default=1e-5),
            dropout=config.number("hidden_dropout", default=0.0),
            tied=config.get("tie_word_embeddings", False) is True,
        )

    def misfit(self, model: nn.Module) -> str:
        reason = self.decoder_misfit(model, free=("rope_theta", "partial_rotary_factor", "parallel_residual"))
        if not reason and isinstance(model, LanguageModel) and model.spec.parallel_residual == "one-norm":
            return "its parallel residual has one norm, and the stock class has two"
        return reason

    def _rotary(self, config: Config) -> Mapping[str, Any]:
        """What a configuration says of rotary positions alone, if it has such a part. Scaled angles are refused."""
        name = next((name for name in ("rope_parameters", "rope_scaling") if config.get(name)), None)
        given = {} if name is None else config[name]
        if not isinstance(given, Mapping):
            raise DataError(f"{config.file}: {name}={given!r} must hold names and values")
        for key in ("rope_type", "type"):  # older files have the second
            Config(given, config.file).require(key, "default", default="default")
        return given

    def links(self, spec: LanguageModelSpec, prefix: str) -> list[Link]:
        heads = block_shape(spec)[1]
        links = [
            *link("embedder.embedding", f"{prefix}embed_in", bias=False),
            *link("layers.norm", f"{prefix}final_layer_norm"),
        ]
        for number in range(len(spec.mixers_by_layer)):
            ours, theirs = f"layers.{number}", f"{prefix}layers.{number}"
            query_key_value = f"{theirs}.attention.query_key_value"
            links += link(f"{ours}.mixer.project", query_key_value, form="by-head", heads=heads)
            for part, name in {
                "mixer.out": "attention.dense",
                "feedforward.up": "mlp.dense_h_to_4h",
                "feedforward.down": "mlp.dense_4h_to_h",
                "mixer_sublayer.norm": "input_layernorm",
                "feedforward_sublayer.norm": "post_attention_layernorm",
            }.items():
                links += link(f"{ours}.{part}", f"{theirs}.{name}")
        return links if spec.tied else [*links, Link("head.own", (self.own_head,))]

    def config(self, spec: LanguageModelSpec, labels: Sequence[str] | None) -> dict[str, Any]:
        layers, heads, hidden = block_shape(spec)
        return {
            "architectures": ["GPTNeoXForCausalLM"],
            "model_type": self.model_type,
            "vocab_size": spec.vocabulary,
            "hidden_size": spec.width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": hidden,
            "hidden_act": their_activation(spec.activation),
            "hidden_dropout": spec.dropout,
            "attention_dropout": spec.dropout,
            "layer_norm_eps": spec.norm_eps,
            "max_position_embeddings": FIXED_POSITIONS,
            "use_parallel_residual": spec.parallel_residual == "two-norms",
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": spec.rope_theta or 10000.0,
                "partial_rotary_factor": spec.partial_rotary_factor or 1.0,
            },
            "tie_word_embeddings": spec.tied,
        }
