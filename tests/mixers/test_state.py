"""KVBuffer tensors and the helpers that act on a state."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anaphor.errors import ConfigError
from anaphor.mixers import KVBuffer, count_bytes, detach, map_state, select_rows


def grow(*sizes):
    parts = [torch.randn(2, size) for size in sizes]
    growing = KVBuffer(parts[0], 1)
    for part in parts[1:]:
        growing = growing.append(part)
    return growing, torch.cat(parts, 1)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.booleans())
def test_growing_is_concatenation(sizes, grad):
    with torch.set_grad_enabled(grad):
        growing, expected = grow(*sizes)
    assert torch.equal(growing.data, expected)
    assert len(growing) == expected.shape[1]


@torch.no_grad()
@given(st.data())
def test_every_version_of_a_growing_tensor_keeps_its_value(data):
    """A random tree of continuations, some trimmed, each compared with plain concatenation at the end."""
    versions = [(KVBuffer(torch.zeros(1, 0), 1), torch.zeros(1, 0))]
    for step in range(data.draw(st.integers(1, 25))):
        growing, plain = versions[data.draw(st.integers(0, len(versions) - 1))]
        new = torch.full((1, data.draw(st.integers(1, 3))), float(step))
        growing, plain = growing.append(new), torch.cat((plain, new), 1)
        if data.draw(st.booleans()):
            keep = data.draw(st.integers(1, 6))
            growing, plain = growing.keep_last(keep), plain[:, -keep:]
        versions.append((growing, plain))
    for growing, plain in versions:
        assert torch.equal(growing.data, plain)


@torch.no_grad()
def test_appending_writes_in_place_where_it_may():
    growing, _ = grow(4, 1)
    following = growing.append(torch.ones(2, 1))
    assert following.data.untyped_storage().data_ptr() == growing.data.untyped_storage().data_ptr()
    second = growing.append(torch.zeros(2, 1))
    assert second.data.untyped_storage().data_ptr() != growing.data.untyped_storage().data_ptr()
    assert torch.equal(following.data[:, -1], torch.ones(2))


@torch.no_grad()
def test_rows_and_detaching_keep_the_room():
    growing, expected = grow(4, 1)
    for kept, value in (
        (detach((growing,))[0], expected),
        (select_rows((growing,), torch.tensor([1, 1]))[0], expected[[1, 1]]),
    ):
        following = kept.append(torch.ones(2, 1))
        assert following.data.untyped_storage().data_ptr() == kept.data.untyped_storage().data_ptr()
        assert torch.equal(following.data, torch.cat((value, torch.ones(2, 1)), 1))
    assert torch.equal(growing.data, expected)


@torch.no_grad()
def test_a_short_memory_does_not_keep_a_long_text_alive():
    growing = KVBuffer(torch.zeros(2, 0), 1).append(torch.randn(2, 1000)).keep_last(10)
    assert growing.data.untyped_storage().nbytes() <= 4 * growing.data.numel() * 8


def test_a_frozen_projection_can_be_carried_with_gradient():
    """Nothing that is appended needs a gradient, but what reads it does: the past must not be written to."""
    from anaphor.mixers import AttentionSpec, Span

    mixer = AttentionSpec(width=8, heads=2, score="bilinear").build()
    mixer.project.requires_grad_(False)
    x = torch.randn(1, 5, 8)
    state, total = mixer.initial_state(x), 0
    for t in range(5):
        y, state = mixer(x[:, [t]], state, Span.after(torch.tensor([t]), 1))
        total = total + y.square().sum()
    total.backward()
    assert mixer.score.weight.grad.any()


def test_a_state_made_in_inference_mode_can_be_trained_on():
    from anaphor.models import build

    model = build("lstm", vocabulary=9, width=8)
    with torch.inference_mode():
        _, state = model(torch.randint(0, 9, (2, 3)))
    model(torch.randint(0, 9, (2, 3)), detach(state))[0].sum().backward()
    assert model.layers[0].mixer.kernel.weight_hh_l0.grad.any()


@pytest.mark.parametrize("rows", [[0, 1], torch.tensor([True, False]), torch.tensor([[0]]), torch.tensor([0.0])])
def test_rows_that_are_no_rows_are_refused(state, rows):
    with pytest.raises(ConfigError, match="rows must be a one-dimensional tensor of whole numbers"):
        select_rows(state, rows)


def test_gradient_flows_through_what_was_appended():
    old, new = torch.randn(1, 2, requires_grad=True), torch.randn(1, 3, requires_grad=True)
    KVBuffer(old, 1).append(new).data.sum().backward()
    assert old.grad.sum() == 2
    assert new.grad.sum() == 3


def test_a_state_made_in_inference_mode_can_be_continued_outside():
    with torch.inference_mode():
        growing, _ = grow(2, 1, 1)
    with torch.no_grad():
        assert growing.append(torch.ones(2, 1)).data.shape == (2, 5)


def test_mixed_precision_is_promoted():
    growing = KVBuffer(torch.zeros(1, 2, dtype=torch.float32), 1).append(torch.ones(1, 1, dtype=torch.float64))
    assert growing.data.dtype == torch.float64


@pytest.fixture
def state():
    return (torch.arange(6.0).view(3, 2), (KVBuffer(torch.arange(3.0)[:, None], 1), True), ())


def test_helpers_keep_the_shape_of_the_tree(state):
    doubled = map_state(lambda tensor: 2 * tensor, state)
    assert torch.equal(doubled[0], 2 * state[0])
    assert torch.equal(doubled[1][0].data, 2 * state[1][0].data)
    assert doubled[1][1] is True
    assert doubled[2] == ()


def test_rows_are_selected_in_every_tensor(state):
    picked = select_rows(state, torch.tensor([2, 2]))
    assert picked[0].tolist() == [[4, 5], [4, 5]]
    assert picked[1][0].data.tolist() == [[2], [2]]


@pytest.mark.parametrize("row", [5, -1])
def test_a_row_that_is_not_there_is_named(state, row):
    with pytest.raises(ConfigError, match=rf"there is no row {row}: the rows of the state are 0 to 2"):
        select_rows(state, torch.tensor([1, row]))
    with torch.no_grad(), pytest.raises(ConfigError, match=rf"there is no row {row}: the rows of the state are 0 to 1"):
        select_rows((grow(4, 1)[0],), torch.tensor([row]))


def test_bytes_count_what_is_held(state):
    assert count_bytes(state) == (6 + 3) * 8


def test_detach_cuts_every_tensor():
    leaf = torch.ones(1, 2, requires_grad=True)
    cut = detach((leaf * 2, KVBuffer(leaf * 3, 1)))
    assert not cut[0].requires_grad
    assert not cut[1].data.requires_grad
