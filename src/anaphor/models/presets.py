"""Models by name. A preset is a few fields of a spec; whatever it does not say keeps its default."""

from __future__ import annotations

from typing import Any

from anaphor.config import check_fields, look_up
from anaphor.mixers import MIXERS, options_of
from anaphor.models.language_model import LanguageModel, LanguageModelSpec
from anaphor.models.options import OF_SOME_LAYERS
from anaphor.models.seq2seq import Seq2Seq, Seq2SeqSpec

# The textbook's stack: layer on layer, with nothing round them.
_PLAIN = {
    "norm": "none",
    "residual": False,
    "feedforward": 0,
    "tied": False,
    "head_bias": True,
    "init_scheme": "uniform",
}
# What a preset may say to layers of its own, and others need not understand.
FOR_SOME = OF_SOME_LAYERS | {"position", "memory"}
_GPT = {"mixers": ("attention",), "position": "learned", "activation": "gelu-tanh"}


def _gpt(layers: int, heads: int, width: int, **more: Any) -> dict[str, Any]:
    return {**_GPT, "layers": layers, "heads": heads, "width": width, **more}


PRESETS: dict[str, dict[str, Any]] = {
    "rnn-tanh": {**_PLAIN, "mixers": ("rnn-tanh",), "layers": 2},
    "rnn-relu": {**_PLAIN, "mixers": ("rnn-relu",), "layers": 2},
    "gru": {**_PLAIN, "mixers": ("gru",), "layers": 2},
    "lstm": {**_PLAIN, "mixers": ("lstm",), "layers": 2},
    "transformer": {"mixers": ("attention",), "layers": 4, "position": "sinusoidal"},
    "transformer-xl": {"mixers": ("attention",), "layers": 4, "position": "relative", "memory": 128},
    "linear": {"mixers": ("linear",), "layers": 4, "position": "sinusoidal"},
    # The recurrent layer tells the attention above it where things stand, so no position has to get in otherwise.
    "hybrid": {"mixers": ("lstm", "attention"), "layers": 4, "memory": 128},
    # A course's model for separate dialogues: heads wider than their share of the width, an output with a constant. The
    # course has no norm before attention; the layers here have one.
    "dialogue-gpt": _gpt(6, 3, 128, head_width=64, feedforward=128, activation="gelu", tied=False, head_bias=True),
    # Sizes as published with minGPT, whose own small ones do not tie the output to the word vectors.
    "gpt-nano": _gpt(3, 3, 48, tied=False),
    "gpt-micro": _gpt(4, 4, 128, tied=False),
    "gpt-mini": _gpt(6, 6, 192, tied=False),
    "gopher-44m": _gpt(8, 16, 512, tied=False),
    "openai-gpt": _gpt(12, 12, 768, norm="after", max_positions=512),
    "gpt2": _gpt(12, 12, 768),
    "gpt2-medium": _gpt(24, 16, 1024),
    "gpt2-large": _gpt(36, 20, 1280),
    "gpt2-xl": _gpt(48, 25, 1600),
}


def preset(name: str, *, vocabulary: int, **overrides: Any) -> LanguageModelSpec:
    """The spec of that name, with some fields changed."""
    fields = {**look_up(PRESETS, name, "model"), **overrides, "vocabulary": vocabulary}
    check_fields(LanguageModelSpec, fields)
    if "mixers" in overrides and "layers" not in overrides:
        fields["layers"] = None  # as many as are named now
    return LanguageModelSpec(**_heard(LanguageModelSpec, fields, overrides))


def _heard(kind: type[LanguageModelSpec] | type[Seq2SeqSpec], fields: dict[str, Any], said: dict[str, Any]) -> Any:
    """Fields without what only the preset says, where layers that took the place of its own cannot understand it."""
    layers = [name for part in ("mixers", "encoder", "decoder") for name in fields.get(part) or ()]
    known = frozenset().union(*(options_of(name) for name in layers if name in MIXERS))
    asked = {name: value for name, value in fields.items() if name in said or name in known or name not in FOR_SOME}
    bare = kind(**asked)
    return asked | {name: value for name, value in fields.items() if name in FOR_SOME and bare.hears(name, value)}


def build(name: str, *, vocabulary: int, **overrides: Any) -> LanguageModel:
    """A new model by name: `build("lstm", vocabulary=10_000, width=200, layers=2)`."""
    return preset(name, vocabulary=vocabulary, **overrides).build()


_PLAIN_PAIR = {**_PLAIN, "tied": "none"}

SEQ2SEQ_PRESETS: dict[str, dict[str, Any]] = {
    # Luong, Pham and Manning (2015): the decoder starts where the encoder stopped, and feeds back what attention found.
    "luong": {**_PLAIN_PAIR, "encoder": ("lstm",), "decoder": ("lstm",), "layers": 1},
    "gru-attention": {**_PLAIN_PAIR, "encoder": ("bidirectional-gru",), "decoder": ("gru",), "layers": 1},
    # The size that suits some ten thousands of sentences, as of Multi30k. With GPT-2's narrow first weights the
    # decoder hears nothing of the encoder for hundreds of steps.
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
    # A recurrent encoder knows by itself where its tokens stand; the decoder is told.
    "mixed": {
        "encoder": ("bidirectional-lstm",),
        "decoder": ("attention",),
        "layers": 2,
        "position": "sinusoidal",
        "init_scheme": "uniform",
    },
}


def seq2seq_preset(name: str, *, source_vocabulary: int, vocabulary: int, **overrides: Any) -> Seq2SeqSpec:
    """The spec of that name, with some fields changed."""
    fields = {**look_up(SEQ2SEQ_PRESETS, name, "model"), **overrides}
    check_fields(Seq2SeqSpec, fields)
    if "layers" not in overrides and "decoder" in overrides:
        fields["layers"] = max(fields["layers"], len(fields["decoder"]))  # at least as many as are named now
    fields |= {"source_vocabulary": source_vocabulary, "vocabulary": vocabulary}
    return Seq2SeqSpec(**_heard(Seq2SeqSpec, fields, overrides))


def build_seq2seq(name: str, *, source_vocabulary: int, vocabulary: int, **overrides: Any) -> Seq2Seq:
    """A new conditional language model: `build_seq2seq("luong", source_vocabulary=8_000, vocabulary=6_000)`."""
    return seq2seq_preset(name, source_vocabulary=source_vocabulary, vocabulary=vocabulary, **overrides).build()
