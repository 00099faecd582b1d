"""The pointer against a plain loop; it sees the past alone; chunks equal the whole; padding changes nothing."""

import math

import pytest
import torch

from anaphor import evaluation
from anaphor.beam_search import beam_search
from anaphor.errors import ConfigError
from anaphor.extras.pointer import PointerSettings
from anaphor.generate import Sampler, generate, generate_rows
from anaphor.mixers import detach, select_rows
from anaphor.models import LanguageModelSpec
from anaphor.models.cross_entropy import IGNORE_INDEX, cross_entropy, token_losses
from anaphor.training.optimizers import OptimizerSpec, build_optimizer
from anaphor.training.state_dicts import flatten, unflatten

WORDS = 7


def build(memory=5, eval_memory=None, eval_bias=0.0, **options):
    pointer = PointerSettings(pointer_memory=memory, pointer_eval_memory=eval_memory, pointer_eval_bias=eval_bias)
    spec = LanguageModelSpec(
        vocabulary=WORDS, width=6, mixers=("lstm",), norm="none", feedforward=0, residual=False, extras=[pointer],
        **options,
    )  # fmt: skip
    model = spec.build().eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.7)
    return model


def draw(rows=3, tokens=12, seed=1):
    ids = torch.randint(0, WORDS, (rows, tokens + 1), generator=torch.Generator().manual_seed(seed))
    return ids[:, :-1], ids[:, 1:]


@torch.no_grad()
def losses(model, tokens, targets, state=None, lengths=None):
    x, state = model.compute_hidden_states(tokens, state, lengths)
    return model.token_losses(x, targets, state), state


@torch.no_grad()
def plain_loop(model, row, bias=0.0):
    """What each token of one row is followed by, from the definition. [T] -> [T, V]"""
    pointer, (x, _) = model.pointer, model.compute_hidden_states(row[None])
    vocabulary = torch.softmax(model.head(x[0]), -1)
    found = []
    for here in range(len(row)):
        first = max(0, here - pointer.memory)
        scores = [pointer.sentinel(x[0, here]).item()]
        for there in range(first, here):
            bucket = round(math.log2(min(here - there, pointer.train_memory)))
            likeness = pointer.query(x[0, here]) @ pointer.key(x[0, there])
            scores.append(likeness.item() + pointer.distance_bias[bucket].item() + bias)
        weights = torch.softmax(torch.tensor(scores), -1)
        probabilities = weights[0] * vocabulary[here]
        for there, weight in zip(range(first, here), weights[1:], strict=True):
            probabilities[row[there + 1]] += weight
        found.append(probabilities)
    return torch.stack(found)


@pytest.mark.parametrize("options", [{}, {"eval_memory": 9, "eval_bias": 0.7}])
def test_probabilities_against_a_plain_loop(options):
    model, (tokens, targets) = build(**options), draw()
    with torch.no_grad():
        logs, _ = model(tokens)
    found, _ = losses(model, tokens, targets)
    for row in range(len(tokens)):
        expected = plain_loop(model, tokens[row], options.get("eval_bias", 0.0))
        torch.testing.assert_close(logs[row].exp(), expected)
        torch.testing.assert_close(found[row], -expected.gather(1, targets[row, :, None])[:, 0].log())


def test_probabilities_add_up_to_one():
    with torch.no_grad():
        logs, _ = build()(draw()[0])
    torch.testing.assert_close(logs.exp().sum(-1), torch.ones(3, 12))


def test_later_tokens_change_nothing():
    model, (tokens, targets) = build(), draw()
    before, _ = losses(model, tokens, targets)
    changed = tokens.clone()
    changed[:, 8:] = (changed[:, 8:] + 1) % WORDS
    after, _ = losses(model, changed, targets)
    torch.testing.assert_close(before[:, :8], after[:, :8])


@pytest.mark.parametrize("cuts", [(5, 7), (1, 1, 4, 6), (11, 0, 1)])
def test_chunks_give_what_the_whole_gives(cuts):
    model, (tokens, targets) = build(), draw()
    whole, _ = losses(model, tokens, targets)
    state, found = None, []
    for piece, wanted in zip(tokens.split(cuts, 1), targets.split(cuts, 1), strict=True):
        some, state = losses(model, piece, wanted, state)
        found.append(some)
    torch.testing.assert_close(torch.cat(found, 1), whole)


def test_padding_changes_nothing():
    model, (tokens, targets) = build(), draw()
    lengths = torch.tensor([6, 2, 4])
    _, state = losses(model, tokens[:, :6], targets[:, :6], lengths=lengths)
    together, _ = losses(model, tokens[:, 6:], targets[:, 6:], state)
    for row, length in enumerate(lengths.tolist()):
        alone = torch.cat((tokens[row, :length], tokens[row, 6:]))[None]
        wanted = torch.cat((targets[row, :length], targets[row, 6:]))[None]
        expected, _ = losses(model, alone, wanted)
        torch.testing.assert_close(together[row], expected[0, length:])


@pytest.mark.parametrize("options", [{}, {"tied": False, "head_bias": True}])
def test_the_mixed_loss_and_its_gradients(options):
    """Of the pointer as autograd has them; of the head as without a pointer."""
    model, (tokens, targets) = build(**options).train(), draw()
    targets = targets.clone()
    targets[0, 0] = IGNORE_INDEX
    x, state = model.compute_hidden_states(tokens)
    x, past = x.detach().requires_grad_(), detach(state.past)
    total = model.pointer.cross_entropy(x, model.head, targets, past)
    plain, log_probs = token_losses(x, model.head, targets), model.pointer.log_probs(past, targets)
    mixed = (log_probs.mix(plain) * (targets != IGNORE_INDEX)).sum()
    torch.testing.assert_close(total, mixed)
    weights = list(model.pointer.parameters())
    ours = torch.autograd.grad(total, weights, retain_graph=True)
    torch.testing.assert_close(ours, torch.autograd.grad(mixed, weights))
    head = [x, model.head.weight]
    without = torch.autograd.grad(cross_entropy(x, model.head, targets), head)
    torch.testing.assert_close(torch.autograd.grad(total, head), without)


