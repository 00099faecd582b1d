"""How much of what students write is tried: at least eight planted mistakes for each reference, six caught by name."""

import importlib

import pytest

from anaphor.course.catalog import CATALOG

TABLES = {
    "attention": {"HEAD_MISTAKES": "AttentionHead", "MULTI_HEAD_MISTAKES": "MultiHeadAttention"},
    "beam": {"MISTAKES": "beam_search"},
    "decoder": {"MISTAKES": "InputFeedingDecoder"},
    "hybrid": {"MISTAKES": "Hybrid", "CELL_MISTAKES": "Hybrid"},
    "images": {"MISTAKES": "PatchEmbed"},
    "recurrent": {"RNN_MISTAKES": "RNNCell", "LSTM_MISTAKES": "LSTMCell"},
    "tokenizer": {"MISTAKES": "Tokenizer"},
    "transformer": {
        "MISTAKES": "TransformerBlock", "STACK_MISTAKES": "Transformer", "GPT_MISTAKES": "DialogueGPT"
    },
    "vision": {"VIT_MISTAKES": "ViT"},
    **{file: {"MISTAKES": None} for file in ("backward", "luong", "merges", "optimizers", "positions", "streams")},
}  # fmt: skip
"""The tables of planted mistakes by test file, and whose they are; None where each row begins with a name."""
OTHER_NAMES = {"score": "bilinear_score", "vector": "attentional_vector"}
NOT_NAMED = {"unknown", "raises"}


def planted():
    """What each planted mistake is told as, by reference."""
    found = {name: [] for name in CATALOG}
    for file, tables in TABLES.items():
        module = importlib.import_module(f"course.test_check_{file}")
        for table, owner in tables.items():
            for row in getattr(module, table):
                name = owner or OTHER_NAMES.get(row[0], row[0])
                found[name].append({row[-1]} if isinstance(row[-1], str) else {*row[-1]})
    return found


@pytest.mark.parametrize(("name", "told"), planted().items())
def test_eight_mistakes_are_planted_and_six_of_them_have_names(name, told):
    assert len(told) >= 8, name
    assert len([one for one in told if one - NOT_NAMED]) >= 6, name
