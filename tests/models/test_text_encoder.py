"""Text encoders: padding leaves no trace, pooling against its formula, and specs that build the same model again."""

import copy

import pytest
import torch

from anaphor.errors import ConfigError
from anaphor.models import TEXT_PRESETS, TextEncoderSpec, text_preset

SMALL = {"vocabulary": 20, "classes": 3, "width": 16}
MPNET = {"position": "relative-buckets", "absolute_positions": True, "position_offset": 2, "token_types": 0}
CASES = {name: {} for name in TEXT_PRESETS if name not in ("bert-mini", "bert-small", "bert-base", "bert-large")} | {
    "mean of bert-tiny": {"pooling": "mean"},
    "buckets of bert-tiny": MPNET,
    "last of lstm": {"pooling": "last"},
    "by layer of transformer": {"layer_widths": (16, 32), "pooler": "relu"},
}


def spec_of(case):
    return text_preset(case.split(" of ")[-1], **SMALL, **CASES[case])


@pytest.mark.parametrize("case", CASES)
def test_padding_leaves_no_trace(case):
    torch.manual_seed(0)
    model = spec_of(case).build().double().eval()
    tokens, lengths = torch.randint(0, 20, (4, 9)), torch.tensor([9, 4, 1, 0])
    logits = model(tokens, lengths)
    for row, length in zip(range(3), lengths.tolist(), strict=False):
        alone = model(tokens[row : row + 1, :length])
        torch.testing.assert_close(logits[row], alone[0], rtol=1e-12, atol=1e-12)
    other = tokens.clone()
    other[torch.arange(9) >= lengths[:, None]] = 7
    assert torch.equal(model(other, lengths), logits), "not even the ids of padding matter, or rows without tokens"


@pytest.mark.parametrize("case", CASES)
def test_the_values_that_were_used_build_the_same_encoder(case):
    spec = spec_of(case)
    values = spec.used_settings()
    assert TextEncoderSpec(**values).used_settings() == values
    assert text_preset(case.split(" of ")[-1], **values).used_settings() == values, "over the preset, too"
    assert not spec.unused_options(values)


def test_pooling_is_first_mean_or_last_of_the_real_tokens():
    tokens, lengths = torch.randint(0, 20, (2, 6)), torch.tensor([6, 3])
    torch.manual_seed(0)
    model = text_preset("bert-tiny", vocabulary=20, width=16, pooler="none").build().double().eval()
    hidden_states = model.compute_hidden_states(tokens, lengths)
    expected = {
        "cls": hidden_states[:, 0],
        "mean": torch.stack([hidden_states[0].mean(0), hidden_states[1, :3].mean(0)]),
        "last": torch.stack([hidden_states[0, 5], hidden_states[1, 2]]),
    }
    for pooling, wanted in expected.items():
        other = text_preset("bert-tiny", vocabulary=20, width=16, pooler="none", pooling=pooling).build().double()
        other.load_state_dict(model.state_dict())
        torch.testing.assert_close(other.eval()(tokens, lengths), wanted)


def test_all_layers_share_one_table_of_relative_buckets():
    model = spec_of("buckets of bert-tiny").build()
    names = [name for name, _ in model.named_parameters() if "mixer.position" in name]
    assert names == ["layers.0.mixer.position.table.weight"]
    twin = copy.deepcopy(model)
    first, second = (block.mixer.position.table for block in twin.blocks)
    assert first is second
    assert first is not model.blocks[0].mixer.position.table


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "max"}, "pooling"),
        ({"mask": "causal"}, "pooling='cls' needs a layer that sees later tokens"),
        ({"absolute_positions": True}, "position='learned'"),
        ({"token_types": -1}, "token_types=-1"),
        ({"classes": 0}, "classes=0"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        text_preset("bert-tiny", **{**SMALL, **options})


def test_token_types_of_a_model_without_and_empty_texts_are_refused():
    model = spec_of("transformer").build()
    tokens = torch.zeros(1, 3, dtype=torch.long)
    with pytest.raises(ConfigError, match="no token types"):
        model(tokens, token_types=tokens)
    with pytest.raises(ConfigError, match="no tokens"):
        model(tokens[:, :0])
