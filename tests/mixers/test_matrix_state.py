"""Recurrences with a memory for each head: the formula token by token, in chunks, and as attention."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anaphor.mixers.recurrences.matrix_state import Steps, chunkwise, implied_attention, initial_memory, recurrent

TIGHT = {"rtol": 1e-9, "atol": 1e-10}
DECAYS = {"none": 0, "head": 1, "channel": 4}
CORRECTIONS = ("none", "delta", "general")


def draw_steps(tokens, decay, correction, strength=1.0):
    """Two rows, three heads, keys of four and values of five."""
    q, k, v = torch.randn(2, 3, tokens, 4), torch.randn(2, 3, tokens, 4), torch.randn(2, 3, tokens, 5)
    k = torch.nn.functional.normalize(k, dim=-1)
    log_decay = -strength * torch.rand(2, 3, tokens, DECAYS[decay]) if DECAYS[decay] else None
    if correction == "none":
        return Steps(q, k, v, log_decay)
    beta = 2 * torch.rand(2, 3, tokens, 1)
    a = None if correction == "delta" else -torch.rand(2, 3, tokens, 4) * k
    return Steps(q, beta * k, v, log_decay, b=k, a=a)


def by_formula(steps, memory):
    """S = (I + a bᵀ) D S + k vᵀ with whole matrices, and y = Sᵀ q."""
    q, k, v, log_decay, b, a = steps
    outputs = []
    for t in range(q.shape[2]):
        identity = torch.eye(4).expand(2, 3, 4, 4)
        decays = identity if log_decay is None else torch.diag_embed(log_decay[:, :, t].exp().expand(2, 3, 4))
        back = k if a is None else -a
        correction = identity if b is None else identity - torch.einsum("bhi,bhj->bhij", back[:, :, t], b[:, :, t])
        memory = correction @ decays @ memory + torch.einsum("bhi,bhj->bhij", k[:, :, t], v[:, :, t])
        outputs.append(torch.einsum("bhij,bhi->bhj", memory, q[:, :, t]))
    return torch.stack(outputs, 2), memory


def with_gradients(form, steps, memory, probe):
    leaves = [part.clone().requires_grad_() for part in (*steps, memory) if part is not None]
    parts = iter(leaves)
    steps = Steps(*(None if part is None else next(parts) for part in steps))
    y, after = form(steps, next(parts))
    return [y, after, *torch.autograd.grad((y * probe).sum() + after.square().sum(), leaves)]


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 37),
    chunk=st.sampled_from([2, 4, 16, 64]),
    kind=st.sampled_from(list(itertools.product(DECAYS, CORRECTIONS))),
    strength=st.sampled_from([0.1, 3.0, 1e4]),
    seed=st.integers(0, 1000),
)
def test_chunks_are_the_formula_with_gradients_of_everything(tokens, chunk, kind, strength, seed):
    torch.manual_seed(seed)
    steps = draw_steps(tokens, *kind, strength)
    memory, probe = torch.randn(2, 3, 4, 5), torch.randn(2, 3, tokens, 5)
    expected = with_gradients(by_formula, steps, memory, probe)
    for form in (
        recurrent,
        lambda *given: chunkwise(*given, chunk),
        lambda *given: chunkwise(*given, chunk, -strength),
    ):
        for one, two in zip(with_gradients(form, steps, memory, probe), expected, strict=True):
            torch.testing.assert_close(one, two, **TIGHT)


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("decay", DECAYS)
def test_weights_times_values_are_the_outputs(decay, correction):
    steps = draw_steps(21, decay, correction)
    y, _ = recurrent(steps, initial_memory(steps))
    w = implied_attention(steps, 8)
    assert not w.triu(1).any(), "no token reads a later one"
    torch.testing.assert_close(w @ steps.v, y, **TIGHT)


@pytest.mark.parametrize(("decay", "correction"), [("channel", "general"), ("head", "delta"), ("none", "none")])
def test_the_second_derivative_is_that_of_the_outputs(decay, correction):
    steps = Steps(*(None if part is None else part[:1, :1] for part in draw_steps(5, decay, correction)))
    places = [place for place, part in enumerate(steps) if part is not None]
    leaves = [steps[place].clone().requires_grad_() for place in places]

    def run(*given):
        parts = [None] * len(steps)
        for place, part in zip(places, given, strict=True):
            parts[place] = part
        return chunkwise(Steps(*parts), initial_memory(steps), 4)

    assert torch.autograd.gradcheck(run, leaves)
    assert torch.autograd.gradgradcheck(run, leaves)


@pytest.mark.parametrize("total", [-39.0, -41.0])
@pytest.mark.parametrize("correction", CORRECTIONS)
def test_single_precision_is_enough_on_both_sides_of_where_decays_are_divided(correction, total):
    """Within a chunk of 32 tokens decays by channel are divided by one another up to a sum of -40."""
    steps = draw_steps(64, "channel", correction)._replace(log_decay=torch.full((2, 3, 64, 4), total / 32))
    steps = steps.map(lambda part: part.clone().requires_grad_())
    expected, _ = recurrent(steps, initial_memory(steps))
    narrow = steps.map(lambda part: part.detach().float().requires_grad_())
    y, _ = chunkwise(narrow, initial_memory(narrow), 32)
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-4)
    probe = torch.randn_like(expected)
    for wide, other in zip(steps, narrow, strict=True):
        if wide is not None:
            one = torch.autograd.grad(expected, wide, probe, retain_graph=True)[0]
            two = torch.autograd.grad(y, other, probe.float(), retain_graph=True)[0]
            torch.testing.assert_close(two.double(), one, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("decay", ["head", "channel"])
def test_a_decay_that_forgets_everything_at_once_leaves_finite_gradients(decay):
    steps = draw_steps(70, decay, "delta", strength=1e30)
    steps = steps.map(lambda part: part.float().requires_grad_())
    y, memory = chunkwise(steps, torch.randn(2, 3, 4, 5, dtype=torch.float32), 64)
    (y.square().sum() + memory.square().sum()).backward()
    assert all(part.grad.isfinite().all() for part in steps if part is not None)
