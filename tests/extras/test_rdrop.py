"""R-Drop is what its authors say, part of the gradient, and without it nothing changes."""

import dataclasses
import json
import math

import pytest
import torch
from torch.nn import functional as F

from anaphor.api import execute
from anaphor.errors import ConfigError
from anaphor.extras.rdrop.loss import RDrop, rdrop_penalty
from anaphor.models import SEQ2SEQ_PRESETS
from anaphor.models.cross_entropy import IGNORE_INDEX, smoothed_cross_entropy
from anaphor.models.head import Head
from anaphor.registry import TASKS
from anaphor.tasks.translate.experiment import compute_hidden_states
from anaphor.training.build import build_experiment
from anaphor.training.callbacks import NullCallback
from anaphor.training.load import load_run
from anaphor.yaml_files import read_mapping

SPEC = TASKS["translate"].run_spec(
    data="reverse", width=16, layers=2, dropout=0.3, batch_size=5, label_smoothing=0.1, steps=6, beam=1, device="cpu"
)
PRICE = 3.0


pytestmark = pytest.mark.usefixtures("own_cache")


def prepared(**settings):
    """A model in training, and a batch that has something to pad."""
    experiment = build_experiment(dataclasses.replace(SPEC, max_examples=5, **settings))
    batch = experiment.batches(0)[0]
    assert (batch.targets == IGNORE_INDEX).any()
    return experiment, experiment.model.train(), batch


def gradients(model, objective):
    return torch.autograd.grad(objective, list(model.parameters()))


def random_head():
    head = Head(6, 11, True, None)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    return head


def some_targets():
    targets = torch.randint(0, 11, (3, 5))
    targets[1, 3:] = targets[2, 1:] = IGNORE_INDEX
    return targets


# ---- the cost


def test_the_cost_is_that_of_a_loop_over_tokens():
    head, x, targets = random_head(), torch.randn(6, 5, 6), some_targets()
    expected = 0.0
    for row in range(3):
        for time in range(5):
            if targets[row, time] != IGNORE_INDEX:
                p, q = (head(x[place, time]).softmax(-1) for place in (row, row + 3))
                expected += PRICE / 4 * ((p * (p / q).log()).sum() + (q * (q / p).log()).sum())
    torch.testing.assert_close(rdrop_penalty(x, head, targets, PRICE), expected, rtol=1e-12, atol=1e-12)


def test_where_there_is_no_target_nothing_costs_and_nothing_is_learnt():
    head, x, targets = random_head(), torch.randn(6, 5, 6, requires_grad=True), some_targets()
    cost = rdrop_penalty(x, head, targets, PRICE)
    (by_hidden_states,) = torch.autograd.grad(cost, x)
    padded = (targets == IGNORE_INDEX).repeat(2, 1)
    assert by_hidden_states[padded].eq(0).all()
    assert by_hidden_states[~padded].ne(0).all()
    other = torch.where(padded[..., None], 7.0 * torch.randn_like(x), x)
    assert torch.equal(rdrop_penalty(other, head, targets, PRICE), cost)


def test_narrow_numbers_are_compared_in_single_precision():
    head, x, targets = random_head().bfloat16(), torch.randn(6, 5, 6).bfloat16(), some_targets()
    cost = rdrop_penalty(x, head, targets, PRICE)
    assert cost.dtype == torch.float32
    logits = head(x).double()
    exact = rdrop_penalty(logits, torch.nn.Identity(), targets, PRICE)
    assert cost.item() == pytest.approx(exact.item(), rel=1e-5)


# ---- the loss


