"""The passages where two runs differ most: planted ones rank first, and their numbers are those of `evaluate`."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import anaphor
from anaphor.errors import ConfigError, DataError
from anaphor.inspect.split_losses import Groups
from anaphor.progress_listener import progress_listener
from anaphor.registry import TOKENIZERS
from anaphor.web.inference import Cache, answer
from anaphor.web.passages import rank_windows
from web.planted import LINE, PLANTED, train_planted, write_text

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Two runs that differ in the topic that they saw."""
    return train_planted(tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="module")
def compared(planted):
    return answer({"verb": "passages", "runs": planted, "length": LINE, "count": 10}, Cache())


def lines_of(passage):
    return {place // LINE for place in range(passage["start"], passage["start"] + LINE)}


def test_the_planted_passages_rank_first(compared):
    for topic, places in PLANTED.items():
        ranked = [passage for passage in compared["passages"] if passage["better"] == topic]
        assert [passage["rank"] for passage in ranked] == list(range(1, len(ranked) + 1))
        assert sum(1 + passage["similar"] for passage in ranked) >= len(places), "some are not shown"
        first = ranked[: len(places) - sum(passage["similar"] for passage in ranked)]
        assert len(first) >= 3
        assert all(lines_of(passage) & {*places} for passage in first), first
        assert {place for passage in first for place in lines_of(passage)} & {*places}


def test_progress_goes_through_both_runs_once(planted):
    seen = []
    with progress_listener(lambda name, fraction: seen.append(fraction)):
        answer({"verb": "passages", "runs": planted}, Cache())
    assert seen == sorted(seen)
    assert {0.5, 1.0} <= {*seen}
    assert seen.count(1.0) == 1


def test_a_difference_is_second_minus_first(compared, planted):
    first, second = planted
    for passage in compared["passages"]:
        difference = np.subtract(passage["losses"][second], passage["losses"][first]).mean()
        assert passage["difference"] == pytest.approx(difference)
        assert (difference < 0) == (passage["better"] == second)


def test_totals_are_those_of_evaluate_and_of_the_result(compared, planted):
    for topic, path in planted.items():
        run = anaphor.load_run(path)
        assert compared["totals"][topic] == run.evaluate("valid") == run.result["valid"]


def test_a_passage_can_be_found_by_its_place(compared, planted):
    """Its place is an index of the split, so that a link finds it, and `look` shows the same tokens."""
    cache, first = Cache(), next(iter(planted))
    passage = compared["passages"][0]
    again = answer({"verb": "passages", "runs": planted, "length": LINE, "at": passage["start"]}, cache)
    (found,) = again["passages"]
    assert {**found, "rank": passage["rank"], "similar": passage["similar"]} == passage
    look = answer({"verb": "look", "run": planted[first], "example": passage["start"], "length": LINE}, cache)
    assert look["tokens"][1:] == passage["tokens"]
    with pytest.raises(ConfigError, match="0 to 1,119"):
        answer({"verb": "passages", "runs": planted, "at": 1120}, cache)


def test_every_table_counts_every_token_once(compared, planted):
    assert {table["key"] for table in compared["tables"]} >= {"by_frequency", "by_position", "by_class"}
    for table in compared["tables"]:
        rows = compared[table["key"]]
        assert sum(row["tokens"] for row in rows) == compared["items"] == 160 * LINE
        for topic in planted:
            mean = sum(row[topic] * row["tokens"] for row in rows) / compared["items"]
            assert mean == pytest.approx(compared["totals"][topic]["loss"])
        for row in rows:
            assert row["low"] is None or row["low"] <= row["difference"] <= row["high"]


def test_rare_words_of_either_training_text_explain_the_difference(compared):
    """The training texts differ, so that each has its own table of frequencies."""
    stars, kitchen = "stars", "kitchen"
    tables = {table["of"]: compared[table["key"]] for table in compared["tables"] if "Occurrences" in table["title"]}
    assert set(tables) == {stars, kitchen}
    rare = {of: next(row for row in rows if row["label"] == "1") for of, rows in tables.items()}
    assert rare[stars]["difference"] < -1, "words that only the kitchen's text has: the second run is better"
    assert rare[kitchen]["difference"] > 1


def test_positions_and_classes_are_those_of_the_words(compared):
    assert {row["label"]: row["tokens"] for row in compared["by_class"]} == {"word": 960, "end of line": 160}
    by_position = {row["label"]: row["tokens"] for row in compared["by_position"]}
    assert by_position == {"1": 160, "2": 160, "3–4": 320, "5–8": 480}


def test_ranked_windows_are_the_best_that_do_not_overlap():
    draw = np.random.default_rng(0)
    for length in (1, 3, 7):
        gain = draw.normal(size=60)
        found = rank_windows(gain, length, 5, None)
        free, expected = [*range(60 - length + 1)], []
        while free and len(expected) < 5:
            best = max(free, key=lambda start: gain[start : start + length].mean())
            if gain[best : best + length].mean() <= 0:
                break
            expected.append((best, 0))
            free = [start for start in free if abs(start - best) >= length]
        assert found == expected


TINY = {"model": "lstm", "width": 8, "layers": 1, "steps": 1, "device": "cpu", "no_test": True, "progress": False}


def test_runs_on_other_text_or_with_other_tokens_are_refused_in_one_line(planted, tmp_path):
    first, *_ = planted.values()
    data = anaphor.load_run(first).spec.data
    anaphor.train("lm", data=data, batching="padded", out=tmp_path / "padded", **TINY)
    other = write_text(tmp_path / "other", "stars", 0)
    (other / "valid.txt").write_text("the old man\n" * 20, encoding="utf-8")
    anaphor.train("lm", data=str(other), out=tmp_path / "words", **TINY)
    cache = Cache()
    for name, words in {"padded": "tokenize the text differently", "words": "have different data in valid"}.items():
        with pytest.raises(DataError, match=words) as raised:
            answer({"verb": "passages", "runs": {"A": first, "B": str(tmp_path / name)}}, cache)
        assert "\n" not in str(raised.value)


def test_runs_on_other_data_are_refused_before_they_are_scored(planted, tmp_path, monkeypatch):
    def score(experiment, split):
        raise AssertionError("scored")

    first, *_ = planted.values()
    other = write_text(tmp_path / "other", "stars", 0)
    (other / "valid.txt").write_text("the old man\n" * 20, encoding="utf-8")
    anaphor.train("lm", data=str(other), out=tmp_path / "changed", **TINY)
    monkeypatch.setattr("anaphor.tasks.lm.token_losses.token_losses", score)
    request = {"verb": "passages", "runs": {"A": first, "B": str(tmp_path / "changed")}}
    with pytest.raises(DataError, match="have different data in valid: compare runs with the same data"):
        answer(request, Cache())
    with pytest.raises(DataError, match="have different data in valid"):
        anaphor.compare_runs(first, tmp_path / "changed")
    shutil.copy(Path(anaphor.load_run(first).spec.data, "valid.txt"), other / "valid.txt")
    with pytest.raises(AssertionError, match="scored"):  # the text is the same now
        answer(request, Cache())
    shutil.rmtree(other)
    with pytest.raises(AssertionError, match="scored"):  # that it is missing is said where it is read
        answer(request, Cache())


@pytest.mark.parametrize("kind", ["lm", "translate"])
def test_runs_with_other_tokens_are_refused_before_they_are_scored(kind, planted, tmp_path, monkeypatch):
    def score(*arguments, **options):
        raise AssertionError("scored")

    one, two = tmp_path / "one", tmp_path / "two"
    if kind == "lm":
        data = anaphor.load_run(planted["stars"]).spec.data
        anaphor.train("lm", data=data, batching="padded", out=one, **TINY)
        anaphor.train("lm", data=data, batching="padded", tokenizer="character", out=two, **TINY)
        anaphor.train("lm", data=data, batching="padded", seed=1, out=tmp_path / "like one", **TINY)
        monkeypatch.setattr("anaphor.tasks.lm.token_losses.losses_by_batch", score)
    else:
        (pairs := tmp_path / "pairs").mkdir()
        for split in ("train", "valid"):
            for side in ("en", "de"):
                (pairs / f"{split}.{side}").write_text("a b\nc d e\n", encoding="utf-8")
        options = {**TINY, "model": "luong", "data": str(pairs), "source": "en", "target": "de"}
        anaphor.train("translate", tokenizer="word", out=one, **options)
        anaphor.train("translate", tokenizer="character", out=two, **options)
        anaphor.train("translate", tokenizer="word", seed=1, out=tmp_path / "like one", **options)
        monkeypatch.setattr("anaphor.tasks.translate.experiment.compute_hidden_states", score)
    for refuse in (
        lambda: answer({"verb": "passages", "runs": {"A": str(one), "B": str(two)}}, Cache()),
        lambda: anaphor.compare_runs(one, two),
    ):
        with pytest.raises(DataError, match=r"tokenize the (text|targets) differently") as raised:
            refuse()
        assert str(one) in str(raised.value)
        assert str(two) in str(raised.value)
    with pytest.raises(AssertionError, match="scored"):
        anaphor.compare_runs(one, tmp_path / "like one")


def test_other_tokenizers_are_compared_by_common_pieces_of_the_text(planted, tmp_path):
    """No loss is lost, and each passage is found in both runs."""
    first, second = planted.values()
    data = anaphor.load_run(second).spec.data
    anaphor.train("lm", data=data, tokenizer="character", out=tmp_path / "characters", **TINY)
    runs = {"words": first, "characters": str(tmp_path / "characters")}
    found = answer({"verb": "passages", "runs": runs, "length": LINE, "count": 20}, Cache())
    assert found["counted"] == "pieces"
    assert found["items"] == 160 * LINE, "each word with the space before it, and each end of a line"
    assert "different tokenizers" in found["notes"][0]
    for name in runs:
        total = sum(row[name] * row["tokens"] for row in found["by_class"])
        assert total == pytest.approx(found["totals"][name]["loss"] * found["totals"][name]["tokens"], rel=1e-5)
    for passage in found["passages"]:
        place, stop = passage["places"]["words"]
        assert (place, stop) == (passage["start"], passage["start"] + LINE)
        look = answer({"verb": "look", "run": runs["characters"], "example": passage["places"]["characters"][0],
                       "length": 12}, Cache())  # fmt: skip
        assert "".join(look["tokens"][1:]) == "".join(passage["tokens"])[:12]


def test_a_text_is_compared_by_common_pieces_where_tokens_differ(planted, tmp_path):
    """The other run does not have the words of the topic, and reads characters."""
    data = write_text(tmp_path / "data", "stars", 0)
    anaphor.train("lm", data=str(data), tokenizer="character", out=tmp_path / "characters", **TINY)
    runs = {"words": planted["stars"], "characters": str(tmp_path / "characters")}
    found = answer({"verb": "tokens", "runs": runs, "text": "the old\n zebra sees\n"}, Cache())
    assert found["tokens"] == ["the", " old", "\n", " zebra", " sees"]
    assert found["unknown"] == [False, False, False, True, False]
    assert found["losses"]["words"][3] == found["losses"]["characters"][3] == found["difference"][3] == 0
    single = {name: answer({"verb": "tokens", "runs": {name: path}, "text": "the old\n zebra sees\n"}, Cache())
              for name, path in runs.items()}  # fmt: skip
    assert found["losses"]["words"][:3] == pytest.approx(single["words"]["losses"]["words"][:3])
    characters = single["characters"]["losses"]["characters"]
    assert found["losses"]["characters"][1] == pytest.approx(sum(characters[3:7]), rel=1e-5)
    assert found["totals"] == {name: single[name]["totals"][name] for name in runs}
    assert "different tokenizers" in found["notes"][0]
    # White space at the end is of no word: it is compared with nothing, even where it is unknown to the other run.
    found = answer({"verb": "tokens", "runs": runs, "text": "the old \u3000"}, Cache())
    assert found["tokens"] == ["the", " old"]
    assert found["unknown"] == [False, False]
    assert found["notes"][-1] == "Not compared: white space at the end of the text."


@pytest.mark.parametrize("settings", [{"batching": "padded"}, {"protocol": "example"}, {"carry": False}], ids=str)
def test_every_protocol_scores_every_token_in_the_order_of_the_text(settings, tmp_path):
    data = write_text(tmp_path / "data", "stars", 0)
    valid = (data / "valid.txt").read_text(encoding="utf-8").splitlines()
    (data / "valid.txt").write_text("\n\n".join(valid) + "\n", encoding="utf-8")
    runs = {}
    for seed in (0, 1):
        runs[f"seed {seed}"] = str(tmp_path / f"run-{seed}")
        anaphor.train("lm", data=str(data), seed=seed, out=runs[f"seed {seed}"], **TINY, **settings)
    found = answer({"verb": "passages", "runs": runs, "at": 0, "length": 1024}, Cache())
    words = " ".join(valid).split()
    tokens = [token for token in found["passages"][0]["tokens"] if token != "<eos>"]
    assert tokens == words[: len(tokens)]
    assert len(tokens) > 600
    for name, path in runs.items():
        expected = anaphor.load_run(path).evaluate("valid")
        if "protocol" in settings:
            assert found["totals"][name]["tokens"] > expected["tokens"]
            assert "every token is scored once" in found["notes"][0]
        else:
            assert found["totals"][name] == expected


def test_the_comparison_is_that_of_python(planted, compared):
    found = anaphor.compare_runs(*planted.values(), length=LINE, count=10)
    first = planted["stars"]
    assert [passage["start"] for passage in found["passages"]] == [one["start"] for one in compared["passages"]]
    assert found["totals"][first] == compared["totals"]["stars"]
    with pytest.raises(ConfigError, match="two different runs"):
        anaphor.compare_runs(first, first)
    with pytest.raises(ConfigError, match="two different runs"):
        anaphor.compare_runs(first, f"{first}/.")


@pytest.mark.parametrize("kind", ["word", "character", "byte", "bpe"])
def test_ends_of_tokens_are_places_of_the_text(kind):
    tokenizer = TOKENIZERS[kind].train("the cat é sat\n" * 20, 300 if kind == "bpe" else None)
    for text in ("the  cat sat\n\n é\u2003the cat\n", "é", "no end\nof line", " \n"):
        raw, ids = text.encode(), tokenizer.encode(text)
        ends = tokenizer.byte_ends(text, ids)
        pieces = [raw[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        assert len(ends) == len(ids)
        assert b"".join(pieces) == raw
        for token, piece in zip(ids, pieces, strict=True):
            if token != tokenizer.unknown:
                assert tokenizer.decode([token]).strip() == piece.decode("utf-8", "replace").strip()


def test_counts_are_grouped_with_every_bound_inside():
    groups = Groups.by_count("", np.array([0, 1, 2, 10, 11, 100, 5000]), (0, 1, 10, 100))
    assert groups.labels == ("0", "1", "2–10", "11–100", "over 100")
    assert groups.codes.tolist() == [0, 1, 2, 2, 3, 3, 4]
