"""Models by name. A preset is a few fields of a spec; the others have their defaults. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from anaphor.config import check_fields, look_up
from anaphor.mixers.spec import LayerOptions, options_of
from anaphor.models.image_spec import ImageModelSpec
from anaphor.models.language_model_spec import LanguageModelSpec
from anaphor.models.seq2seq_spec import Seq2SeqSpec
from anaphor.models.spec import option_names, repeat_last
from anaphor.models.stacks import PLAIN, choose_blocks, choose_position, names_other_mixers
from anaphor.models.text_spec import TextEncoderSpec
from anaphor.registry import MIXERS, RECURRENCES, Registry, collect_extras

if TYPE_CHECKING:
    from anaphor.models.image_model import ImageClassifier
    from anaphor.models.language_model import LanguageModel
    from anaphor.models.seq2seq import Seq2Seq
    from anaphor.models.text_encoder import TextEncoder

Spec = TypeVar("Spec", LanguageModelSpec, Seq2SeqSpec, ImageModelSpec, TextEncoderSpec)

_GPT = {"mixers": ("attention",), "position": "learned", "activation": "gelu-tanh"}


def _gpt(layers: int, heads: int, width: int, **more: Any) -> dict[str, Any]:
    return {**_GPT, "layers": layers, "heads": heads, "width": width, **more}


PRESETS = Registry(
    "model",
    {
        "rnn-tanh": {**PLAIN, "mixers": ("rnn-tanh",), "layers": 2},
        "rnn-relu": {**PLAIN, "mixers": ("rnn-relu",), "layers": 2},
        "gru": {**PLAIN, "mixers": ("gru",), "layers": 2},
        "lstm": {**PLAIN, "mixers": ("lstm",), "layers": 2},
        "qrnn": {**PLAIN, "mixers": ("qrnn",), "layers": 2},
        "transformer": {"mixers": ("attention",), "layers": 4, "position": "sinusoidal"},
        "transformer-xl": {"mixers": ("attention",), "layers": 4, "position": "relative", "memory": 128},
        "linear": {"mixers": ("linear",), "layers": 4, "position": "sinusoidal"},
        **{name: {"mixers": (name,), "layers": 4} for name in RECURRENCES},
        # Four papers put a short convolution of four tokens behind the projections.
        **{
            name: {"mixers": (name,), "layers": 4, "short_conv": 4}
            for name in ("delta", "gated-delta", "mamba2", "rg-lru")
        },
        # The recurrent layer encodes positions for the attention above it.
        "hybrid": {"mixers": ("lstm", "attention"), "layers": 4, "memory": 128},
        # A course's model for separate dialogues: wide heads, a bias of the head, and a norm before
        # attention, which the course does not have.
        "dialogue-gpt": _gpt(6, 3, 128, head_width=64, feedforward=128, activation="gelu", tied=False, head_bias=True),
        # Sizes as published with minGPT, which does not tie the head of the small ones.
        "gpt-nano": _gpt(3, 3, 48, tied=False),
        "gpt-micro": _gpt(4, 4, 128, tied=False),
        "gpt-mini": _gpt(6, 6, 192, tied=False),
        "gopher-44m": _gpt(8, 16, 512, tied=False),
        "openai-gpt": _gpt(12, 12, 768, norm="after", max_positions=512),
        "gpt2": _gpt(12, 12, 768),
        "gpt2-medium": _gpt(24, 16, 1024),
        "gpt2-large": _gpt(36, 20, 1280),
        "gpt2-xl": _gpt(48, 25, 1600),
    },
)


def preset(name: str, *, vocabulary: int, **overrides: Any) -> LanguageModelSpec:
    """The spec of that name, with some settings changed."""
    settings = _choose_stack(look_up(PRESETS, name, "model"), overrides)
    return _override(LanguageModelSpec, collect_extras({**settings, **overrides, "vocabulary": vocabulary}), overrides)


def _choose_stack(settings: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """The settings of a preset, with blocks and positions for the mixers that are named in place of its own."""
    if not names_other_mixers(settings, overrides):
        return settings
    blocks = {name: value for name, value in PRESETS["transformer"].items() if name != "position"}
    settings = choose_blocks(settings, overrides, blocks)
    carried, restarted = (PRESETS[name]["position"] for name in ("transformer-xl", "transformer"))
    return {**settings, "position": choose_position(settings, overrides, carried, restarted)}


def _override(kind: type[Spec], settings: dict[str, Any], overrides: dict[str, Any]) -> Spec:
    """The spec without options of the preset for layers that were replaced by others without these options."""
    check_fields(kind, settings)
    if "mixers" in overrides and "layers" not in overrides:
        settings["layers"] = None  # one for each mixer named
    if "mixers" not in overrides and (settings.get("layers") or 0) > len(settings.get("mixers", ())) > 1:
        # More layers are more of the last one: a recurrent layer stays the only one, below all others.
        settings["mixers"] = repeat_last(settings["mixers"], settings["layers"])
    fields = ("mixers", "decoder") if settings.get("condition") == "none" else ("mixers", "encoder", "decoder")
    mixers = [name for field in fields for name in settings.get(field) or ()]
    accepted = frozenset().union(*(options_of(name) for name in mixers if name in MIXERS))
    optional = option_names(LayerOptions) | {"position"}
    certain = {
        name: value for name, value in settings.items() if name in overrides or name in accepted or name not in optional
    }
    spec = kind(**certain)
    return kind(
        **certain,
        **{name: value for name, value in settings.items() if name not in certain and spec.accepts_option(name, value)},
    )


def build(name: str, *, vocabulary: int, **overrides: Any) -> LanguageModel:
    """A new model by name: `build("lstm", vocabulary=10_000, width=200, layers=2)`."""
    return preset(name, vocabulary=vocabulary, **overrides).build()


_PLAIN_PAIR = {**PLAIN, "tied": "none"}

SEQ2SEQ_PRESETS = Registry(
    "model",
    {
        # Luong, Pham and Manning (2015): the decoder starts from the encoder's final state, with input feeding.
        "luong": {**_PLAIN_PAIR, "encoder": ("lstm",), "decoder": ("lstm",), "layers": 1},
        "gru-attention": {**_PLAIN_PAIR, "encoder": ("bidirectional-gru",), "decoder": ("gru",), "layers": 1},
        # For some ten thousands of sentences, as of Multi30k. With GPT-2's initialization the decoder would ignore the
        # encoder for hundreds of steps.
        "transformer-translation": {
            "encoder": ("attention",),
            "decoder": ("attention",),
            "layers": 4,
            "width": 128,
            "heads": 4,
            "feedforward": 256,
            "activation": "relu",
            "position": "sinusoidal",
            "init_scheme": "uniform",
        },
        # A recurrent encoder needs no position encoding; the decoder has one.
        "mixed": {
            "encoder": ("bidirectional-lstm",),
            "decoder": ("attention",),
            "layers": 2,
            "position": "sinusoidal",
            "init_scheme": "uniform",
        },
    },
)


def seq2seq_preset(name: str, *, source_vocabulary: int, vocabulary: int, **overrides: Any) -> Seq2SeqSpec:
    """The spec of that name, with some settings changed."""
    settings = {**look_up(SEQ2SEQ_PRESETS, name, "model"), **overrides}
    if "layers" not in overrides and "decoder" in overrides:  # at least one for each mixer named
        settings["layers"] = max(settings.get("layers") or 1, len(settings["decoder"]))
    settings |= {"source_vocabulary": source_vocabulary, "vocabulary": vocabulary}
    return _override(Seq2SeqSpec, settings, overrides)


def build_seq2seq(name: str, *, source_vocabulary: int, vocabulary: int, **overrides: Any) -> Seq2Seq:
    """A new encoder-decoder by name: `build_seq2seq("luong", source_vocabulary=8_000, vocabulary=6_000)`."""
    return seq2seq_preset(name, source_vocabulary=source_vocabulary, vocabulary=vocabulary, **overrides).build()


_VIT = {"mixers": ("attention",), "mask": "everything", "position": "learned", "activation": "gelu"}


def _vit(layers: int, heads: int, width: int, **more: Any) -> dict[str, Any]:
    return {**_VIT, "layers": layers, "heads": heads, "width": width, **more}


IMAGE_PRESETS = Registry(
    "model",
    {
        # For small images and a minute on a CPU. With positions as large as the patches themselves it learns within an
        # epoch which patches are neighbors; with small learned ones that takes many.
        "vit-nano": _vit(4, 4, 64, position="sinusoidal", activation="relu", init_scheme="uniform"),
        # Sizes as published with DeiT (Touvron et al., 2021) and in timm.
        "vit-tiny": _vit(12, 3, 192),
        "vit-small": _vit(12, 6, 384),
        "vit-base": _vit(12, 12, 768),
    },
)


def image_preset(name: str, *, classes: int, image_size: int, channels: int = 3, **overrides: Any) -> ImageModelSpec:
    """The spec of that name, with some settings changed."""
    settings = {**look_up(IMAGE_PRESETS, name, "model"), **overrides}
    settings |= {"classes": classes, "image_size": image_size, "channels": channels}
    return _override(ImageModelSpec, settings, overrides)


def build_image_classifier(
    name: str, *, classes: int, image_size: int, channels: int = 3, **overrides: Any
) -> ImageClassifier:
    """A new image classifier by name: `build_image_classifier("vit-tiny", classes=10, image_size=32)`."""
    return image_preset(name, classes=classes, image_size=image_size, channels=channels, **overrides).build()


_PLAIN_TEXT = {name: value for name, value in PLAIN.items() if name not in ("tied", "head_bias")}
_BERT = {
    "mixers": ("attention",),
    "mask": "everything",
    "position": "learned",
    "max_positions": 512,
    "norm": "after",
    "norm_eps": 1e-12,
    "embedding_norm": True,
    "token_types": 2,
    "pooling": "cls",
    "pooler": "tanh",
}


def _bert(layers: int, heads: int, width: int) -> dict[str, Any]:
    return {**_BERT, "layers": layers, "heads": heads, "width": width}


TEXT_PRESETS = Registry(
    "model",
    {
        "lstm": {**_PLAIN_TEXT, "mixers": ("lstm",), "layers": 1, "width": 128, "pooling": "last"},
        "bidirectional-lstm": {**_PLAIN_TEXT, "mixers": ("bidirectional-lstm",), "layers": 1, "width": 128},
        "transformer": {
            "mixers": ("attention",),
            "layers": 2,
            "width": 128,
            "mask": "everything",
            "position": "rotary",  # which words are neighbors is learned sooner than from sinusoids
            "init_scheme": "uniform",
        },
        # The recurrent layer encodes positions for the attention above it. With rotary positions as well and this
        # initialization every seed learns nested negation, without them some do.
        "hybrid": {
            "mixers": ("bidirectional-lstm", "attention"),
            "width": 128,
            "mask": "everything",
            "position": "rotary",
            "init_scheme": "uniform",
        },
        # Linear, without layers: `anaphor.models.bag_of_words`.
        "bag-of-words": {},
        # Sizes as published with BERT (Devlin et al., 2019) and its small versions (Turc et al., 2019).
        "bert-tiny": _bert(2, 2, 128),
        "bert-mini": _bert(4, 4, 256),
        "bert-small": _bert(4, 8, 512),
        "bert-base": _bert(12, 12, 768),
        "bert-large": _bert(24, 16, 1024),
    },
)


def text_preset(name: str, *, vocabulary: int, classes: int | None = None, **overrides: Any) -> TextEncoderSpec:
    """The spec of that name, with some settings changed."""
    settings = choose_blocks(look_up(TEXT_PRESETS, name, "model"), overrides, TEXT_PRESETS["transformer"])
    return _override(
        TextEncoderSpec, {**settings, **overrides, "vocabulary": vocabulary, "classes": classes}, overrides
    )


def build_text_encoder(name: str, *, vocabulary: int, classes: int | None = None, **overrides: Any) -> TextEncoder:
    """A new text encoder by name: `build_text_encoder("lstm", vocabulary=10_000, classes=2)`."""
    return text_preset(name, vocabulary=vocabulary, classes=classes, **overrides).build()
