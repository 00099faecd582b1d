"""A newline in a text that a command is given is read as it was in training."""

import json
from itertools import chain

import pytest
import torch

from anaphor.cli.main import main

LINES = ["the cat sat .", "a dog saw the mat ."]
BATCHINGS = {"stream": [], "padded": ["--batching", "padded"]}


@pytest.fixture(scope="module", params=BATCHINGS)
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "text.txt").write_text("\n\n".join(["\n".join(LINES * 2)] * 60) + "\n")
    torch.set_default_dtype(torch.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANAPHOR_CACHE", str(folder / "cache"))
        words = ["train", "lm", "--data", str(folder / "text.txt"), "--out", str(folder / "run"), "--width", "16"]
        more = ["--optimizer", "adamw", "--lr", "0.02", "--steps", "60", "--no-test", "--device", "cpu", "--json"]
        assert main([*words, *more, *BATCHINGS[request.param]]) == 0
    return folder / "run"


pytestmark = pytest.mark.usefixtures("own_cache", "single_precision")


def told(capsys, verb, *words):
    capsys.readouterr()
    assert main([verb, *map(str, words), "--device", "cpu", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_prompt_goes_on_behind_its_newline(run, capsys):
    def first(prompt):
        return told(capsys, "generate", run, "--prompt", prompt, "--tokens", "1", "--temperature", "0")["text"]

    assert first(LINES[0]) == "\n"
    assert first(f"{LINES[0]}\n") == "a"
    assert first(f"{LINES[0]}\na") == "dog"


def test_a_second_line_is_no_surprise(run, capsys):
    (scored,) = told(capsys, "score", run, "\n".join(LINES))
    assert [token["token"] for token in scored["tokens"]] == [*LINES[0].split(), "<eos>", *LINES[1].split()]
    assert max(token["loss"] for token in scored["tokens"]) < 2


def test_the_end_of_a_sentence_is_not_scored(run, capsys):
    bare, ended = told(capsys, "score", run, LINES[0], f"{LINES[0]}\n")
    assert ended == {**bare, "text": f"{LINES[0]}\n"}


def test_a_file_is_looked_at_line_end_by_line_end(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("anaphor.inspect.figures.heat_maps", lambda panels, paths, **names: None)
    (tmp_path / "two.txt").write_text("".join(f"{line}\n" for line in LINES))
    (seen,) = told(capsys, "look", run, "--file", tmp_path / "two.txt", "--out", tmp_path / "seen")["runs"]
    assert seen["tokens"] == ["<eos>", *chain.from_iterable([*line.split(), "<eos>"] for line in LINES)]
    assert len(seen["losses"]) == len(seen["tokens"])
    assert max(seen["losses"][1:]) < 2
