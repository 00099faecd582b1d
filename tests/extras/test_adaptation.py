"""Adaptation to the text that is scored: nothing from the future, nothing left behind, always on a line of its own."""

import copy
import math
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from anaphor.cli.main import main
from anaphor.data.batches import EvaluationStream
from anaphor.data.tokenizer import Word
from anaphor.errors import ConfigError, Diverged
from anaphor.evaluation import losses_by_batch
from anaphor.extras.adaptation.dynamic_evaluation import FLOOR, Dynamic, gradient_scales
from anaphor.extras.adaptation.evaluation import score_dynamically, score_with_caches
from anaphor.extras.adaptation.neural_cache import Cache, Memory, mix_losses
from anaphor.extras.adaptation.steps import AdaptiveStep, cached_losses, dynamic_losses
from anaphor.models import build
from anaphor.models.cross_entropy import IGNORE_INDEX
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.tasks.lm.experiment import StreamExperiment
from anaphor.tasks.lm.protocol import Protocol, Split
from stand_ins import ReplayedGraphs

VOCABULARY = 7
CACHES = [Cache(5, 0.3, 0.5), Cache(5, 0.1, 0.5), Cache(100, 0.5, 0.0), Cache(1, 0.9, 4.0)]
MODELS = {"lstm": True, "transformer-xl": True, "transformer": False}


def model_of(name="lstm", scale=3, **options):
    heads = {} if name == "lstm" else {"heads": 2, "feedforward": 8}
    model = build(name, vocabulary=VOCABULARY, width=8, layers=1, **heads, **options)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(scale)  # far from uniform, so that an error shows
    return model.eval()


def tokens_of(count=41, seed=0):
    return torch.randint(0, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed))


def experiment_of(tokens, model, rows=2, bptt=4):
    tokenizer = Word.train("a b c d e f g", VOCABULARY)
    assert tokenizer.boundary < VOCABULARY
    spec = LanguageRunSpec(batch_size=rows, bptt=bptt, eval_batch_size=rows)
    experiment = StreamExperiment(spec, model, tokenizer, lambda: None)
    split = Split(tokens, 2 * len(tokens), 0)
    experiment.split = lambda name: split
    return experiment


def in_order(found):
    """Losses of each row [B, longest], the segments joined."""
    return torch.cat([losses for _, losses in found], -1)


def in_text(found, batches):
    """Losses of all tokens in the order of the text, [..., N]."""
    rows = in_order(found)
    return torch.cat([rows[..., row, :length] for row, length in enumerate(batches.lengths.tolist())], -1)


def slow_cache(model, batches, carry, cache):
    """The mixture written out: for every token the whole distribution, the past searched slot by slot."""
    losses, state = [], None
    rows = batches.rows
    past = [[] for _ in range(rows)]
    for batch in batches:
        x, state = model.compute_hidden_states(
            batch.input_ids, state if carry and not batch.restarts else None, batch.lengths
        )
        p = torch.softmax(model.head(x), -1)
        part = torch.zeros(batch.targets.shape)
        for row in range(rows):
            for step in range(batch.targets.shape[1]):
                target = batch.targets[row, step].item()
                if target == IGNORE_INDEX:
                    continue
                mixture = p[row, step].clone()
                kept = past[row][-cache.window :]
                if kept:
                    votes = torch.zeros(VOCABULARY)
                    for feature, follower in kept:
                        votes[follower] += torch.exp(cache.flatness * (x[row, step] @ feature))
                    mixture = (1 - cache.weight) * mixture + cache.weight * votes / votes.sum()
                assert mixture.sum().item() == pytest.approx(1, abs=1e-12)
                part[row, step] = -mixture[target].log()
                past[row].append((x[row, step], target))
        losses.append(part)
    return torch.cat(losses, -1)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("rows", "bptt"), [(1, 3), (3, 4), (2, 50)])
@torch.no_grad()
def test_the_cached_distribution_sums_to_one_and_is_what_the_slow_twin_writes_out(name, rows, bptt):
    model = model_of(name)
    batches = EvaluationStream(tokens_of(), 0, rows, bptt)
    fast = in_order(cached_losses(model, batches, MODELS[name], CACHES))
    for cache, losses in zip(CACHES, fast, strict=True):
        torch.testing.assert_close(losses, slow_cache(model, batches, MODELS[name], cache), rtol=1e-10, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 5), bptt=st.integers(1, 50))
