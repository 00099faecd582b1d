"""Options of a model among the settings of a run. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from anaphor.config import optional_section
from anaphor.errors import ConfigError
from anaphor.models.language_model_spec import LanguageModelSpec
from anaphor.models.spec import reject_unused_by_model
from anaphor.training.spec import ModelSection

if TYPE_CHECKING:
    from anaphor.models.language_model import LanguageModel

REPLACED_LAYERS: Mapping[str, tuple[str, ...]] = {
    "model": (
        "mixers",
        "layer_widths",
        "layer_norms",
        "layer_residuals",
        "layer_dropouts",
        "layer_kernel_sizes",
        "layer_short_convs",
        "layer_positions",
        "layer_windows",
    ),
    "width": ("layer_widths",),
    "norm": ("layer_norms",),
    "residual": ("layer_residuals",),
    "dropout": ("layer_dropouts",),
    "kernel_size": ("layer_kernel_sizes",),
    "short_conv": ("layer_short_convs",),
    "position": ("layer_positions",),
    "window": ("layer_windows",),
}
"""`RunSpec.replaced` of a stack of layers: what a flag says of all replaces what a file says of each."""


def drop_implied_options(
    settings: Mapping[str, Any], kind: Any, used_settings: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Settings without options of the model that follow from its preset and the other options.

    Args:
        settings: What is given.
        kind: The class with the options of the model.
        used_settings: The settings that the model of these settings uses; raises `ConfigError` where there is none.
    """
    kept = dict(settings)
    wanted = used_settings(kept)
    for name in [field.name for field in fields(kind) if kept.get(field.name) not in (None, ())]:
        fewer = {other: value for other, value in kept.items() if other != name}
        try:
            if used_settings(fewer) == wanted:
                kept = fewer
        except ConfigError:  # the preset does not work without it
            continue
    return kept


def pick_options(kind: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are options of this class; None for those that do not apply."""
    return {field.name: settings.get(field.name) for field in fields(kind)}


LanguageModelOptions: Any = optional_section(
    LanguageModelSpec, "LanguageModelOptions", "model", exclude=["vocabulary", "words", "extras"]
)


@dataclass(frozen=True, kw_only=True)
class LanguageModelSection(LanguageModelOptions, ModelSection):  # type: ignore[misc] # made at run time
    """Model preset and its options. A task of your own inherits it before `RunSpec`, and has the same flags."""

    presets: ClassVar[str | None] = "lm"
    replaced: ClassVar[Mapping[str, tuple[str, ...]]] = REPLACED_LAYERS

    model: str = "lstm"
    """Model preset; `anaphor models` lists them."""

    def model_spec(self, vocabulary: int, words: tuple[str, ...] | None = None) -> LanguageModelSpec:
        """The model's own spec: the preset with the options that were given. `words` are those of the vocabulary."""
        from anaphor.models.presets import preset

        run: Any = self
        sizes: dict[str, Any] = {"vocabulary": vocabulary, "words": words}
        model = preset(self.model, **sizes, extras=run.model_extras(), **run.model_options())
        run.check_extras(model)
        return model

    def build_model(self, vocabulary: int, words: tuple[str, ...] | None = None) -> LanguageModel:
        """A model with freshly drawn weights."""
        return self.model_spec(vocabulary, words).build()

    def reject_unused_flags(self, flags: Collection[str]) -> None:
        reject_unused_by_model(self, flags, lambda: self.model_spec(vocabulary=2))

    @classmethod
    def drop_implied(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of a run's spec file without those that its preset and the other options imply."""
        parent: Any = super()
        kept: dict[str, Any] = parent.drop_implied(settings)
        if kept.get("init") is not None:  # the model comes with pretrained weights
            return kept
        return drop_implied_options(
            kept, LanguageModelOptions, lambda kept: cls(**kept).model_spec(vocabulary=2).used_settings()
        )
