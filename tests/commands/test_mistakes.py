"""Mistakes on the command line and in files: the error names the flag or file, the value, and what is allowed."""

from pathlib import Path

import pytest

from anaphor.cli.main import main
from anaphor.config import MISSING_EXTRA


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "lm", "--width", "abc"], "width='abc': it must be a whole number"),
        (["train", "lm", "--width=abc"], "width='abc': it must be a whole number"),
        (["train", "lm", "--batch_size", "2.5", "--lr", "1"], "batch_size='2.5': it must be a whole number"),
        (["train", "lm", "--lr", "high"], "lr='high': it must be a number"),
        (["train", "lm", "--betas", "0.9", "x"], "betas='0.9 x': it must be a list of numbers"),
        (["train", "lm", "--layer-widths", "8", "y"], "layer_widths='8 y': it must be a list of whole numbers"),
        (["train", "lm", "--layer-residuals", "maybe"], "layer_residuals='maybe': it must be a list of True and False"),
        (["train", "lm", "--lr", "--resume"], "--lr needs a value"),
        (["train", "lm", "--width", "8", "--width", "x"], "--width is given twice: give it once"),
        (["models", "--vocabulary", "many"], "vocabulary='many': it must be a whole number"),
        (["generate", "run", "--temperature", "cold", "--seed", "1"], "temperature='cold': it must be a number"),
        (["train", "lm", "--layers", "-2"], "layers=-2: it must be at least 1"),
        (["train", "lm", "--layers", "10000000"], "layers=10000000: it must be at most 10,000"),
        (["train", "translate", "--encoder-layers", "10000000"], "encoder_layers=10000000: it must be at most 10,000"),
        (["train", "lm", "--vocabulary", "1000000000"], "vocabulary=1000000000: it must be at most 10,000,000"),
        (["train", "classify", "--vocabulary", "1000000000"], "vocabulary=1000000000: it must be at most 10,000,000"),
        (["train", "translate", "--beam", "10000000"], "beam=10000000: it must be at most 10,000"),
        (["models", "--vocabulary", "1000000000"], "vocabulary=1000000000: it must be at most 10,000,000"),
        (["generate", "run", "--samples", "1000000000"], "samples=1000000000: it must be at most 1,000,000"),
        (
            ["generate", "run", "--beam", "2", "--tokens", "1000000001"],
            "tokens=1000000001: it must be at most 1,000,000",
        ),
        (["generate", "run", "--beam", "10000000"], "beam=10000000: it must be at most 10,000"),
        (["translate", "run", "text", "--beam", "10000000"], "beam=10000000: it must be at most 10,000"),
        (
            ["train", "lm", "--device", "gpu"],
            "unknown device 'gpu'; did you mean 'cuda'? (known: auto, cpu, cuda, mps)",
        ),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_what_it_must_be(error_of, words, message):
    assert error_of(words) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("width: abc", "it.yaml: width='abc': it must be a whole number"),
        ("layer_widths: [8, y]", "it.yaml: layer_widths='8 y': it must be a list of whole numbers"),
        ("lr: ", None),
        ("# nothing yet", "it.yaml has no settings"),
        ("cuda_graph: maybe", "it.yaml: cuda_graph='maybe': it must be True or False"),
        ("tied: maybe", "it.yaml: tied='maybe': it must be True or False"),
        ("widht: 3", "it.yaml has no field 'widht'; did you mean 'width'?"),
        ("zzz: 3", f"it.yaml has no field 'zzz'; --help lists all of them{MISSING_EXTRA}"),
        ("data: [1\nb: 2", "it.yaml is not a plain YAML file: line 2, column 2: expected ',' or ']', but got ':'"),
        ("a: \x01", "it.yaml is not a plain YAML file: unacceptable character #x0001: special characters are not "
         "allowed at position 3"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_names_the_file(tmp_path, monkeypatch, error_of, text, message):
    monkeypatch.chdir(tmp_path)
    Path("it.yaml").write_text(text, encoding="utf-8")
    if message is None:  # a value that is left open is none
        assert error_of(["train", "lm", "--config", "it.yaml", "--data", "nowhere"]).startswith("unknown data set")
    else:
        assert error_of(["train", "lm", "--config", "it.yaml"]) == message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "lm", "--widht", "3"], "unknown option --widht; did you mean '--width'?"),
        (["train", "lm", "--widht=3"], "unknown option --widht; did you mean '--width'?"),
        (["train", "lm", "--no-tide"], "--no-tide; did you mean '--no-tied'?"),
        (["train", "lm", "--nhid", "200"], "unknown option --nhid; did you mean '--width'?"),
        (["train", "lm", "--hidden", "200"], "unknown option --hidden; did you mean '--width'?"),
        (["train", "lm", "--emsize=200"], "unknown option --emsize; did you mean '--embedding'?"),
        (["train", "lm", "--n-layers", "2"], "unknown option --n-layers; did you mean '--layers'?"),
        (["train", "lm", "--n_layers", "2"], "unknown option --n_layers; did you mean '--layers'?"),
        (["train", "lm", "--nlayers", "2"], "unknown option --nlayers; did you mean '--layers'?"),
        (["train", "lm", "--learning-rate", "1"], "unknown option --learning-rate; did you mean '--lr'?"),
        (["train", "lm", "--bs", "20"], "unknown option --bs; did you mean '--batch-size'?"),
        (["train", "lm", "--ctx", "64"], "unknown option --ctx; did you mean '--bptt'?"),
        (["train", "lm", "--block-size", "64"], "unknown option --block-size; did you mean '--bptt'?"),
        (["train", "lm", "--max-iters", "100"], "unknown option --max-iters; did you mean '--steps'?"),
        (["train", "lm", "--nhead", "2"], "unknown option --nhead; did you mean '--heads'?"),
        (["train", "lm", "--decay", "0.1"], "unknown option --decay; did you mean '--weight-decay'?"),
        (["train", "lm", "--gpu"], "unknown option --gpu; did you mean '--device'?"),
        (["train", "classify", "--num_train_epochs", "3"], "--num_train_epochs; did you mean '--epochs'?"),
        (["train", "lm", "--save", "5"], "unknown option --save; did you mean '--save-minutes'?"),
        (
            ["train", "images", "--size", "64"],
            "did you mean '--batch-size', '--image-size', '--kernel-size' or '--patch-size'?",
        ),
        (["generate", "run", "--temprature=0"], "unknown option --temprature; did you mean '--temperature'?"),
        (["generate", "run", "--greedy"], "there is no --greedy: use --temperature 0"),
        (["train", "--json"], "the task is missing: `anaphor train lm --json` or `anaphor train translate --json`"),
        (["--json", "models"], "the verb is missing: it comes before all options (known: "),
    ],
)
def test_an_unknown_flag_gets_the_nearest_one(error_of, words, message):
    assert message in error_of(words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "lm", "--verbose"], f"--verbose; `anaphor train lm --help` lists the options{MISSING_EXTRA}"),
        (["generate", "run", "--n", "3"], "--n; `anaphor generate --help` lists the options"),
    ],
)
def test_an_unknown_flag_that_is_near_to_none_gets_no_guess(error_of, words, message):
    assert error_of(words) == f"unknown option {message}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["generate", "run", "--prompt", "--x y"], "unknown option --x y; as a value: --prompt='--x y'"),
        (["generate", "run", "--prompt", "--", "--x"], "--prompt needs a value"),
        (["generate", "run", "--", "--x"], "unexpected argument '--x'"),
        (["generate", "--prompt=--x"], "`anaphor generate` needs RUN: run folder"),
        (["generate", "--seed", "3", "--", "--x"], "no run at --x: there is no such folder"),
    ],
)
def test_two_dashes_end_the_options_and_a_value_behind_an_equals_sign_may_begin_with_them(error_of, words, message):
    assert error_of(words) == message


