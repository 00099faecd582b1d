"""The example that adds translations to the training text."""

import json
import runpy
import sys
from collections import Counter

import pytest

from anaphor.cli.main import main
from anaphor.shipped_files import EXAMPLES
from studies.here import Here

DIVERSIFY = runpy.run_path(str(EXAMPLES / "diversify.py"))
STUDY = """\
task: translate
base: {data: FOLDER, model: luong, width: 8, layers: 1, steps: 2, batch_size: 2, beam: 1}
parameters: {direction: {settings: {forward: {source: en, target: de}, backward: {source: de, target: en}}}}
seeds: 1
test: none
"""
SMALL = (
    *("--model", "luong", "--width", "8", "--layers", "1", "--steps", "30", "--lr", "0.05", "--batch-size", "4"),
    *("--no-test", "--device", "cpu"),
)
PAIRS = [("a dog", "ein Hund"), ("a cat", "eine Katze"), ("a cow", "eine Kuh"), ("a dog", "ein Hund")]


@pytest.fixture
def text(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        for side, language in enumerate(("en", "de")):
            (folder / f"{split}.{language}").write_text("".join(f"{pair[side]}\n" for pair in PAIRS))
    return folder


@pytest.fixture
def teach(text, tmp_path, monkeypatch, single_precision):
    """A function that trains a teacher for each direction."""
    monkeypatch.setattr("anaphor.studies.command.build_engine", lambda name, **options: Here())

    def teach():
        (tmp_path / "teachers.yaml").write_text(STUDY.replace("FOLDER", str(text)))
        study = tmp_path / "teachers"
        assert main(["study", str(tmp_path / "teachers.yaml"), "--out", str(study), "--device", "cpu"]) == 0
        return study

    return teach


def test_translations_of_both_directions_are_added_to_the_training_text_alone(teach, tmp_path, monkeypatch, capsys):
    study, out = teach(), tmp_path / "diversified"
    monkeypatch.setitem(
        DIVERSIFY["diversify"].__globals__,
        "translate",
        lambda teacher, beam: [(f"{source}", f"{source}!") for source, _ in teacher.source.rows("train").values],
    )
    assert DIVERSIFY["diversify"](study, out, device="cpu") == {"before": 3, "after": 9}
    made = {split: lines_of(out, split) for split in ("train", "valid", "test")}
    assert made["valid"] == made["test"] == PAIRS
    assert set(made["train"]) == {
        *PAIRS, *((en, f"{en}!") for en, _ in PAIRS), *((f"{de}!", de) for _, de in PAIRS),
    }  # fmt: skip
    assert len(made["train"]) == 9


def test_upsampled_text_has_the_original_pairs_so_many_times(teach, tmp_path, monkeypatch):
    study, out = teach(), tmp_path / "diversified"
    monkeypatch.setitem(
        DIVERSIFY["diversify"].__globals__, "translate", lambda teacher, beam: [("a pig", "ein Schwein")]
    )
    assert DIVERSIFY["diversify"](study, out, device="cpu", upsample=3)["before"] == 3
    counts = Counter(lines_of(out, "train"))
    assert {pair: counts.pop(pair) for pair in set(PAIRS)} == dict.fromkeys(set(PAIRS), 3)
    assert set(counts.values()) == {1}
    with pytest.raises(SystemExit, match=r"^--upsample 0: give 1 or more$"):
        DIVERSIFY["diversify"](study, tmp_path / "none", device="cpu", upsample=0)


def lines_of(folder, split):
    sides = [(folder / f"{split}.{language}").read_text().splitlines() for language in ("en", "de")]
    return list(zip(*sides, strict=True))


def test_a_teacher_translates_each_sentence_of_its_source_once(text, tmp_path):
    run = tmp_path / "run"
    assert main(["train", "translate", "--data", str(text), "--source", "de", *SMALL, "--out", str(run)]) == 0
    teacher = DIVERSIFY["anaphor"].load_run(run, device="cpu").experiment
    found = DIVERSIFY["translate"](teacher, 2)
    assert {source for source, _ in found} <= {de for _, de in PAIRS}
    assert len(found) == len({source for source, _ in found})
    assert all(translation.strip() for _, translation in found)


def test_a_folder_without_teachers_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="no finished cells"):
        DIVERSIFY["diversify"](tmp_path, tmp_path / "out")


def test_a_cell_that_diverged_is_no_teacher_and_text_without_a_test_split_is_enough(teach, text, tmp_path):
    for file in text.glob("test.*"):
        file.unlink()
    study, out = teach(), tmp_path / "diversified"
    diverged, kept = sorted(study.glob("cells/*/result.json"))
    diverged.write_text(json.dumps({"status": "diverged", "reason": "the loss is NaN"}))
    assert [name for name, _ in DIVERSIFY["read_teachers"](study, "cpu")] == [kept.parent.name]
    DIVERSIFY["diversify"](study, out, device="cpu", beam=1)
    assert {path.name for path in out.iterdir()} == {
        f"{split}.{of}" for split in ("train", "valid") for of in ("en", "de")
    }


def test_text_that_is_there_is_never_overwritten(teach, text):
    study = teach()
    with pytest.raises(SystemExit, match="text is not empty"):
        DIVERSIFY["diversify"](study, text, device="cpu", beam=1)
    assert lines_of(text, "train") == PAIRS


def test_what_is_wrong_is_told_in_one_line(teach, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["diversify.py", str(teach()), str(tmp_path / "out"), "--beam", "0"])
    with pytest.raises(SystemExit, match=r"^beam=0: it must be at least 1$"):
        DIVERSIFY["main"]()