def test_losses_of_chunks_are_written_in_order():
    model, (tokens, targets) = build(), draw()
    x, _ = model.compute_hidden_states(tokens)
    losses = torch.empty(targets.numel())
    cross_entropy(x, model.head, targets, logits_per_chunk=5 * WORDS, token_losses=losses)
    torch.testing.assert_close(losses.view(targets.shape), token_losses(x, model.head, targets))


def test_gradient_flows_through_a_carried_state():
    model, (tokens, targets) = build().train(), draw()
    first, state = model.compute_hidden_states(tokens[:, :7])
    x, state = model.compute_hidden_states(tokens[:, 7:], state)
    loss = model.cross_entropy(x.detach(), targets[:, 7:], state)
    assert torch.autograd.grad(loss, first)[0].abs().max() > 0


def test_rows_of_a_state_can_be_selected():
    model, (tokens, targets) = build(), draw()
    _, state = losses(model, tokens[:, :7], targets[:, :7])
    expected, _ = losses(model, tokens[:, 7:], targets[:, 7:], state)
    rows = torch.tensor([2, 0, 2])
    found, _ = losses(model, tokens[rows, 7:], targets[rows, 7:], select_rows(state, rows))
    torch.testing.assert_close(found, expected[rows])


def test_generation_uses_the_mixture():
    """Greedy decoding and a beam of one follow the most probable token of the whole model."""
    model, prompt = build(), [1, 2, 3, 1]
    with torch.no_grad():
        expected = list(prompt)
        for _ in range(6):
            expected.append(int(model(torch.tensor([expected]))[0][0, -1].argmax()))
    assert prompt + list(generate(model, prompt, 6, Sampler(temperature=0))) == expected
    assert prompt + list(beam_search(model, prompt, 6, 1)[0].tokens) == expected


@pytest.mark.parametrize("pairs", [2**24, 1])
def test_prompts_of_unequal_length_are_continued_as_each_alone(pairs, monkeypatch):
    monkeypatch.setattr(evaluation, "PAIRS_PER_CHUNK", pairs)
    monkeypatch.setattr(evaluation, "MIN_CHUNK", 4)
    model, (tokens, _) = build(), draw(4)
    prompts = [row[:length].tolist() for row, length in zip(tokens, (12, 1, 5, 8), strict=True)]
    together = zip(*generate_rows(model, prompts, 6, Sampler(), seed=3), strict=True)
    alone = [tuple(generate(model, prompt, 6, Sampler(), seed=3 + row)) for row, prompt in enumerate(prompts)]
    assert list(together) == alone
    x, state = evaluation.prefill_padded(model, prompts)
    for row, prompt in enumerate(prompts):
        wanted, _ = model(torch.tensor([prompt]))
        torch.testing.assert_close(model.predict_next(x, state)[row], wanted[0, -1])


def test_a_model_without_a_pointer_has_the_same_other_weights():
    def weights(memory):
        torch.manual_seed(0)
        extras = [PointerSettings(pointer_memory=memory)]
        return LanguageModelSpec(vocabulary=WORDS, width=6, mixers=("lstm",), extras=extras).build()

    pointer, plain = weights(5).state_dict(), weights(None).state_dict()
    assert all(torch.equal(pointer[name], value) for name, value in plain.items())
    assert sorted(name.split(".")[0] for name in pointer.keys() - plain.keys()) == ["pointer"] * 5


def test_its_learning_rate_is_lower():
    model = build()
    groups = [group for part in build_optimizer(OptimizerSpec(lr=1.0), model).parts for group in part.param_groups]
    factors = {weight: group["factor"] for group in groups for weight in group["params"]}
    own = set(model.pointer.parameters())
    assert {factor for weight, factor in factors.items() if weight in own} == {0.1}
    assert {factor for weight, factor in factors.items() if weight not in own} == {1.0}


def test_settings_without_a_pointer_are_refused():
    with pytest.raises(ConfigError, match="set pointer_memory"):
        PointerSettings(pointer_eval_memory=5)
    with pytest.raises(ConfigError, match="pointer_memory needs causal=True"):
        build(causal=False)
    with pytest.raises(ConfigError, match="pointer_memory='5': it must be a whole number"):
        PointerSettings(pointer_memory="5")


@pytest.mark.parametrize("bias", [math.nan, math.inf, -math.inf])
def test_a_bias_that_is_not_finite_is_refused(bias):
    with pytest.raises(ConfigError, match=f"pointer_eval_bias={bias}: it must be finite"):
        PointerSettings(pointer_memory=5, pointer_eval_bias=bias)


def test_a_carried_past_comes_back_from_a_checkpoint():
    model, (tokens, targets) = build(), draw()
    _, state = losses(model, tokens[:, :7], targets[:, :7])
    again = unflatten(model.initial_state(3), flatten(state))
    expected, _ = losses(model, tokens[:, 7:], targets[:, 7:], state)
    found, _ = losses(model, tokens[:, 7:], targets[:, 7:], again)
    torch.testing.assert_close(found, expected)
