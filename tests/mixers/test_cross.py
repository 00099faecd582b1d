"""Cross-attention: the state is the projected source. The promises, with a source."""

import torch

from anaphor.mixers import CrossAttentionSpec, Span, detach, select_rows
from anaphor.mixers.base import tensors_of

TIGHT = {"rtol": 1e-10, "atol": 1e-10}


def setup():
    mixer = CrossAttentionSpec(width=8, heads=2, source_width=6).build().eval()
    source, lengths = torch.randn(3, 5, 6, requires_grad=True), torch.tensor([5, 2, 1])
    return mixer, source, lengths, torch.randn(3, 4, 8)


def test_the_state_comes_back_unchanged_and_chunks_equal_whole():
    mixer, source, lengths, x = setup()
    state = mixer.initial_state(source, lengths)
    whole, after = mixer(x, state, Span.whole(x))
    assert after is state
    pieces = [mixer(x[:, [t]], state, Span.after(torch.full((3,), t), 1))[0] for t in range(4)]
    torch.testing.assert_close(torch.cat(pieces, 1), whole, **TIGHT)


def test_padding_of_the_source_and_of_the_tokens_leaves_no_trace():
    mixer, source, lengths, x = setup()
    together, _ = mixer(x, mixer.initial_state(source, lengths), Span.whole(x, torch.tensor([4, 1, 2])))
    for row, (length, count) in enumerate(zip(lengths.tolist(), (4, 1, 2), strict=True)):
        state = mixer.initial_state(source[row : row + 1, :length])
        alone_x = x[row : row + 1, :count]
        alone, _ = mixer(alone_x, state, Span.whole(alone_x))
        torch.testing.assert_close(together[row, :count], alone[0], **TIGHT)
        assert not together[row, count:].any()


def test_an_empty_source_gives_what_the_projection_makes_of_nothing():
    mixer, source, _, x = setup()
    y, _ = mixer(x, mixer.initial_state(source, torch.tensor([5, 0, 1])), Span.whole(x))
    torch.testing.assert_close(y[1], mixer.out.bias.expand(4, 8), **TIGHT)


def test_rows_can_be_reordered():
    mixer, source, lengths, x = setup()
    state, order = mixer.initial_state(source, lengths), torch.tensor([2, 0, 0])
    y, _ = mixer(x, state, Span.whole(x))
    picked, _ = mixer(x[order], select_rows(state, order), Span.whole(x[order]))
    torch.testing.assert_close(picked, y[order], **TIGHT)


def test_gradient_reaches_the_source_unless_detached():
    mixer, source, lengths, x = setup()
    state = mixer.initial_state(source, lengths)
    (gradient,) = torch.autograd.grad(mixer(x, state, Span.whole(x))[0].sum(), source, retain_graph=True)
    assert gradient[0].any()
    assert not gradient[1, 2:].any(), "nothing flows into padding"
    y, _ = mixer(x, detach(state), Span.whole(x))
    (stopped,) = torch.autograd.grad(y.sum() + 0 * source.sum(), source)
    assert not stopped.any()


def test_old_state_survives_and_its_bytes_are_told():
    from anaphor.mixers import count_bytes

    mixer, source, _, x = setup()
    state = mixer.initial_state(source[:1])
    kept = [tensor.clone() for tensor in tensors_of(state)]
    mixer(x[:1], state, Span.whole(x[:1]))
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(tensors_of(state), kept, strict=True))
    assert mixer.state_bytes(5) == count_bytes(state)