def test_a_cached_score_counts_every_token_once_whatever_the_segments(rows, bptt):
    tokens, model = tokens_of(), model_of()
    experiment = experiment_of(tokens, model)

    def scored(length):
        return score_with_caches(experiment, "valid", Protocol(rows, length, carry=True), CACHES)

    for score, whole in zip(scored(bptt), scored(len(tokens)), strict=True):
        assert score.total.tokens == len(tokens)
        assert score.total.bytes == 2 * len(tokens)
        assert score.total.loss == pytest.approx(whole.total.loss, rel=1e-9)


@settings(max_examples=12, deadline=None)
@given(place=st.integers(0, 40), rows=st.sampled_from([1, 3]), bptt=st.sampled_from([1, 4, 50]))
def test_a_later_token_changes_no_earlier_loss(place, rows, bptt):
    model, tokens = model_of(), tokens_of()
    other = tokens.clone()
    other[place] = (other[place] + 1) % VOCABULARY

    def cached(text):
        batches = EvaluationStream(text, 0, rows, bptt)
        return in_text(cached_losses(model, batches, True, CACHES), batches)

    def dynamic(text):
        batches = EvaluationStream(text, 0, 1, bptt)
        return in_text(dynamic_losses(model, batches, True, Dynamic(0.5, 0.1)), batches)

    for losses in (cached, dynamic):
        before, after = losses(tokens), losses(other)
        torch.testing.assert_close(before[..., :place], after[..., :place], rtol=1e-12, atol=1e-12)
        assert (before[..., place] != after[..., place]).all()


def test_a_row_does_not_see_the_cache_of_another():
    model, tokens = model_of(), tokens_of(40)
    other = tokens.clone()
    other[:19] = (other[:19] + 1) % VOCABULARY  # the last one of the first row is what the second begins after
    first, second = (
        in_order(cached_losses(model, EvaluationStream(text, 0, 2, 4), True, CACHES)).unbind(1)
        for text in (tokens, other)
    )
    assert not torch.allclose(first[0], second[0])
    torch.testing.assert_close(first[1], second[1], rtol=1e-12, atol=1e-12)


def test_a_cache_of_weight_zero_gives_the_plain_score():
    for name, carry in MODELS.items():
        experiment, protocol = experiment_of(tokens_of(), model_of(name)), Protocol(3, 4, carry)
        plain = experiment.evaluate_with("valid", protocol)
        (score,) = score_with_caches(experiment, "valid", protocol, [Cache(5, 0.0, 0.5)])
        assert score.total == plain.total


def test_the_first_token_of_a_row_is_scored_by_the_model_alone():
    model, batches = model_of(), EvaluationStream(tokens_of(), 0, 3, 4)
    plain = in_order(losses_by_batch(model, batches, True))
    cached = in_order(cached_losses(model, batches, True, CACHES))
    torch.testing.assert_close(cached[:, :, 0], plain[:, 0].expand(len(CACHES), 3))
    assert not torch.allclose(cached[:, :, 1], plain[:, 1].expand(len(CACHES), 3))


class LargestTensor(TorchDispatchMode):
    """The largest tensor that is computed."""

    numbers = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        if isinstance(result, torch.Tensor):
            self.numbers = max(self.numbers, result.numel())
        return result


def test_a_cache_holds_a_fixed_window_and_asks_it_in_pieces():
    x, targets, losses = torch.randn(3, 30, 8), torch.randint(0, VOCABULARY, (3, 30)), torch.rand(3, 30)
    memory = Memory.empty(x, 100)
    with LargestTensor() as at_once:
        after, whole = mix_losses(memory, x, targets, losses, CACHES)
    with LargestTensor() as in_pieces:
        again, pieces = mix_losses(memory, x, targets, losses, CACHES, chunk=2_000)
    torch.testing.assert_close(pieces, whole, rtol=1e-12, atol=1e-12)
    assert in_pieces.numbers < at_once.numbers / 2
    assert after.hidden_states.shape == again.hidden_states.shape == (3, 100, 8)
    assert torch.equal(after.hidden_states[:, -30:], x)
    assert torch.equal(after.next_tokens[:, -30:], targets)
    assert (after.next_tokens[:, :-30] == IGNORE_INDEX).all()


