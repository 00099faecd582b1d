"""The leaderboard: ranks, ties and intervals from losses of items; one line for bad input."""

import base64

import numpy as np
import pytest

from anaphor.cli.main import main
from anaphor.course.leaderboard import Scored, make_board
from anaphor.course.leaderboard_verb import describe_entry
from course.test_check_command import refusal

LINES = np.repeat(np.arange(200), 10).astype(np.int32)
BASE = np.random.default_rng(0).gamma(2.0, 1.0, len(LINES)).astype(np.float32)


def run(name, losses, *, same="text", lines=LINES, **more):
    items = {
        "same": same,
        "losses": base64.b64encode(losses.astype(np.float32).tobytes()).decode(),
        "lines": base64.b64encode(lines.tobytes()).decode(),
    }
    mean = float(losses.mean())
    return Scored(name, {"metrics": {"loss": mean, "perplexity": float(np.exp(mean))}, "items": items, **more})


def noise(seed, size):
    return np.random.default_rng(seed).normal(0, size, len(LINES)).astype(np.float32)


def test_runs_on_one_text_are_ranked_and_those_that_cannot_be_told_apart_are_tied():
    board = make_board(
        "lstm", "perplexity",
        [run("worst", BASE + 0.5), run("one", BASE + noise(1, 0.3)), run("two", BASE + noise(2, 0.3)),
         run("best", BASE - 0.2)],
    )  # fmt: skip
    ranks = {entry.name: entry.rank for entry in board.entries}
    assert ranks == {"best": 1, "one": 2, "two": 2, "worst": 4}
    assert {entry.name: {*entry.tied} for entry in board.entries} == {
        "best": set(), "one": {"two"}, "two": {"one"}, "worst": set(),
    }  # fmt: skip
    assert board.same_items
    assert all(entry.low < entry.value < entry.high for entry in board.entries)
    tied = next(entry for entry in board.entries if entry.name == "one")
    assert "tied with two" in describe_entry(tied, 5)


def test_a_paired_comparison_tells_apart_what_intervals_do_not():
    close = [run("a", BASE), run("b", BASE + 0.01)]
    assert [entry.rank for entry in make_board("x", "loss", close).entries] == [1, 2]
    own_texts = [run("a", BASE, same="text of a"), run("b", BASE + 0.01, same="text of b")]
    board = make_board("x", "loss", own_texts)
    assert [entry.rank for entry in board.entries] == [1, 1]
    assert not board.same_items


def test_the_larger_value_is_better_where_the_metric_says_so():
    runs = [Scored(name, {"metrics": {"accuracy": value}}) for name, value in (("a", 0.5), ("b", 0.9), ("c", 0.9))]
    board = make_board("x", "accuracy", runs)
    assert [(entry.name, entry.rank, entry.tied) for entry in board.entries] == [
        ("b", 1, ("c",)), ("c", 1, ("b",)), ("a", 3, ()),
    ]  # fmt: skip


def test_what_cannot_be_scored_or_has_another_vocabulary_has_no_rank():
    runs = [
        Scored("broken", {"problem": "it has no checkpoint"}), run("cheat", BASE - 1, changed=["tokenizer"]),
        run("honest", BASE), Scored("nan", {"metrics": {"loss": float("nan")}}),
    ]  # fmt: skip
    board = make_board("x", "loss", runs)
    assert board.entries[0].name == "honest"
    ranks = {entry.name: entry.rank for entry in board.entries}
    assert ranks == {"honest": 1, "broken": None, "cheat": None, "nan": None}


def test_losses_that_are_not_finite_are_no_items():
    board = make_board("x", "loss", [run("a", BASE), run("b", np.where(BASE > 3, np.inf, BASE)), run("c", BASE + 1)])
    assert [entry.name for entry in board.entries if entry.rank] == ["a", "c"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["leaderboard", "nowhere"], "there is no folder nowhere"),
        (["leaderboard", "nothing"], "nothing has no course.yaml"),
        (["leaderboard", "nothing", "--out", "nothing"], "out=nothing is a folder"),
    ],
)
def test_bad_input_is_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("anaphor.course.leaderboard_verb.require_safe", lambda *, unsafe: True)
    (tmp_path / "nothing").mkdir()
    assert message in refusal(main(words), capsys)


def test_runs_with_the_same_weights_are_tied_and_told_as_that():
    board = make_board(
        "x", "loss", [run("mia", BASE, weights="a"), run("wei", BASE, weights="a"), run("ada", BASE + 1, weights="b")]
    )
    comments = {entry.name: entry.comment for entry in board.entries}
    assert comments == {"mia": "the same weights as wei", "wei": "the same weights as mia", "ada": ""}
    assert "(the same weights as wei)" in describe_entry(board.entries[0], 5)
