"""Flags of `train` that the run would not use are refused; settings of a recipe or a file are not."""

import pytest

from anaphor.cli.main import main
from command_line import override

pytestmark = pytest.mark.usefixtures("text")

LM = ["train", "lm", "--data", "text", "--device", "cpu", "--width", "8"]
EXAMPLES = "applies to segments of a stream, and examples have none: use --batching stream"


def dry_run(capsys, words):
    capsys.readouterr()
    code = main([*words, "--dry-run"])
    captured = capsys.readouterr()
    assert captured.err.count("\n") == (code != 0)
    return code, captured.err.removeprefix("anaphor: ").strip()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--batching padded --bptt 99", f"bptt=99 {EXAMPLES}"),
        ("--batching padded --bptt 35", f"bptt=35 {EXAMPLES}"),
        ("--batching padded --protocol=example", f"protocol='example' {EXAMPLES}"),
        ("--batching padded --eval-batch-size 77", f"eval_batch_size=77 {EXAMPLES}"),
        ("--batching padded --eval_batch_size 77", f"eval_batch_size=77 {EXAMPLES}"),
        (
            "--model lstm --max-positions 7",
            "max_positions=7 applies to --position learned only, not to position='none'",
        ),
        (
            "--model transformer --heads 2 --position sinusoidal --max-positions 3",
            "max_positions=3 applies to --position learned only, not to position='sinusoidal'",
        ),
        (
            "--model lstm --activation relu",
            "activation='relu' applies to the feed-forward network only, and the model has none: set --feedforward",
        ),
        (
            "--model transformer --heads 2 --feedforward 0 --activation relu",
            "activation='relu' applies to the feed-forward network only, and the model has none: set --feedforward",
        ),
        (
            "--model lstm --dropout-kind locked",
            "dropout_kind='locked' has no effect without dropout: set --dropout or another dropout rate",
        ),
        (
            "--model lstm --dropout-kind locked --dropout 0 --word-dropout 0.1 --weight-drop 0.2",
            "dropout_kind='locked' has no effect without dropout: set --dropout or another dropout rate",
        ),
    ],
)
def test_an_unused_flag_is_refused(capsys, words, message):
    assert dry_run(capsys, override(LM, *words.split())) == (2, message)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("--model luong --max-positions 7", "max_positions"),
        ("--model luong --activation relu", "activation"),
        ("--model luong --dropout-kind locked", "dropout_kind"),
        ("--model transformer-translation --max-positions 7", "max_positions"),
        ("--batch-size 8 --batch-tokens 100", "batch_size"),
    ],
)
def test_an_unused_flag_of_translation_is_refused(capsys, words, name):
    code, line = dry_run(capsys, ["train", "translate", "--data", "reverse", *words.split()])
    assert code == 2
    assert line.startswith(f"{name}=")
    assert " applies to " in line or " has no effect " in line


def test_it_is_refused_before_anything_is_written(tmp_path, error_of):
    line = error_of([*LM, "--max-positions", "7", "--out", "run"])
    assert "max_positions=7 applies to --position learned only" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "words",
    [
        "--model transformer --heads 2 --position learned --max-positions 50",
        "--model lstm --feedforward 16 --activation relu",
        "--model lstm --dropout-kind locked --output-dropout 0.1",
        "--model lstm --dropout-kind locked --layers 2 --layer-dropouts 0 0.1",
        "--model hybrid --mixers lstm attention --heads 2 --position learned --max-positions 50 --dropout-kind locked "
        "--input-dropout 0.2",
        "--bptt 9 --protocol example --eval-batch-size 2",
    ],
)
def test_a_flag_that_is_used_is_accepted(capsys, words):
    assert dry_run(capsys, override(LM, *words.split())) == (0, "")


@pytest.mark.parametrize(
    "words",
    [
        "--model luong --dropout 0.1 --dropout-kind locked",
        "--batch-size 8",
        "--batch-tokens 100",
        "--model mixed --heads 2 --position learned --max-positions 50 --activation relu",
    ],
)
def test_a_flag_that_translation_uses_is_accepted(capsys, words):
    assert dry_run(capsys, ["train", "translate", "--data", "reverse", *words.split()]) == (0, "")


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("word-language-model-transformer", "--feedforward 0"),  # it has an activation
        ("word-language-model-lstm", "--batching padded --max-examples 1"),  # it has a protocol
    ],
)
def test_a_flag_may_make_a_setting_of_a_recipe_unused(capsys, recipe, words):
    assert dry_run(capsys, override([*LM, "--recipe", recipe], *words.split())) == (0, "")


def test_a_file_may_have_unused_settings(tmp_path, answer_of):
    (tmp_path / "old.yaml").write_text(
        "data: text\nmodel: lstm\nmax_positions: 7\nactivation: relu\ndropout_kind: locked\nbatching: padded\n"
        "bptt: 99\nwidth: 8\nlayers: 1\nsteps: 2\ndevice: cpu\n"
    )
    assert main(["train", "lm", "--config", "old.yaml", "--no-test", "--out", "run", "--json"]) == 0
    assert main(["train", "lm", "--resume", "--no-test", "--out", "run", "--json"]) == 0
    assert main(["train", "lm", "--resume", "--no-test", "--out", "run", "--json", "--steps", "3", "--force"]) == 0
    assert answer_of(["evaluate", "run", "--device", "cpu", "--json"])[0]["loss"] > 0
