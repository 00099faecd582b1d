"""Maps are what the weights of the model say, computed here once more by hand; so are their summaries."""

import math

import pytest
import torch

from anaphor.errors import ConfigError
from anaphor.inspect import attention_maps, head_average, rank_heads, recorded, rollout, select_maps, summarize_heads
from anaphor.inspect.maps import normalize_rows, rows_sum_to_one
from anaphor.mixers import CrossAttentionSpec, MixerSpec, Span, mixer_spec
from anaphor.models import Backbone, BlockSpec, LanguageModelSpec, build, build_seq2seq

TIGHT = {"rtol": 1e-9, "atol": 1e-11}
WIDTH, HEADS = 16, 4
SIZE = WIDTH // HEADS


def model_with(**options):
    """Two layers with weights large enough that the maps are far from even, and every parameter used."""
    spec = {"vocabulary": 11, "mixers": ("attention",), "layers": 2, "width": WIDTH, "heads": HEADS, **options}
    model = LanguageModelSpec(**spec).build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return model


# ---- the same by hand


def normed(x, norm):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias


def wave(position, width):
    """Sine and cosine by turns, each pair at its own speed."""
    speeds = [10000 ** -(dimension // 2 * 2 / width) for dimension in range(width)]
    return torch.tensor([(math.cos if i % 2 else math.sin)(position * speed) for i, speed in enumerate(speeds)])


def turned(vector, position):
    """Pairs (i, i + K/2) are complex numbers; the position turns them."""
    half = len(vector) // 2
    turn = torch.tensor([position * 10000 ** -(pair / half) for pair in range(half)])
    number = torch.complex(vector[:half], vector[half:]) * torch.polar(torch.ones(half), turn)
    return torch.cat((number.real, number.imag))


def score_of(scheme, mixer, head, q, k, far, here, there):
    """How well a key answers a query that stands `far` behind it."""
    if scheme == "rotary":
        return turned(q, here) @ turned(k, there) / math.sqrt(SIZE)
    plain = q @ k / math.sqrt(SIZE)
    if scheme == "alibi":
        return plain - 2 ** (-8 * (head + 1) / HEADS) * far
    if scheme == "relative":
        position = mixer.position
        r = (position.project.weight @ wave(far, WIDTH)).view(HEADS, SIZE)[head]
        u, v = position.content_bias[head, 0], position.distance_bias[head, 0]
        return ((q + u) @ k + (q + v) @ r) / math.sqrt(SIZE)
    return plain


def by_hand(model, tokens, scheme, reach=10**6):
    x = model.embedder.scale * model.embed.weight[tokens]
    if scheme == "learned":
        x = x + model.embedder.position.table.weight[: len(tokens)]
    if scheme == "sinusoidal":
        x = x + torch.stack([wave(place, WIDTH) for place in range(len(tokens))])
    maps = []
    for block in model.layers:
        mixer, entering = block.mixer, normed(x, block.mixer_sublayer.norm)
        q, k, v = (entering @ mixer.project.weight.T + mixer.project.bias).view(-1, 3, HEADS, SIZE).unbind(1)
        weights = torch.zeros(HEADS, len(tokens), len(tokens))
        for head in range(HEADS):
            for here in range(len(tokens)):
                seen = range(max(0, here - reach + 1), here + 1)
                scores = [
                    score_of(scheme, mixer, head, q[here, head], k[there, head], here - there, here, there)
                    for there in seen
                ]
                powers = torch.stack(scores).exp()
                weights[head, here, list(seen)] = powers / powers.sum()
        maps.append(weights)
        found = torch.stack([weights[head] @ v[:, head] for head in range(HEADS)], dim=1).flatten(1)
        x = x + found @ mixer.out.weight.T + mixer.out.bias
        hidden = normed(x, block.feedforward_sublayer.norm) @ block.feedforward.up.weight.T + block.feedforward.up.bias
        hidden = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
        x = x + hidden @ block.feedforward.down.weight.T + block.feedforward.down.bias
    return maps


@pytest.mark.parametrize("scheme", ["none", "learned", "sinusoidal", "rotary", "alibi", "relative"])
def test_maps_equal_an_independent_computation_from_the_weights(scheme):
    model = model_with(position=scheme)
    tokens = torch.randint(0, 11, (9,))
    maps = attention_maps(model, tokens)
    assert list(maps) == ["layers.0.mixer.weights", "layers.1.mixer.weights"]
    with torch.no_grad():
        expected = by_hand(model, tokens, scheme)
    for found, wanted in zip(maps.values(), expected, strict=True):
        assert found.shape == (HEADS, 9, 9)
        torch.testing.assert_close(found, wanted, **TIGHT)
        torch.testing.assert_close(found.sum(-1), torch.ones(HEADS, 9), **TIGHT)
        assert not found.triu(1).any(), "masked cells are exactly zero"
        assert found.tril().ne(0).sum() == HEADS * 45


def test_a_window_leaves_exact_zeros_outside_it():
    model = model_with(position="alibi", window=3)
    tokens = torch.randint(0, 11, (8,))
    with torch.no_grad():
        expected = by_hand(model, tokens, "alibi", reach=3)
    for found, wanted in zip(attention_maps(model, tokens).values(), expected, strict=True):
        torch.testing.assert_close(found, wanted, **TIGHT)
        assert not found.tril(-3).any()


# ---- where the text goes on, and what else has maps


def test_a_carried_memory_stands_before_the_new_tokens():
    model = model_with(position="relative", memory=6)
    tokens = torch.randint(0, 11, (1, 10))
    whole = attention_maps(model, tokens)
    with torch.no_grad():
        _, state = model(tokens[:, :6])
    for name, weights in attention_maps(model, tokens[:, 6:], state).items():
        assert weights.shape == (HEADS, 4, 10)
        torch.testing.assert_close(weights, whole[name][:, 6:], **TIGHT)
    second = attention_maps(model, tokens[:, 6:], state)
    known, new = (summarize_heads(second, tokens[0, start:].tolist())[0] for start in (0, 6))
    assert known.distance == new.distance
    assert known.induction_tokens >= new.induction_tokens, "more past, more repeats"
    with pytest.raises(ConfigError, match="4 queries and 10 keys, but 5 tokens were given"):
        summarize_heads(second, [1, 2, 3, 4, 5])


def test_only_layers_with_attention_have_maps():
    tokens = torch.randint(0, 20, (1, 5))
    hybrid = build("hybrid", vocabulary=20, width=16, layers=3)
    assert list(attention_maps(hybrid, tokens)) == ["layers.1.mixer.weights", "layers.2.mixer.weights"]
    assert attention_maps(build("lstm", vocabulary=20, width=16), tokens) == {}


def test_looking_changes_nothing():
    model = build("transformer", vocabulary=20, width=16, layers=1, dropout=0.5).train()
    tokens = torch.randint(0, 20, (7,))
    first, second = (attention_maps(model, tokens)["layers.0.mixer.weights"] for _ in range(2))
    assert torch.equal(first, second), "there is no dropout in a map"
    assert model.training
    assert not first.requires_grad


def test_a_map_is_of_one_text():
    with pytest.raises(ConfigError, match=r"a map shows one sequence, but layers.0.mixer.weights has a batch of 3"):
        attention_maps(build("transformer", vocabulary=20, width=16, layers=1), torch.randint(0, 20, (3, 5)))


def stack_of(*specs: MixerSpec):
    return Backbone([BlockSpec(mixer=spec, norm="none", residual=False) for spec in specs])


def test_mixers_of_whole_sequences_have_maps_over_tokens():
    stack = stack_of(
        mixer_spec("svd", width=8, heads=2, rank=6),
        mixer_spec("low-rank", width=8, heads=2, rank=3, tokens=10),
        mixer_spec("pooled", width=8),
        mixer_spec("bidirectional-linear", width=8, heads=2),
    )
    x = torch.randn(1, 6, 8)
    inputs = (x, stack.initial_state(x), Span.whole(x))
    with recorded(stack) as seen, torch.no_grad():
        stack(*inputs)
    svd, low_rank, pooled, forward, backward = attention_maps(stack, *inputs).values()
    assert [tuple(one.shape) for one in (svd, low_rank, pooled, forward, backward)] == [
        (2, 6, 6), (2, 6, 6), (1, 6, 6), (2, 6, 6), (2, 6, 6),
    ]  # fmt: skip
    projection = stack[1].mixer.time_projection[:, :6].detach()
    torch.testing.assert_close(low_rank, seen["1.mixer.weights"][0] @ projection, **TIGHT)
    torch.testing.assert_close(pooled[0], seen["2.mixer.weights"].expand(6, 6), **TIGHT)
    assert not forward.triu(1).any()
    assert not backward.tril(-1).any(), "the other direction looks at what comes later"
    first = summarize_heads({"low-rank": low_rank}, range(6))[0]
    assert first.entropy is None, "weights below zero are no shares"
    assert not first.normalized
    with pytest.raises(ConfigError, match="has negative ones"):
        rollout({"low-rank": low_rank})


def test_attention_to_another_text_is_left_out():
    mixer = CrossAttentionSpec(width=8, heads=2).build()
    source, x = torch.randn(1, 5, 8), torch.randn(1, 3, 8)
    state = mixer.initial_state(source, torch.tensor([5]))
    with recorded(mixer) as seen:
        mixer(x, state, Span.whole(x))
    assert "weights" in seen
    assert select_maps(mixer, seen) == {}
    assert attention_maps(mixer, x, state, Span.whole(x)) == {}


# ---- averages, rollout, summaries

HAND = torch.tensor([[[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.3, 0.5]], [[1.0, 0, 0], [0, 1, 0], [0.6, 0, 0.4]]]).double()


def test_the_average_of_heads():
    expected = torch.tensor([[1, 0, 0], [0.25, 0.75, 0], [0.4, 0.15, 0.45]])
    torch.testing.assert_close(head_average(HAND), expected)


def test_a_rollout_by_hand():
    other = torch.tensor([[[1.0, 0, 0], [1, 0, 0], [0, 1, 0]]])
    first = torch.tensor([[1, 0, 0], [0.125, 0.875, 0], [0.2, 0.075, 0.725]])
    second = torch.tensor([[1, 0, 0], [0.5, 0.5, 0], [0, 0.5, 0.5]])
    found = rollout({"layers.0": HAND, "layers.1": other})
    torch.testing.assert_close(found["layers.0"], first)
    torch.testing.assert_close(found["layers.1"], second @ first)
    torch.testing.assert_close(found["layers.1"].sum(-1), torch.ones(3))
    with pytest.raises(ConfigError, match="2 queries and 3 keys"):
        rollout({"layers.0": HAND[:, 1:]})


def test_rows_that_do_not_sum_to_one_are_divided_by_their_sum():
    model = model_with(normalize="sigmoid")
    (weights, _) = attention_maps(model, torch.randint(0, 11, (5,))).values()
    assert not rows_sum_to_one(weights)
    torch.testing.assert_close(normalize_rows(weights).sum(-1), torch.ones(HEADS, 5))
    head = summarize_heads({"layers.0.mixer.weights": weights}, range(5))[0]
    assert not head.normalized
    assert head.total == pytest.approx(float(weights[0].sum(-1).mean()))
    assert head.on_self == pytest.approx(float(normalize_rows(weights)[0].diagonal().mean()))
    assert rows_sum_to_one(HAND)


def test_a_row_that_sees_nothing_is_passed_over():
    blind = HAND.clone()
    blind[0, 0] = 0
    assert rows_sum_to_one(blind)
    head = summarize_heads({"a": blind}, "abc")[0]
    assert head.on_self == pytest.approx(0.5)
    assert torch.equal(rollout({"a": blind[:1]})["a"][0], torch.tensor([1.0, 0, 0]))
    nothing = summarize_heads({"a": torch.zeros(1, 2, 2)}, "ab")[0]
    assert (nothing.entropy, nothing.distance, nothing.on_self, nothing.total) == (None, None, None, None)


def entropy(*parts):
    return -sum(part * math.log(part) for part in parts)


def test_the_summary_of_a_map_made_by_hand():
    first, second = summarize_heads({"layers.7.mixer.weights": HAND}, "abc")
    assert (first.layer, first.head, second.head) == (7, 0, 1)
    assert first.entropy == pytest.approx((0 + entropy(0.5, 0.5) + entropy(0.2, 0.3, 0.5)) / 3)
    assert first.evenness == pytest.approx((math.log(2) + entropy(0.2, 0.3, 0.5)) / (math.log(2) + math.log(3)))
    assert first.distance == pytest.approx((0 + 0.5 + (0.4 + 0.3)) / 3)
    assert first.on_self == pytest.approx((1 + 0.5 + 0.5) / 3)
    assert first.on_previous == pytest.approx((0.5 + 0.3) / 2), "the first token has none before it"
    assert first.on_first == pytest.approx((0.5 + 0.2) / 2)
    assert first.induction is None, "no token comes twice"
    assert first.induction_tokens == 0
    assert second.on_self == pytest.approx(0.8)
    assert second.pattern == "itself"


def test_induction_is_the_weight_on_what_followed_the_last_time():
    #       a  b  a  a  b      what followed the last time
    rows = [[1, 0, 0, 0, 0],  # a: first time
            [0, 1, 0, 0, 0],  # b: first time
            [.1, .7, .2, 0, 0],  # a: b at 1
            [0, 0, 0, 1, 0],  # a: at once again, which is no induction
            [0, 0, .4, .1, .5]]  # b: a at 2  # fmt: skip
    head = summarize_heads({"a": torch.tensor(rows)[None]}, "abaab")[0]
    assert head.induction == pytest.approx((0.7 + 0.4) / 2)
    assert head.induction_tokens == 2
    assert "induction" in head.pattern


def test_heads_that_continue_come_first_and_even_ones_last():
    tokens = [1, 2, 3, 1, 2, 3]
    even = torch.ones(6, 6).tril() / torch.arange(1, 7)[:, None]
    itself, previous, follows = torch.eye(6), torch.eye(6), torch.eye(6)
    previous[1:] = itself[:-1]
    follows[3:] = itself[1:4]
    names = ["even", "previous", "follows", "itself"]
    heads = rank_heads(summarize_heads({"layers.0.x": torch.stack([even, previous, follows, itself])}, tokens))
    assert [names[head.head] for head in heads] == ["follows", "previous", "itself", "even"]
    assert [head.pattern for head in heads] == ["induction, itself", "previous", "itself", "uniform"]
    assert heads[-1].induction > 0.1, "by looking everywhere"
    unrepeated = rank_heads(summarize_heads({"layers.0.x": torch.stack([even, previous])}, range(6)))
    assert [head.head for head in unrepeated] == [1, 0]


def test_what_looks_at_another_text_is_no_map_of_this_one():
    model = build_seq2seq("luong", source_vocabulary=7, vocabulary=7, width=8)
    state = model.encode(torch.randint(7, (1, 5)))
    assert attention_maps(model.decoder, torch.randint(7, (1, 4)), state) == {}
