"""What the page's worker answers: the numbers of `score`, `look` and `generate`, one map at a time, for every task."""

import base64
import json
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest

import anaphor
from anaphor.cli.main import main
from anaphor.errors import AnaphorError, ConfigError, TooLarge
from anaphor.web import inference
from anaphor.web.inference import VERBS, Cache

TEXT = "the cat sat on the log"


pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(scope="module")
def runs(folder):
    """Paths of the runs by their first word."""
    return {path.name.partition(" ")[0]: str(path) for path in folder.iterdir()}


@pytest.fixture(scope="module")
def cache():
    return Cache()


def answer(request, cache):
    """As the page gets it."""
    return json.loads(json.dumps(inference.answer(request, cache), allow_nan=False))


def unpack(packed):
    """Weights as the page reads them. [rows, columns]"""
    cells = np.frombuffer(zlib.decompress(base64.b64decode(packed["cells"])), np.uint8).astype(float)
    root = cells.reshape(packed["rows"], packed["columns"]) / packed["steps"]
    return root**2 * np.array(packed["peaks"])[:, None]


def ask_command(capsys, *words):
    assert main([*words, "--json", "--device", "cpu"]) == 0
    return json.loads(capsys.readouterr().out)


def test_tokens_have_the_losses_of_score(runs, cache, capsys):
    found = answer({"verb": "tokens", "runs": {"A": runs["lstm"], "B": runs["hybrid"]}, "text": f"{TEXT} zebra"}, cache)
    for name, run in (("A", "lstm"), ("B", "hybrid")):
        (scored,) = ask_command(capsys, "score", runs[run], f"{TEXT} zebra")
        assert found["tokens"] == [token["token"] for token in scored["tokens"]]
        assert found["unknown"] == [token["unknown"] for token in scored["tokens"]]
        assert found["losses"][name] == [token["loss"] for token in scored["tokens"]]
        assert found["totals"][name]["loss"] == scored["loss"]
        assert found["totals"][name]["perplexity"] == scored["perplexity"]
    assert found["difference"] == pytest.approx(np.subtract(found["losses"]["B"], found["losses"]["A"]).tolist())
    assert "1 of 7 tokens" in found["notes"][0]


def test_a_look_has_the_numbers_of_look_and_no_map(runs, cache, capsys, tmp_path):
    found = answer({"verb": "look", "run": runs["hybrid"], "text": TEXT}, cache)
    looked = ask_command(capsys, "look", runs["hybrid"], TEXT, "--out", str(tmp_path))["runs"][0]
    assert found["tokens"] == looked["tokens"]
    assert found["losses"] == looked["losses"]
    assert [(head["name"], head["head"]) for head in found["heads"]] == [
        (head["name"], head["head"]) for head in looked["summary"]
    ]
    assert [layer["tap"] for layer in found["layers"]] == [*looked["weights"]]
    assert {unit["key"] for unit in found["units"]} == {*looked["units"]}
    assert len(json.dumps(found)) < 60_000
    for layer in found["layers"]:
        heads = np.array(looked["weights"][layer["tap"]])
        for head, weights in (*enumerate(heads), ("mean", heads.mean(0))):
            packed = answer({"verb": "head", "look": found["look"], "tap": layer["tap"], "head": head}, cache)
            assert unpack(packed) == pytest.approx(weights, abs=0.005)
    unit = answer({"verb": "head", "look": found["look"], "unit": found["units"][0]["key"]}, cache)
    assert unit["rows"] == len(looked["units"][unit["key"]]["values"])


def test_next_tokens_are_those_that_the_losses_come_from(runs, cache):
    """Where the next token is among the five most probable ones, its loss is minus the logarithm."""
    found = answer({"verb": "look", "run": runs["lstm"], "text": TEXT}, cache)
    assert len(found["next"]) == len(found["tokens"])
    hits = 0
    for place, token in enumerate(found["tokens"][1:], 1):
        expected = {one["token"]: one["probability"] for one in found["next"][place - 1]}
        assert len(expected) == 5
        assert [*expected.values()] == sorted(expected.values(), reverse=True)
        if token in expected:
            hits += 1
            assert -np.log(expected[token]) == pytest.approx(found["losses"][place], rel=1e-4)
    assert hits >= 2


def test_a_passage_of_validation_fits_the_positions_of_the_model(tmp_path, cache):
    words = "lm --data grammar --model gpt2 --width 8 --layers 1 --heads 2 --max-positions 24 --bptt 16 --steps 1"
    run = str(tmp_path / "run")
    assert main(["train", *words.split(), "--out", run, "--device", "cpu", "--no-test", "--json"]) == 0
    found = answer({"verb": "look", "run": run, "example": 3}, cache)
    assert len(found["tokens"]) == 24


def test_a_continuation_is_that_of_generate(runs, cache):
    run = anaphor.load_run(runs["lstm"], device="cpu")
    request = {"verb": "continue", "run": runs["lstm"], "text": TEXT, "tokens": 6, "temperature": 0.7, "seed": 3}
    assert answer(request, cache)["text"] == run.generate(TEXT, tokens=6, temperature=0.7, seed=3)
    found = answer({**request, "at": 2, "temperature": 0}, cache)
    assert found["prompt"] == "the cat"
    assert found["text"] == run.generate("the cat", tokens=6, temperature=0)
    assert len(found["tokens"]) == 6
    with pytest.raises(ConfigError, match="0 to 6"):
        answer({**request, "at": 7}, cache)