def slow_dynamic(model, batches, carry, dynamic, strengths):
    """The textbook's loop on a copy of the model: score, then one step by the rule of the paper, term for term."""
    model = copy.deepcopy(model)
    weights = list(model.parameters())
    own = [weight.detach().clone() for weight in weights]
    losses, state = [], None
    for batch in batches:
        logits, state = model(batch.input_ids, state if carry and not batch.restarts else None)
        part = F.cross_entropy(logits[0], batch.targets[0], reduction="none")
        losses.append(part.detach()[None])
        model.zero_grad()
        part.mean().backward()
        with torch.no_grad():
            for weight, start, strength in zip(weights, own, strengths, strict=True):
                back = (dynamic.decay * strength).clamp(max=1) * (start - weight)
                floor = FLOOR if dynamic.rule == "rms" else 0
                weight += back - dynamic.lr * weight.grad / (strength + floor)
        state = type(state)(state.past_length, tuple(type(one)(*(t.detach() for t in one)) for one in state.layers))
    return torch.cat(losses, -1)


@pytest.mark.parametrize(
    "dynamic", [Dynamic(0.5), Dynamic(0.5, 0.2), Dynamic(0.5, 1), Dynamic(0.1, 0.6, "rms")], ids=str
)
@pytest.mark.parametrize("carry", [True, False])
def test_dynamic_evaluation_is_what_the_slow_twin_does(dynamic, carry):
    model, batches = model_of(), EvaluationStream(tokens_of(), 0, 1, 6)
    strengths = gradient_scales(model, EvaluationStream(tokens_of(60, seed=1), 0, 2, 6), carry)
    used = strengths if dynamic.rule == "rms" else [torch.ones(()) for _ in strengths]
    expected = slow_dynamic(model, batches, carry, dynamic, used)
    found = in_order(dynamic_losses(model, batches, carry, dynamic, strengths if dynamic.rule == "rms" else None))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_strengths_are_root_mean_squares_of_gradients_and_one_on_average():
    model, batches = model_of(), EvaluationStream(tokens_of(), 0, 2, 50)
    strengths = gradient_scales(model, batches, carry=True)
    assert torch.stack([one.mean() for one in strengths]).mean().item() == pytest.approx(1)
    logits, _ = model(batches[0].input_ids, None, batches[0].lengths)
    F.cross_entropy(logits.flatten(0, 1), batches[0].targets.flatten(), ignore_index=IGNORE_INDEX).backward()
    sizes = torch.cat([weight.grad.abs().flatten() for weight in model.parameters()])
    found = torch.cat([one.flatten() for one in strengths])
    torch.testing.assert_close(found * sizes.max() / found.max(), sizes)


@pytest.mark.parametrize("name", MODELS)
def test_a_learning_rate_of_zero_gives_the_plain_score(name):
    experiment, protocol = experiment_of(tokens_of(), model_of(name)), Protocol(1, 4, MODELS[name])
    plain = experiment.evaluate_with("valid", protocol)
    (score,) = score_dynamically(experiment, "valid", protocol, [Dynamic(0.0)])
    assert score.total.tokens == plain.total.tokens == 41
    assert score.total.loss == pytest.approx(plain.total.loss, rel=1e-12)


