"""Spec of language models: embeddings, a stack of layers, a head, and the extras beside them. Imports no torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from anaphor.errors import ConfigError
from anaphor.models.spec import TokenModelSpec, find_position
from anaphor.registry import Registry, import_object, model_settings

if TYPE_CHECKING:
    from anaphor.models.language_model import LanguageModel


@dataclass(frozen=True, kw_only=True)
class LanguageModelSpec(TokenModelSpec):
    """A language model: embeddings, a stack of layers and a head."""

    has_extras: ClassVar[bool] = True
    """For messages: an unknown option may be that of an extra."""

    tied: bool = True
    """Tie the weights of the head to the embeddings."""
    words: tuple[str, ...] | None = dataclasses.field(default=None, repr=False)
    """The words of the vocabulary, for embedders that look at their letters."""
    extras: tuple[Any, ...] = ()
    """Settings of extras that are part of the model: of an embedder, of a head."""

    def _check_input(self) -> None:
        super()._check_input()
        object.__setattr__(self, "extras", tuple(self.extras))
        kinds = model_settings()
        for settings in self.extras:
            if type(settings) not in kinds:
                names = ", ".join(sorted({kind.__name__ for kind in kinds})) or "none"
                raise ConfigError(f"extras: {settings!r} are no settings of an embedder or a head (known: {names})")
        if self.words is not None and len(self.words) != self.vocabulary:
            raise ConfigError(f"there are {len(self.words):,} words, but vocabulary={self.vocabulary}")

    @property
    def width_out(self) -> int:
        """Dimension of the vectors that the head reads: a tied one has the matrix of the embeddings."""
        return self.width_in if self.tied else self.widths_by_layer[-1]

    @property
    def carries_by_default(self) -> bool:
        """Whether training carries its state through a text, if nothing else is said: no layer needs whole sequences,
        positions have no limit, and the state does not grow."""
        mixers = [block.mixer for block in self.blocks()]
        has_end = find_position(self.embedder_position).has_limit or any(mixer.limit is not None for mixer in mixers)
        return not has_end and all(mixer.carries_by_default for mixer in mixers)

    @property
    def position_offset(self) -> int:
        """Row of the table of learned positions that the first token has."""
        return 0

    def _derived(self) -> dict[str, Any]:
        return super()._derived() | ({} if self.extras else {"words": None})

    def make_extra(self, kind: Registry) -> tuple[str, Any] | None:
        """The part of this kind that `extras` ask for, and its name; None where they ask for none."""
        parts = []
        for name in kind:
            for settings in self.extras:
                if type(settings) is kind[name].settings:
                    parts.append((name, import_object(kind[name].make)(settings, self)))
        wanted = [(name, part) for name, part in parts if part is not None]
        if len(wanted) > 1:
            names = " and ".join(repr(name) for name, _ in wanted)
            raise ConfigError(f"a model has one {kind.kind} of an extra, but the settings ask for {names}: use one")
        return wanted[0] if wanted else None

    def build(self) -> LanguageModel:  # type: ignore[override]
        from anaphor.models.initialize import build_checked
        from anaphor.models.language_model import LanguageModel

        return build_checked(LanguageModel, self)
