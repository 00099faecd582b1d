"""Length generalization: every token counted once, at its own position; what cannot be scored says why."""

import json
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from anaphor import evaluation
from anaphor.cli.main import main
from anaphor.data.batches import IGNORE_INDEX, Batch
from anaphor.data.tokenizer import Word
from anaphor.errors import ConfigError
from anaphor.evaluation import losses_by_batch, score_batches, split_batch
from anaphor.metrics.losses import LossTotal
from anaphor.mixers.attention.position import POSITIONS
from anaphor.models import ModelState, build
from anaphor.models.cross_entropy import token_losses
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.tasks.lm.experiment import StreamExperiment
from anaphor.tasks.lm.length import bin_positions, draw_lengths, losses_by_length, score_at_length
from anaphor.tasks.lm.protocol import Protocol, Split
from anaphor.training.load import load_run

VOCABULARY = 7


def tokens_of(count=43):
    return torch.randint(0, VOCABULARY, (count,), generator=torch.Generator().manual_seed(0))


def experiment_of(tokens, model, bptt=5):
    class GivenText(StreamExperiment):
        def load_split(self, name):
            return Split(tokens, 2 * len(tokens), 0)

    spec = LanguageRunSpec(batch_size=1, bptt=bptt, eval_batch_size=1)
    return GivenText(spec, model, Word.train("a b c d e f g", VOCABULARY), lambda: None)


def model_of(name="lstm", **options):
    model = build(name, vocabulary=VOCABULARY, width=8, layers=1, **options)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)  # far from uniform, so that an error shows
    return model.eval()


def scored(experiment, bptt, carry, rows=1, complete=True):
    return score_at_length(experiment, "valid", Protocol(rows, bptt, carry, complete))


class ByPlace(nn.Module):
    """On a text of zeros the loss of the token after `n` others is `losses[n]`, whatever they were."""

    causal, max_positions, state_grows = True, None, False
    spec = SimpleNamespace(carries_by_default=True)
    device = torch.device("cpu")
    spec = SimpleNamespace(carries_by_default=True)

    def __init__(self, losses):
        super().__init__()
        self.logits = torch.log(torch.expm1(losses))  # of the other word, where that of this word is 0
        self.head = nn.Linear(1, 2, bias=False)
        self.head.weight = nn.Parameter(torch.tensor([[0.0], [1.0]], dtype=losses.dtype))
        self.calls = []

    def compute_hidden_states(self, tokens, state=None, lengths=None):
        self.calls.append(tokens.shape[1])
        past_length = torch.zeros(len(tokens), dtype=torch.long) if state is None else state.past_length
        places = past_length[:, None] + torch.arange(tokens.shape[1])
        new = tokens.shape[1] if lengths is None else lengths
        return self.logits[places.clamp(max=len(self.logits) - 1)][..., None], ModelState(past_length + new, ())

    def head_metadata(self):
        return {}

    def token_losses(self, x, targets, state):
        return token_losses(x, self.head, targets)


FALLING = torch.tensor([5.0, 3.0, 2.0, 1.5, 1.2, 1.1, 1.0])


