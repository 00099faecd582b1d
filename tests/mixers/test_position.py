"""Position schemes against their formulas."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anaphor.errors import ConfigError
from anaphor.mixers import AttentionSpec
from anaphor.mixers.attention.position import Alibi, Relative, RelativeBuckets, Rotary, Sinusoidal, SinusoidalUnpaired
from anaphor.mixers.spec import Sizes


def sizes(width=6, heads=2, head_width=4):
    return Sizes(width, heads, head_width, max_positions=16)


@pytest.mark.parametrize("width", [6, 7])
def test_sinusoidal_is_the_standard_form(width):
    table = Sinusoidal(sizes(width)).embed(torch.arange(20))
    for k in (0, 1, 19):
        for i in range(width):
            angle = k / 10000 ** (2 * (i // 2) / width)
            assert table[k, i] == pytest.approx(math.sin(angle) if i % 2 == 0 else math.cos(angle), abs=1e-12)


@pytest.mark.parametrize("width", [6, 7])
def test_sinusoidal_unpaired_turns_every_dimension_at_its_own_speed(width):
    table = SinusoidalUnpaired(sizes(width)).embed(torch.arange(20))
    for k in (0, 1, 19):
        for i in range(width):
            angle = k / 10000 ** (i / width)
            assert table[k, i] == pytest.approx(math.sin(angle) if i % 2 == 0 else math.cos(angle), abs=1e-12)


def test_single_precision_models_keep_exact_angles_far_out():
    position = Sinusoidal(sizes()).to(torch.float32)
    assert position.embed(torch.tensor([1_000_003]))[0, 0] == pytest.approx(math.sin(1_000_003), abs=1e-9)


@given(shift=st.integers(0, 5000), q_at=st.integers(0, 50), k_at=st.integers(0, 50))
def test_rotary_scores_depend_on_the_distance_only(shift, q_at, k_at):
    rotary = Rotary(sizes())
    q, k = torch.randn(1, 1, 1, 4), torch.randn(1, 1, 1, 4)

    def score(a, b):
        q_rotation, k_rotation = (rotary.rotation(torch.tensor([[at]]), q.dtype) for at in (a, b))
        return (rotary.rotate(q, q_rotation) * rotary.rotate(k, k_rotation)).sum()

    torch.testing.assert_close(score(q_at, k_at), score(q_at + shift, k_at + shift), rtol=1e-8, atol=1e-8)


def test_rotary_keeps_lengths():
    x = torch.randn(2, 3, 5, 4)
    rotary = Rotary(sizes())
    turned = rotary.rotate(x, rotary.rotation(torch.randint(0, 1000, (2, 5)), x.dtype))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))


def test_alibi_slopes_are_the_published_ones():
    def slopes(heads):
        return Alibi.slopes(torch.arange(float(heads)), heads).tolist()

    assert slopes(8) == [2**-i for i in range(1, 9)]
    assert slopes(1) == [2**-8]
    # Twelve heads: the eight of a power of two, then every second one of the row for sixteen.
    assert slopes(12) == pytest.approx([2**-i for i in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])


def test_relative_terms_are_transformer_xls():
    """(q + u)·k + (q + v)·r_{i-j}, all over √K, pair by pair."""
    relative = Relative(sizes())
    torch.nn.init.normal_(relative.content_bias)
    torch.nn.init.normal_(relative.distance_bias)
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 7, 4)
    query_at, key_at = torch.arange(4, 7)[None], torch.arange(7)[None]
    bias = relative.bias(q, k, query_at, key_at)
    table = Sinusoidal(sizes())
    for head in range(2):
        for i in range(3):
            for j in range(7):
                r = relative.project(table.embed(torch.tensor([4 + i - j])))[0].view(2, 4)[head]
                u, v = relative.content_bias[head, 0], relative.distance_bias[head, 0]
                expected = (u @ k[0, head, j] + (q[0, head, i] + v) @ r) / 2
                torch.testing.assert_close(bias[0, head, i, j], expected)


def test_rotary_refuses_odd_heads():
    with pytest.raises(ConfigError, match="must be even, but it is 3"):
        AttentionSpec(width=9, heads=3, position="rotary")


def test_learned_positions_end_where_the_table_ends():
    from anaphor.mixers import Span

    mixer = AttentionSpec(width=8, heads=2, position="learned", max_positions=6).build()
    assert mixer.spec.limit == 6
    x = torch.randn(1, 7, 8)
    mixer(x[:, :6], mixer.initial_state(x), Span.whole(x[:, :6]))
    with pytest.raises(ConfigError, match="7 tokens are more than the 6 learned positions"):
        mixer(x, mixer.initial_state(x), Span.whole(x))


def test_relative_buckets_are_exact_near_by_and_logarithmic_far_away():
    """T5's formula with 32 buckets for distances up to 128, in both directions."""
    for distance in range(-600, 601):
        bucket = int(RelativeBuckets.bucket(torch.tensor(distance)))
        side, far = (16 if distance < 0 else 0), abs(distance)
        if far >= 8:
            # An integer form of 8 + ⌊8 · log(far / 8) / log(16)⌋: the largest n with (far / 8)² ≥ 2^n.
            far = 8 + max(n for n in range(8) if far * far >= 2**n * 64)
        assert bucket == side + far, distance


def test_relative_buckets_add_one_learned_number_for_each_head_and_bucket():
    position = RelativeBuckets(sizes())
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 7, 4)
    bias = position.bias(q, k, torch.arange(4, 7)[None], torch.arange(7)[None])
    for head in range(2):
        for i in range(3):
            for j in range(7):
                bucket = position.bucket(torch.tensor(4 + i - j))
                assert bias[0, head, i, j] == position.table.weight[bucket, head]
