"""Long scoring tells how far it is and ends when asked, and text that was scored is not translated again."""

import dataclasses
import signal

import pytest
import torch

from anaphor.cli.main import main
from anaphor.progress import progress_listener
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.tasks.translate import TranslationRunSpec
from anaphor.tasks.translation import Translation
from anaphor.training.run import execute, prepare
from anaphor.training.trainer import NullCallback


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ANAPHOR_CACHE", str(tmp_path / "cache"))
    torch.set_default_dtype(torch.float32)


def twice(tmp_path, test="one two\nthree four\n"):
    """A folder whose splits are all the same, unless test is told otherwise."""
    for split in ("train", "valid", "test"):
        for side in ("en", "de"):
            (tmp_path / f"{split}.{side}").write_text(test if split == "test" else "one two\nthree four\n")
    return TranslationRunSpec(
        data=str(tmp_path), source="en", target="de", width=8, layers=1, beam=2, batch_size=1, steps=1, device="cpu"
    )


def stream(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("one two three four five six seven eight\n" * 4)
    return LanguageRunSpec(data=str(tmp_path), width=8, layers=1, batch_size=1, bptt=5, steps=1, device="cpu")


@pytest.fixture
def _undrawn(monkeypatch):
    monkeypatch.setattr("anaphor.training.run.draw_curves", lambda rundir: [])


@pytest.fixture
def searched(monkeypatch):
    """How many texts were searched, each time."""
    seen, honest = [], Translation.translated

    def counted(self, models, batches, beam):
        found = honest(self, models, batches, beam)
        seen.append(len(found))
        return found

    monkeypatch.setattr(Translation, "translated", counted)
    return seen


def test_the_same_text_is_translated_once(tmp_path, searched):
    made = prepare(twice(tmp_path))
    valid = made.score("valid")
    test = made.score_test(valid)
    assert searched == [2]
    assert test == made.score("test")
    assert test.pop("overlap")["in_train"] == 2
    assert valid == test


def test_other_weights_translate_anew(tmp_path, searched):
    made = prepare(twice(tmp_path))
    before = made.score("valid")
    with torch.no_grad():
        made.model.head.weight.mul_(3)
    assert made.score("test")["loss"] != before["loss"]
    assert searched == [2, 2]


def test_other_text_is_translated_anew(tmp_path, searched):
    made = prepare(twice(tmp_path, test="one two\nthree\n"))
    valid = made.score("valid")
    assert valid["loss"] != made.score_test(valid)["loss"]
    assert searched == [2, 2]


def test_whoever_listens_hears_how_far_it_is(tmp_path):
    made, told = prepare(twice(tmp_path)), []
    with progress_listener(lambda what, share: told.append((what, share))):
        made.score("valid")
    made.score("test")
    shares = [share for what, share in told if what == "translating"]
    assert shares == sorted(shares)
    assert set(shares) == {0, 0.5, 1}
    assert {what for what, _ in told} == {"scoring", "translating"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", [TranslationRunSpec, LanguageRunSpec])
@pytest.mark.usefixtures("_undrawn")
def test_a_signal_during_the_last_scoring_ends_it(tmp_path, number, kind):
    out, told, over = tmp_path / "run", [], []
    spec = twice(tmp_path) if kind is TranslationRunSpec else stream(tmp_path)

    class Over(NullCallback):
        def evaluated(self, *what):
            over.append(True)

    def ask(what, share):
        if over:
            told.append(share)
            if len(told) == 2:
                signal.raise_signal(number)

    with progress_listener(ask):
        result, code = execute(spec, out, Over())
    assert (result["status"], code) == ("stopped", 128 + number)
    assert len(told) == 2, "nothing more was done"
    result, code = execute(spec, out, NullCallback(), resume=True)
    assert (result["status"], code) == ("finished", 0)
    assert result["test"]["loss"] > 0


@pytest.mark.usefixtures("_undrawn")
def test_a_run_that_was_asked_to_end_early_is_still_scored(tmp_path):
    class Stopper(NullCallback):
        def stepped(self, progress, loss, tokens):
            signal.raise_signal(signal.SIGINT)

    result, code = execute(dataclasses.replace(twice(tmp_path), steps=9), tmp_path / "run", Stopper())
    assert (result["status"], code) == ("interrupted", 130)
    assert result["test"]["loss"] > 0


@pytest.mark.usefixtures("_undrawn")
def test_the_command_tells_of_long_translations_where_there_is_no_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("anaphor.cli.progress.PATIENCE", 0.0)
    twice(tmp_path)
    words = "train translate --source en --target de --width 8 --layers 1 --steps 1 --batch-size 1 --no-test"
    assert main([*words.split(), "--data", str(tmp_path), "--device", "cpu", "--out", str(tmp_path / "run")]) == 0
    assert "translating: 50%" in capsys.readouterr().err