@pytest.mark.parametrize("share", [0.0, 0.1])
@pytest.mark.parametrize("model", SEQ2SEQ_PRESETS)
def test_the_loss_is_half_of_what_the_authors_add_up_from_two_readings(model, share):
    experiment, model, batch = prepared(model=model, label_smoothing=share, rdrop=PRICE)
    torch.manual_seed(1)
    ours, _ = experiment.loss(batch, None)
    mine = gradients(model, ours.objective)

    torch.manual_seed(1)
    first, second = model.head(compute_hidden_states(model, batch.repeat())).chunk(2)
    real = batch.targets != IGNORE_INDEX
    p, q, targets = first[real], second[real], batch.targets[real]
    assert not torch.equal(p, q), "each reading has its own dropout"
    entropies = [F.cross_entropy(each, targets, reduction="sum", label_smoothing=share) for each in (p, q)]
    divergences = [
        F.kl_div(one.log_softmax(-1), other.log_softmax(-1), reduction="sum", log_target=True)
        for one, other in ((p, q), (q, p))
    ]
    theirs = sum(entropies) + PRICE * sum(divergences) / 2
    torch.testing.assert_close(ours.objective, theirs / 2, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(ours.total, sum(entropies) / 2, rtol=1e-10, atol=1e-10)
    for one, other in zip(mine, gradients(model, theirs / 2), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def test_beside_another_term_it_costs_the_same():
    """Loss and penalty are then computed one after the other."""
    experiment, _, batch = prepared(rdrop=PRICE)
    torch.manual_seed(1)
    alone, _ = experiment.loss(batch, None)
    (term,) = experiment.loss_terms
    assert isinstance(term, RDrop)
    experiment.loss_terms.append(lambda hidden_states, head, read: hidden_states.new_tensor(len(read.targets)))
    torch.manual_seed(1)
    both, _ = experiment.loss(batch, None)
    torch.testing.assert_close(both.total, alone.total)
    torch.testing.assert_close(both.penalty, alone.penalty + len(batch.targets))


def test_two_readings_that_agree_cost_nothing_and_lose_what_one_does():
    experiment, model, batch = prepared(rdrop=PRICE)
    model.eval()  # without dropout
    loss, _ = experiment.loss(batch, None)
    alone = smoothed_cross_entropy(compute_hidden_states(model, batch), model.head, batch.targets, SPEC.label_smoothing)
    assert loss.penalty.item() == pytest.approx(0, abs=1e-12)
    torch.testing.assert_close(loss.total, alone, rtol=1e-12, atol=1e-12)
    for one, other in zip(gradients(model, loss.objective), gradients(model, alone), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("model", SEQ2SEQ_PRESETS)
def test_without_a_price_a_batch_is_read_once_and_to_the_bit_as_ever(model):
    experiment, model, batch = prepared(model=model)
    torch.manual_seed(1)
    loss, _ = experiment.loss(batch, None)
    mine, drawn = gradients(model, loss.objective), torch.get_rng_state()
    torch.manual_seed(1)
    plain = smoothed_cross_entropy(compute_hidden_states(model, batch), model.head, batch.targets, SPEC.label_smoothing)
    assert torch.equal(drawn, torch.get_rng_state())
    assert loss.penalty is None
    assert torch.equal(loss.total, plain)
    assert all(map(torch.equal, mine, gradients(model, plain)))


# ---- training


@pytest.mark.slow
def test_learning_pays_it_and_no_loss_shows_it(tmp_path, single_precision):
    free, dear = (_run(tmp_path / str(price), price) for price in (0.0, 1000.0))
    assert dear["train_loss"] < 10, "the penalty is no part of what is told"
    assert dear["disagreement"] < 0.5 * free["disagreement"]
    assert dear["tokens"] == free["tokens"], "a token that is read twice counts once"


class Counting(NullCallback):
    """Remembers how many tokens it was told of."""

    tokens = 0

    def on_step(self, info):
        self.tokens = info.count


def _run(out, price):
    spec = dataclasses.replace(SPEC, rdrop=price, steps=40, lr=0.01, max_examples=200)
    watcher = Counting()
    execute(spec, out, watcher, test=False)
    told = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    experiment = load_run(out, device="cpu").experiment
    batch = experiment.batches(0)[0]
    torch.manual_seed(3)
    with torch.no_grad():
        x = compute_hidden_states(experiment.model.train(), batch.repeat())
        cost = rdrop_penalty(x, experiment.model.head, batch.targets, 1.0)
    return {"train_loss": told["train_loss"], "disagreement": cost.item(), "tokens": watcher.tokens}


def test_a_run_from_the_command_line_remembers_its_price(tmp_path, answer_of, single_precision):
    words = "train translate --data reverse --width 16 --steps 3 --dropout 0.1 --rdrop 5 --no-test"
    result = answer_of([*words.split(), "--beam", "1", "--device", "cpu", "--out", str(tmp_path / "run"), "--json"])
    assert (result["status"], result["steps"]) == ("finished", 3)
    assert math.isfinite(result["valid"]["loss"])
    assert read_mapping(tmp_path / "run" / "spec.yaml")["rdrop"] == {"rdrop": 5.0}


# ---- what is refused


@pytest.mark.parametrize("price", [-1.0, math.inf, math.nan])
def test_what_is_no_price_is_refused_by_name(price):
    with pytest.raises(ConfigError, match=f"^rdrop={price}: it must be at least 0, and finite$"):
        build_experiment(dataclasses.replace(SPEC, rdrop=price))


@pytest.mark.parametrize("others", [{}, {"word_dropout": 0.1}, {"weight_drop": 0.1, "condition": "state"}])
def test_two_readings_that_cannot_differ_are_refused(others):
    silent = dataclasses.replace(SPEC, dropout=0.0, rdrop=PRICE, **others)
    with pytest.raises(ConfigError, match=r"^rdrop=3\.0 compares two passes that would be equal without dropout"):
        build_experiment(silent)


@pytest.mark.needs("studies")
def test_a_study_of_readings_that_cannot_differ_is_refused_before_it_starts(tmp_path):
    from anaphor.studies.study_file import read_study
    from anaphor.studies.validation import validate_study

    (tmp_path / "study.yaml").write_text("task: translate\nparameters: {rdrop: {values: [0, 5]}}\n")
    study = read_study(tmp_path / "study.yaml")
    with pytest.raises(ConfigError, match=r"at rdrop 5.*two passes that would be equal without dropout"):
        validate_study(study, study.settings())


@pytest.mark.parametrize("share", ["dropout", "input_dropout", "output_dropout"])
def test_any_dropout_of_rows_makes_them_differ(share):
    experiment, _, batch = prepared(**{"dropout": 0.0, share: 0.2}, rdrop=PRICE)
    loss, _ = experiment.loss(batch, None)
    assert loss.penalty > 0