@pytest.mark.parametrize("fails", [False, True])
def test_dynamic_evaluation_leaves_the_model_as_it_was_also_after_an_error(fails):
    model = model_of().train()
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    seen, modes = [], []
    original = model.compute_hidden_states
    model.compute_hidden_states = lambda *given: (modes.append(model.training), original(*given))[1]

    def score():
        for _ in dynamic_losses(model, EvaluationStream(tokens_of(), 0, 1, 4), True, Dynamic(0.5)):
            seen.append(any(not torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items()))
            if fails and len(seen) == 3:
                raise KeyboardInterrupt

    if fails:
        with pytest.raises(KeyboardInterrupt):
            score()
    else:
        score()
    assert not any(modes), "in evaluation mode while it computes"
    assert len(seen) == (3 if fails else 11)
    assert all(seen), "the weights were moved meanwhile"
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(torch.equal(weight.grad, torch.ones_like(weight)) for weight in model.parameters())
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("name", MODELS)
def test_both_lower_the_loss_on_a_text_that_repeats_itself(name):
    tokens = torch.tensor([1, 2, 3, 4, 5] * 30)
    experiment, protocol = experiment_of(tokens, model_of(name, scale=1)), Protocol(1, 5, MODELS[name])
    plain = experiment.evaluate_with("valid", protocol)
    (cached,) = score_with_caches(experiment, "valid", protocol, [Cache(50, 0.5, 3.0)])
    assert cached.total.loss < plain.total.loss - 0.05
    (dynamic,) = score_dynamically(experiment, "valid", protocol, [Dynamic(0.3)])
    assert dynamic.total.loss < plain.total.loss - 0.05
    scales = gradient_scales(experiment.model, experiment.batches(0), experiment.carry)
    (scaled,) = score_dynamically(experiment, "valid", protocol, [Dynamic(0.3, 0.001, "rms")], scales)
    assert scaled.total.loss < plain.total.loss - 0.05


def test_the_signature_tells_the_adaptation_and_the_rows():
    experiment, protocol = experiment_of(tokens_of(), model_of()), Protocol(3, 4, carry=True)
    plain = experiment.evaluate_with("valid", protocol)
    assert "adaptation" not in plain.signature
    (cached,) = score_with_caches(experiment, "valid", protocol, [Cache(2000, 0.1, 0.3)])
    assert cached.signature == f"{plain.signature}|adaptation:cache(2000,0.1,0.3)"
    (learnt,) = score_dynamically(experiment, "valid", protocol, [Dynamic(0.001)])
    assert learnt.signature == plain.signature.replace("batch:3", "batch:1") + "|adaptation:dynamic(0.001)"
    assert str(Dynamic(0.001, 0.02)) == "dynamic(0.001,0.02)"
    assert str(Dynamic(0.001, 0.02, "rms")) == "dynamic-rms(0.001,0.02)"


def test_both_together_are_the_cache_over_the_features_and_losses_of_the_adapted_model():
    experiment, protocol = experiment_of(tokens_of(), model_of()), Protocol(3, 4, carry=True)
    dynamics = [Dynamic(0.3), Dynamic(0.0)]
    alone, first, second, plain, *cached = score_dynamically(experiment, "valid", protocol, dynamics, caches=CACHES[:2])
    assert [alone.total, plain.total] == [
        score.total for score in score_dynamically(experiment, "valid", protocol, dynamics)
    ]
    names = [result.metadata["adaptation"] for result in (alone, first, second)]
    assert names == ["dynamic(0.3)", "dynamic(0.3)+cache(5,0.3,0.5)", "dynamic(0.3)+cache(5,0.1,0.5)"]
    assert "batch:1" in first.signature
    assert first.total != alone.total
    # Without training it is the cache alone, in one row.
    expected = score_with_caches(experiment, "valid", Protocol(1, 4, carry=True), CACHES[:2])
    for both, cache in zip(cached, expected, strict=True):
        assert both.total.loss == pytest.approx(cache.total.loss, rel=1e-12)


def test_a_model_that_sees_later_tokens_gets_a_perplexity_by_no_adaptation_either():
    model = build("transformer", vocabulary=VOCABULARY, width=8, layers=1, merge="reweight-matrix", causal=False).eval()
    experiment, protocol = experiment_of(tokens_of(), model), Protocol(1, 4, False)
    plain = experiment.evaluate_with("valid", protocol)
    adapted = [
        *score_with_caches(experiment, "valid", protocol, CACHES[:1]),
        *score_dynamically(experiment, "valid", protocol, [Dynamic(0.1)]),
    ]
    assert [score.total.perplexity for score in (plain, *adapted)] == [None] * 3


