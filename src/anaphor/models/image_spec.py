"""Spec of image classifiers: every option, declared once. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from anaphor.config import check_at_least, look_up
from anaphor.errors import ConfigError
from anaphor.mixers.spec import check_finite, check_probability
from anaphor.models.spec import BackboneSpec

if TYPE_CHECKING:
    from anaphor.models.backbone import BlockSpec
    from anaphor.models.image_model import ImageClassifier

POOLINGS = {"class": "a learned token that attends to the patches", "mean": "mean of all patches"}
SMALL_PATCH, LARGE_PATCH, LARGE_IMAGE = 4, 16, 128


@dataclass(frozen=True, kw_only=True)
class ImageModelSpec(BackboneSpec):
    """An image classifier: patches, a stack of layers and a head."""

    classes: int
    """Number of classes."""
    channels: int = 3
    """Number of color channels."""
    image_size: int
    """Height and width of the images in pixels."""
    patch_size: int | None = None
    """Height and width of a patch in pixels; None means 4, or 16 for images from 128 pixels on."""
    pooling: str | None = None
    """What the head reads: class (a class token) or mean (of the patches; the default where all layers are causal)."""
    registers: int = 0
    """Number of registers: learned tokens besides the class token and the patches."""
    drop_path: float = 0.0
    """Stochastic depth: probability of skipping the last layer in training; it grows linearly from 0 at the first."""
    layer_scale: float | None = None
    """LayerScale: initial value of a learned factor for each feature of a layer's output; None means none."""
    norm_eps: float = 1e-6
    """Added to the variance in norms."""
    position: str = "learned"
    """Position encoding: learned or sinusoidal (2-D), none, or rotary, alibi or relative (order of the patches)."""
    causal: bool = False
    """Refuse layers that see later patches."""

    def _check_input(self) -> None:
        check_at_least(1, classes=self.classes, channels=self.channels, image_size=self.image_size)
        check_at_least(1, patch_size=self.patch_size)
        check_at_least(0, registers=self.registers)
        check_probability(drop_path=self.drop_path)
        check_finite(layer_scale=self.layer_scale)
        check_divides(self.patch, self.image_size)
        if self.position == "sinusoidal-unpaired":
            raise ConfigError(f"position={self.position!r} has no form in two dimensions: use sinusoidal")
        if self.position == "sinusoidal" and self.width_in % 4:
            raise ConfigError(f"width={self.width_in}: sinusoidal positions of images need a multiple of 4")
        if self.pooling is not None:
            look_up(POOLINGS, self.pooling, "pooling")
        if self.pooling == "class" and not self.is_noncausal:
            raise ConfigError(
                "pooling='class' needs a layer that sees later tokens: the class token comes first, before the "
                "patches; use pooling='mean', or a layer such as bidirectional-lstm or attention"
            )

    @property
    def is_noncausal(self) -> bool:
        """Whether the first token sees the others in at least one layer."""
        return any(block.mixer.noncausal_reason is not None for block in super().blocks())

    @property
    def width_in(self) -> int:
        return self.widths_by_layer[0]

    @property
    def patch(self) -> int:
        """Height and width of a patch in pixels."""
        if self.patch_size is not None:
            return self.patch_size
        return SMALL_PATCH if self.image_size < LARGE_IMAGE else LARGE_PATCH

    @property
    def grid(self) -> int:
        """Patches along one side of an image."""
        return self.image_size // self.patch

    @property
    def pooled(self) -> str:
        """What the head reads: class or mean."""
        return self.pooling or ("class" if self.is_noncausal else "mean")

    @property
    def extra_tokens(self) -> int:
        """Tokens before the patches: the class token, where there is one, and the registers."""
        return (self.pooled == "class") + self.registers

    def blocks(self) -> list[BlockSpec]:
        blocks = super().blocks()
        last = max(len(blocks) - 1, 1)
        return [
            replace(block, drop_path=self.drop_path * number / last, layer_scale=self.layer_scale)
            for number, block in enumerate(blocks)
        ]

    def unused_options(self, names: Iterable[str]) -> dict[str, str]:
        names = list(names)
        own = {"max_positions": "does not apply to images"} if "max_positions" in names else {}
        return super().unused_options(name for name in names if name != "max_positions") | own

    def _derived(self) -> dict[str, Any]:
        own: dict[str, Any] = {"patch_size": self.patch, "pooling": self.pooled}
        return super()._derived() | own | ({"width": None} if self.layer_widths else {})

    def build(self) -> ImageClassifier:  # type: ignore[override]
        from anaphor.models.image_model import ImageClassifier
        from anaphor.models.initialize import build_checked

        return build_checked(ImageClassifier, self)


def check_divides(patch_size: int, image_size: int) -> None:
    """Refuse patches that do not tile an image of that height and width."""
    if image_size % patch_size:
        divisors = [str(number) for number in range(1, image_size + 1) if image_size % number == 0]
        raise ConfigError(
            f"patch_size={patch_size} does not divide image_size={image_size}; sizes that do: {', '.join(divisors)}"
        )
