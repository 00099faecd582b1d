"""Bad input is refused in one line: what was given, what is allowed, the nearest guess."""

import pytest
import torch

from anaphor.errors import ConfigError
from anaphor.mixers import (
    AttentionSpec,
    BidirectionalSpec,
    CrossAttentionSpec,
    GRUSpec,
    LinearSpec,
    LowRankSpec,
    LSTMSpec,
    PooledSpec,
    RNNSpec,
    Span,
    mixer_spec,
)

REFUSED = {
    "heads": (lambda: AttentionSpec(width=10, heads=3), "heads=3 does not divide width=10; .* heads=2"),
    "no heads": (lambda: AttentionSpec(width=8, heads=0), "heads=0: it must be at least 1"),
    "linear heads": (lambda: LinearSpec(width=12, heads=5), "heads=5 does not divide width=12; .* heads=4"),
    "width": (lambda: LSTMSpec(width=0), "width=0: it must be at least 1"),
    "memory": (
        lambda: AttentionSpec(width=8, window=9, memory=3),
        "memory=3 is too short for a window of 9: keep at least 8",
    ),
    "memory by mask": (
        lambda: AttentionSpec(width=8, mask="band(5, 0)", memory=3),
        "memory=3 is too short for a window of 6",
    ),
    "no memory": (lambda: AttentionSpec(width=8, memory=0), "memory=0: it must be at least 1"),
    "window": (lambda: AttentionSpec(width=8, window=0), "window=0: it must be at least 1"),
    "endless memory": (lambda: AttentionSpec(width=8, memory=10**20), "memory=1000+: it must be at most 4,611,686,"),
    "endless window": (lambda: AttentionSpec(width=8, window=2**63), "window=9223.*: it must be at most"),
    "mask far away": (
        lambda: AttentionSpec(width=8, mask="causal & hidden(3, 9" + "9" * 20 + ")"),
        "hidden\\(99+\\): it must",
    ),
    "mask's window": (
        lambda: AttentionSpec(width=8, mask="causal & window(9223372036854775807)"),
        "it must be at most",
    ),
    "mask's band": (lambda: AttentionSpec(width=8, mask="band(9223372036854775808, 0)"), "it must be at most"),
    "score": (
        lambda: AttentionSpec(width=8, score="scaled-dott"),
        "unknown score 'scaled-dott'; did you mean 'scaled-dot'",
    ),
    "normalize": (
        lambda: AttentionSpec(width=8, normalize="softmx"),
        "unknown normalizer 'softmx'; did you mean 'softmax'",
    ),
    "position": (lambda: AttentionSpec(width=8, position="rotery"), "unknown position 'rotery'; did you mean 'rotary'"),
    "merge": (lambda: AttentionSpec(width=8, merge="shufle"), "unknown merge 'shufle'; did you mean 'shuffle'"),
    "evaluation": (lambda: AttentionSpec(width=8, merge_evaluation="sam"), "did you mean 'same'"),
    "combine": (lambda: AttentionSpec(width=8, combine="querry"), "unknown combination 'querry'; did you mean 'query'"),
    "dropout": (lambda: AttentionSpec(width=8, dropout=1.5), "dropout=1.5 is not a dropout probability"),
    "max_positions": (lambda: AttentionSpec(width=8, max_positions=0), "max_positions=0"),
    "nonlinearity": (lambda: RNNSpec(width=8, nonlinearity="tan"), "unknown nonlinearity 'tan'; did you mean 'tanh'"),
    "feature map": (lambda: LinearSpec(width=8, feature_map="elou"), "unknown feature map 'elou'; did you mean 'elu'"),
    "chunk": (lambda: LinearSpec(width=8, chunk=0), "chunk=0"),
    "rank": (lambda: LowRankSpec(width=8, rank=0), "rank=0"),
    "tokens": (lambda: LowRankSpec(width=8, tokens=0), "tokens=0"),
    "twice both ways": (lambda: BidirectionalSpec.of(PooledSpec(width=8)), "already attends to both directions"),
    "odd both ways": (lambda: mixer_spec("bidirectional-lstm", width=7), "width_out=7 cannot be shared"),
    "mixer": (lambda: mixer_spec("lsmt", width=8), "unknown mixer 'lsmt'; did you mean 'lstm'"),
    "cross": (
        lambda: CrossAttentionSpec(width=8, merge="reweight-matrix"),
        "cross-attention processes its queries one by one",
    ),
    "field": (lambda: mixer_spec("lstm", width=8, heads=2), "mixer 'lstm' has no option 'heads'"),
    "window on linear": (lambda: mixer_spec("linear", width=8, window=3), "mixer 'linear' has no option 'window'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_spec_that_cannot_work_is_refused(case):
    make, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def shapes():
    lstm, x = LSTMSpec(width=8).build(), torch.randn(2, 3, 8)
    state, span = lstm.initial_state(x), Span.whole(x)
    cross = CrossAttentionSpec(width=8, source_width=6).build()
    gru, narrow = GRUSpec(width=8).build(), LSTMSpec(width=8, width_out=4).build()
    attention = AttentionSpec(width=8).build()
    low = LowRankSpec(width=8, tokens=2).build()
    return {
        "width": (lambda: lstm(x[..., :7], state, span), r"takes \[rows, tokens, 8\], but got \[2, 3, 7\]"),
        "rank": (lambda: lstm(x[0], state, span), r"but got \[3, 8\]"),
        "span": (lambda: lstm(x[:, :2], state, span), r"span covers \[2, 3\] tokens, but x has \[2, 2\]"),
        "rows": (lambda: lstm(x, lstm.initial_state(x[:1]), span), "state has 1 rows, but x has 2"),
        "no state": (lambda: lstm(x, None, span), "needs a state of type LSTMState, but got None"),
        "other state": (lambda: lstm(x, gru.initial_state(x), span), "type LSTMState, but got HiddenState"),
        "attention's state": (lambda: attention(x, state, span), "type KVCache, but got LSTMState"),
        "narrow state": (
            lambda: lstm(x, narrow.initial_state(x), span),
            r"not from this LSTM: its first tensor is \[4\]",
        ),
        "source": (lambda: cross.initial_state(x), r"source must be \[rows, tokens, 6\]"),
        "no span": (lambda: lstm(x, state, None), r"LSTM needs a Span, but got None: use Span.whole\(x\)"),
        "too long": (lambda: low(x, (), span), "3 tokens are more than the projection along time covers"),
    }


@pytest.mark.parametrize("case", sorted(shapes()))
def test_wrong_shapes_are_named(case):
    call, message = shapes()[case]
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.parametrize("far", [{"memory": 2**62 - 1}, {"window": 2**62}, {"mask": f"causal & band({2**62}, 0)"}])
def test_the_largest_numbers_that_are_allowed_work(far):
    mixer, x = AttentionSpec(width=8, **far).build(), torch.randn(2, 3, 8)
    whole, _ = mixer(x, mixer.initial_state(x), Span.whole(x))
    _, state = mixer(x[:, :2], mixer.initial_state(x), Span.whole(x[:, :2], torch.tensor([2, 2])))
    last, _ = mixer(x[:, 2:], state, Span.after(torch.tensor([2, 2]), 1))
    torch.testing.assert_close(last, whole[:, 2:])