def test_a_learning_rate_that_leads_nowhere_is_told_in_one_line():
    experiment, protocol = experiment_of(tokens_of(), model_of()), Protocol(1, 4, carry=True)
    plain = experiment.evaluate_with("valid", protocol)
    with pytest.raises(Diverged, match=r"dynamic\(1e\+300\) led to a loss that is not a finite number"):
        list(score_dynamically(experiment, "valid", protocol, [Dynamic(1e300)]))
    assert experiment.evaluate_with("valid", protocol).total == plain.total


def test_a_flatness_that_overflows_is_told_in_one_line():
    experiment, protocol = experiment_of(tokens_of(), model_of().float()), Protocol(1, 4, carry=True)
    with pytest.raises(Diverged, match=r"cache\(4,0\.1,1e\+300\) led to a loss that is not a finite number"):
        score_with_caches(experiment, "valid", protocol, [Cache(4), Cache(4, 0.1, 1e300)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cache(0), "a cache of 0 tokens"),
        (lambda: Cache(10, 1.0), "cache weight 1.0 is not a share"),
        (lambda: Cache(10, 0.1, -1.0), "cache flatness -1.0"),
        (lambda: Cache(10, 0.1, math.nan), "cache flatness nan"),
        (lambda: Dynamic(-0.1), "learning rate -0.1"),
        (lambda: Dynamic(0.1, 2.0), "decay 2.0 is not a share"),
        (lambda: Dynamic(0.1, 0.0, "rsm"), "did you mean 'rms'"),
        (lambda: cached_losses(model_of(), [], True, []), "give at least one"),
        (lambda: dynamic_losses(model_of(), [], True, Dynamic(0.1, 0.0, "rms")), "gradient scales belong to 'rms'"),
    ],
)
def test_settings_that_cannot_work_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", MODELS)
def test_on_a_gpu_it_gives_what_it_gives_on_a_cpu(name):
    model, dynamic = model_of(name), Dynamic(0.5, 0.1)
    here, there = EvaluationStream(tokens_of(), 0, 1, 4), EvaluationStream(tokens_of().cuda(), 0, 1, 4)
    expected = in_order(dynamic_losses(model, here, MODELS[name], dynamic))
    cached = in_order(cached_losses(model, here, MODELS[name], CACHES))
    model.cuda()
    torch.testing.assert_close(in_order(dynamic_losses(model, there, MODELS[name], dynamic)).cpu(), expected)
    torch.testing.assert_close(in_order(cached_losses(model, there, MODELS[name], CACHES)).cpu(), cached)


RATES = [Dynamic(0.5), Dynamic(0.1), Dynamic(0.5, 0.2), Dynamic(0.3, 0.4, "rms")]
CAPTURED = {**MODELS, "pointer": True}


def adaptive_model(name):
    """With memories that a short text fills: until then every segment has another shape."""
    if name == "pointer":
        return build("lstm", vocabulary=VOCABULARY, width=8, layers=1, pointer_memory=6, pointer_eval_memory=9).eval()
    return model_of(name, **({"memory": 4} if name == "transformer-xl" else {}))