def test_a_look_that_is_gone_is_computed_again_from_its_input(runs, cache):
    source = {"run": runs["hybrid"], "text": TEXT}
    found = answer({"verb": "look", **source}, cache)
    request = {"verb": "head", "look": found["look"], "tap": found["layers"][0]["tap"], "head": 0}
    packed = answer(request, cache)
    with pytest.raises(ConfigError, match="no longer in memory"):
        answer(request, Cache())
    again = answer({**request, **source}, Cache())
    assert again == packed
    assert answer({"verb": "look", **source}, Cache())["look"] == found["look"], "so that a report can name it"


def test_two_models_are_held_and_the_losses_of_more(runs, monkeypatch):
    loaded = []
    load = inference.load_run
    monkeypatch.setattr(inference, "load_run", lambda path, **more: loaded.append(path.name) or load(path, **more))
    cache = Cache()
    for name in ("lstm", "hybrid", "lstm", "lstm-1", "hybrid"):
        answer({"verb": "tokens", "runs": {"A": runs[name]}, "text": TEXT}, cache)
        assert len(cache._runs) <= 2
    assert [name.partition(" ")[0] for name in loaded] == ["lstm", "hybrid", "lstm-1", "hybrid"]
    answer({"verb": "passages", "runs": {"A": runs["lstm"], "B": runs["lstm-1"]}}, cache)
    loaded.clear()
    answer({"verb": "tokens", "runs": {"A": runs["hybrid"]}, "text": TEXT}, cache)
    answer({"verb": "passages", "runs": {"A": runs["lstm"], "B": runs["lstm-1"]}, "length": 8}, cache)
    assert [name.partition(" ")[0] for name in loaded] == ["hybrid"], "the losses did not need their models"


def test_a_new_checkpoint_is_noticed(copied):
    cache, path = Cache(), copied / "lstm"
    before = answer({"verb": "look", "run": str(path), "text": TEXT}, cache)
    newest = max(path.glob("checkpoints/step-*"), key=lambda one: int(one.name.removeprefix("step-")))
    newest.touch()
    after = answer({"verb": "look", "run": str(path), "text": TEXT}, cache)
    assert after["look"] != before["look"]


def test_a_text_beyond_the_limit_is_too_large(runs, cache):
    for request in ({"verb": "look", "run": runs["lstm"]}, {"verb": "tokens", "runs": {"A": runs["lstm"]}}):
        with pytest.raises(TooLarge, match=r"4,097 tokens, and the limit .* 4,096"):
            answer({**request, "text": "the " * 4097}, cache)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"verb": "delete"}, "unknown verb 'delete'"),
        ({"verb": "look", "run": "lstm"}, "one input"),
        ({"verb": "look", "run": "lstm", "text": "a", "example": 1}, "one input"),
        ({"verb": "look", "run": "lstm", "text": 3}, "text=3: it must be a text"),
        ({"verb": "look", "run": "lstm", "text": "\ud800"}, "half a character"),
        ({"verb": "look", "run": "lstm", "example": -1}, "from 0 to"),
        ({"verb": "look", "run": "lstm", "example": 10**9}, "validation has the tokens 0 to"),
        ({"verb": "look", "run": "lstm", "image": "aGk="}, "reads no images"),
        ({"verb": "look", "run": "lstm", "text": "the", "layers": 3}, "unknown option 'layers'"),
        ({"verb": "look", "text": "a"}, "choose a run"),
        ({"verb": "look", "run": "images", "text": "a"}, "reads no text"),
        ({"verb": "look", "run": "images", "image": "///"}, "not base64"),
        ({"verb": "look", "run": "images", "image": "aGVsbG8="}, "not a PNG"),
        ({"verb": "look", "run": "images", "image": base64.b64encode(b"\x89PNG").decode()}, "the image"),
        ({"verb": "tokens", "runs": {}, "text": "the"}, "choose one run"),
        ({"verb": "tokens", "runs": {"A": "lstm"}, "text": " "}, "empty"),
        ({"verb": "tokens", "runs": {"A": "images"}, "text": "the"}, "has no tokens"),
        ({"verb": "tokens", "runs": {"A": "lstm", "B": "images"}, "text": "the"}, "cannot be compared"),
        ({"verb": "passages", "runs": {"A": "lstm"}}, "two different runs"),
        ({"verb": "passages", "runs": {"A": "lstm", "B": "lstm"}}, "two different runs"),
        ({"verb": "passages", "runs": {"A": "lstm", "B": "images"}}, "different tasks"),
        ({"verb": "passages", "runs": {"A": "lstm", "B": "hybrid"}, "split": "test"}, "it must be train or valid"),
        ({"verb": "continue", "run": "lstm", "tokens": True}, "whole number"),
    ],
    ids=str,
)
def test_a_mistake_is_told_in_one_line(request_, message, runs, cache):
    request_ = dict(request_)
    if "run" in request_:
        request_["run"] = runs[request_["run"]]
    if "runs" in request_:
        request_["runs"] = {name: runs[run] for name, run in request_["runs"].items()}
    with pytest.raises(AnaphorError, match=message) as raised:
        answer(request_, cache)
    assert "\n" not in str(raised.value)


