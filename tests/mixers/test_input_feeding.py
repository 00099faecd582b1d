"""A decoder with input feeding: the fast walk against a plain loop, and the promises with a source."""

import itertools

import pytest
import torch
from torch import nn

from anaphor.errors import ConfigError
from anaphor.inspect import recorded
from anaphor.mixers import InputFeedingSpec, Span, contract, count_bytes, detach, input_feeding, select_rows
from anaphor.mixers.base import tensors_of

TIGHT = {"rtol": 1e-9, "atol": 1e-11}
KINDS = list(itertools.product(["lstm", "gru"], [1, 2, 3]))
each_kind = pytest.mark.parametrize(("cell", "layers"), KINDS, ids=[f"{cell}-{layers}" for cell, layers in KINDS])


def build(cell="lstm", layers=1, **options):
    return InputFeedingSpec(width=8, width_out=6, cell=cell, layers=layers, source_width=5, **options).build()


def plain_loop(mixer, x, source, valid):
    """Written down from the paper, for whole sequences that start from nothing: no weight is rearranged, no product is
    done beforehand, and the context is made of the source itself."""
    rows, width = len(x), mixer.width_out
    states = [(torch.zeros(rows, width), torch.zeros(rows, width)) for _ in mixer.cells]
    fed, outputs = torch.zeros(rows, width), []
    for t in range(x.shape[1]):
        below = torch.cat((x[:, t], fed), -1)
        for i, cell in enumerate(mixer.cells):
            if isinstance(cell, nn.LSTMCell):
                states[i] = cell(below, states[i])
            else:
                states[i] = (cell(below, states[i][0]), states[i][1])
            below = states[i][0]
        scores = torch.einsum("bd,de,bse->bs", below, mixer.score.weight, source)
        weights = scores.masked_fill(~valid, -torch.inf).softmax(-1)
        context = torch.einsum("bs,bse->be", weights, source)
        fed = torch.tanh(mixer.out(torch.cat((context, below), -1)))
        outputs.append(fed)
    return torch.stack(outputs, 1)


class GivenSource:
    """The mixer with one source for every row, so that the promises can begin a state from tokens alone."""

    def __init__(self, mixer, source):
        self.mixer, self.source = mixer, source

    def __getattr__(self, name):
        return getattr(self.mixer, name)

    def __call__(self, *given):
        return self.mixer(*given)

    def initial_state(self, like):
        return self.mixer.initial_state(self.source.expand(len(like), -1, -1))


@pytest.fixture
def x():
    return torch.randn(4, 9, 8)


@pytest.fixture
def more():
    return torch.randn(4, 5, 8)


@each_kind
def test_the_walk_is_a_plain_loop_and_so_are_its_gradients(cell, layers):
    mixer = build(cell, layers)
    x, source = torch.randn(3, 7, 8, requires_grad=True), torch.randn(3, 4, 5, requires_grad=True)
    lengths = torch.tensor([4, 2, 1])
    y, _ = mixer(x, mixer.initial_state(source, lengths), Span.whole(x))
    z = plain_loop(mixer, x, source, torch.arange(4) < lengths[:, None])
    torch.testing.assert_close(y, z, **TIGHT)
    probe, inputs = torch.randn_like(y), [x, source, *mixer.parameters()]
    ours, theirs = (torch.autograd.grad((out * probe).sum(), inputs) for out in (y, z))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, **TIGHT)


