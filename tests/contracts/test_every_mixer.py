"""The six promises for every mixer of the table; those that do not stream show padding, rows and recording."""

from contextlib import nullcontext

import pytest
import torch

from anaphor.inspect import recorded
from anaphor.mixers import contract
from contracts.cases import table

SPECS = table()
STREAMING = {name: spec for name, spec in SPECS.items() if spec.streams}
WHOLE = {name: spec for name, spec in SPECS.items() if not spec.streams}


def mixer_of(spec):
    torch.manual_seed(1)
    return spec.build().eval()


@pytest.fixture
def x():
    return torch.randn(4, 9, 8)


@pytest.fixture
def more():
    return torch.randn(4, 5, 8)


@pytest.mark.parametrize(
    "cuts", [[4], [1, 2, 3, 4, 5, 6, 7, 8], [0, 5, 5, 9]], ids=["two", "single-tokens", "empty-pieces"]
)
@pytest.mark.parametrize("name", STREAMING)
def test_chunks_equal_whole(name, x, cuts):
    contract.chunks_equal_whole(mixer_of(SPECS[name]), x, cuts)


@pytest.mark.parametrize("name", SPECS)
def test_padding_leaves_no_trace(name, x, more):
    contract.padding_leaves_no_trace(mixer_of(SPECS[name]), x, more, torch.tensor([9, 4, 1, 0]))


@pytest.mark.parametrize("name", SPECS)
def test_rows_can_be_reordered(name, x, more):
    contract.rows_can_be_reordered(mixer_of(SPECS[name]), x, more, torch.tensor([3, 0, 0, 2, 1]))


@pytest.mark.parametrize("name", STREAMING)
def test_gradient_crosses_the_seam_unless_detached(name, x, more):
    contract.gradient_crosses_the_seam(mixer_of(SPECS[name]), x, more)


@pytest.mark.parametrize("name", STREAMING)
def test_old_state_survives(name, x, more):
    contract.old_state_survives(mixer_of(SPECS[name]), x, more)


@pytest.mark.parametrize("name", SPECS)
def test_recording_changes_nothing(name, x, more):
    contract.recording_changes_nothing(mixer_of(SPECS[name]), x, more, torch.tensor([9, 4, 1, 0]))


@pytest.mark.parametrize("name", SPECS)
def test_gradients_stay_finite_in_padding(name, x):
    mixer = mixer_of(SPECS[name])
    x.requires_grad_()
    y, _ = contract.run(mixer, x, lengths=torch.tensor([9, 4, 1, 0]))
    y.square().sum().backward()
    assert x.grad.isfinite().all()
    assert not x.grad[1, 4:].any(), "padding gets no gradient"
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in mixer.parameters())


@pytest.mark.parametrize("name", [name for name in SPECS if not name.endswith("-wider")])
def test_the_derivative_of_a_derivative_is_right(name):
    mixer, x = mixer_of(SPECS[name]), torch.randn(1, 3, 8, requires_grad=True)
    # torch's fused attention has no second derivative: a recorded tap takes the explicit path.
    fused = name.startswith(("attention", "low-rank"))
    with recorded(mixer, "*weights") if fused else nullcontext():
        assert torch.autograd.gradgradcheck(
            lambda x: contract.run(mixer, x)[0], [x], fast_mode=True, atol=1e-4, rtol=1e-3
        )


@pytest.mark.parametrize("name", SPECS)
def test_state_bytes_are_those_of_a_real_state(name):
    from anaphor.mixers import count_bytes

    mixer = mixer_of(SPECS[name])
    _, state = contract.run(mixer, torch.randn(1, 9, 8))
    assert mixer.state_bytes(9) == count_bytes(state)


@pytest.mark.parametrize("name", SPECS)
def test_widths_are_what_the_spec_says(name, x):
    mixer = mixer_of(SPECS[name])
    y, _ = contract.run(mixer, x)
    assert (mixer.width_in, mixer.width_out) == (8, y.shape[-1])
    assert mixer.width_out == SPECS[name].out


@pytest.mark.parametrize("name", WHOLE)
def test_what_does_not_stream_has_no_state_and_refuses_one(name, x):
    from anaphor.errors import ConfigError
    from anaphor.mixers import Span

    mixer = mixer_of(SPECS[name])
    assert mixer.initial_state(x) == ()
    assert contract.run(mixer, x)[1] == ()
    with pytest.raises(ConfigError, match="needs the whole sequence"):
        mixer(x, (torch.zeros(4, 8),), Span.whole(x))
