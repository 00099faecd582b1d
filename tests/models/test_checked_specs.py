"""Checking a spec makes no module and draws no random number: what is trained does not depend on how often it was."""

import pytest
import torch
from torch import nn

from anaphor.errors import ConfigError
from anaphor.mixers import mixer_spec
from anaphor.mixers.attention.position import POSITIONS
from anaphor.models import PRESETS, BackboneSpec, preset, seq2seq_preset, text_preset
from anaphor.models.presets import SEQ2SEQ_PRESETS, TEXT_PRESETS
from anaphor.registry import TASKS
from anaphor.training.spec import read_base_settings


@pytest.fixture(autouse=True)
def _no_module_and_no_random_number(monkeypatch):
    monkeypatch.setattr(nn.Module, "__init__", lambda self: pytest.fail(f"a {type(self).__name__} was made"))
    before = torch.get_rng_state()
    yield
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("position", POSITIONS)
def test_position_encodings(position):
    spec = mixer_spec("attention", width=8, heads=2, position=position)
    assert spec.position == position
    if position not in ("none", "learned", "sinusoidal", "sinusoidal-unpaired"):
        BackboneSpec(width=8, heads=2, layers=2, position=position).used_settings()


def test_an_impossible_position_encoding_is_refused():
    with pytest.raises(ConfigError, match="head_width must be even, but it is 3"):
        mixer_spec("attention", width=6, heads=2, position="rotary")


def test_an_unknown_evaluation_of_a_merge_is_refused():
    with pytest.raises(ConfigError, match="unknown evaluation of a merge 'sam'; did you mean 'same'"):
        mixer_spec("attention", width=8, heads=2, merge="shuffle", merge_evaluation="sam")


@pytest.mark.parametrize("name", PRESETS)
def test_presets_of_language_models(name):
    assert preset(name, vocabulary=9).used_settings()


@pytest.mark.parametrize("name", SEQ2SEQ_PRESETS)
def test_presets_of_translation(name):
    assert seq2seq_preset(name, source_vocabulary=9, vocabulary=9).used_settings()


@pytest.mark.parametrize("name", TEXT_PRESETS)
def test_presets_of_text_encoders(name):
    if name != "bag-of-words":
        assert text_preset(name, vocabulary=9, classes=2).used_settings()


@pytest.mark.parametrize(("model", "carried"), [("lstm", True), ("transformer", False), ("transformer-xl", True)])
def test_settings_of_a_run_that_imply_others(tmp_path, model, carried):
    """Of a run's spec file those are left out that its model implies, such as whether the state is carried."""
    for carry in (True, False):
        document = f"task: lm\nmodel: {model}\nlr: 0.5\ncarry: {carry}\nwidth: 16\nenvironment: {{}}\n"
        (tmp_path / "spec.yaml").write_text(document)
        settings = read_base_settings(TASKS["lm"].run_spec, tmp_path / "spec.yaml", given=["width"])
        assert ("carry" in settings) == (carry != carried)
