"""Patterns over depth: mixers, positions and windows that are repeated, and what presets and older runs have."""

import pytest
import torch

from anaphor.errors import ConfigError
from anaphor.mixers.base import count_bytes
from anaphor.models import LanguageModelSpec, build, preset, seq2seq_preset, text_preset
from anaphor.training.differences import setting_differences
from anaphor.training.spec import spell_out_mixers


def test_mixers_are_repeated():
    spec = preset("transformer", vocabulary=9, width=8, mixers=("mamba2", "mamba2", "attention"), layers=7)
    assert spec.mixers_by_layer == ("mamba2", "mamba2", "attention") * 2 + ("mamba2",)
    assert preset("transformer", vocabulary=9, mixers=("lstm", "attention")).mixers_by_layer == ("lstm", "attention")
    pair = seq2seq_preset("mixed", source_vocabulary=9, vocabulary=9, decoder=("lstm", "attention"), layers=4)
    assert pair.decoder_spec().mixers_by_layer == ("lstm", "attention") * 2
    again = type(pair)(**pair.used_settings())
    assert again.decoder_spec().mixers_by_layer == pair.decoder_spec().mixers_by_layer


def test_more_layers_of_a_preset_are_more_of_its_last():
    assert preset("hybrid", vocabulary=9).mixers_by_layer == ("lstm", *["attention"] * 3)
    assert preset("hybrid", vocabulary=9, layers=6).mixers_by_layer == ("lstm", *["attention"] * 5)
    assert text_preset("hybrid", vocabulary=9, layers=3).mixers_by_layer == ("bidirectional-lstm", *["attention"] * 2)


def test_runs_of_earlier_versions_have_the_layers_that_they_had():
    old = {"mixers": ["lstm", "attention"], "layers": 4, "encoder": ("gru",), "encoder_layers": 2, "decoder": ("gru",)}
    new = {**old, "mixers": ["lstm", "attention", "attention", "attention"]}
    assert spell_out_mixers(old)["mixers"] == new["mixers"]
    assert spell_out_mixers(old)["encoder"] == ("gru",), "one name says the same in all versions"
    assert spell_out_mixers(new)["mixers"] == new["mixers"]
    assert list(setting_differences(old, new)) == []
    assert len(list(setting_differences(old, {**new, "mixers": ["lstm", "attention"] * 2}))) == 1
    assert spell_out_mixers({"model": "hybrid"}) == {"model": "hybrid"}


def test_positions_and_windows_of_each_layer():
    spec = LanguageModelSpec(
        vocabulary=9, width=8, mixers=("attention", "gru", "attention"), layers=6, position="learned",
        layer_positions=("rotary", "none"), layer_windows=(3, 0, 5, 0), rope_theta=77.0,
    )  # fmt: skip
    mixers = [block.mixer for block in spec.blocks()]
    found = [(mixer.position, mixer.window, mixer.rope_theta) for mixer in mixers if hasattr(mixer, "position")]
    assert found == [("rotary", 3, 77.0), ("rotary", 5, 77.0), ("none", None, None), ("none", None, None)]
    assert spec.embedder_position == "none"
    used = spec.used_settings()
    assert not {"position", "max_positions", "window"} & {*used}
    assert LanguageModelSpec(**used).used_settings() == used


@pytest.mark.parametrize("options", [
    {"layer_positions": ("rotary", "none", "alibi"), "layer_windows": (3, 0)},
    {"mixers": ("gated-delta", "attention"), "layer_windows": (0, 4), "layer_positions": ("rotary",)},
])  # fmt: skip
def test_cuts_and_padding_change_nothing(options):
    model = build("transformer", vocabulary=9, width=8, heads=2, layers=4, **options).eval()
    tokens = torch.randint(9, (2, 12))
    whole, _ = model(tokens)
    first, state = model(tokens[:, :5])
    second, state = model(tokens[:, 5:], state)
    torch.testing.assert_close(torch.cat((first, second), 1), whole)
    assert 2 * model.state_bytes(12) == count_bytes(state)
    _, state = model(tokens, lengths=torch.tensor([12, 4]))
    future, _ = model(tokens[:, :3], state)
    alone, _ = model(torch.cat((tokens[1:, :4], tokens[1:, :3]), 1))
    torch.testing.assert_close(future[1:], alone[:, 4:])


@pytest.mark.parametrize(("options", "message"), [
    ({"mixers": ("gru", "gru", "attention"), "layers": 2}, "layers=2 is less than the 3 mixers named; a pattern is no"),
    ({"layers": 2, "layer_positions": ("rotary",) * 3}, "layer_positions has 3 values for 2 layers: give fewer"),
    ({"layers": 2, "layer_windows": (1, 2, 3)}, "layer_windows has 3 values for 2 layers: give fewer"),
    ({"layer_positions": ("learned",)}, "'learned' is added to the input of the model, not inside a layer"),
    ({"layer_positions": ("rotery",)}, "unknown position 'rotery'; did you mean 'rotary'"),
    ({"layer_windows": (-1,)}, "layer_windows=-1"),
    ({"mixers": ("gru",), "layer_windows": (4,)}, r"layer_windows=\(4,\) is not used by the layers gru"),
    ({"mixers": ("gru",), "layer_positions": ("rotary",)}, r"layer_positions=\('rotary',\) is not used by"),
    ({"layer_positions": ("alibi",), "rope_theta": 50.0}, "rope_theta=50.0 applies to position='rotary' only"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_line(options, message):
    with pytest.raises(ConfigError, match=message) as error:
        LanguageModelSpec(vocabulary=9, width=8, **options)
    assert "\n" not in str(error.value)
