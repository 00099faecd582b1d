"""Settings that are worse than the median are pruned: all their seeds together, by the study's own metric."""

import json

import pytest

from anaphor.studies.cell import STOP, make_cell
from anaphor.studies.search import find_pruned
from anaphor.studies.study import Study
from anaphor.studies.study_file import read_study
from studies.here import Here, Silent


@pytest.fixture
def begin(tmp_path):
    """A study whose cells have told something: `told` has, for each value of the axis, the curves of its seeds."""
    (tmp_path / "text.txt").write_text("the cat sat on the mat\n" * 40)

    def study(axis, told, metric="valid.loss", task="lm", signature="tokenizer:word|vocab:8"):
        file = tmp_path / "study.yaml"
        data = f"{tmp_path}/text.txt" if task == "lm" else "echo"
        file.write_text(
            f"task: {task}\nbase: {{data: {data}}}\nparameters: {{{axis}: {{values: {list(told)}}}}}\n"
            f"metric: {metric}\nprune: true\nseeds: 3\n"
        )
        made = Study(read_study(file), tmp_path / "out", Here(), Silent())
        for setting, curves in zip(made.spec.settings(), told.values(), strict=True):
            for seed, values in enumerate(curves):
                cell = make_cell(setting, seed, made.cells_folder, task, 1)
                cell.folder.mkdir(parents=True)
                lines = [
                    {"step": 10 * place, "valid": {"loss": 1.0, "signature": signature_of(setting, signature), **value}}
                    for place, value in enumerate(values, 1)
                ]
                (cell.folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
                made.cells.append(cell)
        return made

    return study


def signature_of(setting, signature):
    return signature.replace("word", "byte").replace("8", "256") if setting.run.tokenizer == "byte" else signature


def losses(*values):
    return [{"loss": value} for value in values]


def ended(study, *running):
    """Which of these cells are told to stop, by the value of their axis and their seed."""
    chosen = [cell for cell in study.cells if place_of(cell) in running]
    study._prune(chosen)
    told = [place_of(cell) for cell in study.cells if (cell.folder / STOP).exists()]
    assert told == [place_of(cell) for cell in find_pruned(chosen, study.cells, study.spec)]
    return told


def place_of(cell):
    return (*cell.setting.parameters.values(), cell.seed)


GOOD = [losses(3.0, 2.0)] * 3


def test_damaged_metrics_of_a_cell_do_not_end_the_study(begin):
    """A cell without a curve is compared with none, and the others as before."""
    study = begin("width", {4: GOOD, 8: GOOD, 16: [losses(5.0, 5.0)] * 3})
    for width in (4, 16):
        (cell,) = [cell for cell in study.cells if place_of(cell) == (width, 0)]
        (cell.folder / "metrics.jsonl").write_bytes(b"damaged\n")
    assert ended(study, (16, 1), (16, 2)) == [(16, 1), (16, 2)]
    assert find_pruned([cell], study.cells, study.spec) == []


@pytest.mark.parametrize(
    ("task", "metric", "better", "worse"), [("lm", "bits_per_byte", 1, 2), ("translate", "bleu", 30, 20)]
)
def test_the_numbers_are_those_that_the_study_chooses_by(begin, task, metric, better, worse):
    """More tokens, each told more easily: fewer nats a token, and more bits a byte. Of BLEU more is better."""
    told = {4: [[{"loss": 3.0, metric: better}]] * 3, 8: [[{"loss": 2.0, metric: worse}]] * 3}
    study = begin("width", told, f"valid.{metric}", task)
    assert ended(study, (4, 0)) == []
    assert ended(study, (8, 0)) == [(8, 0)]


def test_nobody_is_judged_by_a_number_that_is_not_measured_on_the_way(begin):
    study = begin("width", {4: [losses(1.0)] * 3, 8: [losses(9.0)] * 3}, "valid.bleu", "translate")
    assert ended(study, (8, 0), (8, 1)) == []


def test_settings_that_cannot_be_compared_are_not(begin):
    study = begin("tokenizer", {"byte": [losses(2.0)] * 3, "word": [losses(5.0)] * 3})
    assert ended(study, ("word", 0), ("word", 1), ("word", 2)) == []


def test_an_unlucky_seed_does_not_end_a_good_setting(begin):
    study = begin("width", {4: [losses(4.0, 3.0)] * 3, 8: [*GOOD[:2], losses(4.5, 3.5)]})
    assert ended(study, (8, 2)) == []


def test_a_lucky_seed_does_not_save_a_bad_setting_and_all_that_run_end(begin):
    study = begin("width", {4: GOOD, 8: [losses(5.0, 4.0), losses(5.0, 4.0), losses(3.0, 1.9)]})
    assert ended(study, (8, 1), (8, 2)) == [(8, 1), (8, 2)]


def test_a_seed_that_is_ahead_waits_for_the_others_that_run(begin):
    study = begin("width", {4: GOOD, 8: [losses(2.5, 2.4), losses(2.6)]})
    assert ended(study, (8, 0), (8, 1)) == [], "at the step that both have reached they are the better ones"
    behind = begin("heads", {4: GOOD, 8: [losses(9.0, 9.0), []]})
    assert ended(behind, (8, 0), (8, 1)) == []
    assert ended(behind, (8, 0)) == [(8, 0)]


def test_few_others_are_no_company(begin):
    study = begin("width", {4: GOOD[:2], 8: [losses(9.0)] * 3})
    assert ended(study, (8, 0)) == []


def test_a_setting_that_was_not_validated_yet_at_that_step_is_not_compared(begin):
    study = begin("width", {4: [[{"loss": None}] * 2 + losses(1.0)] * 3, 8: [losses(9.0)] * 3})
    for cell in study.cells[:3]:
        lines = (cell.folder / "metrics.jsonl").read_text().splitlines(keepends=True)
        (cell.folder / "metrics.jsonl").write_text(lines[-1])
    assert ended(study, (8, 0)) == []
