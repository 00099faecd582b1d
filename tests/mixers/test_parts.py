"""Scores, normalizers, masks and merges against their definitions."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anaphor.errors import ConfigError
from anaphor.mixers import Attention, AttentionSpec, Span
from anaphor.mixers.attention.heads import Merge, Reweight, ReweightMatrix, Shift, Shuffle
from anaphor.mixers.attention.mask import band, causal, everything, hidden, matrix_mask, parse_mask, prefix, window
from anaphor.mixers.attention.score import NORMALIZERS, SCORES, Additive, Bilinear, Cosine, sigmoid, softmax, sparsemax
from anaphor.mixers.spec import Sizes

SIZES = Sizes(width=6, heads=2, head_width=3, max_positions=16)


# Scores


def test_bilinear_is_q_w_k():
    score = Bilinear(SIZES)
    torch.nn.init.normal_(score.weight)
    q, k = torch.randn(1, 2, 4, 3), torch.randn(1, 2, 5, 3)
    expected = torch.einsum("bhti,hij,bhsj->bhts", q, score.weight, k)
    torch.testing.assert_close(score(q, k), expected)


def test_additive_is_a_small_network():
    score = Additive(SIZES)
    q, k = torch.randn(1, 2, 4, 3), torch.randn(1, 2, 5, 3)
    one = score.out(torch.tanh(score.query(q[0, 1, 2]) + score.key(k[0, 1, 3])))[0]
    torch.testing.assert_close(score(q, k)[0, 1, 2, 3], one)


def test_cosine_is_an_angle_times_a_sharpness():
    score = Cosine(SIZES)
    q, k = torch.randn(1, 2, 4, 3), torch.randn(1, 2, 5, 3)
    expected = 10 * torch.nn.functional.cosine_similarity(q[:, :, :, None], k[:, :, None], dim=-1)
    torch.testing.assert_close(score(q, k), expected)


@pytest.mark.parametrize("name", SCORES)
def test_factors_multiply_to_the_score(name):
    score = SCORES[name](SIZES)
    q, k = torch.randn(1, 2, 4, 3), torch.randn(1, 2, 5, 3)
    factors = score.factors(q, k)
    if name == "additive":
        assert factors is None
    else:
        a, b, scale = factors
        torch.testing.assert_close(scale * a @ b.mT, score(q, k))


# Normalizers


@st.composite
def scores_and_masks(draw):
    rows, keys = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    torch.manual_seed(draw(st.integers(0, 10_000)))
    scores = draw(st.sampled_from([0.1, 1.0, 30.0])) * torch.randn(rows, keys)
    return scores, torch.rand(rows, keys) < draw(st.sampled_from([0.2, 0.7, 1.0]))


@given(scores_and_masks(), st.sampled_from(sorted(NORMALIZERS)))
def test_weights_are_zero_where_forbidden_and_never_nan(pair, name):
    scores, allowed = pair
    scores.requires_grad_()
    weights = NORMALIZERS[name](scores, allowed)
    weights.square().sum().backward()
    assert (weights >= 0).all()
    assert not weights[~allowed].any()
    assert scores.grad.isfinite().all()
    if name != "sigmoid":
        sums = weights.sum(-1)
        torch.testing.assert_close(sums, allowed.any(-1).to(sums.dtype))


@given(scores_and_masks())
def test_softmax_against_torch_on_the_allowed_keys(pair):
    scores, allowed = pair
    weights = softmax(scores, allowed)
    for row in range(len(scores)):
        torch.testing.assert_close(weights[row][allowed[row]], torch.softmax(scores[row][allowed[row]], -1))


def test_sigmoid_weighs_each_key_by_itself():
    scores, allowed = torch.randn(3, 4), torch.tensor([True, True, False, True])
    torch.testing.assert_close(sigmoid(scores, allowed)[:, allowed], torch.sigmoid(scores[:, allowed]))


@settings(deadline=None)
@given(scores_and_masks())
def test_sparsemax_is_the_nearest_point_of_the_simplex(pair):
    """Against bisection on the threshold, which uses no sorting."""
    scores, allowed = pair
    weights = sparsemax(scores, allowed)
    for row in range(len(scores)):
        z = scores[row][allowed[row]]
        if not len(z):
            continue
        low, high = z.max() - 1, z.max()
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if (z - middle).clamp(min=0).sum() > 1 else (low, middle)
        torch.testing.assert_close(weights[row][allowed[row]], (z - low).clamp(min=0), rtol=1e-9, atol=1e-9)


def test_sparsemax_gradient_against_finite_differences():
    allowed = torch.tensor([True, False, True, True, True])
    scores = torch.tensor([[0.3, 9.0, 0.1, -0.2, -3.0]], requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: sparsemax(s, allowed), scores)


# Masks

QUERY, KEY = torch.arange(5)[:, None], torch.arange(5)[None, :]


def test_masks_answer_for_two_positions():
    distance = QUERY - KEY
    assert torch.equal(causal()(QUERY, KEY), distance >= 0)
    assert torch.equal(window(2)(QUERY, KEY), distance < 2)
    assert torch.equal(band(1, 2)(QUERY, KEY), (distance <= 1) & (distance >= -2))
    assert torch.equal(prefix(2)(QUERY, KEY), (KEY < 2).expand(5, 5))
    assert torch.equal(hidden(1, 3)(QUERY, KEY), ((KEY != 1) & (KEY != 3)).expand(5, 5))
    assert everything()(QUERY, KEY).all()
    matrix = torch.rand(5, 5) < 0.5
    assert torch.equal(matrix_mask(matrix.long())(QUERY, KEY), matrix)


@pytest.mark.parametrize(
    ("text", "mask", "is_causal", "reach"),
    [
        ("causal", causal(), True, math.inf),
        ("causal & window(3)", causal() & window(3), True, 3),
        ("causal & (window(3) | prefix(2))", causal() & (window(3) | prefix(2)), True, math.inf),
        ("causal | prefix(2)", causal() | prefix(2), False, math.inf),
        ("band(2, 0)", band(2, 0), True, 3),
        ("everything & hidden(0, 4)", everything() & hidden(0, 4), False, math.inf),
    ],
)
def test_masks_read_what_they_write(text, mask, is_causal, reach):
    parsed = parse_mask(text)
    assert parsed == mask
    assert str(parsed) == text
    assert (parsed.is_causal, parsed.reach) == (is_causal, reach)


@given(
    st.recursive(
        st.sampled_from([causal(), window(2), band(1, 1), prefix(2), hidden(1), everything()]),
        lambda inner: st.builds(lambda a, b, both: a & b if both else a | b, inner, inner, st.booleans()),
        max_leaves=6,
    )
)
def test_any_mask_survives_being_written_and_keeps_its_word(mask):
    again = parse_mask(str(mask))
    allowed = mask(QUERY, KEY)
    assert torch.equal(again(QUERY, KEY), allowed)
    if mask.is_causal:
        assert not allowed.triu(1).any()
    if mask.reach < math.inf:
        assert not (allowed & (mask.reach <= QUERY - KEY)).any()
    if mask.is_band and mask.is_causal:
        reach = min(mask.reach, 99)
        assert torch.equal(allowed, (QUERY >= KEY) & (reach > QUERY - KEY))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("casual", "unknown mask 'casual'; did you mean 'causal'"),
        ("causal &", "cannot be parsed"),
        ("window(0)", "must be at least 1"),
        ("window", r"window does not take 0 numbers: write window\(tokens\)"),
        ("window(-3)", "must be at least 1"),
        ("window(True)", "'True' is not a whole number"),
        ("window(2.5)", "'2.5' is not a whole number"),
        ("causal + window(2)", "has a part that is not a mask: 'causal \\+ window\\(2\\)'"),
        ("__import__('os')", "is not a whole number"),
        ("hidden()", "needs at least one position"),
        ("(" * 500, "cannot be parsed"),
        (" & ".join(["causal"] * 5000), "is longer than"),
    ],
)
def test_masks_that_mean_nothing_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_mask(text)


def test_a_matrix_can_be_given_for_whole_sequences():
    matrix = torch.rand(6, 6) < 0.6
    mixer = Attention(AttentionSpec(width=6, heads=2), matrix_mask(matrix))
    assert not mixer.streams
    x = torch.randn(2, 6, 6)
    mixer(x, (), Span.whole(x))
    longer = torch.randn(2, 7, 6)
    with pytest.raises(ConfigError, match=r"the mask is \[6, 6\], but there are 7 tokens"):
        mixer(longer, (), Span.whole(longer))


# Merges


@pytest.fixture
def heads():
    return torch.randn(2, 3, 4, 5)  # [B, H, T, K]


def span_of(heads, lengths=None):
    return Span.whole(heads.transpose(1, 2), lengths)


def test_concatenate_puts_heads_side_by_side(heads):
    assert torch.equal(Merge()(heads, span_of(heads)), torch.cat(heads.unbind(1), dim=-1))


def test_shift_puts_the_first_head_last(heads):
    first, second, third = heads.unbind(1)
    assert torch.equal(Shift()(heads, span_of(heads)), torch.cat((second, third, first), dim=-1))


def test_shuffle_draws_an_order_in_training_only(heads):
    merge, plain = Shuffle(), Merge()(heads, span_of(heads))
    orders = {tuple(merge(heads, span_of(heads))[0, 0].tolist()) for _ in range(50)}
    assert len(orders) == 6, "three heads have six orders"
    assert torch.equal(merge.eval()(heads, span_of(heads)), plain)
    always = Shuffle("same").eval()
    assert len({tuple(always(heads, span_of(heads))[0, 0].tolist()) for _ in range(50)}) == 6


def test_reweight_is_per_token_and_causal(heads):
    expected = heads * (heads.norm(dim=-1) / heads.norm(dim=-1).mean(1, keepdim=True))[..., None]
    torch.testing.assert_close(Reweight()(heads, span_of(heads)), Merge()(expected, span_of(heads)))
    assert Reweight.is_causal


def test_reweight_by_the_whole_matrix_sees_later_tokens(heads):
    merged = ReweightMatrix()(heads, span_of(heads))
    expected = heads * heads.flatten(2).norm(dim=-1)[..., None, None]
    torch.testing.assert_close(merged, Merge()(expected, span_of(heads)))
    changed = heads.clone()
    changed[:, :, -1] += 1
    assert not torch.allclose(ReweightMatrix()(changed, span_of(heads))[:, 0], merged[:, 0])
    assert not ReweightMatrix.is_causal
    assert not AttentionSpec(width=6, heads=2, merge="reweight-matrix").streams


@pytest.mark.parametrize("merge", [Shift, Reweight, ReweightMatrix])
def test_a_merge_can_fall_back_to_concatenation_at_evaluation(merge, heads):
    layer = merge("concatenate")
    plain = Merge()(heads, span_of(heads))
    assert not torch.allclose(layer(heads, span_of(heads)), plain)
    assert torch.equal(layer.eval()(heads, span_of(heads)), plain)


def test_only_a_shuffle_that_goes_on_in_evaluation_is_random():
    x = torch.randn(1, 4, 32)
    for evaluation, is_random in ((None, False), ("same", True)):
        mixer = AttentionSpec(width=32, heads=16, merge="shuffle", merge_evaluation=evaluation).build().eval()
        first, again = (mixer(x, mixer.initial_state(x), Span.whole(x))[0] for _ in range(2))
        assert torch.equal(first, again) is not is_random
