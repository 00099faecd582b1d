"""A search goes where it sees promise, and goes on where it was interrupted."""

import pytest

pytest.importorskip("optuna", reason="`pip install anaphor[search]` for is_search")

from anaphor.errors import ConfigError
from anaphor.studies.search import ListProposals, OptunaProposals
from anaphor.studies.study_file import read_study

STUDY = """
method: %s
trials: 25
parameters:
  lr: {min: 1.0e-5, max: 1.0, distribution: log_uniform}
  layers: {min: 1, max: 4}
  model: {values: [lstm, gru]}
seeds: 1
"""
DRAWN = [0.005547119471592123, 0.0013130280280658588, 0.6581332043291803]  # by seed 0, since there are is_search


def searched(tmp_path, method="bayes"):
    path = tmp_path / "study.yaml"
    path.write_text(STUDY % method)
    return OptunaProposals(read_study(path), tmp_path)


def badness(setting):
    """Least at a rate of 0.01 and two layers of lstm."""
    from math import log10

    run = setting.run
    return (log10(run.lr) + 2) ** 2 + abs(run.layers - 2) + (run.model != "lstm")


def explored(search):
    found = []
    while (setting := search.next()) is not None:
        found.append(setting)
        search.report(setting, badness(setting))
    return found


def test_a_search_tries_as_many_settings_as_it_may_within_its_ranges(tmp_path):
    found = explored(searched(tmp_path, "random"))
    assert len(found) == 25
    assert all(1e-5 <= setting.run.lr <= 1 and 1 <= setting.run.layers <= 4 for setting in found)
    assert {setting.run.model for setting in found} == {"lstm", "gru"}


def test_promising_settings_are_tried_more_often(tmp_path):
    found = [badness(setting) for setting in explored(searched(tmp_path))]
    assert sum(found[15:]) / 10 < sum(found[:10]) / 10


def test_the_same_search_twice_is_the_same_search(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    assert [dict(one.parameters) for one in explored(searched(first))] == [
        dict(one.parameters) for one in explored(searched(second))
    ]


def test_an_interrupted_search_gives_again_what_was_finished_and_what_was_running(tmp_path):
    search = searched(tmp_path)
    done = [search.next() for _ in range(3)]
    for setting in done[:2]:
        search.report(setting, badness(setting))
    again = searched(tmp_path)
    first = [again.next() for _ in range(3)]
    assert [dict(one.parameters) for one in first] == [dict(one.parameters) for one in done]
    rest = []
    while (setting := again.next()) is not None:
        rest.append(setting)
    assert len(rest) == 25 - 3


@pytest.mark.parametrize("method", ["random", "bayes"])
def test_a_search_that_goes_on_does_not_draw_the_same_again(tmp_path, method):
    rates = []
    for more in (3, 4, 5):
        search = searched(tmp_path, method)
        for _ in rates:
            search.next()  # what is known already
        for _ in range(more):
            search.report(setting := search.next(), badness(setting))
            rates.append(setting.run.lr)
    assert len(set(rates)) == 3 + 4 + 5


def test_a_random_search_without_an_interruption_draws_what_it_always_drew(tmp_path):
    found = [setting.run.lr for setting in explored(searched(tmp_path, "random"))[:3]]
    assert found == pytest.approx(DRAWN, rel=1e-12)


def test_a_search_takes_any_seed_that_a_run_takes(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text((STUDY % "random").replace("seeds: 1", f"seeds: [{2**63 - 1}]"))
    assert OptunaProposals(read_study(path), tmp_path).next() is not None


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("  layers: {min: 1, max: 4}\n", "", "layers was an axis and is none"),
        (
            "layers: {min: 1, max: 4}",
            "layers: {min: 1, max: 4}\n  width: {values: [8, 9]}",
            "width was no axis",
        ),
        ("[lstm, gru]", "[lstm]", "model was one of lstm, gru and is one of lstm"),
        ("[lstm, gru]", "[lstm, gru, rnn]", "model was one of lstm, gru and is one of lstm, gru, rnn"),
        (
            "layers: {min: 1, max: 4}",
            "layers: {values: [1, 2]}",
            "layers was an integer from a range and is one of",
        ),
        ("max: 1.0, distribution: log_uniform", "max: 1.0", "lr was a number on a logarithmic scale and is a number"),
    ],
)
def test_a_search_that_was_changed_between_two_starts_is_one_line(tmp_path, before, after, told):
    search = searched(tmp_path, "random")
    search.report(first := search.next(), badness(first))
    second = search.next()
    path = tmp_path / "study.yaml"
    changed = path.read_text().replace(before, after)
    assert changed != path.read_text()
    path.write_text(changed)
    with pytest.raises(ConfigError) as caught:
        OptunaProposals(read_study(path), tmp_path)
    assert f"differ: {told}" in str(caught.value)
    assert "use another --out" in str(caught.value)
    assert "\n" not in str(caught.value)
    again = searched(tmp_path, "random")
    assert [again.next(), again.next()] == [first, second], "the search as it was goes on"


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_search_does_not_go_on_by_another_metric(tmp_path, is_recorded):
    """It would mix the values of both, and might go where they are worst."""
    path = tmp_path / "study.yaml"
    text = (STUDY % "random").replace("model: {values: [lstm, gru]}", "width: {values: [8, 16]}")
    path.write_text(f"task: classify\nmetric: accuracy\n{text}")
    search = OptunaProposals(read_study(path), tmp_path)
    search.report(search.next(), 0.5)
    if not is_recorded:  # by an earlier version
        search.study.set_user_attr("metric", None)
    path.write_text(f"task: classify\nmetric: loss\n{text}")
    with pytest.raises(ConfigError, match=r"was by valid\.accuracy and is by|was to maximize and is to minimize"):
        OptunaProposals(read_study(path), tmp_path)
    path.write_text(f"task: classify\nmetric: accuracy\n{text}")
    assert OptunaProposals(read_study(path), tmp_path).left == 25