def test_only_a_part_that_a_user_can_register_is_said_to_be_importable(error_of):
    own = "; your own: with --import FILE"
    tokenizers = f"(known: bpe, byte, character, treebank, word{own})"
    for flag, message in (
        ("--tokenizer=chars", f"unknown tokenizer 'chars'; did you mean 'character'? {tokenizers}"),
        ("--tokenizer=sentencepiece", f"unknown tokenizer 'sentencepiece' {tokenizers}"),
        ("--dtype=half", "unknown dtype 'half' (known: auto, bfloat16, float32)"),
    ):
        assert error_of(["train", "lm", flag, "--out", "run"]) == message
    assert own in error_of(["train", "lm", "--optimizer", "adam", "--out", "run"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "lm", "--data", "tezt.txt"], "no file or folder at tezt.txt; known data sets: copy, dyck, "),
        (["train", "lm", "--data", "books/tezt"], "no file or folder at books/tezt; known data sets: copy, dyck, "),
        (["train", "classify", "--data", "tezt.csv"], "no file or folder at tezt.csv; known data sets: negation, sst2"),
        (["generate", "run/spec.yaml"], "no run at run/spec.yaml: it is a file; give the folder of the run, run"),
        (["generate", "notes.txt"], "no run at notes.txt: it is a file, not a folder"),
        (["predict", "nowhere", "a text"], "no run at nowhere: "),
        (["look", "nowhere", "a text"], "no run at nowhere: "),
        (["evaluate", "--split", "test", "nowhere"], "no run at nowhere: "),
    ],
)
def test_a_file_that_is_not_there_is_called_so(tmp_path, monkeypatch, error_of, words, message):
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    Path("run/spec.yaml").touch()
    Path("notes.txt").touch()
    assert error_of(words).startswith(message)


@pytest.mark.parametrize(
    "words",
    [
        ["train", "lm", "--out", ""],
        ["train", "lm", "--out="],
    ],
)
def test_an_empty_name_is_no_folder(tmp_path, monkeypatch, error_of, words):
    monkeypatch.chdir(tmp_path)
    assert error_of(words) == "out='': a folder or a file needs a name; . is this folder"
    assert not list(tmp_path.iterdir())


def test_an_empty_name_is_no_folder_for_evaluate(text, error_of):
    words = "train lm --data text --width 8 --layers 1 --batch-size 2 --bptt 5 --steps 1 --device cpu --no-test"
    assert main([*words.split(), "--out", "run"]) == 0
    assert error_of(["evaluate", "run", "--out", ""]).startswith("out='': a folder or a file needs a name")
