"""What a tap shows is what the model does: watched and unwatched runs agree, gradients too."""

from itertools import product

import pytest
import torch

from anaphor.errors import ConfigError
from anaphor.inspect import recorded
from anaphor.mixers import AttentionSpec, CrossAttentionSpec, LinearSpec, LowRankSpec, Span
from anaphor.mixers.attention.position import POSITIONS
from anaphor.mixers.attention.score import SCORES
from anaphor.models import PRESETS, build
from anaphor.taps import taps_of
from contracts.cases import VIEWS

TIGHT = {"rtol": 1e-9, "atol": 1e-10}


def both_paths(mixer, state, x, span, wanted):
    """(output, gradients) unwatched and watched, and what was seen."""
    found = []
    for watched in (False, True):
        with recorded(mixer, "weights") if watched else torch.enable_grad() as seen:
            y, _ = mixer(x, state, span)
        found.append((y, torch.autograd.grad(y.square().sum(), wanted, retain_graph=True)))
    return (*found, seen["weights"])


@pytest.mark.parametrize("lengths", [None, [5, 3, 0]], ids=["full", "padded"])
@pytest.mark.parametrize(("score", "position", "view"), [*product(SCORES, POSITIONS, VIEWS)])
def test_fused_attention_agrees_with_the_explicit_one(score, position, view, lengths):
    mixer = AttentionSpec(width=8, heads=2, score=score, position=position, **VIEWS[view]).build().eval()
    past = 0.5 * torch.randn(3, 4, 8)
    _, state = mixer(past, mixer.initial_state(past), Span.whole(past))
    x = (0.5 * torch.randn(3, 5, 8)).requires_grad_()
    span = Span.after(torch.full((3,), 4), 5, None if lengths is None else torch.tensor(lengths))
    wanted = [x, *mixer.parameters()]
    (fast, fast_gradients), (slow, slow_gradients), weights = both_paths(mixer, state, x, span, wanted)
    torch.testing.assert_close(fast, slow, **TIGHT)
    for one, other in zip(fast_gradients, slow_gradients, strict=True):
        torch.testing.assert_close(one, other, **TIGHT)

    keys = torch.arange(9 - weights.shape[-1], 9)
    queries = torch.arange(4, 9)
    allowed = mixer.mask(queries[:, None], keys[None])
    real = torch.arange(5) < (torch.tensor([5, 5, 5]) if lengths is None else torch.tensor(lengths))[:, None]
    allowed = allowed & real[:, :, None] & torch.cat((torch.ones(3, len(keys) - 5).bool(), real), 1)[:, None]
    assert not weights[~allowed[:, None].expand_as(weights)].any(), "masked cells are exactly zero"
    sums = weights.sum(-1)
    torch.testing.assert_close(sums, allowed.any(-1)[:, None].expand_as(sums).to(sums.dtype), **TIGHT)


def test_watched_cross_attention_agrees_with_the_fused_one():
    mixer = CrossAttentionSpec(width=8, heads=2).build()
    source = torch.randn(2, 5, 8, requires_grad=True)
    state = mixer.initial_state(source, torch.tensor([5, 2]))
    x = torch.randn(2, 3, 8, requires_grad=True)
    span = Span.whole(x, torch.tensor([3, 2]))
    wanted = [x, source, *mixer.parameters()]
    (fast, fast_gradients), (slow, slow_gradients), weights = both_paths(mixer, state, x, span, wanted)
    torch.testing.assert_close(fast, slow, **TIGHT)
    for one, other in zip(fast_gradients, slow_gradients, strict=True):
        torch.testing.assert_close(one, other, **TIGHT)
    assert not weights[1, :, :, 2:].any()
    assert not weights[1, :, 2:].any(), "a token that does not exist looks at nothing"