def test_a_search_may_go_on_with_a_wider_range(tmp_path):
    search = searched(tmp_path, "random")
    search.report(first := search.next(), badness(first))
    path = tmp_path / "study.yaml"
    path.write_text(path.read_text().replace("max: 4", "max: 6"))
    assert len(explored(OptunaProposals(read_study(path), tmp_path))) == 25


def test_an_interrupted_setting_outside_a_narrower_range_is_not_given_again(tmp_path):
    """The range may have been corrected because of it."""
    searched(tmp_path).next()
    path = tmp_path / "study.yaml"
    path.write_text((STUDY % "bayes").replace("max: 1.0,", "max: 5.0e-5,"))
    found = explored(OptunaProposals(read_study(path), tmp_path))
    assert len(found) == 25
    assert all(setting.run.lr <= 5e-5 for setting in found)


def test_a_failed_setting_is_told_and_the_search_goes_on(tmp_path):
    search = searched(tmp_path)
    search.report(search.next(), None)
    assert search.next() is not None


def test_a_search_that_is_over_stays_over_and_gives_again_what_failed(tmp_path):
    search, tried = searched(tmp_path), []
    while (setting := search.next()) is not None:
        search.report(setting, None if len(tried) % 3 == 0 else badness(setting))
        tried.append(setting)
    again = explored(searched(tmp_path))
    assert [dict(one.parameters) for one in again] == [dict(one.parameters) for one in tried]


def test_a_search_killed_while_it_hears_of_a_failure_counts_it_once(tmp_path, monkeypatch):
    search = searched(tmp_path)
    failed = search.next()

    def killed(*words, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(search.study, "tell", killed)
    with pytest.raises(KeyboardInterrupt):
        search.report(failed, None)
    for _ in range(2):  # the first one mends the journal, the second finds it mended
        again = searched(tmp_path)
        assert [dict(one.parameters) for one in again.finished] == [dict(failed.parameters)]
    assert len(explored(again)) == 25


def test_a_list_needs_no_report(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("parameters: {width: {values: [4, 8]}}\n")
    settings = read_study(path).settings()
    listed = ListProposals(settings)
    assert [listed.next(), listed.next(), listed.next()] == [*settings, None]