@pytest.mark.parametrize("drops", [{}, {"dropout_kind": "locked", "weight_drop": 0.5}], ids=["each", "locked"])
@pytest.mark.parametrize("lengths", [None, [5, 0, 2]], ids=["full", "padded"])
@each_kind
def test_the_walk_and_its_readable_twin_agree(cell, layers, lengths, drops):
    """Outputs, the state that follows, and every gradient through both, with dropout between the layers."""
    mixer, found = build(cell, layers, dropout=0.4, **drops), []
    x, source = torch.randn(3, 5, 8, requires_grad=True), torch.randn(3, 4, 5, requires_grad=True)
    tensors = 2 if cell == "lstm" else 1
    past = [tuple(torch.randn(3, 6, requires_grad=True) for _ in range(tensors)) for _ in range(layers)]
    span = Span.whole(x, None if lengths is None else torch.tensor(lengths))
    probe = torch.randn(3, 5, 6)
    for watched in (False, True):
        torch.manual_seed(1)
        state = mixer.replace_hidden(mixer.initial_state(source, torch.tensor([4, 3, 0])), past)
        if watched:
            with recorded(mixer, "weights"):
                y, state = mixer(x, state, span)
        else:
            y, state = mixer(x, state, span)
        inputs = [x, source, *(tensor for layer in past for tensor in layer), *mixer.parameters()]
        ends = [tensor for tensor in (state.hidden, state.cell, state.feed) if tensor is not None]
        alone = torch.autograd.grad((y * probe).sum(), inputs, retain_graph=True)
        through = torch.autograd.grad((y * probe).sum() + sum(end.square().sum() for end in ends), inputs)
        found.append([y, *ends, *alone, *through])
    for walked, read in zip(*found, strict=True):
        torch.testing.assert_close(walked, read, **TIGHT)


@pytest.mark.parametrize("kind", ["each", "locked"])
def test_locked_dropout_takes_the_same_features_at_every_step(kind, monkeypatch):
    mixer, seen = build("gru", 3, dropout=0.5, dropout_kind=kind), []
    run = input_feeding.run_input_feeding
    monkeypatch.setattr(input_feeding, "run_input_feeding", lambda *given: seen.append(given[-1]) or run(*given))
    x = torch.randn(20, 9, 8)
    mixer(x, mixer.initial_state(torch.randn(20, 3, 5)), Span.whole(x))
    (dropped,) = seen
    assert dropped.shape == (2, 9, 20, 6)
    assert dropped.eq(0).double().mean().item() == pytest.approx(0.5, abs=0.15)
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped)) == (kind == "locked")
    assert len(dropped[0, 0].unique(dim=0)) > 10, "rows lose different features"


@each_kind
def test_weight_drop_takes_weights_from_the_last_hidden_state_in_training(cell, layers, x):
    """One mask for a whole call: what was dropped learns nothing from any step."""
    mixer, plain = build(cell, layers, weight_drop=0.5), build(cell, layers)
    plain.load_state_dict(mixer.state_dict())
    source = torch.randn(4, 3, 5)

    def run(mixer):
        return mixer(x, mixer.initial_state(source), Span.whole(x))[0]

    y = run(mixer)
    assert not torch.equal(y, run(mixer)), "anew at every call"
    y.square().sum().backward()
    for layer in mixer.cells:
        assert layer.weight_hh.grad.eq(0).double().mean().item() == pytest.approx(0.5, abs=0.2)
        assert layer.weight_ih.grad.ne(0).all()
    assert torch.equal(run(mixer.eval()), run(plain))


def test_a_single_token_without_gradient_is_what_it_is_with(x):
    mixer = build("lstm", 2).eval()
    state = mixer.initial_state(torch.randn(4, 3, 5))
    walked, after = mixer(x[:, :1], state, Span.whole(x[:, :1]))
    with torch.no_grad():
        stepped, stepped_after = mixer(x[:, :1], state, Span.whole(x[:, :1]))
    torch.testing.assert_close(stepped, walked, **TIGHT)
    for one, other in zip(tensors_of(stepped_after), tensors_of(after), strict=True):
        torch.testing.assert_close(one, other, **TIGHT)


@pytest.mark.parametrize("cuts", [[4], [1, 2, 3, 4, 5, 6, 7, 8], [0, 5, 5, 9]], ids=["two", "single", "empty-pieces"])
@each_kind
def test_chunks_equal_whole(cell, layers, x, cuts):
    mixer = GivenSource(build(cell, layers).eval(), torch.randn(1, 4, 5))
    contract.chunks_equal_whole(mixer, x, cuts)
    with torch.no_grad():
        contract.chunks_equal_whole(mixer, x, cuts)


