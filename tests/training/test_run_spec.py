"""A run's page refuses what is no list, no number that can work and no known place, each in one line."""

from dataclasses import fields

import pytest

from anaphor.errors import ConfigError
from anaphor.models import LanguageModelSpec
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.tasks.translate import TranslationRunSpec
from anaphor.training.device import choose_device
from anaphor.training.spec import DEVICES


@pytest.mark.parametrize(
    ("kind", "said", "message"),
    [
        (LanguageRunSpec, {"mixers": "lstm"}, "mixers='lstm': it must be a list of strings"),
        (LanguageRunSpec, {"mixers": None}, "mixers=None: it must be a list of strings"),
        (LanguageRunSpec, {"mixers": [{"lstm": 1}]}, "mixers[0]={'lstm': 1}: it must be a string"),
        (LanguageRunSpec, {"layer_widths": 5}, "layer_widths=5: it must be a list of whole numbers"),
        (LanguageRunSpec, {"layer_widths": [8, 8.5]}, "layer_widths[1]=8.5: it must be a whole number"),
        (LanguageRunSpec, {"betas": 0.9}, "betas=0.9: it must be a list of numbers"),
        (LanguageRunSpec, {"betas": (0.9, True)}, "betas[1]=True: it must be a number"),
        (LanguageRunSpec, {"layer_lr": 0.5}, "layer_lr=0.5: it must be a list of numbers"),
        (LanguageRunSpec, {"layer_residuals": [1, 0]}, "layer_residuals[0]=1: it must be True or False"),
        (
            LanguageRunSpec,
            {"device": "cdua"},
            "unknown device 'cdua'; did you mean 'cuda'? (known: auto, cpu, cuda, mps)",
        ),
        (TranslationRunSpec, {"encoder": "lstm"}, "encoder='lstm': it must be a list of strings"),
        (TranslationRunSpec, {"decoder": "gru"}, "decoder='gru': it must be a list of strings"),
        (TranslationRunSpec, {"encoder_layers": 0}, "encoder_layers=0: it must be at least 1"),
        (TranslationRunSpec, {"length_penalty": -1}, "length_penalty=-1: it must be from 0 to 10"),
        (TranslationRunSpec, {"length_penalty": float("nan")}, "length_penalty=nan: it must be from 0 to 10"),
        (TranslationRunSpec, {"length_penalty": 1e300}, "length_penalty=1e+300: it must be from 0 to 10"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(kind, said, message):
    with pytest.raises(ConfigError) as caught:
        kind(**said)
    assert str(caught.value) == message


def test_a_list_is_as_welcome_as_a_tuple():
    run = LanguageRunSpec(
        mixers=["lstm", "attention"], layer_widths=[8, 16], layer_residuals=[False, True], betas=[0, 0.99]
    )
    assert (run.mixers, run.layer_widths) == (("lstm", "attention"), (8, 16))
    assert (run.layer_residuals, run.betas) == ((False, True), (0, 0.99))


def test_devices_are_those_that_a_run_can_choose(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    assert {choose_device(name).type for name in DEVICES} == {"cpu", "cuda", "mps"}


def test_whatever_can_be_said_of_a_language_model_can_be_said_to_the_command():
    known = {field.name for field in fields(LanguageRunSpec)}
    not_by_name = {"words", "extras"}  # those of the tokenizer, and settings that extras registered
    assert {field.name for field in fields(LanguageModelSpec)} - known == not_by_name
    said = LanguageRunSpec(window=8, mask="causal & window(4)", head_width=3, bias=False, merge_evaluation="same")
    assert said.model_options().keys() >= {"window", "mask", "head_width", "bias", "merge_evaluation"}