@pytest.mark.parametrize("name", CAPTURED)
@pytest.mark.parametrize("caches", [(), CACHES], ids=["alone", "with caches"])
def test_replayed_segments_have_the_losses_of_plain_ones(name, caches):
    """Batches, state, memory and rates are copied to fixed addresses, and what is given out is not overwritten."""
    model, batches = adaptive_model(name), EvaluationStream(tokens_of(), 0, 1, 3)
    before = [weight.detach().clone() for weight in model.parameters()]
    for scales in (None, gradient_scales(model, batches, CAPTURED[name])):
        plain, captured = (AdaptiveStep(model, CAPTURED[name], caches, scales) for _ in range(2))
        captured.graphs = ReplayedGraphs(model)
        chosen = [dynamic for dynamic in RATES if (dynamic.rule == "rms") == (scales is not None)]
        for dynamic in [*chosen, None] if caches and scales is None else chosen:
            expected, found = (in_order(step.losses(batches, dynamic)) for step in (plain, captured))
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
            assert all(torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True))
        assert captured.graphs.replays >= 5 * len(chosen)
        # Learning rates share a graph. That of a decay is another, and that without training.
        assert len(captured.graphs.graphs) == (1 if scales is not None else 3 if caches else 2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a GPU")
@pytest.mark.parametrize("name", CAPTURED)
@pytest.mark.parametrize("caches", [(), CACHES], ids=["alone", "with caches"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_on_a_gpu_captured_segments_have_the_losses_of_plain_ones(name, caches, dtype):
    torch.set_default_dtype(dtype)
    model, batches = adaptive_model(name).cuda(), EvaluationStream(tokens_of(200).cuda(), 0, 1, 7)
    before = [weight.detach().clone() for weight in model.parameters()]
    tolerance = {"rtol": 1e-3, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    for scales in (None, gradient_scales(model, batches, CAPTURED[name])):
        plain, captured = (AdaptiveStep(model, CAPTURED[name], caches, scales, cuda_graph=yes) for yes in (False, True))
        chosen = [dynamic for dynamic in RATES if (dynamic.rule == "rms") == (scales is not None)]
        for dynamic in [*chosen, None] if caches and scales is None else chosen:
            expected, found = (in_order(step.losses(batches, dynamic)) for step in (plain, captured))
            torch.testing.assert_close(found, expected, **tolerance)
            assert all(torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True))
        assert plain.graphs is None
        assert len(captured.graphs.graphs) == (1 if scales is not None else 3 if caches else 2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_layers_in_evaluation_mode_have_the_gradients_of_training(single_precision):
    """cuDNN has a backward pass of recurrent layers also there: nothing drops in this model."""
    model, tokens = model_of().cuda(), tokens_of().cuda()[None]
    gradients = []
    for mode in (True, False):
        model.train(mode)
        x, _ = model.compute_hidden_states(tokens)
        gradients.append(torch.autograd.grad(x.square().sum(), model.layers.parameters()))
    for trained, evaluated in zip(*gradients, strict=True):
        torch.testing.assert_close(evaluated, trained, rtol=1e-3, atol=1e-4)


def test_evaluate_gives_the_plain_score_first_and_each_adaptation_in_a_row_of_its_own(run, capsys, answer_of):
    folder = run()
    flags = ["--device", "cpu", "--batch-size", "2"]
    (alone,) = answer_of(["evaluate", folder, *flags, "--json"])
    adapting = ["--cache", "4", "--cache-weight", "0", "0.2", "--dynamic", "0", "0.1"]
    rows = answer_of(["evaluate", folder, *flags, *adapting, "--bptt", "5", "3", "--json"])
    assert rows[0] == alone
    assert alone["adaptation"] is None
    assert {"bptt", "state", "loss", "perplexity", "tokens", "signature", "adaptation"} <= set(alone)
    names = ["cache(4,0.0,0.3)", "cache(4,0.2,0.3)", "dynamic(0.0)", "dynamic(0.1)"]
    assert [(row["bptt"], row["adaptation"]) for row in rows] == [
        (5, None), (3, None), *((5, name) for name in names), *((3, name) for name in names),
    ]  # fmt: skip
    assert all(set(row) == set(alone) and row["tokens"] == alone["tokens"] for row in rows)
    assert all(row["signature"].endswith(f"|adaptation:{row['adaptation']}") for row in rows[2:])
    assert rows[2]["loss"] == alone["loss"]
    assert main(["evaluate", folder, *flags, "--split", "test", "--cache", "4", "--dynamic", "0.1"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "perplexity" in line]
    assert [line.partition(": loss")[0] for line in lines] == [
        "bptt 5", "bptt 5, adapted by cache(4,0.1,0.3)", "bptt 5, adapted by dynamic(0.1)",
    ]  # fmt: skip


def test_rows_of_both_states_say_which_is_theirs_and_a_length_without_a_score_has_none_adapted_either(run, capsys):
    words = ["--model", "transformer", "--heads", "2", "--position", "learned", "--max-positions", "8"]
    flags = ["--device", "cpu", "--batch-size", "1", "--cache", "4", "--bptt", "5", "9"]
    assert main(["evaluate", run(*words), *flags, "--state", "carried", "restarted"]) == 0
    lines = [line.partition(": ")[0] for line in capsys.readouterr().out.splitlines() if "perplexity" in line]
    assert lines == ["bptt 5, state restarted", "bptt 5, state restarted, adapted by cache(4,0.1,0.3)"]


USES = {
    "cache": lambda model, batches: list(cached_losses(model, batches, False, [Cache(3)])),
    "dynamic": lambda model, batches: list(dynamic_losses(model, batches, False, Dynamic(0.1))),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("fails", [False, True])
def test_a_layer_that_its_owner_keeps_in_evaluation_mode_stays_there(use, fails, monkeypatch):
    model = build("lstm", vocabulary=VOCABULARY, width=8, layers=2, dropout=0.5)
    model.layers[0].eval()
    before = {name: module.training for name, module in model.named_modules()}
    if fails:
        monkeypatch.setattr(type(model.layers[1]), "forward", lambda *inputs: 1 / 0)
    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        USES[use](model, EvaluationStream(tokens_of(), 0, 1, 10))
    assert {name: module.training for name, module in model.named_modules()} == before


def test_both_together_have_a_row_after_each_dynamic_evaluation(run, answer_of):
    flags = ["--device", "cpu", "--cache", "4", "--dynamic", "0.1", "--both", "--no-cuda-graph", "--json"]
    rows = answer_of(["evaluate", run(), *flags])
    names = [None, "cache(4,0.1,0.3)", "dynamic(0.1)", "dynamic(0.1)+cache(4,0.1,0.3)"]
    assert [row["adaptation"] for row in rows] == names
    assert rows[3]["signature"] == rows[2]["signature"] + "+cache(4,0.1,0.3)"
    assert rows[3]["loss"] not in (rows[1]["loss"], rows[2]["loss"])


def test_gradients_of_training_are_those_of_the_text_of_training_whatever_is_scored(run, tmp_path, monkeypatch):
    seen = []

    def keep(model, batches, carry):
        seen.append(torch.cat([batch.input_ids.flatten() for batch in batches]))
        return gradient_scales(model, batches, carry)

    monkeypatch.setattr("anaphor.extras.adaptation.evaluation.gradient_scales", keep)
    (tmp_path / "other.txt").write_text("f a f b\nf c f d\n" * 20, encoding="utf-8")
    flags = ["--device", "cpu", "--dynamic", "0.1", "--dynamic-rule", "rms"]
    folder = run()
    for other in ([], ["--data", str(tmp_path / "other.txt")]):
        assert main(["evaluate", folder, *flags, *other]) == 0
    assert torch.equal(*seen)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cache-weight", "0.1"], "cache_weight=(0.1,) has no effect without --cache"),
        (["--dynamic-decay", "0.1"], "dynamic_decay=(0.1,) has no effect without --dynamic"),
        (["--dynamic-rule", "rms"], "dynamic_rule=rms has no effect without --dynamic"),
        (["--split", "test", "--dynamic", "0.1", "0.2"], "on test: choose one of them on valid"),
        (["--cache", "-3"], "a cache of -3 tokens"),
        (["--cache", "10", "--cache-weight", "1.5"], "cache weight 1.5 is not a share"),
        (["--dynamic", "0.1", "--dynamic-rule", "sdg"], "did you mean 'sgd'"),
        (["--both", "--cache", "10"], "--both needs --cache and --dynamic"),
        (["--no-cuda-graph"], "cuda_graph=False has no effect without --cache or --dynamic"),
    ],
)
def test_flags_that_cannot_work_get_one_line(run, error_of, words, message):
    assert message in error_of(["evaluate", run(), *words, "--device", "cpu"])


def test_padded_examples_have_nothing_to_adapt_to(run, answer_of, error_of):
    folder = run("--batching", "padded")
    for words in (["--cache", "10"], ["--dynamic", "0.1"]):
        assert "was trained with --batching padded" in error_of(["evaluate", folder, "--device", "cpu", *words])
    (row,) = answer_of(["evaluate", folder, "--device", "cpu", "--json"])
    assert row["adaptation"] is None
