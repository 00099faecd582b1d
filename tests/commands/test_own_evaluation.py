"""An evaluation of a user's own: flags of `evaluate`, rows with signatures, variants of the model."""

import json

import pytest

from anaphor.cli.main import main

FILE = '''
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import anaphor


@dataclass(frozen=True, kw_only=True)
class Settings:
    section: ClassVar[str] = "repeated"

    times: tuple[int, ...] = ()
    """Also the loss of a split so many times over."""
    scale: tuple[float, ...] = ()
    """Factor of the weights of the head; one row each."""

    def __post_init__(self):
        if any(number < 1 for number in self.times):
            raise anaphor.ConfigError(f"times={self.times}: at least once")


class Repeated(anaphor.Evaluation):
    columns = ("times",)

    def __init__(self, settings, experiment, run):
        self.settings, self.experiment = settings, experiment

    def choices(self):
        return {"times": self.settings.times}

    def variants(self):
        scaled = [anaphor.Variant({"scale": f"{one:g}"}, partial(self.scaled, one)) for one in self.settings.scale]
        return scaled or [anaphor.Variant()]

    @contextmanager
    def scaled(self, scale):
        weight = next(iter(self.experiment.model.head.parameters()))
        before = weight.data
        weight.data = before * scale
        yield
        weight.data = before

    def score(self, split, protocols=()):
        ways = [self.experiment.evaluate_with(split, one) for one in protocols]
        for plain in ways or [self.experiment.evaluate(split)]:
            for number in self.settings.times:
                metadata = {"times": number} if SIGNED else {}
                values = {"loss": number * plain.values["loss"]}
                yield replace(plain, values=values, metadata={**plain.metadata, **metadata})


SIGNED = True
anaphor.register_evaluation("repeated", Repeated, Settings, tasks=TASKS)
'''


@pytest.fixture
def file(tmp_path):
    def write(tasks=("lm",), old="", new=""):
        path = tmp_path / "repeated.py"
        path.write_text(f"TASKS = {tasks!r}\n{FILE.replace(old, new) if old else FILE}")
        return ["--import", str(path), "--device", "cpu"]

    return write


def rows(capsys, *words):
    assert main(["evaluate", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_its_rows_come_after_the_plain_one_with_a_signature_of_their_own(run, file, capsys):
    (alone,) = rows(capsys, run, *file())
    plain, twice, thrice = rows(capsys, run, *file(), "--times", "2", "3")
    assert plain == alone
    assert [row["times"] for row in (plain, twice, thrice)] == [None, 2, 3]
    assert twice["signature"] == f"{plain['signature']}|times:2"
    assert thrice["loss"] == 3 * plain["loss"]


def test_every_row_is_repeated_for_each_variant(run, file, capsys):
    words = ["--times", "2", "--scale", "1", "0", "--bptt", "5"]
    assert main(["evaluate", run, *file(), *words]) == 0
    lines = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines() if "loss" in line]
    assert lines == ["bptt 5, scale 1", "bptt 5, scale 1, times 2", "bptt 5, scale 0", "bptt 5, scale 0, times 2"]
    alone, (same, _, zero, twice) = rows(capsys, run, *file())[0], rows(capsys, run, *file(), *words)
    assert same["loss"] == alone["loss"] != zero["loss"]
    ends = [row["signature"].partition("|unk:none")[2] for row in (same, zero, twice)]
    assert ends == ["|scale:1", "|scale:0", "|times:2|scale:0"]


def test_its_flags_have_a_section_of_help(run, file, capsys):
    assert main(["evaluate", "--help", *file()]) == 0
    assert "repeated options" in capsys.readouterr().out
    assert main(["evaluate", run, "--help", *file()]) == 0
    assert "--times [INT ...]" in capsys.readouterr().out


@pytest.mark.slow
def test_it_evaluates_runs_of_other_tasks_too(file, tmp_path, capsys, error_of, single_precision):
    words = ["--data", "shapes", "--max-examples", "64", "--width", "8", "--layers", "1", "--heads", "2"]
    train = ["train", "images", *words, "--batch-size", "16", "--steps", "1", "--device", "cpu", "--no-test"]
    assert main([*train, "--out", str(tmp_path / "images"), "--json"]) == 0
    folder = str(tmp_path / "images")
    assert "--times is for runs of `train lm`" in error_of(["evaluate", folder, *file(), "--times", "2"])
    plain, twice = rows(capsys, folder, *file(tasks=("lm", "images")), "--times", "2")
    assert (plain["times"], twice["times"]) == (None, 2)
    assert main(["evaluate", folder, *file(tasks=("images",)), "--times", "2"]) == 0
    lines = [line.partition(": ")[0] for line in capsys.readouterr().out.splitlines() if "loss" in line]
    assert lines == ["valid", "valid, times 2"]


@pytest.mark.parametrize(
    ("words", "old", "new", "message"),
    [
        (["--times", "0"], "", "", "times=(0,): at least once"),
        (["--split", "test", "--times", "2", "3"], "", "", "times=(2, 3) on test: choose one of them on valid"),
        (["--out", "figures", "--scale", "1", "2"], "", "", "--by-position and --out show one model"),
        (["--scale", "1", "2"], '{"scale": f"{one:g}"}', "{}", "two variants of the model have scores with the same"),
        (["--times", "2"], "SIGNED = True", "SIGNED = False", "has a result with the signature of the plain score"),
        (["--times", "2"], "yield replace", "1 / 0; yield replace", "ZeroDivisionError"),
        (["--times", "2"], "yield replace", "yield 1; replace", "must give results, but it gave a int"),
        ([], "(anaphor.Evaluation)", "", "must be an Evaluation or None, but it is a Repeated"),
        ([], "    times:", "    bptt:", "has the setting 'bptt'"),
    ],
)
def test_what_cannot_work_is_one_line(run, file, capsys, words, old, new, message):
    assert main(["evaluate", run, *file(old=old, new=new), *words]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_a_flag_whose_extra_is_missing_says_that_it_may_be(run, error_of):
    assert "settings of an extra need the extra: pass --import FILE" in error_of(["evaluate", run, "--times", "2"])