@each_kind
def test_padding_leaves_no_trace(cell, layers, x, more):
    mixer = GivenSource(build(cell, layers).eval(), torch.randn(1, 4, 5))
    contract.padding_leaves_no_trace(mixer, x, more, torch.tensor([9, 4, 1, 0]))


@each_kind
def test_rows_can_be_reordered_with_their_source(cell, layers, x, more):
    mixer, order = build(cell, layers).eval(), torch.tensor([3, 0, 0, 2, 1])
    contract.rows_can_be_reordered(GivenSource(mixer, torch.randn(1, 4, 5)), x, more, order)
    state = mixer.initial_state(torch.randn(4, 3, 5), torch.tensor([3, 1, 0, 2]))
    _, state = mixer(x, state, Span.whole(x))
    span = Span.after(torch.full((4,), 9), 5)
    future, _ = mixer(more, state, span)
    picked, _ = mixer(more[order], select_rows(state, order), Span.after(torch.full((5,), 9), 5))
    torch.testing.assert_close(picked, future[order], **TIGHT)


@each_kind
def test_gradient_crosses_the_seam_unless_detached(cell, layers, x, more):
    mixer = GivenSource(build(cell, layers).eval(), torch.randn(1, 4, 5))
    contract.gradient_crosses_the_seam(mixer, x, more)


@each_kind
def test_old_state_survives(cell, layers, x, more):
    contract.old_state_survives(GivenSource(build(cell, layers).eval(), torch.randn(1, 4, 5)), x, more)


@pytest.mark.parametrize("watched", [False, True])
def test_padding_of_the_source_leaves_no_trace(watched, x):
    mixer, source, lengths = build("lstm", 2).eval(), torch.randn(4, 6, 5), torch.tensor([6, 3, 1, 0])
    source[~(torch.arange(6) < lengths[:, None])] = 1e3
    source.requires_grad_()

    def run(x, state):
        if not watched:
            return mixer(x, state, Span.whole(x))[0]
        with recorded(mixer, "weights"):
            return mixer(x, state, Span.whole(x))[0]

    together = run(x, mixer.initial_state(source, lengths))
    for row, length in enumerate(lengths.tolist()):
        alone = run(x[[row]], mixer.initial_state(source[[row], :length]))
        torch.testing.assert_close(together[row], alone[0], **TIGHT)
    (gradient,) = torch.autograd.grad(together.square().sum(), source)
    assert gradient[0].any()
    assert not gradient[1, 3:].any(), "nothing flows into padding"
    assert not gradient[3].any()
    assert gradient.isfinite().all()


def test_gradient_reaches_the_source_unless_detached(x):
    mixer, source = build().eval(), torch.randn(4, 3, 5, requires_grad=True)
    state = mixer.initial_state(source)
    (gradient,) = torch.autograd.grad(mixer(x, state, Span.whole(x))[0].sum(), source, retain_graph=True)
    assert gradient.any()
    cut, _ = mixer(x, detach(state), Span.whole(x))
    assert not torch.autograd.grad(cut.sum() + 0 * source.sum(), source)[0].any()


def test_gradients_stay_finite_and_zero_in_padding(x):
    mixer = build("gru", 2)
    x.requires_grad_()
    y, _ = mixer(x, mixer.initial_state(torch.randn(4, 3, 5)), Span.whole(x, torch.tensor([9, 4, 1, 0])))
    y.square().sum().backward()
    assert x.grad.isfinite().all()
    assert not x.grad[1, 4:].any()
    assert all(parameter.grad.isfinite().all() for parameter in mixer.parameters())


def test_weights_are_shares_of_the_real_source(x):
    mixer, lengths = build("gru", 2).eval(), torch.tensor([5, 2, 1, 0])
    with recorded(mixer, "weights") as seen:
        mixer(x, mixer.initial_state(torch.randn(4, 5, 5), lengths), Span.whole(x))
    weights = seen["weights"]
    assert weights.shape == (4, 9, 5)
    assert not weights.mT[~(torch.arange(5) < lengths[:, None])].any()
    torch.testing.assert_close(weights[:3].sum(-1), torch.ones(3, 9))


