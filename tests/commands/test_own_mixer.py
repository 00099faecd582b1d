"""A user's own mixer is a mixer like any other: it trains, and it is seen by `models` and `look`."""

import re
from pathlib import Path

import pytest

import anaphor
from anaphor.cli.main import main
from anaphor.errors import ConfigError
from anaphor.shipped_files import EXAMPLES

FILE = str(EXAMPLES / "leaky_mixer.py")


@pytest.fixture
def run(text, tmp_path, capsys):
    words = ["--data", "text", "--width", "8", "--bptt", "8", "--batch-size", "2", "--steps", "3", "--no-test"]
    words += ["--device", "cpu", "--json"]
    assert main(["train", "lm", "--import", FILE, "--model", "leaky", *words, "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    return tmp_path / "run"


def test_models_lists_it(answer_of):
    (row,) = answer_of(["models", "leaky", "--import", FILE, "--json"])
    assert row["layers"] == ["leaky", "leaky"]
    assert not row["state_grows"]


def test_look_shows_its_losses_and_says_that_it_has_no_taps(run, tmp_path, answer_of):
    words = ["look", str(run), "a dog on the mat", "--import", FILE, "--out", str(tmp_path / "look"), "--json"]
    (shown,) = answer_of(words)["runs"]
    assert "2 × leaky" in shown["model"]
    assert len(shown["losses"]) == 6
    assert (tmp_path / "look" / "attention.html").is_file()


def test_it_generates_and_is_evaluated_with_its_file_only(run, answer_of):
    assert len(answer_of(["generate", str(run), "--import", FILE, "--tokens", "3", "--json"])["tokens"]) == 3
    assert main(["evaluate", str(run), "--import", FILE, "--json"]) == 0


PARTS = """
import anaphor
from anaphor.data.grammar_dataset import GrammarDataset
from anaphor.mixers.recurrent import GRUSpec

anaphor.register_mixer("my-gru", GRUSpec)
anaphor.register_dataset("my-text", GrammarDataset)
"""


@pytest.fixture
def spec_file(tmp_path):
    """The spec file of a run with a model and data of the user's, as far as it matters."""
    (tmp_path / "parts.py").write_text(PARTS)
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "task: lm\ndata: {data: my-text}\nmodel: {model: my-gru, width: 4}\n"
        f"imports: [{{file: {tmp_path / 'parts.py'}, sha256: '0'}}]\n"
    )
    return spec


DRY = ["--device", "cpu", "--dry-run"]


@pytest.mark.parametrize(
    ("flags", "unknown"),
    [([], "my-text"), (["--data", "grammar"], "my-gru"), (["--model", "gru"], "my-text")],
)
def test_settings_of_its_run_say_which_file_to_import(flags, unknown, spec_file, error_of):
    line = error_of(["train", "lm", "--config", str(spec_file), *flags, *DRY])
    assert line.startswith(f"{spec_file} names '{unknown}', which is unknown")
    assert line.endswith(f"parts.py: pass --import {spec_file.parent / 'parts.py'}")
    assert main(["train", "lm", "--config", str(spec_file), *flags, *DRY, *line.split()[-2:]]) == 0


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["train", "lm", "--mixers", "lstm", "decaying-lstm"], "unknown mixer 'decaying-lstm'"),
        (["train", "lm", "--model", "my-lstm"], "unknown model 'my-lstm'; did you mean"),
        (["train", "translate", "--encoder", "decaying"], "unknown mixer 'decaying'"),
        (["train", "lm", "--optimizer", "my-sgd"], "unknown optimizer 'my-sgd'"),
        (["train", "lm", "--data", "my-text"], "unknown data set 'my-text'"),
        (["train", "my-task"], "unknown task 'my-task'"),
        (["check-mixer", "decaying"], "unknown mixer 'decaying'"),
        (["models", "decaying"], "unknown model 'decaying'"),
    ],
)
def test_an_unknown_name_may_be_that_of_a_part_that_was_not_imported(words, what, error_of, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = error_of([*words, *(DRY if words[0] == "train" else [])])
    assert line.startswith(f"{what}")
    assert line.endswith("; your own: with --import FILE)")


def test_in_python_too(spec_file):
    with pytest.raises(ConfigError, match=r"names 'my-text', which is unknown: .* pass --import .*parts\.py"):
        anaphor.train("lm", config=spec_file, out=spec_file.parent / "run")


def test_a_misspelled_flag_over_settings_of_its_run_is_the_users_own_error(spec_file, error_of):
    words = ["train", "lm", "--config", str(spec_file), "--data", "grammar", "--model", "gur"]
    assert "unknown model 'gur'; did you mean 'gru'?" in error_of([*words, *DRY])


@pytest.mark.parametrize("content", [None, "[1", "imports: 3", "task: my-task\nimports: [3, {file: 4}, {}]"])
def test_an_unknown_name_beside_a_file_that_says_nothing_of_it_is_an_unknown_name(content, tmp_path, error_of):
    if content is not None:
        (tmp_path / "spec.yaml").write_text(content)
    line = error_of(["train", "nothing", "--config", str(tmp_path / "spec.yaml")])
    assert line.startswith("unknown task 'nothing' (known: ")


def test_settings_of_a_run_of_ones_own_task_say_which_file_to_import(spec_file, error_of):
    spec_file.write_text(spec_file.read_text().replace("task: lm", "task: my-task"))
    assert "names 'my-task', which is unknown" in error_of(["train", "my-task", "--config", str(spec_file), *DRY])


BROKEN = Path(FILE).read_text().replace('"leaky"', '"broken"').replace("(hidden)\n\n\nreg", "(hidden) FAULT\n\n\nreg")
LINE = next(number for number, line in enumerate(BROKEN.splitlines(), 1) if "FAULT" in line)


def write_broken(path, fault):
    path.write_text(BROKEN.replace(" FAULT", f" if {fault} else None"))
    return str(path)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("x.view(3, 7)", "RuntimeError in line {} of {}: shape '[3, 7]' is invalid for input of size "),
        ("[][1]", "IndexError in line {} of {}: list index out of range"),
        ("open('nowhere')", "FileNotFoundError in line {} of {}: [Errno 2] No such file or directory: 'nowhere'"),
    ],
)
def test_an_error_in_it_is_one_line_that_names_its_file_and_line(fault, message, text, tmp_path, capsys):
    file = write_broken(tmp_path / "broken.py", fault)
    words = ["--data", "text", "--width", "8", "--bptt", "8", "--batch-size", "2", "--steps", "3", "--no-test"]
    words += ["--device", "cpu"]
    assert main(["train", "lm", "--import", file, "--model", "broken", *words, "--out", str(tmp_path / "run")]) == 2
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1].startswith(f"anaphor: {message.format(LINE, file)}")
    assert "Traceback" not in captured.err
    assert main(["check-mixer", "broken", "--import", file]) == 0
    assert f"BROKEN: {message.format(LINE, 'broken.py')}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("torch.stack(outputs, dim=1)", "must return outputs and a state, not Tensor"),
        (
            "(torch.stack(outputs[1:], dim=1), LeakyState(hidden))",
            "returns outputs [2, 7, 8] for [2, 8, 8]: they must be",
        ),
    ],
)
def test_a_wrong_result_of_it_is_one_line(returned, message, text, tmp_path, capsys):
    file = tmp_path / "broken.py"
    file.write_text(re.sub("return torch.stack.*", f"return {returned}", BROKEN))
    words = ["--data", "text", "--width", "8", "--bptt", "8", "--batch-size", "2", "--steps", "3", "--no-test"]
    words += ["--import", str(file), "--model", "broken", "--device", "cpu", "--out", str(tmp_path / "run")]
    assert main(["train", "lm", *words]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"anaphor: mix of Leaky {message}")