def test_watched_linear_attention_agrees_with_the_chunked_one():
    mixer = LinearSpec(width=8, heads=2, chunk=2).build()
    x = torch.randn(2, 7, 8, requires_grad=True)
    wanted = [x, *mixer.parameters()]
    (fast, fast_gradients), (slow, slow_gradients), weights = both_paths(
        mixer, mixer.initial_state(x), x, Span.whole(x), wanted
    )
    torch.testing.assert_close(fast, slow, **TIGHT)
    for one, other in zip(fast_gradients, slow_gradients, strict=True):
        torch.testing.assert_close(one, other, **TIGHT)
    assert not weights.triu(1).any()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 7))


@pytest.mark.parametrize("name", [name for name in PRESETS if not name.startswith(("gpt2", "gopher", "openai"))])
def test_a_whole_model_agrees_with_itself_while_watched(name):
    model = build(name, vocabulary=20, width=24, layers=2).eval()
    tokens = torch.randint(0, 20, (2, 9))
    plain, _ = model(tokens)
    with recorded(model) as seen:
        watched, _ = model(tokens)
    torch.testing.assert_close(plain, watched, **TIGHT)
    assert set(seen) == set(taps_of(model))


@pytest.mark.parametrize(
    "spec", [LinearSpec(width=8, heads=2), LowRankSpec(width=8, heads=2, rank=3)], ids=lambda s: type(s).__name__
)
def test_tokens_that_do_not_exist_look_at_nothing(spec):
    mixer, x = spec.build(), torch.randn(2, 5, 8)
    with recorded(mixer, "weights") as seen:
        mixer(x, mixer.initial_state(x), Span.whole(x, torch.tensor([5, 2])))
    assert not seen["weights"][1, :, 2:].any()
    assert seen["weights"][1, :, :2].any()


@pytest.mark.parametrize("mask", ["everything", "band(1, 2)", "causal | prefix(3)", "everything & hidden(1)"])
def test_fused_and_explicit_agree_on_whole_sequences(mask):
    mixer, x = AttentionSpec(width=8, heads=2, mask=mask).build(), torch.randn(2, 6, 8, requires_grad=True)
    span = Span.whole(x, torch.tensor([6, 3]))
    (fast, fast_gradients), (slow, slow_gradients), _ = both_paths(mixer, (), x, span, [x, *mixer.parameters()])
    torch.testing.assert_close(fast, slow, **TIGHT)
    for one, other in zip(fast_gradients, slow_gradients, strict=True):
        torch.testing.assert_close(one, other, **TIGHT)


def test_names_are_places_in_the_model():
    model = build("hybrid", vocabulary=20, width=8, layers=3)
    assert set(taps_of(model)) == {
        "layers.0.mixer.gates",
        "layers.0.mixer.states",
        "layers.1.mixer.weights",
        "layers.2.mixer.weights",
    }
    with recorded(model, "layers.*.weights") as seen:
        model(torch.randint(0, 20, (2, 5)))
    assert {name: tuple(tensor.shape) for name, tensor in seen.items()} == {
        "layers.1.mixer.weights": (2, 4, 5, 5),
        "layers.2.mixer.weights": (2, 4, 5, 5),
    }


def test_nothing_stays_behind():
    model = build("transformer", vocabulary=20, width=8, layers=1)
    tap = taps_of(model)["layers.0.mixer.weights"]
    with recorded(model), recorded(model, "*.weights"):
        assert tap.is_recorded
    assert not tap.is_recorded
    assert not tap._forward_hooks
    with pytest.raises(RuntimeError, match="on purpose"), recorded(model):
        raise RuntimeError("on purpose")
    assert not tap.is_recorded


def test_unknown_taps_are_named_with_a_guess():
    model = build("transformer", vocabulary=20, width=8, layers=1)
    with pytest.raises(ConfigError, match=r"no tap is called 'layers.0.mixer.weight'; did you mean"):
        recorded(model, "layers.0.mixer.weight").__enter__()
    with pytest.raises(ConfigError, match=r"no tap is called 'weights'; did you mean '\*.weights'"):
        recorded(model, "weights").__enter__()


def test_only_models_are_recorded():
    with pytest.raises(ConfigError, match=r"expected a torch.nn.Module with taps, not str"):
        recorded("layers", "*").__enter__()