@each_kind
def test_state_bytes_are_those_of_a_real_state(cell, layers, x):
    mixer = build(cell, layers)
    _, state = mixer(x[:1], mixer.initial_state(torch.randn(1, 7, 5)), Span.whole(x[:1]))
    assert mixer.state_bytes(7) == count_bytes(detach(state))
    held = sum(tensor.untyped_storage().nbytes() for tensor in tensors_of(detach(state)))
    assert held <= 2 * count_bytes(state), "a view into a long walk would keep all of it alive"


def test_reduced_precision_leaves_the_state_as_it_was(x):
    mixer = build("lstm", 2).float()
    x, source = x.float(), torch.randn(4, 3, 5, dtype=torch.float32)
    exact, _ = mixer(x, mixer.initial_state(source), Span.whole(x))
    with torch.autocast("cpu", torch.bfloat16):
        y, state = mixer(x, mixer.initial_state(source), Span.whole(x))
        y.square().sum().backward()
    assert {tensor.dtype for tensor in tensors_of(state)} == {torch.float32, torch.bool}
    torch.testing.assert_close(y, exact, rtol=0.05, atol=0.05)
    assert all(parameter.grad.isfinite().all() for parameter in mixer.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell": "rnn"}, "unknown cell 'rnn'"),
        ({"layers": 0}, "layers=0: it must be at least 1"),
        ({"source_width": 0}, "source_width=0: it must be at least 1"),
        ({"dropout": 1.0}, "dropout=1.0 is not a dropout probability"),
        ({"weight_drop": -0.1}, "weight_drop=-0.1 is not a dropout probability"),
        ({"dropout_kind": "loked"}, "did you mean 'locked'"),
    ],
)
def test_what_cannot_work_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        InputFeedingSpec(width=8, **options)


def test_a_source_or_state_of_another_shape_is_refused(x):
    mixer = build("lstm", 2)
    with pytest.raises(ConfigError, match=r"the source must be \[rows, tokens, 5\], but it is \[4, 9, 8\]"):
        mixer.initial_state(x)
    with pytest.raises(ConfigError, match="the state is not from this InputFeeding"):
        mixer(x, build("lstm", 1).initial_state(torch.randn(4, 3, 5)), Span.whole(x))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
@each_kind
def test_a_captured_walk_draws_anew_what_it_drops(cell, layers):
    mixer = build(cell, layers, dropout=0.5, dropout_kind="locked", weight_drop=0.5).cuda()
    x, source = torch.randn(3, 5, 8, device="cuda"), torch.randn(3, 4, 5, device="cuda")

    def work():
        mixer.zero_grad()
        y, _ = mixer(x, mixer.initial_state(source), Span.whole(x))
        y.square().sum().backward()
        return y

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        y = work()
    found = []
    for _ in range(2):
        graph.replay()
        found.append(y.clone())
    assert found[0].isfinite().all()
    assert not torch.equal(*found)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
@each_kind
def test_a_captured_walk_on_a_gpu_equals_the_cpu(cell, layers):
    """Nothing in it asks the device for a value, padding included, so a graph can hold forward and backward."""
    mixer = build(cell, layers)
    x, source = torch.randn(3, 5, 8), torch.randn(3, 4, 5)
    lengths, source_lengths = torch.tensor([5, 0, 2]), torch.tensor([4, 3, 0])

    def work(mixer, x, source, lengths, source_lengths):
        for parameter in mixer.parameters():
            parameter.grad = None
        y, state = mixer(x, mixer.initial_state(source, source_lengths), Span.whole(x, lengths))
        (y.square().sum() + state.hidden.sum() + state.feed.sum()).backward()
        return y

    expected = work(mixer, x, source, lengths, source_lengths)
    gradients = [parameter.grad.clone() for parameter in mixer.parameters()]
    given = [mixer.cuda(), *(tensor.cuda() for tensor in (x, source, lengths, source_lengths))]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            work(*given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        y = work(*given)
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(y.cpu(), expected, **TIGHT)
    for parameter, gradient in zip(mixer.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), gradient, **TIGHT)