def test_runs_of_other_tasks_are_refused_before_they_are_scored(runs, monkeypatch):
    monkeypatch.setattr(Cache, "losses", lambda self, path, split: {}["scored"])
    with pytest.raises(ConfigError, match="different tasks"):
        answer({"verb": "passages", "runs": {"A": runs["lstm"], "B": runs["images"]}}, Cache())


def test_every_task_offers_verbs_that_the_worker_has(folder):
    from anaphor.registry import TASKS, import_object

    for name in TASKS:
        assert {*TASKS[name].page} <= {*VERBS}
        assert {"look", "passages"} <= {*TASKS[name].page}
        assert all(callable(import_object(place)) for place in TASKS[name].page.values())


def test_an_image_is_looked_at_as_look_does(runs, cache, trained):
    run = anaphor.load_run(runs["images"], device="cpu")
    look = run.look(examples=2)[1]
    found = answer({"verb": "look", "run": runs["images"], "example": 1}, cache)
    assert (found["label"], found["true"]) == (look.label, look.true)
    assert found["probabilities"] == look.probabilities
    for name, heat in look.maps.views().items():
        assert unpack(found["views"][name]) == pytest.approx(heat.reshape(1, -1).numpy(), abs=0.005)
    tap = found["layers"][0]["tap"]
    for of, maps in (("attention", look.maps.attention), ("gradient-weighted", look.maps.weighted)):
        packed = answer({"verb": "head", "look": found["look"], "tap": tap, "head": 0, "of": of}, cache)
        assert unpack(packed) == pytest.approx(maps[tap][0].reshape(1, -1).numpy(), abs=0.005)
    path = trained.parent / "data" / "images" / "dark" / "0.png"
    file = base64.b64encode(path.read_bytes()).decode()
    given = answer({"verb": "look", "run": runs["images"], "image": file}, cache)
    (expected,) = run.look([path])
    assert given["probabilities"] == expected.probabilities
    assert given["true"] is None


def test_a_translation_is_that_of_look_with_its_alignment(runs, cache, capsys, tmp_path):
    found = answer({"verb": "look", "run": runs["translation"], "text": "a b c"}, cache)
    looked = ask_command(capsys, "look", runs["translation"], "a b c", "--out", str(tmp_path))
    assert found["translation"] == looked["translation"]
    assert found["target"] == looked["alignment"]["target"]
    packed = answer({"verb": "head", "look": found["look"], "tap": found["first"], "head": "mean"}, cache)
    assert unpack(packed) == pytest.approx(np.array(looked["alignment"]["weights"]), abs=0.005)
    example = answer({"verb": "look", "run": runs["translation"], "example": 0}, cache)
    assert example["reference"] == example["text"].upper()


def test_a_label_is_that_of_look_with_contributions(runs, cache, capsys, tmp_path):
    found = answer({"verb": "look", "run": runs["labels"], "text": "a red house"}, cache)
    looked = ask_command(capsys, "look", runs["labels"], "a red house", "--out", str(tmp_path))
    assert found["kind"] == "label"
    assert found["tokens"] == looked["tokens"]
    assert found["contributions"] == looked["contributions"]
    assert found["probabilities"] == looked["probabilities"]


class Scaled(Cache):
    """The weights of runs named B are smaller."""

    def _load(self, path):
        run = super()._load(path)
        if path.parent.name == "B":
            for weights in run.model.parameters():
                weights.data.mul_(0.7)
        return run


@pytest.mark.parametrize("name", ["translation", "images", "labels"])
def test_examples_are_ranked_by_the_difference_of_their_losses(name, runs, tmp_path):
    """Two runs of the same data; the second is the first with other weights."""
    other = tmp_path / "B" / name
    shutil.copytree(runs[name], other)
    cache = Scaled()
    found = answer({"verb": "passages", "runs": {"A": runs[name], "B": str(other)}, "count": 400}, cache)
    for letter, path in (("A", runs[name]), ("B", other)):
        loss = cache.run(Path(path)).evaluate("valid")["loss"]
        assert found["totals"][letter]["loss"] == pytest.approx(loss, rel=1e-5)
    assert found["kind"] == "examples"
    for better in ("A", "B"):
        ranked = [abs(one["difference"]) for one in found["passages"] if one["better"] == better]
        assert ranked == sorted(ranked, reverse=True)
    assert len({one["start"] for one in found["passages"]}) == len(found["passages"]) == found["items"]
    shown = found["passages"][0]["example"]
    per_run = {"translation": "translations", "images": "predicted", "labels": "predicted"}[name]
    assert {*shown[per_run]} == {"A", "B"}
    for table in found["tables"]:
        assert sum(row["tokens"] for row in found[table["key"]]) == found["items"]