@pytest.mark.parametrize("length", [1, 3, 7, 12, 30])
@pytest.mark.parametrize("rows", [1, 4])
def test_a_loss_that_depends_on_the_place_alone_is_found_at_each_position(length, rows):
    """The oracle is written down: restarted, each position has its own loss; carried, only the first segment has."""
    experiment = experiment_of(torch.zeros(120, dtype=torch.long), ByPlace(FALLING))
    known = torch.cat((FALLING, torch.ones(120)))
    restarted = scored(experiment, length, False, rows)
    assert [total.loss for total in restarted.positions] == pytest.approx(known[:length].tolist())
    carried = scored(experiment, length, True, rows)
    for position, total in enumerate(carried.positions):
        assert total.loss == pytest.approx(known[position : 120 // rows : length].mean().item())
        assert total.tokens == rows * len(known[position : 120 // rows : length])
    assert carried.score.total.loss == pytest.approx(known[: 120 // rows].mean().item())


def test_the_score_of_a_length_is_the_mean_of_the_curve_up_to_it():
    experiment = experiment_of(torch.zeros(120, dtype=torch.long), ByPlace(FALLING))
    longest = scored(experiment, 30, False)
    for length in (1, 2, 5, 10, 30):
        mean = sum(total.loss for total in longest.positions[:length]) / length
        assert scored(experiment, length, False).score.total.loss == pytest.approx(mean)


@given(rows=st.integers(1, 9), bptt=st.integers(1, 60), carry=st.booleans(), complete=st.booleans())
def test_positions_count_every_token_once_and_add_up_to_the_score(rows, bptt, carry, complete):
    tokens = tokens_of()
    experiment, protocol = experiment_of(tokens, model_of()), Protocol(rows, bptt, carry, complete)
    found = score_at_length(experiment, "valid", protocol)
    total = experiment.evaluate_with("valid", protocol)
    assert found.score.total == total.total
    assert found.score.signature == total.signature
    assert sum(one.tokens for one in found.positions) == total.total.tokens
    assert sum(one.total for one in found.positions) == pytest.approx(total.total.total, rel=1e-12)
    parts = bin_positions(found.positions)
    assert sum(part.total.tokens for part in parts) == total.total.tokens
    assert sum(part.total.total for part in parts) == pytest.approx(total.total.total, rel=1e-12)
    if complete:
        assert total.total.tokens == len(tokens)


def test_a_token_of_a_carried_text_is_counted_at_its_place_modulo_the_length():
    tokens, model = tokens_of(), model_of()
    experiment = experiment_of(tokens, model)
    row = torch.cat((torch.tensor([experiment.tokenizer.boundary]), tokens))
    with torch.no_grad():
        losses = -torch.log_softmax(model(row[None, :-1])[0][0], -1).gather(-1, tokens[:, None])[:, 0]
    found = scored(experiment, 5, True)
    expected = [losses[position::5].mean().item() for position in range(5)]
    assert [total.loss for total in found.positions] == pytest.approx(expected)


def test_a_segment_reaches_no_further_than_its_row():
    found = scored(experiment_of(tokens_of(43), model_of()), 100, True, rows=4)
    assert len(found.positions) == 11
    assert [total.tokens for total in found.positions] == [4] * 10 + [3]


def test_bins_double():
    positions = [LossTotal(float(place), 1) for place in range(1, 12)]
    found = bin_positions(positions)
    assert [part.name for part in found] == ["1", "2", "3-4", "5-8", "9-11"]
    assert [part.total for part in found] == [
        LossTotal(1.0, 1), LossTotal(2.0, 1), LossTotal(7.0, 2), LossTotal(26.0, 4), LossTotal(30.0, 3),
    ]  # fmt: skip
    assert bin_positions(positions[:1])[0].total == positions[0]


def test_a_recurrent_model_that_needs_the_past_is_flat_when_carried_and_falls_when_restarted():
    """After one `a` comes `a` or `b`: only who knows the token before can tell."""
    tokens = torch.tensor([1, 1, 2] * 80)
    model = build("lstm", vocabulary=VOCABULARY, width=16, layers=1)
    experiment = experiment_of(tokens, model, bptt=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(4):
        carry = None
        for batch in experiment.batches(0):
            loss, carry = experiment.loss(batch, carry)
            optimizer.zero_grad()
            (loss.total / batch.count).backward()
            optimizer.step()
    carried = [total.loss for total in scored(experiment, 10, True).positions[1:]]
    restarted = [total.loss for total in scored(experiment, 10, False).positions]
    assert max(carried) < 0.2
    assert max(carried) - min(carried) < 0.15
    assert restarted[0] > max(carried) + 0.3
    assert max(restarted[4:]) < 0.2


@pytest.mark.parametrize("name", sorted(POSITIONS))
def test_every_position_scheme_goes_beyond_its_length_or_says_why_not(name):
    for memory in (None, 6):
        model = model_of("transformer", heads=2, position=name, max_positions=8, memory=memory)
        experiment = experiment_of(tokens_of(), model)
        rows = {(length, carry): scored(experiment, length, carry) for length in (4, 8, 32) for carry in (True, False)}
        for (length, carry), row in rows.items():
            bounded = name == "learned"
            if carry:
                admitted, why = memory is not None and not bounded, "has no end" if bounded else "grow without bound"
            else:
                admitted, why = length <= 8 or not bounded, "bptt=32 is longer than the 8 learned positions"
            assert (row.score is not None) == admitted
            if admitted:
                assert row.score.total.tokens == 43
                assert len(row.positions) == length
                assert row.refused is None
            else:
                assert why in row.refused
                assert row.positions == ()
                assert row.to_plain()["perplexity"] is None


LONG = {f"transformer {name}": {"heads": 2, "position": name} for name in POSITIONS} | {
    "transformer-xl": {"heads": 2, "memory": 3},
    "lstm": {},
    "linear": {"heads": 2},
}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("carry", [True, False])
def test_a_long_segment_is_read_in_pieces_and_nobody_notices(name, carry, monkeypatch):
    model = model_of(name.split()[0], **LONG[name])
    carry = carry and model.max_positions is None and not model.state_grows
    tokens = tokens_of()
    widths, original = [], model.compute_hidden_states

    def watched(ids, state=None, lengths=None):
        widths.append(ids.shape[1])
        return original(ids, state, lengths)

    monkeypatch.setattr(model, "compute_hidden_states", watched)
    for rows, bptt in ((1, 20), (4, 8), (4, 43)):
        batches = Protocol(rows, bptt, carry).batches(tokens, 0)
        whole = list(losses_by_batch(model, batches, carry))
        with monkeypatch.context() as patch:
            patch.setattr(evaluation, "PAIRS_PER_CHUNK", 1)
            patch.setattr(evaluation, "MIN_CHUNK", 3)
            widths.clear()
            apart = list(losses_by_batch(model, batches, carry))
        assert max(widths) == 3
        assert len(widths) > len(batches)
        for (_, expected), (_, losses) in zip(whole, apart, strict=True):
            torch.testing.assert_close(losses, expected, rtol=1e-9, atol=1e-10)


CARRIED = {"transformer-xl": LONG["transformer-xl"], "lstm": {}, "linear": LONG["linear"]}


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize(
    ("name", "options", "carry"),
    [
        *((name, options, True) for name, options in CARRIED.items()),
        ("transformer", {"heads": 2}, False),
        ("lstm", {}, False),
    ],
)
def test_segments_that_are_computed_at_once_have_the_losses_of_each_alone(name, options, carry, complete, monkeypatch):
    model = model_of(name, **options)
    batches = Protocol(4, 3, carry, complete).batches(tokens_of(), 0)
    shapes, original = [], model.compute_hidden_states

    def watched(ids, state=None, lengths=None):
        shapes.append(tuple(ids.shape))
        return original(ids, state, lengths)

    monkeypatch.setattr(model, "compute_hidden_states", watched)
    alone = list(score_batches(model, batches, carry, None))
    assert shapes[0] == (4, 3)
    shapes.clear()
    together = list(score_batches(model, batches, carry, None, at_once=3))
    assert shapes[0] == ((4, 9) if carry else (12, 3))
    for (batch, losses), (expected_batch, expected) in zip(together, alone, strict=True):
        assert torch.equal(batch.targets, expected_batch.targets)
        torch.testing.assert_close(losses, expected, rtol=1e-9, atol=1e-10)


def test_what_sees_later_tokens_is_never_read_in_pieces(monkeypatch):
    model = model_of("transformer", heads=2, merge="reweight-matrix", causal=False)
    expected = scored(experiment_of(tokens_of(), model), 20, False)
    monkeypatch.setattr(evaluation, "PAIRS_PER_CHUNK", 1)
    monkeypatch.setattr(evaluation, "MIN_CHUNK", 3)
    found = scored(experiment_of(tokens_of(), model), 20, False)
    assert found == expected
    assert found.to_plain()["perplexity"] is None
    assert not found.positions[0].causal


def test_pieces_hold_a_batch_in_order_and_as_few_pairs_as_allowed(monkeypatch):
    monkeypatch.setattr(evaluation, "MIN_CHUNK", 2)
    monkeypatch.setattr(evaluation, "PAIRS_PER_CHUNK", 2 * 7 * 3)
    ids = torch.arange(14).view(2, 7)
    batch = Batch(ids, ids.masked_fill(ids == 13, IGNORE_INDEX), torch.tensor([7, 6]), restarts=True)
    found = list(split_batch(batch))
    assert [piece.targets.shape[1] for piece in found] == [3, 3, 1]
    assert torch.equal(torch.cat([piece.input_ids for piece in found], 1), batch.input_ids)
    assert torch.equal(torch.cat([piece.targets for piece in found], 1), batch.targets)
    assert [piece.lengths.tolist() for piece in found] == [[3, 3], [3, 3], [1, 0]]
    assert [piece.restarts for piece in found] == [True, False, False]
    monkeypatch.setattr(evaluation, "PAIRS_PER_CHUNK", 2 * 7 * 7)
    assert list(split_batch(batch)) == [batch]


def test_figures_show_what_was_scored_and_leave_out_what_was_not(tmp_path):
    experiment = experiment_of(tokens_of(), model_of("transformer", heads=2, position="learned", max_positions=8))
    found = [scored(experiment, length, carry) for carry in (True, False) for length in (4, 2, 8, 16)]
    names = ["perplexity-by-length", "loss-by-position-restarted"]
    drawn = draw_lengths(found, tmp_path, trained=4, split="valid")
    assert drawn == [tmp_path / f"{name}{ending}" for name in names for ending in (".png", ".svg", ".pdf")]
    assert all(path.stat().st_size > 1000 for path in drawn)
    assert draw_lengths(found[:4], tmp_path / "nothing", trained=4, split="valid") == []
    (one,) = {path.stem for path in draw_lengths(found[4:5], tmp_path / "one", trained=4, split="valid")}
    assert one == "loss-by-position-restarted"


def test_figures_name_the_split(tmp_path, monkeypatch):
    labels = {}
    monkeypatch.setattr(
        "anaphor.tasks.lm.length.curves",
        lambda series, path, *others, **rest: labels.setdefault(path.stem, rest["y_label"]),
    )
    experiment = experiment_of(torch.zeros(120, dtype=torch.long), ByPlace(FALLING))
    draw_lengths([scored(experiment, length, False) for length in (2, 4)], tmp_path, trained=4, split="test")
    assert labels == {
        "perplexity-by-length": "test perplexity",
        "loss-by-position-restarted": "test loss (nats per token)",
    }


@pytest.mark.parametrize(("longest", "far"), [(8, False), (64, True)])
def test_lengths_far_apart_stand_on_a_logarithmic_scale(longest, far, tmp_path, monkeypatch):
    scales = {}
    monkeypatch.setattr(
        "anaphor.tasks.lm.length.curves",
        lambda series, path, *others, **rest: scales.setdefault(path.stem, rest["log_x"]),
    )
    experiment = experiment_of(torch.zeros(700, dtype=torch.long), ByPlace(FALLING))
    draw_lengths([scored(experiment, length, False) for length in (4, longest)], tmp_path, trained=4, split="valid")
    assert scales["perplexity-by-length"] is far


@pytest.mark.parametrize("longest", [5, 40])
def test_no_tick_stands_between_two_positions(longest, tmp_path, monkeypatch):
    ticks = []

    def save(figure, paths):
        figure.draw_without_rendering()
        (axes,) = figure.axes
        low, high = axes.get_xlim()
        ticks.extend(label.get_text() for label in axes.get_xticklabels() if low <= label.get_position()[0] <= high)

    monkeypatch.setattr("anaphor.draw._save", save)
    experiment = experiment_of(torch.zeros(700, dtype=torch.long), ByPlace(FALLING))
    draw_lengths([scored(experiment, longest, False)], tmp_path, trained=4, split="valid")
    assert len(set(ticks)) > 2
    assert all(tick.isdecimal() for tick in ticks)


def test_lines_that_would_look_alike_are_not_drawn(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        "anaphor.tasks.lm.length.curves", lambda series, path, *others, **rest: drawn.setdefault(path.stem, series)
    )
    experiment = experiment_of(torch.zeros(120, dtype=torch.long), ByPlace(FALLING))
    draw_lengths([scored(experiment, length, False) for length in range(1, 21)], tmp_path, trained=4, split="valid")
    assert list(drawn["loss-by-position-restarted"]) == [
        f"length {n}" for n in (1, 3, 4, 6, 8, 10, 11, 13, 15, 17, 18, 20)
    ]
    lengths, perplexities = drawn["perplexity-by-length"]["state restarted"]
    assert lengths == list(range(1, 21))
    assert perplexities[0] == pytest.approx(torch.tensor(5.0).exp().item())
    assert drawn["loss-by-position-restarted"]["length 4"] == ([1.0, 2.0, 3.5], pytest.approx([5.0, 3.0, 1.75]))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of runs of two steps: one that carries, one with few positions, one of separate examples."""
    folder = tmp_path_factory.mktemp("lengths")
    (folder / "text.txt").write_text("a b c d e f\nb c d e f a\n\nc d e f a b\nd e f a b c\n\n" * 12, encoding="utf-8")
    small = ["--data", str(folder / "text.txt"), "--width", "8", "--layers", "1", "--batch-size", "2"]
    learned = ["--model", "transformer", "--heads", "2", "--position", "learned", "--max-positions", "8"]
    kinds = {
        "lstm": ["--model", "lstm", "--bptt", "5"],
        "learned": [*learned, "--bptt", "5"],
        "padded": ["--model", "lstm", "--batching", "padded"],
    }
    torch.set_default_dtype(torch.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANAPHOR_CACHE", str(folder / "cache"))
        for name, words in kinds.items():
            out = ["--out", str(folder / name), "--steps", "2", "--device", "cpu", "--json"]
            assert main(["train", "lm", *small, *words, *out]) == 0
    return folder


def evaluate(run, *words):
    return main(["evaluate", str(run), "--device", "cpu", "--batch-size", "1", *words])


def test_any_run_is_scored_at_many_lengths_with_and_without_state(runs):
    experiment = load_run(runs / "lstm", device="cpu").experiment
    found = losses_by_length(experiment, "valid", [2, 5, 9], [True, False])
    usual = experiment.evaluate("valid")
    assert [(row.length, row.state) for row in found] == [
        (length, state) for state in ("carried", "restarted") for length in (2, 5, 9)
    ]
    assert found[1].score.total == usual.total
    assert found[1].score.signature == usual.signature
    json.dumps([row.to_plain() for row in found], allow_nan=False)
    padded = load_run(runs / "padded", device="cpu").experiment
    with pytest.raises(ConfigError, match="separate examples: it has no segments"):
        losses_by_length(padded, "valid", [2], [False])


def test_evaluate_tells_each_length_by_position(runs, tmp_path, capsys):
    lengths = ["--bptt", "2", "5", "9"]
    assert evaluate(runs / "lstm", *lengths, "--json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert not any("positions" in row for row in plain)
    both = [*lengths, "--state", "carried", "restarted", "--by-position"]
    assert evaluate(runs / "lstm", *both, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["bptt"], row["state"]) for row in rows] == [
        (length, state) for state in ("carried", "restarted") for length in (2, 5, 9)
    ]
    for row in rows:
        positions = row["positions"]
        assert [one["position"] for one in positions] == list(range(1, row["bptt"] + 1))
        assert sum(one["tokens"] for one in positions) == row["tokens"]
        mean = sum(one["loss"] * one["tokens"] for one in positions) / row["tokens"]
        assert mean == pytest.approx(row["loss"], rel=1e-9)
    assert [{key: value for key, value in row.items() if key != "positions"} for row in rows[:3]] == plain

    assert evaluate(runs / "lstm", *both, "--out", str(tmp_path / "figures")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:6]] == [
        f"bptt {length}, state {state}" for state in ("carried", "restarted") for length in (2, 5, 9)
    ]
    assert lines[6].strip() == "loss by position within the segment"
    assert lines[7].split() == ["state", "bptt", "1", "2", "3-4", "5-8", "9"]
    assert lines[8].split() == ["carried", "2", *(f"{one['loss']:.2f}" for one in rows[0]["positions"])]
    names = ("perplexity-by-length", "loss-by-position-carried", "loss-by-position-restarted")
    assert lines[14:] == [f"figure: {tmp_path / 'figures' / name}.png, .svg, .pdf" for name in names]
    assert len(list((tmp_path / "figures").iterdir())) == 9


def test_evaluate_tells_what_cannot_be_scored_in_a_row(runs, capsys):
    words = ["--bptt", "5", "8", "12", "16", "--state", "carried", "restarted"]
    assert evaluate(runs / "learned", *words, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["refused"] is None for row in rows] == [False] * 4 + [True, True, False, False]
    assert all((row["loss"] is None) == (row["refused"] is not None) for row in rows)
    assert len({frozenset(row) for row in rows}) == 1
    assert evaluate(runs / "learned", *words) == 0
    told = capsys.readouterr().out
    assert told.count("loss 2.") == 2
    assert "bptt 5 8 12 16, state carried: no score: a carried state has no end" in told
    assert "bptt 12, state restarted: no score: bptt=12 is longer than the 8 learned positions" in told


def test_evaluate_says_when_rows_are_shorter_than_the_segments_asked_for(runs, capsys):
    assert evaluate(runs / "lstm", "--bptt", "5000") == 0
    first, second = capsys.readouterr().out.splitlines()
    tokens = first.partition("|tokens:")[2].partition("|")[0]
    assert second == f"  segments have {tokens} tokens, because no row of the text is longer"


@pytest.mark.parametrize(
    ("run", "words", "message"),
    [
        ("lstm", ["--state", "restated"], "unknown state 'restated'; did you mean 'restarted'?"),
        ("lstm", ["--state", "carried", "--no-carry"], "are the same option: give one of them"),
        ("learned", ["--bptt", "9"], "bptt=9 is longer than the 8 learned positions of the model"),
        ("learned", ["--bptt", "9", "--state", "carried", "restarted"], "a carried state has no end"),
        ("learned", ["--carry"], "a carried state has no end"),
        ("padded", ["--by-position"], "--by-position needs a stream of text, and"),
        ("padded", ["--state", "restarted"], "was trained with --batching padded"),
    ],
)
def test_what_cannot_be_asked_gets_one_line(runs, run, words, message, capsys):
    assert evaluate(runs / run, *words) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_place_for_figures_that_is_none_is_refused_before_anything_is_scored(runs, capsys):
    assert evaluate(runs / "lstm", "--out", str(runs / "text.txt")) == 2
    captured = capsys.readouterr()
    assert "text.txt cannot be written to" in captured.err
    assert captured.out == ""
