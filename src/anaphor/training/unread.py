"""Unread: what was said of a run and nothing in it depends on."""

from __future__ import annotations

from collections.abc import Collection

from anaphor.errors import ConfigError
from anaphor.training.spec import LanguageRunSpec, RunSpec, TranslationRunSpec

OF_STREAMS = ("bptt", "protocol", "eval_batch_size")
"""What separate examples know nothing of."""
OF_SOME_MODELS = {
    "max_positions": "means nothing to position={position!r}, which has no table of them; it belongs to learned",
    "activation": "means nothing without a feed-forward network: give it a width by --feedforward",
    "dropout_kind": "means nothing where nothing is dropped: give a share by --dropout or its like",
}
"""What every model accepts and not every one reads, and why it does not."""
ANY = 2  # tokens in a vocabulary: what a model reads does not depend on it


def refuse_unread(spec: RunSpec, said: Collection[str]) -> None:
    """Refuse what was said and nothing reads. Settings that nobody said by themselves are none of this: a recipe or a
    study speaks of many models at once, and a run from before was begun with what it says."""
    told = [name for name in (*OF_STREAMS, *OF_SOME_MODELS) if name in said and getattr(spec, name, None) is not None]
    for name in told:
        if name in OF_STREAMS and getattr(spec, "batching", "stream") == "padded":
            raise ConfigError(
                f"{name}={getattr(spec, name)!r} is about segments of a text, and examples have none: "
                f"use --batching stream"
            )
    for name in told:
        if name in OF_SOME_MODELS:
            _refuse_unless_read(spec, name)


def _refuse_unless_read(spec: RunSpec, name: str) -> None:
    from anaphor.models.presets import preset, seq2seq_preset  # not above: it brings torch, and --help must be quick

    position = "none"
    if isinstance(spec, LanguageRunSpec):
        model = preset(spec.model, vocabulary=ANY, **spec.model_options())
        read, position = model.reads(name), model.position
    elif isinstance(spec, TranslationRunSpec):
        pair = seq2seq_preset(spec.model, source_vocabulary=ANY, vocabulary=ANY, **spec.model_options())
        sides = [pair.decoding(), *([] if pair.condition == "none" else [pair.encoding()])]
        read, position = any(side.reads(name) for side in sides), pair.position
    else:
        return
    if not read:
        why = OF_SOME_MODELS[name].format(position=position)
        raise ConfigError(f"{name}={getattr(spec, name)!r} {why}")
