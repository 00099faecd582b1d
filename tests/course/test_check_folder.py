"""The form of a handout folder: what is missing and what cannot be read, in a line each, without the results."""

import json

import pytest

from anaphor.cli.main import main
from anaphor.course.check_folder import check_folder
from anaphor.course.handout import make_handout
from anaphor.course.numbers.values import Numbers, mark_numbers
from anaphor.course.sheet import read_sheet, sheet_numbers
from anaphor.course.submission import list_missing, read_submission
from course.test_check_command import refusal


def handout(folder, sheet="002", **more):
    make_handout(sheet, folder, student="ada", **more)
    return folder


def set_number(folder, name, text):
    path = folder / "numbers.yaml"
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith(f"  {name}:")]
    lines = [f"  {name}: {text}" if line.startswith(f"  {name}:") else line for line in lines]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


MISREAD = [
    ("h2", "(8, -10)", "002.1a h2: '(8, -10)' is not a list of 2 numbers, as in [1, 2]"),
    ("last_row", "0 0 0 0 1 1", "002.2c-mask last_row: '0 0 0 0 1 1' is not a list of 6 numbers"),
    ("parameters", "18,528", "002.3a-numbers parameters: '18,528' is not a number, as in 18528, 0.125 or 1/8"),
    ("large", "38,34", "002.1d-numbers large: '38,34' is not a number"),
    ("small", "0.8**30", "002.1d-numbers small: '0.8**30' is not a number"),
    ("recurrent", "T", "002.1e recurrent: 'T' is not a letter of the options, or several, as in b or ad"),
    ("attention", "T^2", "002.1e attention: 'T^2' is not a letter of the options"),
    ("h2", "[1, 2, 3]", "002.1a h2: [1, 2, 3] is not a list of 2 numbers"),
]


@pytest.mark.parametrize(("name", "text", "line"), MISREAD)
def test_a_number_that_cannot_be_read_is_a_line(name, text, line, tmp_path):
    folder = handout(tmp_path / "sheet")
    set_number(folder, name, text)
    assert [one for one in list_missing(read_submission(folder)) if one.startswith(line)]


def test_a_file_that_is_no_yaml_is_one_line_and_no_traceback(tmp_path, capsys):
    folder = handout(tmp_path / "sheet")
    set_number(folder, "h2", "[8, -10")
    (line,) = [one for one in list_missing(read_submission(folder)) if one.startswith("numbers.yaml")]
    assert "not a plain YAML file: line " in line
    assert str(tmp_path) not in line
    assert main(["check", str(folder)]) == 1
    assert "numbers.yaml" in capsys.readouterr().out


def test_names_that_there_are_not_and_a_number_beside_an_empty_one_are_told(tmp_path):
    folder = handout(tmp_path / "sheet")
    (folder / "numbers.yaml").write_text('"002.1a": {h_2: [1, 2], y2: 3}\n"002.1x": {a: 1}\n', encoding="utf-8")
    found = list_missing(read_submission(folder))
    assert "002.1a: there is no 'h_2'; did you mean 'h2'?" in found
    assert "002.1a h2: empty" in found
    assert [one for one in found if one.startswith("numbers.yaml: there is no '002.1x'")]


@pytest.mark.parametrize("number", sheet_numbers())
def test_the_teachers_copy_lacks_nothing_but_runs_and_figures(number, tmp_path):
    report = check_folder(handout(tmp_path / "sheet", number, teacher=True))
    kinds = {read_sheet(number).find(one.where).kind for one in report.mistakes}
    assert kinds <= {"run", "figure"}
    assert {one.name for one in report.mistakes} <= {"missing"}


def test_code_that_cannot_be_imported_or_waits_is_told_without_being_run(tmp_path, capsys):
    folder = handout(tmp_path / "sheet")
    (folder / "images.py").write_text("import einops\nfrom helpers import f\nopen('x', 'w')\n", encoding="utf-8")
    (folder / "helpers.py").write_text("", encoding="utf-8")
    (folder / "vit.py").write_text("class ViT(:\n", encoding="utf-8")
    (folder / "figures").mkdir()
    (folder / "figures" / "attention.png").write_text("<svg>", encoding="utf-8")
    assert main(["check", str(folder), "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert {*printed} == {"name", "reference", "passed", "mistakes", "checked"}
    found = {(one["name"], one["where"]) for one in printed["mistakes"]}
    assert {("other-package", "images.py:1"), ("syntax-error", "vit.py:1"), ("missing", "002.3a")} <= found
    assert {("not-written", "attention.py:13"), ("misread", "figures/attention.png"), ("missing", "002.1c")} <= found
    assert not [one for one in printed["mistakes"] if "helpers" in one["text"]]
    assert not (folder / "x").exists()


def test_a_folder_that_is_no_handout_and_a_file_that_is_not_there_are_one_line(tmp_path, capsys):
    (tmp_path / "nothing").mkdir()
    assert "has no course.yaml" in refusal(main(["check", str(tmp_path / "nothing")]), capsys)
    assert "there is no file nofile.py" in refusal(main(["check", "nofile.py::X"]), capsys)


NUMBERS = Numbers(expected={"small": 0.001238, "large": 17.449, "count": 18528, "list": [0.7, 0.0003], "zero": 0.0})


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("small", [0.00124, 0.001238, 0.00123], [0.001, 0.0012, 0.0017, 0]),
        ("large", [17.4, 17.449, 17.5], [17, 17.7, 18]),
        ("count", [18528, "18528.0"], [18500, 18432, 18529]),
        ("list", [[0.7, 0.0003], [0.704, 0.0]], [[0.7, 0.01], [0.72, 0.0003]]),
        ("zero", [0, 0.0004], [0.01]),
    ],
)
def test_three_digits_are_right_and_two_are_not_whatever_the_size_and_whole_numbers_are_exact(name, right, wrong):
    def is_right(value):
        return next(one.is_right for one in mark_numbers(NUMBERS, {name: value}) if one.name == name)

    assert [value for value in right if not is_right(value)] == []
    assert [value for value in wrong if is_right(value)] == []


@pytest.mark.parametrize("student", ["1e5", "0123456", "12", "1_000", "null", "true", "2026-11-20", "1e5.x", "0x1f"])
def test_an_id_that_looks_like_a_number_comes_back(student, tmp_path):
    make_handout("003", tmp_path / "sheet", student=student)
    assert read_submission(tmp_path / "sheet").student == student


def test_an_id_without_quotes_is_read_as_it_is_written(tmp_path):
    make_handout("003", tmp_path / "sheet", student="1e5")
    path = tmp_path / "sheet" / "course.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("'1e5'", "1e5"), encoding="utf-8")
    assert read_submission(tmp_path / "sheet").student == "1e5"


def test_hints_know_an_exercise_in_capitals(capsys):
    assert main(["hint", "002.2A"]) == 0
    assert "002.2a" in capsys.readouterr().out


def test_a_handout_says_what_code_may_import_how_exact_a_number_is_and_what_a_run_must_reach(tmp_path):
    page = (handout(tmp_path / "sheet") / "README.md").read_text(encoding="utf-8")
    for text in ("standard library, torch, NumPy", "3 significant digits", "the device and the dtype of its input",
                 "`runs/images` (validation accuracy at least 0.85)", "anaphor check ."):  # fmt: skip
        assert text in page
    assert "1 tokens" not in page
    solved = handout(tmp_path / "solved", teacher=True) / "solutions.md"
    assert "Other values may be right" not in solved.read_text(encoding="utf-8")
