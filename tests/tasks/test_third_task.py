"""A task in one file outside the package: it trains, resumes, is evaluated and drawn like any other."""

import json
import os
import signal

import pytest

import anaphor
import forked
from anaphor.cli.main import main
from anaphor.errors import ConfigError
from anaphor.shipped_files import EXAMPLES
from anaphor.training.run_folder import RunFolder

FILE = EXAMPLES / "digit_sum.py"
SMALL = ["--import", str(FILE), "--steps", "24", "--eval-every", "6", "--lr", "0.02"]


pytestmark = pytest.mark.usefixtures("single_precision")


def train(out, *more):
    return main(["train", "digit-sum", *SMALL, "--out", str(out), "--json", *more])


def last_checkpoint(out):
    folder = max((out / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    return folder.name, json.loads((folder / "manifest.json").read_bytes())["files"]


@pytest.mark.curves
def test_it_trains_and_reports_its_own_metrics(tmp_path, capsys):
    assert train(tmp_path / "run") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["valid"].keys() == {"mse", "within_half", "signature"}
    assert result["valid"]["signature"] == "examples:200|length:6"
    assert result["sequences_per_second"] > 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [6, 12, 18, 24]
    assert lines[-1]["sequences"] == 24 * 50
    assert lines[-1]["valid"]["mse"] < lines[0]["valid"]["mse"]
    assert {path.name for path in (tmp_path / "run").glob("*.png")} == {
        "curves.png", "curves-within_half.png", "curves-loss.png",
    }  # fmt: skip


def test_it_resumes_bit_identically_after_a_kill(tmp_path):
    assert train(tmp_path / "whole") == 0

    def log(self, step, **values):
        if step == 12:
            os.kill(os.getpid(), signal.SIGKILL)
        return b""

    words = ["train", "digit-sum", *SMALL, "--out", str(tmp_path / "killed"), "--json", "--save-minutes", "1e-9"]
    done = forked.run(words, {}, first=lambda: setattr(RunFolder, "log", log))
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert last_checkpoint(tmp_path / "killed")[0] == "step-11"
    words = ["train", "digit-sum", "--resume", "--import", str(FILE), "--out", str(tmp_path / "killed"), "--json"]
    assert main(words) == 0
    whole, resumed = last_checkpoint(tmp_path / "whole"), last_checkpoint(tmp_path / "killed")
    assert whole[0] == resumed[0] == "step-24"
    for name in ("model.safetensors", "optimizer.safetensors", "random.safetensors"):
        assert whole[1][name] == resumed[1][name], name


def test_it_is_evaluated(tmp_path, capsys, answer_of):
    assert train(tmp_path / "run") == 0
    trained = json.loads(capsys.readouterr().out)
    words = ["evaluate", str(tmp_path / "run"), "--import", str(FILE), "--split", "test", "--json"]
    (row,) = answer_of(words)
    assert row["mse"] == trained["test"]["mse"]


def test_python_trains_it_too(tmp_path):
    run = anaphor.train("digit-sum", imports=[FILE], steps=4, out=tmp_path / "run", progress=False)
    assert run.metrics[-1]["step"] == 4
    assert run.result["valid"]["mse"] == run.evaluate("valid")["mse"]
    with pytest.raises(ConfigError, match="has no text to generate: it was trained by `train digit-sum`"):
        run.generate()


def test_its_splits_are_drawn_independently(tmp_path):
    run = anaphor.train("digit-sum", imports=[FILE], steps=1, out=tmp_path / "run", progress=False)
    train, valid, test = (
        set(map(tuple, run.experiment.split(name).digits.tolist())) for name in ("train", "valid", "test")
    )
    assert max(len(train & valid), len(train & test), len(valid & test)) < 5, "of a million sequences"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import anaphor\ndef broken(:\n", "syntax error in line 2"),
        ("x = 1\n", "registers nothing"),
        ("import anaphor\nanaphor.register_mixer('lstm', object)\n", "mixer name 'lstm' is already registered"),
        ("import anaphor\n\n1 / 0\n", "ZeroDivisionError in line 3: division by zero"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path, error_of, text, message):
    (tmp_path / "parts.py").write_text(text)
    line = error_of(["train", "lm", "--import", str(tmp_path / "parts.py"), "--data", "grammar"])
    assert "parts.py" in line
    assert message in line


def test_a_pipe_without_a_writer_is_not_waited_for(tmp_path, error_of):
    os.mkfifo(tmp_path / "parts.py")
    line = error_of(["train", "lm", "--import", str(tmp_path / "parts.py"), "--data", "grammar"])
    assert line == f"--import {tmp_path / 'parts.py'}: it is not a regular file"


def test_a_metric_that_is_missing_from_a_result_is_refused_in_one_line(tmp_path, error_of):
    text = (
        FILE.read_text().replace("Result(values, ", 'Result({"other": 1.0}, ').replace('"digit-sum"', '"digit-sum-2"')
    )
    (tmp_path / "parts.py").write_text(text)
    words = ["train", "digit-sum-2", "--import", str(tmp_path / "parts.py"), "--steps", "2", "--out"]
    line = error_of([*words, str(tmp_path / "run")])
    assert "the result on valid has no metric 'mse' to select by (it has: other)" in line


LIST = "[Batch(data.digits[rows], data.sums[rows]) for rows in order.split(self.spec.batch_size)]"
LOSS = "Loss((self.model(batch.digits) - batch.sums).square().sum()), None"
WRONG = {
    "no batch": (LIST, "[]", "batches of DigitSum returns no batch for epoch 0: there is nothing to train on"),
    "a loader": (
        LIST, "torch.utils.data.DataLoader(data.digits)",
        "batches of DigitSum must return a list of batches, not a DataLoader",
    ),
    "a generator": (LIST, f"({LIST[1:-1]})", "not a generator"),
    "tensors": (LIST, "data.digits.split(9)", "a batch of DigitSum is a Tensor without count and denominator: give"),
    "a loss alone": (
        LOSS, LOSS.removesuffix(", None"), "loss of DigitSum must return a Loss and a carry (None for none), not Loss",
    ),
    "a tensor": (LOSS, "batch.sums.sum(), None", "a Loss and a carry (None for none), not Tensor, NoneType"),
    "losses": (LOSS, LOSS.replace(".sum()", ""), "loss of DigitSum has a total [50]: give its sum, one number"),
    "a graph": (
        LOSS, LOSS.replace("None", "self.model(batch.digits)"),
        "loss of DigitSum returns a carry with gradient: detach it",
    ),
    "a carry of its own": (
        LOSS, LOSS.replace("None", "(batch.sums, batch.sums)"),
        "loss of DigitSum returns a carry, but initial_carry does not: a run could not be resumed",
    ),
    "a list": (
        LOSS, LOSS.replace("None", "[batch.sums]"),
        "a carried state holds tensors, numbers and tuples, but not a list: give a tuple",
    ),
    "a metric on the device": (
        "float(errors.square().mean())", "errors.square().mean()",
        "evaluate of DigitSum returns mse as a Tensor: give a float",
    ),
    "no digests": (
        'return {"data": {name: digest.hexdigest() for name, digest in digests.items()}}', "return {}",
        "fingerprint of DigitSum must return a dict with 'data', the digests of train and valid",
    ),
    "an old name": (
        'unit="sequences"', 'counted="sequences"',
        "task 'digit-sum-an-old-name': counted='sequences' is now unit='sequences'",
    ),
    "numbers": ("return Result(values, ", "return (values, ", "evaluate of DigitSum must return a Result, not a tuple"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_its_methods_must_return_is_said_in_one_line(case, tmp_path, capsys):
    right, wrong, message = WRONG[case]
    assert FILE.read_text().count(right) == 1
    name = f"digit-sum-{case.replace(' ', '-')}"
    (tmp_path / "parts.py").write_text(FILE.read_text().replace(right, wrong).replace('"digit-sum"', f'"{name}"'))
    words = ["train", name, "--import", str(tmp_path / "parts.py"), "--steps", "2", "--no-test"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_training_continues_in_training_mode_where_its_evaluation_leaves_the_model_in_the_other(tmp_path, capsys):
    text = FILE.read_text().replace("        self.model.train()\n", "").replace('"digit-sum"', '"digit-sum-eval"')
    text = text.replace("        return Loss(", "        assert self.model.training\n        return Loss(")
    (tmp_path / "parts.py").write_text(text)
    words = ["train", "digit-sum-eval", "--import", str(tmp_path / "parts.py"), "--steps", "4", "--eval-every", "1"]
    assert main([*words, "--no-test", "--out", str(tmp_path / "run")]) == 0, capsys.readouterr().err


def test_a_run_names_the_file_it_needs_and_refuses_another(tmp_path):
    (tmp_path / "my parts").mkdir()
    parts = tmp_path / "my parts" / "parts.py"
    parts.write_text(FILE.read_text().replace('"digit-sum"', '"digit-sum-3"'))
    words = ["train", "digit-sum-3", "--import", str(parts), "--steps", "2", "--out", str(tmp_path / "run"), "--json"]

    def in_another_process(*words):
        done = forked.run(words, {})
        return done.returncode, done.stderr.strip()

    assert in_another_process(*words)[0] == 0

    code, error = in_another_process("evaluate", str(tmp_path / "run"))
    assert code == 2
    assert error == f"anaphor: {tmp_path / 'run'} was trained with parts of parts.py: pass --import '{parts}'"
    parts.write_text(parts.read_text() + "# edited\n")
    code, error = in_another_process("evaluate", str(tmp_path / "run"), "--import", str(parts))
    assert code == 2
    assert "parts.py has changed since" in error
    code, error = in_another_process("evaluate", str(tmp_path / "run"), "--import", str(parts), "--force", "--json")
    assert code == 0, error
    assert "parts.py has changed since" in error
