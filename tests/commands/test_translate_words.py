"""What `anaphor translate` makes of words it does not know, and of newlines inside a sentence."""

import pytest
import torch

from anaphor.cli.main import main


@pytest.fixture(scope="module", params=["word", "character", "treebank"])
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    for split in ("train", "valid"):
        for language in ("en", "de"):
            (folder / f"{split}.{language}").write_text("the cat sat\na dog\n" * 4)
    torch.set_default_dtype(torch.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANAPHOR_CACHE", str(folder / "cache"))
        words = ["train", "translate", "--data", str(folder), "--source", "en", "--out", str(folder / "run")]
        more = ["--model", "luong", "--width", "8", "--steps", "1", "--tokenizer", request.param, "--no-test"]
        assert main([*words, *more, "--device", "cpu", "--json"]) == 0
    return request.param, str(folder / "run")


pytestmark = pytest.mark.usefixtures("own_cache", "single_precision")


def said(capsys, run, *texts):
    capsys.readouterr()
    assert main(["translate", run, *texts, "--max-length", "2", "--beam", "1", "--device", "cpu"]) == 0
    captured = capsys.readouterr()
    return captured.out, [line for line in captured.err.splitlines() if "cut at" not in line]


def test_it_names_exactly_what_it_does_not_know(run, capsys):
    kind, folder = run
    unknown = {"word": "Mät,, ß", "character": "M, ä, ,, ß", "treebank": "Mät, ,, ß"}[kind]
    _, told = said(capsys, folder, "the Mät, sat", "a ß", "a dog")
    assert told == [f"anaphor: not in the vocabulary, replaced by <unk>: {unknown}"]


def test_a_newline_inside_a_sentence_is_a_space(run, capsys):
    _, folder = run
    assert said(capsys, folder, "the cat\nsat\n") == said(capsys, folder, "the cat sat")