SQUARE = """
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient[:, 1:]


reg"""
IN_BACKWARD = {
    "it changes a tensor that a gradient needs in place": (
        "outputs = torch.stack(outputs, dim=1).sigmoid()  # FAULT\n        outputs += 1",
        "one of the variables needed for gradient computation has been modified by an inplace operation",
    ),
    "a function of its own gives a gradient of a wrong shape": (
        "outputs = Square.apply(torch.stack(outputs, dim=1))  # FAULT",
        "Function SquareBackward returned an invalid gradient at index 0",
    ),
    "it keeps what belongs into the state": (
        "outputs = torch.stack(outputs, dim=1).tanh()  # FAULT\n"
        "        outputs = self.kept = outputs + getattr(self, 'kept', 0)",
        "Trying to backward through the graph a second time",
    ),
}


@pytest.mark.parametrize("fault", IN_BACKWARD)
def test_an_error_of_its_backward_pass_names_the_line_of_its_forward_pass(fault, text, tmp_path, capsys):
    lines, message = IN_BACKWARD[fault]
    source = re.sub("return torch.stack.*", f"{lines}\n        return outputs, LeakyState(hidden)", BROKEN)
    source = source.replace("\n\nreg", SQUARE)
    file = tmp_path / "broken.py"
    file.write_text(source)
    line = next(number for number, line in enumerate(source.splitlines(), 1) if "FAULT" in line)
    words = ["--data", "text", "--width", "8", "--bptt", "8", "--batch-size", "2", "--steps", "3", "--no-test"]
    words += ["--import", str(file), "--model", "broken", "--device", "cpu", "--out", str(tmp_path / "run")]
    assert main(["train", "lm", *words]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"anaphor: RuntimeError in the backward pass of line {line} of {file}: {message}")


def test_an_error_without_a_message_ends_with_its_line(text, tmp_path, capsys):
    file = tmp_path / "broken.py"
    file.write_text(re.sub("return torch.stack.*", "assert x is None", BROKEN))
    words = ["--data", "text", "--width", "8", "--steps", "3", "--no-test", "--device", "cpu"]
    words += ["--bptt", "8", "--batch-size", "2", "--import", str(file), "--model", "broken"]
    assert main(["train", "lm", *words, "--out", str(tmp_path / "run")]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"anaphor: AssertionError in line {LINE} of {file}"


def test_in_python_its_error_is_its_own(text, tmp_path):
    file = write_broken(tmp_path / "broken.py", "[][1]")
    with pytest.raises(IndexError):
        anaphor.train("lm", data="text", model="broken", imports=[file], steps=1, no_test=True, out="run")


def test_an_error_of_ours_keeps_its_traceback(run, monkeypatch):
    def fail(*arguments, **options):
        raise IndexError("a bug of ours")

    monkeypatch.setattr("anaphor.training.load.load_run", fail)
    with pytest.raises(IndexError, match="a bug of ours"):
        main(["evaluate", str(run), "--import", FILE, "--device", "cpu"])
