"""Models are stacks of mixers. `PRESETS` names them; `build` makes one."""

from anaphor.models.block import Block, BlockSpec, Stack
from anaphor.models.language_model import LanguageModel, LanguageModelSpec, ModelState
from anaphor.models.options import StackOptions
from anaphor.models.presets import PRESETS, SEQ2SEQ_PRESETS, build, build_seq2seq, preset, seq2seq_preset
from anaphor.models.seq2seq import Seq2Seq, Seq2SeqSpec
from anaphor.models.textbook import (
    FFN,
    AttentionHead,
    AttentionResidual,
    BilinearAttention,
    MultiHeadedAttention,
    Transformer,
)

__all__ = [
    "FFN",
    "PRESETS",
    "SEQ2SEQ_PRESETS",
    "AttentionHead",
    "AttentionResidual",
    "BilinearAttention",
    "Block",
    "BlockSpec",
    "LanguageModel",
    "LanguageModelSpec",
    "ModelState",
    "MultiHeadedAttention",
    "Seq2Seq",
    "Seq2SeqSpec",
    "Stack",
    "StackOptions",
    "Transformer",
    "build",
    "build_seq2seq",
    "preset",
    "seq2seq_preset",
]
