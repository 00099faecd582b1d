"""ViT: image classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
from anaphor.models.image_model import ImageClassifier
from anaphor.models.image_spec import ImageModelSpec


class ViT(Kind):
    model_type, prefix, probe = "vit", "vit.", "embeddings.cls_token"

    def spec(self, config: Config, source: Source) -> ImageModelSpec:
        config.require("qkv_bias", True, default=True)
        if "classifier.weight" not in source:
            raise DataError(f"{source.path} has no classifier: convert a folder of ViTForImageClassification")
        return ImageModelSpec(
            classes=source.shape("classifier.weight")[0],
            channels=config.integer("num_channels", default=3),
            image_size=config.integer("image_size", default=224),
            patch_size=config.integer("patch_size", default=16),
            pooling="class",
            width=config.integer("hidden_size"),
            layers=config.integer("num_hidden_layers"),
            heads=config.integer("num_attention_heads"),
            feedforward=config.integer("intermediate_size"),
            activation=config.translate("hidden_act", ACTIVATIONS, "gelu"),
            mask="everything",
            norm_eps=config.number("layer_norm_eps", default=1e-12),
            dropout=config.number("hidden_dropout_prob", default=0.0),
        )

    def links(self, spec: ImageModelSpec, prefix: str) -> list[Link]:
        embeddings = f"{prefix}embeddings"
        links = [
            *link("embedder.patches", f"{embeddings}.patch_embeddings.projection"),
            Link("embedder.class_token", (f"{embeddings}.cls_token",)),
            Link("embedder.position.weight", (f"{embeddings}.position_embeddings",), "batched"),
            *link("head.norm", f"{prefix}layernorm"),
            Link("head.own", ("classifier.weight",)),
            Link("head.bias", ("classifier.bias",)),
        ]
        for number in range(len(spec.mixers_by_layer)):
            ours, theirs = f"layers.{number}", f"{prefix}encoder.layer.{number}"
            attention = f"{theirs}.attention.attention"
            links += link(f"{ours}.mixer.project", *(f"{attention}.{name}" for name in ("query", "key", "value")))
            for part, name in {
                "mixer.out": "attention.output.dense",
                "mixer_sublayer.norm": "layernorm_before",
                "feedforward.up": "intermediate.dense",
                "feedforward.down": "output.dense",
                "feedforward_sublayer.norm": "layernorm_after",
            }.items():
                links += link(f"{ours}.{part}", f"{theirs}.{name}")
        return links

    def misfit(self, model: nn.Module) -> str:
        if not isinstance(model, ImageClassifier):
            return f"it is a {type(model).__name__}, not an image classifier"
        spec = model.spec
        reason = stack_misfit(spec, norm="before", mask="everything")
        if reason:
            return reason
        if spec.pooled != "class":
            return f"its pooling is {spec.pooled!r}, and ViT reads the class token"
        if spec.position != "learned":
            return f"its position encoding is {spec.position!r}, and ViT has learned positions"
        if spec.registers:
            return f"it has {spec.registers} registers, and ViT has none"
        return "" if spec.layer_scale is None else "it has LayerScale, and ViT has not"

    def config(self, spec: ImageModelSpec, labels: Sequence[str] | None) -> dict[str, Any]:
        layers, heads, hidden = block_shape(spec)
        return {
            "architectures": ["ViTForImageClassification"],
            "model_type": self.model_type,
            "hidden_size": spec.width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": hidden,
            "hidden_act": their_activation(spec.activation),
            "hidden_dropout_prob": spec.dropout,
            "attention_probs_dropout_prob": spec.dropout,
            "layer_norm_eps": spec.norm_eps,
            "image_size": spec.image_size,
            "patch_size": spec.patch,
            "num_channels": spec.channels,
            "qkv_bias": True,
            **label_config(labels),
        }
