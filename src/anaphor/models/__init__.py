"""Models: embedder, backbone, head. `PRESETS` names them; `build` makes one. Importing this imports no torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anaphor.models.backbone import Backbone, Block, BlockSpec
    from anaphor.models.embedder import PatchEmbedder, TokenEmbedder
    from anaphor.models.embedding import Embedding
    from anaphor.models.head import ClassHead, Head
    from anaphor.models.head_wrapper import HeadWrapper
    from anaphor.models.image_model import ImageClassifier
    from anaphor.models.image_spec import ImageModelSpec
    from anaphor.models.language_model import LanguageModel, ModelState, Summary, summarize
    from anaphor.models.language_model_spec import LanguageModelSpec
    from anaphor.models.presets import (
        IMAGE_PRESETS,
        PRESETS,
        SEQ2SEQ_PRESETS,
        TEXT_PRESETS,
        build,
        build_image_classifier,
        build_seq2seq,
        build_text_encoder,
        image_preset,
        preset,
        seq2seq_preset,
        text_preset,
    )
    from anaphor.models.seq2seq import Seq2Seq
    from anaphor.models.seq2seq_spec import Seq2SeqSpec
    from anaphor.models.spec import BackboneSpec
    from anaphor.models.text_encoder import TextEncoder
    from anaphor.models.text_spec import TextEncoderSpec
    from anaphor.models.textbook import (
        FFN,
        AttentionHead,
        AttentionResidual,
        BilinearAttention,
        DialogueGPT,
        DialogueLoss,
        MultiHeadedAttention,
        PatchEmbed,
        Transformer,
    )

__all__ = [
    "FFN",
    "IMAGE_PRESETS",
    "PRESETS",
    "SEQ2SEQ_PRESETS",
    "TEXT_PRESETS",
    "AttentionHead",
    "AttentionResidual",
    "Backbone",
    "BackboneSpec",
    "BilinearAttention",
    "Block",
    "BlockSpec",
    "ClassHead",
    "DialogueGPT",
    "DialogueLoss",
    "Embedding",
    "Head",
    "HeadWrapper",
    "ImageClassifier",
    "ImageModelSpec",
    "LanguageModel",
    "LanguageModelSpec",
    "ModelState",
    "MultiHeadedAttention",
    "PatchEmbed",
    "PatchEmbedder",
    "Seq2Seq",
    "Seq2SeqSpec",
    "Summary",
    "TextEncoder",
    "TextEncoderSpec",
    "TokenEmbedder",
    "Transformer",
    "build",
    "build_image_classifier",
    "build_seq2seq",
    "build_text_encoder",
    "image_preset",
    "preset",
    "seq2seq_preset",
    "summarize",
    "text_preset",
]
# Imported on first use, so that specs and presets are there without torch.
_MODULES = {
    "backbone": ("Backbone", "Block", "BlockSpec"),
    "embedder": ("PatchEmbedder", "TokenEmbedder"),
    "embedding": ("Embedding",),
    "head": ("ClassHead", "Head"),
    "head_wrapper": ("HeadWrapper",),
    "image_model": ("ImageClassifier",),
    "image_spec": ("ImageModelSpec",),
    "language_model": ("LanguageModel", "ModelState", "Summary", "summarize"),
    "language_model_spec": ("LanguageModelSpec",),
    "presets": (
        *("PRESETS", "build", "preset"),
        *("SEQ2SEQ_PRESETS", "build_seq2seq", "seq2seq_preset"),
        *("IMAGE_PRESETS", "build_image_classifier", "image_preset"),
        *("TEXT_PRESETS", "build_text_encoder", "text_preset"),
    ),
    "seq2seq": ("Seq2Seq",),
    "seq2seq_spec": ("Seq2SeqSpec",),
    "text_encoder": ("TextEncoder",),
    "text_spec": ("TextEncoderSpec",),
    "spec": ("BackboneSpec",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # which would take every name for known

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'anaphor.models' has no attribute {name!r}")
        return getattr(import_module(f"anaphor.models.{_HOME.get(name, 'textbook')}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
