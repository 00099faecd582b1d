"""The recurrences with a memory: twins, attention, settings and sizes of the state."""

import time

import pytest
import torch

from anaphor.errors import ConfigError
from anaphor.inspect import attention_maps, recorded, unit_maps
from anaphor.mixers import Span, contract, mixer_spec
from anaphor.mixers.recurrences.layer import Recurrence
from anaphor.models import build, preset
from anaphor.registry import RECURRENCES

TIGHT = {"rtol": 1e-8, "atol": 1e-9}
MEMORIES = [name for name in RECURRENCES if isinstance(mixer_spec(name, width=8).build(), Recurrence)]
SETTINGS = {
    "delta, negative eigenvalues": ("delta", {"allow_neg_eigval": True}),
    "delta, products": ("delta", {"num_householder": 3, "allow_neg_eigval": True, "short_conv": 4}),
    "gated-delta, by channel": ("gated-delta", {"channel_decay": True, "expand_v": 2.0}),
    "gated-delta, products": ("gated-delta", {"num_householder": 2, "short_conv": 3}),
    "mamba2, rotated": ("mamba2", {"data_dependent_rope": True, "d_state": 6, "short_conv": 4}),
    "mlstm, narrow keys": ("mlstm", {"qk_dim_factor": 0.5, "expand_v": 2.0, "short_conv": 3}),
} | {name: (name, {}) for name in MEMORIES}


def draw(name, **more):
    torch.manual_seed(1)
    mixer, options = SETTINGS[name]
    made = mixer_spec(mixer, width=8, heads=2, **options, **more).build().eval()
    for parameter in made.parameters():  # the first values of some are zero
        torch.nn.init.normal_(parameter, std=0.5)
    return made


@pytest.mark.parametrize("name", SETTINGS)
def test_chunks_equal_the_twin_that_goes_token_by_token(name):
    x, more, lengths = torch.randn(3, 21, 8), torch.randn(3, 5, 8), torch.tensor([21, 9, 0])
    contract.is_same(draw(name, chunk=8), draw(name, chunk=1), x, more, lengths)


