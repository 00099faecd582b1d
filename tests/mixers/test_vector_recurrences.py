"""Recurrences whose state is a vector: minGRU, minLSTM and the RG-LRU in three forms, and what sLSTM has not."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anaphor.errors import ConfigError
from anaphor.inspect import attention_maps, recorded, unit_maps
from anaphor.mixers import Span, contract, mixer_spec
from anaphor.mixers.recurrences import vector_layer
from anaphor.mixers.recurrences.vector_state import implied_attention, recurrent, scan
from anaphor.models import build

TIGHT = {"rtol": 1e-8, "atol": 1e-9}
SETTINGS = {
    "min-gru": ("min-gru", {}),
    "min-lstm": ("min-lstm", {}),
    "rg-lru": ("rg-lru", {"heads": 2}),
    "rg-lru, wide": ("rg-lru", {"heads": 3, "lru_width": 12, "short_conv": 4}),
}
VECTORS = ("min-gru", "min-lstm", "rg-lru")


def draw(name, **more):
    torch.manual_seed(1)
    mixer, options = SETTINGS.get(name, (name, {"heads": 2}))
    made = mixer_spec(mixer, width=8, **options, **more).build().eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


def run(mixer, x):
    return mixer(x, mixer.initial_state(x), Span.whole(x))


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(1, 40),
    chunk=st.sampled_from([2, 4, 16]),
    strength=st.sampled_from([0.1, 3.0, 1e4]),
    seed=st.integers(0, 1000),
)
def test_chunks_are_the_formula_with_gradients_of_everything(tokens, chunk, strength, seed):
    torch.manual_seed(seed)
    leaves = [-strength * torch.rand(2, tokens, 3), torch.randn(2, tokens, 3), torch.randn(2, 3)]
    leaves, probe = [leaf.requires_grad_() for leaf in leaves], torch.randn(2, tokens, 3)

    def by_steps(decay, added, hidden):
        return torch.stack(recurrent(decay, added, hidden), dim=1)

    results = []
    for form in (by_steps, lambda *given: scan(*given, chunk)):
        states = form(leaves[0].exp(), *leaves[1:])
        gradients = torch.autograd.grad((states * probe).sum(), leaves, create_graph=True)
        squares = sum(gradient.square().sum() for gradient in gradients)
        results.append([states, *gradients, *torch.autograd.grad(squares, leaves, materialize_grads=True)])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, **TIGHT)


def test_a_decay_of_zero_or_one_leaves_finite_gradients():
    decay = torch.randint(0, 2, (2, 40, 3)).float().requires_grad_()
    states = scan(decay, torch.randn(2, 40, 3).float(), torch.randn(2, 3).float(), 4)
    states.square().sum().backward()
    assert decay.grad.isfinite().all()


def test_the_second_derivative_of_a_scan_is_right():
    given = [torch.rand(1, 7, 2), torch.randn(1, 7, 2), torch.randn(1, 2)]
    given = [one.requires_grad_() for one in given]
    assert torch.autograd.gradcheck(lambda *given: scan(*given, 2), given)
    assert torch.autograd.gradgradcheck(lambda *given: scan(*given, 2), given)


def test_weights_of_a_scan_times_values_are_its_states():
    decay, write, values = torch.rand(2, 21, 3), torch.randn(2, 21, 3), torch.randn(2, 21, 3)
    w = implied_attention(decay, write, 4)
    assert not w.triu(1).any(), "no token reads a later one"
    states = torch.stack(recurrent(decay, write * values, torch.zeros(2, 3)), dim=1)
    torch.testing.assert_close((w @ values.mT[..., None]).squeeze(-1).mT, states, **TIGHT)


@pytest.mark.parametrize("name", SETTINGS)
def test_chunks_equal_the_twin_that_goes_token_by_token(name):
    x, more, lengths = torch.randn(3, 21, 8), torch.randn(3, 5, 8), torch.tensor([21, 9, 0])
    contract.is_same(draw(name, chunk=4), draw(name, chunk=1), x, more, lengths)


@pytest.mark.parametrize("name", SETTINGS)
def test_weights_by_channel_times_values_are_the_state(name, monkeypatch):
    monkeypatch.setattr(vector_layer, "AT_ONCE", 3)
    mixer, x = draw(name), torch.randn(2, 11, 8)
    with recorded(mixer, "values") as values, recorded(mixer, "context") as context:
        run(mixer, x)
    with recorded(mixer, "weights*") as maps:
        run(mixer, x)
    w = maps["weights_by_channel"]
    assert w.shape == (2, mixer.channels, 11, 11)
    torch.testing.assert_close(w @ values["values"], context["context"], **TIGHT)
    assert (w >= 0).all()
    torch.testing.assert_close(maps["weights"], w.unflatten(1, (mixer.heads, -1)).mean(2), **TIGHT)


@pytest.mark.parametrize("name", VECTORS)
def test_a_changed_map_of_channels_changes_the_output_and_a_mean_cannot_be_changed(name):
    mixer, x = draw(name), torch.randn(1, 6, 8)
    plain, _ = run(mixer, x)
    for tap, message in ((mixer.weights_by_channel, None), (mixer.weights, "only shows what its layer computes")):
        hook = tap.register_forward_hook(lambda tap, given, w: torch.zeros_like(w))
        if message is None:
            assert not torch.allclose(plain, run(mixer, x)[0])
        else:
            with pytest.raises(ConfigError, match=message):
                run(mixer, x)
        hook.remove()


@pytest.mark.parametrize("name", [*SETTINGS, "slstm"])
def test_the_second_derivative_of_a_layer_exists_and_is_right(name):
    mixer = draw(name) if name == "slstm" else draw(name, chunk=2)
    x = torch.randn(1, 3, 8, requires_grad=True)
    state = mixer.initial_state(x)
    assert torch.autograd.gradgradcheck(
        lambda x: mixer(x, state, Span.whole(x))[0], [x], fast_mode=True, atol=1e-4, rtol=1e-3
    )


@pytest.mark.parametrize("name", VECTORS)
def test_states_decays_and_gates_are_shown(name):
    mixer, x = draw(name), torch.randn(1, 5, 8)
    with recorded(mixer) as taps:
        _, after = run(mixer, x)
    torch.testing.assert_close(taps["states"][:, -1, 0], after.hidden)
    torch.testing.assert_close(taps["context"][0, :, -1, 0], after.hidden[0])
    assert taps["gates"].shape == (1, 5, len(mixer.gate_names), mixer.channels)
    assert ((taps["decay"] > 0) & (taps["decay"] < 1)).all()


@pytest.mark.parametrize("name", VECTORS)
def test_a_model_shows_one_map_for_each_head_and_learns_through_its_layers(name):
    torch.manual_seed(1)
    model = build(name, vocabulary=11, width=16, layers=2)
    tokens = torch.randint(0, 11, (1, 9))
    maps = attention_maps(model, tokens)
    heads = 4 if name == "rg-lru" else 1
    assert [tuple(weights.shape) for weights in maps.values()] == [(heads, 9, 9)] * 2
    units = {one.part: one for one in unit_maps(model, tokens)}
    assert units["decay"].bounded
    assert units["hidden"].of == 16
    model(tokens)[0].logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", ["min-gru", "min-lstm"])
def test_a_state_lies_between_the_candidates_before_it(name):
    mixer, x = draw(name), torch.randn(1, 40, 8)
    with recorded(mixer, "values") as values:
        h, _ = run(mixer, x)
    candidates = values["values"][0, ..., 0].T  # [T, D]
    assert (h[0] <= candidates.clamp(min=0).cummax(0).values + 1e-9).all()
    assert (h[0] >= candidates.clamp(max=0).cummin(0).values - 1e-9).all()


@pytest.mark.parametrize("name", ["mlstm", "slstm"])
@pytest.mark.parametrize("size", [1e3, -1e3])
def test_exponential_gates_of_any_size_leave_finite_outputs_and_gradients(name, size):
    mixer = draw(name, **({"gate_soft_cap": 1e4} if name == "mlstm" else {})).float()
    bias = mixer.gate_bias if name == "mlstm" else mixer.project.bias
    heads_or_width = 2 if name == "mlstm" else 8
    with torch.no_grad():
        bias[:heads_or_width] += size
    x = torch.randn(2, 30, 8, dtype=torch.float32, requires_grad=True)
    y, state = run(mixer, x)
    y.square().sum().backward()
    assert y.isfinite().all()
    assert all(part.isfinite().all() for part in state)
    assert all(parameter.grad.isfinite().all() for parameter in mixer.parameters())


def test_slstm_says_that_it_has_no_implied_attention():
    model = build("slstm", vocabulary=11, width=16, layers=1)
    assert attention_maps(model, torch.randint(0, 11, (1, 5))) == {}
    message = "no tap is called .*: layers.0.mixer has no implied attention, because its gates read the state before"
    with pytest.raises(ConfigError, match=message), recorded(model, "*weights"):
        pass
    units = {one.part for one in unit_maps(model, torch.randint(0, 11, (1, 5)))}
    assert units == {"hidden", "cell", "normalizer", "stabilizer", "input", "forget", "candidate", "output"}


WRONG = {
    "heads": ("rg-lru", {"heads": 3}, "heads=3 does not divide width=8"),
    "heads of slstm": ("slstm", {"heads": 3}, "heads=3 does not divide width=8"),
    "lru_width": ("rg-lru", {"lru_width": 0}, "lru_width=0: it must be at least 1"),
    "qk_dim_factor": ("mlstm", {"qk_dim_factor": 0.3}, "qk_dim_factor=0.3 times width=8 by heads=4 is 0.6"),
    "gate_soft_cap": ("mlstm", {"gate_soft_cap": 0.0}, "gate_soft_cap=0.0: it must be above 0"),
    "chunk": ("min-gru", {"chunk": 3}, "chunk=3: it must be a power of two"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_is_refused_in_one_line(name):
    mixer, options, message = WRONG[name]
    with pytest.raises(ConfigError, match=message):
        mixer_spec(mixer, width=8, **options)
