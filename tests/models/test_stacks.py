"""A stack that is spelled out gets the blocks and positions that its mixers need; what is given wins."""

from dataclasses import dataclass

import pytest

from anaphor.mixers import MIXERS, GRUSpec, LinearSpec, MixerSpec
from anaphor.models import PRESETS, preset, text_preset
from anaphor.models.presets import TEXT_PRESETS
from anaphor.models.stacks import describe_surroundings

PLAIN = {"norm": "none", "residual": False, "feedforward": 0, "tied": False, "head_bias": True, "position": "none"}
BLOCKS = {"norm": "before", "residual": True, "feedforward": 64, "tied": True, "head_bias": False}


@dataclass(frozen=True, kw_only=True)
class OwnSpec(MixerSpec):
    """Of which nothing is said: it streams, and its state does not grow."""

    def build(self):
        return LinearSpec(width=self.width, width_out=self.width_out).build()


@dataclass(frozen=True, kw_only=True)
class RecurrentOwnSpec(OwnSpec):
    @property
    def stands_alone(self):
        return True


@dataclass(frozen=True, kw_only=True)
class GrowingOwnSpec(OwnSpec):
    @property
    def grows(self):
        return True


def narrow_gru(width: int, width_out: int | None = None):
    return GRUSpec(width=width, width_out=width_out)


@pytest.fixture(autouse=True)
def _own_mixers(monkeypatch):
    own = {"own": OwnSpec, "own-recurrent": RecurrentOwnSpec, "own-growing": GrowingOwnSpec, "narrow-gru": narrow_gru}
    monkeypatch.setattr(MIXERS, "_entries", {**MIXERS._entries, **own})


def settings(name="lstm", **given):
    return preset(name, vocabulary=9, width=16, **given).used_settings()


def assert_has(found, **expected):
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    "mixers",
    [["lstm", "gru"], ["gru", "gru", "qrnn"], ["rnn-identity"], ["own-recurrent", "lstm"], ["narrow-gru"]],
    ids=" ".join,
)
def test_layers_that_stand_alone_are_stacked_as_they_are(mixers):
    assert_has(settings(mixers=mixers), **PLAIN)


@pytest.mark.parametrize(
    ("mixers", "position"),
    [
        (["lstm", "attention", "attention"], "none"),
        (["attention", "lstm"], "none"),
        (["attention", "attention"], "sinusoidal"),
        (["own-growing", "attention"], "sinusoidal"),
        (["linear", "linear"], "none"),
        (["own", "own"], "none"),
        (["own", "attention"], "none"),
        (["own-recurrent", "attention"], "none"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_other_layers_bring_blocks_and_attention_positions_where_no_recurrence_carries_a_state(mixers, position):
    assert_has(settings(mixers=mixers), **BLOCKS, position=position)


@pytest.mark.parametrize(("mixers", "name"), [(["attention"] * 4, "transformer"), (["lstm", "attention"], "hybrid")])
def test_the_stack_of_a_preset_is_that_preset(mixers, name):
    spelled_out, named = (settings(mixers=mixers, layers=4), settings(name, layers=4))
    differing = {key for key in spelled_out | named if spelled_out.get(key) != named.get(key)}
    assert differing <= {"mixers", "memory"}


def test_attention_with_a_memory_has_positions_that_do_not_run_on():
    for name in ("lstm", "hybrid"):
        assert settings(name, mixers=["attention", "attention"], memory=8)["position"] == "relative"


@pytest.mark.parametrize("name", ["linear", "transformer", "gpt-nano"])
@pytest.mark.parametrize("mixer", ["own", "gru"])
def test_no_position_runs_on_with_a_carried_state(name, mixer):
    spec = preset(name, vocabulary=9, width=16, heads=None, mixers=[mixer])
    assert spec.carries_by_default
    assert (spec.position, spec.norm, spec.residual) == ("none", "before", True)


def test_positions_inside_attention_stay_beside_a_recurrence():
    assert settings("transformer-xl", mixers=["gru", "attention"])["position"] == "relative"


@pytest.mark.parametrize(
    "given",
    [
        {"norm": "after"},
        {"residual": False, "norm": "none"},
        {"feedforward": 0},
        {"feedforward": 24},
        {"position": "rotary"},
        {"position": "sinusoidal"},
        {"tied": False, "head_bias": True, "init_scheme": "uniform"},
    ],
    ids=str,
)
def test_what_is_given_wins(given):
    for mixers in (["lstm", "attention"], ["attention", "attention"]):
        found = settings(mixers=mixers, **given)
        assert_has(found, **given)


def test_blocks_that_are_given_layer_by_layer_are_left_alone():
    norms, residuals = ["none", "before"], [False, True]
    found = settings(mixers=["lstm", "attention"], layer_norms=norms, layer_residuals=residuals)
    assert_has(found, norm="none", feedforward=0, tied=False, init_scheme="uniform")


@pytest.mark.parametrize("name", ["lstm", "transformer-xl", "linear", "hybrid", "gpt-nano"])
@pytest.mark.parametrize("mixers", ["", "lstm attention", "gru gru", "linear attention", "own"])
def test_used_settings_build_the_same_model_again(name, mixers):
    """As the spec file of a run holds them."""
    given = {"mixers": mixers.split()} if mixers else {}
    used = preset(name, vocabulary=9, width=48, **given).used_settings()
    assert preset(name, **used).used_settings() == used


def test_the_spec_of_an_older_run_is_read_as_it_was():
    """When it was trained, the layers of its mixers were plain; positions went on beside a recurrence."""
    older = {"mixers": ["lstm", "attention"], **PLAIN, "init_scheme": "uniform", "layers": 2}
    assert_has(settings(**older), **PLAIN, init_scheme="uniform")
    assert settings("linear", mixers=["own"], position="sinusoidal")["position"] == "sinusoidal"


def test_a_classifier_with_attention_is_that_of_the_presets():
    for mixers, name in ((("attention", "attention"), "transformer"), (("bidirectional-lstm", "attention"), "hybrid")):
        spec, named = text_preset("lstm", vocabulary=9, mixers=mixers), text_preset(name, vocabulary=9)
        assert spec.used_settings() == {**named.used_settings(), "mixers": mixers}
    plain = text_preset("lstm", vocabulary=9, mixers=("gru", "bidirectional-gru"))
    assert (plain.norm, plain.residual, plain.pooling) == ("none", False, "last")


def test_no_preset_was_changed():
    assert "position" not in PRESETS["lstm"]
    assert TEXT_PRESETS["lstm"]["feedforward"] == 0


def test_the_surroundings_are_told_in_words():
    spec = preset("lstm", vocabulary=9, width=16, mixers=["lstm", "attention"])
    assert describe_surroundings(spec) == "pre-norm, residual connections, feed-forward networks, no positions"
    spec = preset("lstm", vocabulary=9, width=16, mixers=["gru", "lstm"])
    assert describe_surroundings(spec) == "no norm, no residual connections, no feed-forward networks, no positions"