@pytest.mark.parametrize("name", SETTINGS)
def test_weights_times_values_are_what_a_head_reads_of_new_tokens(name):
    mixer, x = draw(name, chunk=4), torch.randn(2, 11, 8)
    with recorded(mixer, "values") as values, recorded(mixer, "context") as plain:
        mixer(x, mixer.initial_state(x), Span.whole(x))
    with recorded(mixer, "weights") as weights:
        mixer(x, mixer.initial_state(x), Span.whole(x))
    w, v = weights["weights"], values["values"]
    writes = v.shape[1] // mixer.heads
    assert w.shape == (2, mixer.heads * writes, 11, 11)
    read = (w @ v).unflatten(1, (mixer.heads, writes)).sum(2)
    torch.testing.assert_close(read, plain["context"], **TIGHT)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_changed_weight_changes_the_output(name):
    mixer, x = draw(name), torch.randn(1, 6, 8)
    plain, _ = mixer(x, mixer.initial_state(x), Span.whole(x))
    with torch.no_grad():
        hook = mixer.weights.register_forward_hook(lambda tap, given, w: torch.zeros_like(w))
        changed, _ = mixer(x, mixer.initial_state(x), Span.whole(x))
        hook.remove()
    assert not torch.allclose(plain, changed)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_second_derivative_of_a_layer_exists_and_is_right(name):
    mixer, x = draw(name, chunk=2), torch.randn(1, 3, 8, requires_grad=True)
    state = mixer.initial_state(x)
    assert torch.autograd.gradgradcheck(
        lambda x: mixer(x, state, Span.whole(x))[0], [x], fast_mode=True, atol=1e-4, rtol=1e-3
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_norms_of_the_memory_decays_and_gates_are_shown(name):
    mixer, x = draw(name), torch.randn(1, 5, 8)
    with recorded(mixer, "states") as states, recorded(mixer) as decay, recorded(mixer, "gates") as gates:
        _, after = mixer(x, mixer.initial_state(x), Span.whole(x))
    torch.testing.assert_close(states["states"][0, -1, 0], after.memory[0].flatten(1).norm(dim=1))
    with recorded(mixer, "states") as again, recorded(mixer, "weights"):  # as `look` does
        mixer(x, mixer.initial_state(x), Span.whole(x))
    torch.testing.assert_close(again["states"], states["states"], **TIGHT)
    if not name.startswith("delta"):
        assert ((decay["decay"] > 0) & (decay["decay"] <= 1)).all()
        assert decay["decay"].shape[:2] == (1, 5)
    assert len(mixer.gate_names) == gates["gates"].shape[2]


@pytest.mark.parametrize("name", MEMORIES)
def test_a_model_shows_maps_and_units_and_learns_through_its_layers(name):
    torch.manual_seed(1)
    model = build(name, vocabulary=11, width=16, layers=2)
    tokens = torch.randint(0, 11, (1, 9))
    maps = attention_maps(model, tokens)
    assert {tuple(weights.shape) for weights in maps.values()} == {(4, 9, 9)}
    assert len(maps) == 2
    units = {one.part: one for one in unit_maps(model, tokens)}
    assert "norm of the memory" in units
    assert name == "delta" or units["decay"].bounded
    model(tokens)[0].logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", RECURRENCES)
def test_the_state_of_a_stream_has_the_size_that_models_say_and_does_not_grow(name):
    model = build(name, vocabulary=11, width=16, layers=2, short_conv=4).eval()
    state = None
    for count in (1, 7, 20):
        _, state = model(torch.randint(0, 11, (1, count)), state)
        from anaphor.mixers import count_bytes

        assert count_bytes(state.layers) == model.layers.state_bytes(count) == model.layers.state_bytes(10_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECURRENCES)
def test_time_for_a_token_does_not_grow(name):
    model = build(name, vocabulary=11, width=64, layers=2).eval()
    token = torch.zeros(1, 1, dtype=torch.long)

    def fastest(state):
        times = []
        for _ in range(30):
            start = time.perf_counter()
            model(token, state)
            times.append(time.perf_counter() - start)
        return min(times)

    with torch.no_grad():
        _, early = model(token)
        _, late = model(torch.randint(0, 11, (1, 4000)))
        assert fastest(late) < 1.5 * fastest(early)


WRONG = {
    "heads": ({"heads": 3}, "heads=3 does not divide width=8"),
    "chunk": ({"chunk": 48}, "chunk=48: it must be a power of two"),
    "values": ({"expand_v": 0.3}, r"expand_v=0.3 times a width of 2 of a key is 0.6: it must be a whole number"),
    "steps": ({"num_householder": 0}, "num_householder=0: it must be at least 1"),
    "convolution": ({"short_conv": 1}, "short_conv=1: it must be 0 .none., or from 2 to 64"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_is_refused_in_one_line(name):
    options, message = WRONG[name]
    with pytest.raises(ConfigError, match=message):
        mixer_spec("gated-delta", width=8, **options)


def test_rotation_needs_pairs():
    with pytest.raises(ConfigError, match="d_state=5: data_dependent_rope rotates pairs"):
        mixer_spec("mamba2", width=8, d_state=5, data_dependent_rope=True)
    with pytest.raises(ConfigError, match="rotary positions rotate pairs"):
        mixer_spec("retention", width=6, heads=2)


def test_settings_reach_the_layers_that_have_them():
    settings = {"channel_decay": True, "num_householder": 2, "d_state": 16}
    spec = preset("lstm", vocabulary=5, width=8, mixers=("gated-delta", "mamba2", "attention"), **settings)
    first, second, _ = spec.build().layers.mixers
    assert (first.spec.channel_decay, first.spec.num_householder, second.spec.d_state) == (True, 2, 16)
    with pytest.raises(ConfigError, match=r"channel_decay=True is not used by the layers .*: gated-delta$"):
        preset("delta", vocabulary=5, channel_decay=True)
