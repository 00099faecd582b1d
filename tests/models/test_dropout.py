"""Dropout: on in training, off in evaluation, at the rate that was asked for, in every place."""

from contextlib import nullcontext

import pytest
import torch

from anaphor.errors import ConfigError
from anaphor.inspect import recorded
from anaphor.mixers import AttentionSpec, GRUSpec, LSTMSpec, RNNSpec, Span, SVDSpec
from anaphor.mixers.base import locked_dropout
from anaphor.models import BlockSpec, build
from anaphor.models.backbone import FeedForward, Sublayer
from anaphor.models.embedder import drop_words

RATE = 0.3


def share_of_zeros(tensor):
    return (tensor == 0).double().mean().item()


def block_spec(**options):
    return BlockSpec(mixer=AttentionSpec(width=8, heads=2), dropout=RATE, **options)


def test_after_a_layer():
    sublayer, x = Sublayer(block_spec(norm="none"), 8, 8), torch.ones(10, 100, 8)
    assert share_of_zeros(sublayer.post(torch.zeros_like(x), x)) == pytest.approx(RATE, abs=0.03)
    assert torch.equal(sublayer.eval().post(torch.zeros_like(x), x), x)


def test_inside_the_feed_forward_network():
    network = FeedForward(4, 4, "relu", RATE)
    with torch.no_grad():
        for layer in (network.up, network.down):
            layer.weight.copy_(torch.eye(4))
            layer.bias.zero_()
    x = torch.ones(50, 50, 4)
    assert share_of_zeros(network(x)) == pytest.approx(RATE, abs=0.03)
    assert torch.equal(network.eval()(x), x)


def test_after_the_embedding():
    model = build("lstm", vocabulary=5, width=8, dropout=RATE)
    seen = []
    model.layers[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    tokens = torch.randint(0, 5, (20, 50))
    model(tokens)
    model.eval()(tokens)
    assert share_of_zeros(seen[0]) == pytest.approx(RATE, abs=0.03)
    assert share_of_zeros(seen[1]) == 0


@pytest.mark.parametrize("watched", [False, True], ids=["fused", "explicit"])
@pytest.mark.parametrize("spec", [AttentionSpec, SVDSpec], ids=["attention", "svd"])
def test_on_the_weights_of_attention(spec, watched):
    """With values of one the output is the sum of the weights that are left, over what is kept: one on average."""
    mixer = spec(width=4, heads=1, dropout=RATE, bias=False).build()
    with torch.no_grad():
        mixer.project.weight.zero_()
        mixer.project.weight[8:] = torch.eye(4)
        mixer.out.weight.copy_(torch.eye(4))
    x = torch.ones(60, 12, 4)

    def run():
        if not watched:
            return mixer(x, mixer.initial_state(x), Span.whole(x))[0]
        with recorded(mixer, "weights") as seen:
            y = mixer(x, mixer.initial_state(x), Span.whole(x))[0]
        torch.testing.assert_close(seen["weights"].sum(-1), torch.ones(60, 1, 12))  # a tap shows them before dropout
        return y

    last = run()[:, -1]
    assert last.std() > 0.05
    assert last.mean().item() == pytest.approx(1, abs=0.05)
    mixer.eval()
    torch.testing.assert_close(run(), x)


def test_a_rate_of_zero_changes_nothing_in_training():
    model = build("transformer", vocabulary=5, width=8)
    tokens = torch.randint(0, 5, (2, 6))
    assert torch.equal(model.train()(tokens)[0], model.eval()(tokens)[0])


def test_locked_dropout_takes_the_same_features_from_all_tokens_of_a_row():
    x = locked_dropout(torch.ones(40, 7, 50), RATE)
    assert torch.equal(x, x[:, :1].expand_as(x))
    assert share_of_zeros(x) == pytest.approx(RATE, abs=0.03)
    assert x.max().item() == pytest.approx(1 / (1 - RATE))
    assert len({tuple(row.tolist()) for row in x[:, 0]}) == 40, "rows lose different features"


def test_words_are_left_out_wherever_they_stand():
    tokens = torch.randint(0, 200, (20, 50))
    x = drop_words(torch.ones(20, 50, 3), tokens, RATE, 200, replacement=torch.zeros(3))
    for word in tokens.unique():
        assert len(x[tokens == word].unique()) == 1
    assert share_of_zeros(x) == pytest.approx(RATE, abs=0.12)


@pytest.mark.parametrize("name", ["transformer-xl", "hybrid", "lstm"])
def test_gradients_stay_small_where_a_deep_stack_begins_with_a_word_that_is_left_out(name):
    """Its residual stream must not be zero: each of sixteen norms would multiply the gradient by three hundred."""
    model = build(name, vocabulary=4, width=16, layers=8, word_dropout=0.99)
    model(torch.randint(0, 4, (8, 3)))[0].logsumexp(-1).sum().backward()
    assert max(weight.grad.abs().max() for weight in model.parameters()) < 1e3
    assert model.embedder.dropped_word.weight.grad.abs().max() > 0


@pytest.mark.parametrize("option", ["output_dropout", "word_dropout", "input_dropout"])
@pytest.mark.parametrize("kind", ["each", "locked"])
def test_every_place_drops_in_training_and_nowhere_else(option, kind):
    model = build("lstm", vocabulary=9, width=16, dropout_kind=kind, **{option: 0.5})
    plain = build("lstm", vocabulary=9, width=16)
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if "dropped_word" not in name})
    tokens = torch.randint(0, 9, (3, 6))
    assert not torch.equal(model(tokens)[0], model(tokens)[0])
    assert torch.equal(model.eval()(tokens)[0], plain(tokens)[0])


