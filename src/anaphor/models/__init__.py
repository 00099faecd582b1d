"""Models are stacks of mixers. `PRESETS` names them; `build` makes one."""

from anaphor.models.block import Block, BlockSpec, Stack
from anaphor.models.language_model import LanguageModel, LanguageModelSpec, ModelState
from anaphor.models.presets import PRESETS, build, preset
from anaphor.models.textbook import FFN, AttentionHead, AttentionResidual, MultiHeadedAttention, Transformer

__all__ = [
    "FFN",
    "PRESETS",
    "AttentionHead",
    "AttentionResidual",
    "Block",
    "BlockSpec",
    "LanguageModel",
    "LanguageModelSpec",
    "ModelState",
    "MultiHeadedAttention",
    "Stack",
    "Transformer",
    "build",
    "preset",
]
