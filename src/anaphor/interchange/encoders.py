"""BERT, RoBERTa, DistilBERT and MPNet: text encoders."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import nn

from anaphor.errors import DataError
from anaphor.interchange.folder import Config, Source
from anaphor.interchange.kind import (
    ACTIVATIONS,
    Kind,
    Link,
    block_shape,
    label_config,
    link,
    stack_misfit,
    their_activation,
)
from anaphor.models.text_encoder import TextEncoder
from anaphor.models.text_spec import TextEncoderSpec


class Encoder(Kind):
    """What the four have in common: post-norm layers of attention over whole texts."""

    probe = "embeddings.word_embeddings.weight"
    architecture: ClassVar[str]
    """First part of the names of classes."""
    layer: ClassVar[str]
    """Name of layer {}."""
    qkv: ClassVar[tuple[str, str, str]]
    parts: ClassVar[dict[str, str]]
    """Names of our parts of a layer, without queries, keys and values."""
    head: ClassVar[str]
    dense: ClassVar[str]
    """Dense layer before the head, in classes for classification."""
    base_pooler: ClassVar[str] = "pooler.dense"
    """Dense layer in the class without a head, after the prefix; empty where there is none."""
    pooler: ClassVar[str] = "tanh"

    def spec(self, config: Config, source: Source) -> TextEncoderSpec:
        config.require("is_decoder", False, default=False)
        config.require("position_embedding_type", "absolute", default="absolute")
        prefix, head = self.prefix_in(source), f"{self.head}.weight"
        classes = source.shape(head)[0] if head in source else None
        if classes is None and any(name.startswith("classifier.") for name in source):
            raise DataError(f"{source.path} has a classifier without the tensor {head!r}")
        dense = self.dense_layer(prefix, classes)
        dropout = config.number("hidden_dropout_prob", "dropout", default=0.1)
        own = self.options(config)
        return TextEncoderSpec(
            vocabulary=config.integer("vocab_size"),
            classes=classes,
            width=config.integer("hidden_size", "dim"),
            layers=config.integer("num_hidden_layers", "n_layers"),
            heads=config.integer("num_attention_heads", "n_heads"),
            feedforward=config.integer("intermediate_size", "hidden_dim"),
            activation=config.translate(self.activation_name, ACTIVATIONS, "gelu"),
            mask="everything",
            norm="after",
            norm_eps=config.number("layer_norm_eps", default=1e-12),
            embedding_norm=True,
            dropout=dropout,
            output_dropout=config.number("classifier_dropout", "seq_classif_dropout", default=dropout),
            pooling="cls",
            pooler=self.pooler if dense and f"{dense}.weight" in source else "none",
            **own,
        )

    activation_name: ClassVar[str] = "hidden_act"

    @abstractmethod
    def options(self, config: Config) -> dict[str, Any]:
        """Token types and positions."""

    def dense_layer(self, prefix: str, classes: int | None) -> str:
        """Name of the dense layer after pooling."""
        if classes is not None:
            return self.dense.format(prefix=prefix)
        return f"{prefix}{self.base_pooler}" if self.base_pooler else ""

    def links(self, spec: TextEncoderSpec, prefix: str) -> list[Link]:
        embeddings = f"{prefix}embeddings"
        links = [
            *link("embedder.embedding", f"{embeddings}.word_embeddings", bias=False),
            *link("embedder.position.table", f"{embeddings}.position_embeddings", bias=False),
            *link("embedder.norm", f"{embeddings}.LayerNorm"),
        ]
        if spec.token_types:
            links += link("embedder.token_types", f"{embeddings}.token_type_embeddings", bias=False)
        for number in range(len(spec.mixers_by_layer)):
            ours, theirs = f"layers.{number}", f"{prefix}{self.layer.format(number)}"
            links += link(f"{ours}.mixer.project", *(f"{theirs}.{name}" for name in self.qkv))
            for part, name in self.parts.items():
                links += link(f"{ours}.{part}", f"{theirs}.{name}")
        if spec.pooler != "none":
            links += link("pooler", self.dense_layer(prefix, spec.classes))
        if spec.classes is not None:
            links += [Link("head.own", (f"{self.head}.weight",)), Link("head.bias", (f"{self.head}.bias",))]
        return links

    def misfit(self, model: nn.Module) -> str:
        if not isinstance(model, TextEncoder):
            return f"it is a {type(model).__name__}, not a text encoder"
        spec = model.spec
        reason = stack_misfit(spec, norm="after", mask="everything")
        if reason:
            return reason
        if not spec.embedding_norm:
            return "its embeddings have no layer norm"
        if spec.embedder_position != "learned":
            return f"its position encoding is {spec.position!r}, and the stock class has learned positions"
        if spec.pooling != "cls":
            return f"its pooling is {spec.pooling!r}, and the stock class reads the first token"
        if spec.classes is not None and not spec.head_bias:
            return "its head has no bias"
        return self.own_misfit(spec)

    @abstractmethod
    def own_misfit(self, spec: TextEncoderSpec) -> str:
        """Why a stack that fits is not of this kind."""

    def config(self, spec: TextEncoderSpec, labels: Sequence[str] | None) -> dict[str, Any]:
        layers, heads, hidden = block_shape(spec)
        suffix = "Model" if spec.classes is None else "ForSequenceClassification"
        return {
            "architectures": [f"{self.architecture}{suffix}"],
            "model_type": self.model_type,
            "vocab_size": spec.vocabulary,
            "hidden_size": spec.width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": hidden,
            "hidden_act": their_activation(spec.activation),
            "hidden_dropout_prob": spec.dropout,
            "attention_probs_dropout_prob": spec.dropout,
            "classifier_dropout": spec.output_dropout,
            "layer_norm_eps": spec.norm_eps,
            "max_position_embeddings": spec.max_positions + spec.position_offset,
            "type_vocab_size": spec.token_types,
            **label_config(labels),
        }


class Bert(Encoder):
    model_type, prefix, architecture = "bert", "bert.", "Bert"
    layer = "encoder.layer.{}"
    qkv = ("attention.self.query", "attention.self.key", "attention.self.value")
    parts: ClassVar[dict[str, str]] = {
        "mixer.out": "attention.output.dense",
        "mixer_sublayer.norm": "attention.output.LayerNorm",
        "feedforward.up": "intermediate.dense",
        "feedforward.down": "output.dense",
        "feedforward_sublayer.norm": "output.LayerNorm",
    }
    head, dense = "classifier", "{prefix}pooler.dense"

    def options(self, config: Config) -> dict[str, Any]:
        return {
            "token_types": config.integer("type_vocab_size", default=2),
            "position": "learned",
            "max_positions": config.integer("max_position_embeddings", default=512),
        }

    def own_misfit(self, spec: TextEncoderSpec) -> str:
        if spec.absolute_positions:
            return f"its position encoding is {spec.position!r} beside learned positions, and BERT has learned ones"
        if spec.position_offset:
            return f"its first position is row {spec.position_offset}, and BERT's is row 0"
        if not spec.token_types:
            return "it has no token types, and BERT has"
        if spec.pooler != "tanh" and spec.classes is not None:
            return f"its pooler is {spec.pooler!r}, and BERT's is 'tanh'"
        return "" if spec.pooler in ("tanh", "none") else f"its pooler is {spec.pooler!r}, and BERT's is 'tanh'"


class Roberta(Bert):
    model_type, prefix, architecture = "roberta", "roberta.", "Roberta"
    head, dense = "classifier.out_proj", "classifier.dense"

    def options(self, config: Config) -> dict[str, Any]:
        offset = config.integer("pad_token_id", default=1) + 1
        own = super().options(config)
        return own | {"position_offset": offset, "max_positions": own["max_positions"] - offset}

    def own_misfit(self, spec: TextEncoderSpec) -> str:
        if spec.absolute_positions:
            return f"its position encoding is {spec.position!r} beside learned positions"
        if not spec.position_offset:
            return "its first position is row 0"
        if not spec.token_types:
            return "it has no token types"
        return "" if spec.pooler == "tanh" or spec.classes is None else f"its pooler is {spec.pooler!r}"

    def config(self, spec: TextEncoderSpec, labels: Sequence[str] | None) -> dict[str, Any]:
        return super().config(spec, labels) | {"pad_token_id": spec.position_offset - 1}


class MPNet(Roberta):
    model_type, prefix, architecture = "mpnet", "mpnet.", "MPNet"
    qkv = ("attention.attn.q", "attention.attn.k", "attention.attn.v")
    parts: ClassVar[dict[str, str]] = {
        "mixer.out": "attention.attn.o",
        "mixer_sublayer.norm": "attention.LayerNorm",
        "feedforward.up": "intermediate.dense",
        "feedforward.down": "output.dense",
        "feedforward_sublayer.norm": "output.LayerNorm",
    }

    def options(self, config: Config) -> dict[str, Any]:
        config.require("relative_attention_num_buckets", 32, default=32)
        own = super().options(config)
        return own | {"token_types": 0, "position": "relative-buckets", "absolute_positions": True}

    def links(self, spec: TextEncoderSpec, prefix: str) -> list[Link]:
        buckets = link("layers.0.mixer.position.table", f"{prefix}encoder.relative_attention_bias", bias=False)
        return [*super().links(spec, prefix), *buckets]

    def own_misfit(self, spec: TextEncoderSpec) -> str:
        if spec.position != "relative-buckets" or spec.token_types or not spec.position_offset:
            return "it has not the positions of MPNet"
        return "" if spec.pooler == "tanh" or spec.classes is None else f"its pooler is {spec.pooler!r}"

    def config(self, spec: TextEncoderSpec, labels: Sequence[str] | None) -> dict[str, Any]:
        own = {name: value for name, value in super().config(spec, labels).items() if name != "type_vocab_size"}
        return own | {"relative_attention_num_buckets": 32}


class DistilBert(Encoder):
    model_type, prefix, architecture = "distilbert", "distilbert.", "DistilBert"
    layer = "transformer.layer.{}"
    qkv = ("attention.q_lin", "attention.k_lin", "attention.v_lin")
    parts: ClassVar[dict[str, str]] = {
        "mixer.out": "attention.out_lin",
        "mixer_sublayer.norm": "sa_layer_norm",
        "feedforward.up": "ffn.lin1",
        "feedforward.down": "ffn.lin2",
        "feedforward_sublayer.norm": "output_layer_norm",
    }
    head, dense, base_pooler, pooler = "classifier", "pre_classifier", "", "relu"
    activation_name = "activation"

    def options(self, config: Config) -> dict[str, Any]:
        # With sinusoidal positions the table is a constant, and in the file as well.
        return {"position": "learned", "max_positions": config.integer("max_position_embeddings", default=512)}

    def own_misfit(self, spec: TextEncoderSpec) -> str:
        if spec.token_types or spec.position_offset or spec.absolute_positions:
            return "it has not the embeddings of DistilBERT"
        if spec.norm_eps != 1e-12:
            return f"its norm_eps is {spec.norm_eps}, and DistilBERT's is 1e-12"
        needed = "none" if spec.classes is None else "relu"
        return "" if spec.pooler == needed else f"its pooler is {spec.pooler!r}, and DistilBERT's is {needed!r}"

    def config(self, spec: TextEncoderSpec, labels: Sequence[str] | None) -> dict[str, Any]:
        own = super().config(spec, labels)
        names = {
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim",
            "hidden_act": "activation",
            "hidden_dropout_prob": "dropout",
            "attention_probs_dropout_prob": "attention_dropout",
            "classifier_dropout": "seq_classif_dropout",
        }
        unused = ("layer_norm_eps", "type_vocab_size")
        return {names.get(name, name): value for name, value in own.items() if name not in unused}