RECURRENT = {"rnn": RNNSpec, "gru": GRUSpec, "lstm": LSTMSpec}


@pytest.mark.parametrize("lengths", [None, [4, 1, 6]], ids=["full", "ragged"])
@pytest.mark.parametrize("name", RECURRENT)
def test_weight_drop_is_the_same_in_the_kernel_and_in_the_cell(name, lengths):
    mixer = RECURRENT[name](width=5, width_out=7, weight_drop=0.5).build().double()
    x = torch.randn(3, 6, 5, dtype=torch.float64)
    span = Span.whole(x, None if lengths is None else torch.tensor(lengths))
    found = []
    for watched in (False, True):
        torch.manual_seed(3)
        mixer.zero_grad()
        with recorded(mixer, "gates") if watched else nullcontext():
            y, state = mixer(x, mixer.initial_state(x), span)
        (y.sum() + state.hidden.square().sum()).backward()
        found.append([y, *state, *(weight.grad.clone() for weight in mixer.parameters())])
    for fast, slow in zip(*found, strict=True):
        torch.testing.assert_close(fast, slow)
    gaps = (mixer.recurrent_weights[0].grad == 0).double().mean().item()
    assert gaps == pytest.approx(0.5, abs=0.2), "what was dropped learns nothing"


@pytest.mark.parametrize("share", [-0.1, 1.0])
@pytest.mark.parametrize("option", ["weight_drop", "word_dropout", "output_dropout", "dropout"])
def test_a_share_is_at_least_zero_and_below_one(option, share):
    with pytest.raises(ConfigError, match=f"{option}={share} is not a dropout probability"):
        build("lstm", vocabulary=5, width=8, **{option: share})


def test_a_kind_of_dropout_that_nobody_knows_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'locked'"):
        build("lstm", vocabulary=5, width=8, dropout_kind="loked")


def test_attention_has_no_recurrent_weights_to_drop():
    with pytest.raises(ConfigError, match=r"weight_drop=0\.5 is not used"):
        build("transformer", vocabulary=5, width=8, weight_drop=0.5)
