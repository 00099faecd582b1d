"""Handouts: what a student and a teacher get, and what they do not; hints; refusals."""

import ast
import json
import re
import subprocess
import sys

import pytest
import yaml

from anaphor.cli.main import main
from anaphor.course.handout import handout_files, make_handout
from anaphor.course.handout_notebook import notebook_name
from anaphor.course.sheet import read_sheet, sheet_numbers
from anaphor.course.student_numbers import mark, student_numbers
from anaphor.course.submission import list_missing, read_answers, read_numbers, read_submission
from anaphor.errors import ConfigError
from course.test_check_command import refusal

SHEETS = [number for number in sheet_numbers() if (read_sheet(number).folder / "stubs").is_dir()]


def code_lines(text):
    """The lines of a program that say more than a name or two."""
    return {line.strip() for line in text.splitlines() if len(line.strip()) > 25 and not line.strip().startswith("#")}


def statements(text):
    """The lines of a program below its docstrings and signatures."""
    tree = ast.parse(text)
    documented = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    docstrings = "".join(ast.get_docstring(node) or "" for node in documented)
    return {line for line in code_lines(text) if line.strip('"') not in docstrings and not line.startswith("def ")}


@pytest.mark.parametrize("number", sheet_numbers())
def test_a_student_gets_the_exercises_and_no_solution(number):
    sheet = read_sheet(number)
    files = {name: content.decode() for name, content in handout_files(sheet, "ada").items()}
    own = "\n".join(text for name, text in files.items() if not name.startswith("data/"))
    assert not [name for name in files if "solution" in name]
    for exercise in sheet.exercises:
        assert exercise.id in files["README.md"]
        secrets = [exercise.solution, *(one.text for one in exercise.rubric), *exercise.hints]
        lines = [line.strip() for secret in secrets for line in secret.splitlines() if len(line.strip()) > 40]
        assert not [line for line in lines if line in own], exercise.id
    for path in sorted((sheet.folder / "solutions").rglob("*.py")):
        stub = sheet.folder / "stubs" / path.name
        given = code_lines(stub.read_text(encoding="utf-8")) if stub.is_file() else set()
        theirs = statements(path.read_text(encoding="utf-8")) - given
        assert not {line for line in theirs if line in own}, path
    numbers = yaml.safe_load(files.get("numbers.yaml", "{}"))
    assert all(value is None for names in numbers.values() for value in names.values())


@pytest.mark.parametrize("number", sheet_numbers())
def test_two_students_have_different_numbers_and_the_teacher_has_both_right(number, tmp_path):
    sheet = read_sheet(number)
    found = {}
    for student in ("ada", "bertrand"):
        make_handout(number, tmp_path / student, student=student, teacher=True)
        submission = read_submission(tmp_path / student)
        found[student] = read_numbers(submission)
        for name, values in found[student].items():
            assert all(one.is_right for one in mark(name, student, values)), name
        assert all(read_answers(submission).values())
        assert (submission.sheet, submission.student) == (sheet, student)
    if found["ada"]:
        assert found["ada"] != found["bertrand"]
        wrong = [mark(name, "bertrand", values) for name, values in found["ada"].items()]
        assert not all(one.is_right for marks in wrong for one in marks)


@pytest.mark.parametrize("number", sheet_numbers())
def test_the_teacher_has_expected_results_and_rubrics(number):
    sheet = read_sheet(number)
    page = handout_files(sheet, "ada", teacher=True)["solutions.md"].decode()
    for exercise in sheet.exercises:
        part = page.partition(f"## {exercise.id} {exercise.title}")[2].partition("\n## ")[0]
        wanted = [*student_numbers(exercise.id, "ada").expected] if exercise.kind == "number" else []
        wanted += [run.folder for run in exercise.runs]
        assert all(text in part for text in wanted), exercise.id
        assert exercise.kind in ("number", "run") or part.count("| for |") == 1, f"{exercise.id} has no rubric"


@pytest.mark.parametrize("number", sheet_numbers())
def test_the_same_student_always_gets_the_same_files(number):
    sheet = read_sheet(number)
    assert handout_files(sheet, "ada") == handout_files(sheet, "ada")
    assert handout_files(sheet, "ada") != handout_files(sheet, "bertrand")


@pytest.mark.parametrize("number", sheet_numbers())
def test_a_new_handout_is_empty_where_a_student_writes(number, tmp_path):
    make_handout(number, tmp_path, student="ada")
    submission = read_submission(tmp_path)
    waiting = [one.id for one in submission.sheet.exercises if one.kind != "code"]
    assert [name for name in list_missing(submission) if name in waiting] == waiting
    assert all((tmp_path / name).is_file() for name in submission.files)


@pytest.mark.parametrize("number", sheet_numbers())
def test_every_value_that_a_text_names_is_there(number):
    for name, content in handout_files(read_sheet(number), "ada", teacher=True).items():
        assert not re.search(rb"\{\{\w+\}\}", content), name
    for exercise in read_sheet(number).exercises:
        assert not [hint for hint in exercise.hints if "{{" in hint], "a hint has no values of a student's"


@pytest.mark.parametrize("number", SHEETS)
def test_every_exercise_with_code_has_a_stub_and_a_solution(number):
    sheet = read_sheet(number)
    for exercise in sheet.exercises:
        for check in exercise.checks:
            for folder in ("stubs", "solutions"):
                tree = ast.parse((sheet.folder / folder / exercise.file).read_text(encoding="utf-8"))
                names = [getattr(node, "name", "") for node in tree.body]
                assert check.name in names, f"{folder}/{exercise.file} has no {check.name}"


@pytest.mark.parametrize("number", sheet_numbers())
def test_the_notebook_has_every_exercise_and_its_commands(number):
    sheet = read_sheet(number)
    cells = json.loads(handout_files(sheet, "ada")[notebook_name(sheet)])["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]
    text = "".join(line for cell in cells if cell["cell_type"] == "markdown" for line in cell["source"])
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert [("%pip install" in source) for source in code] == [True] + [False] * (len(code) - 1)
    for exercise in sheet.exercises:
        assert f"## {exercise.id} {exercise.title}" in text
        assert all(f"!{check.command(exercise.file)}" in code for check in exercise.checks)


def test_the_command_writes_a_handout_and_lists_its_files(tmp_path, capsys):
    folder = tmp_path / "sheets" / "ada"
    assert main(["handout", "001", "--student", "ada", "--out", str(folder), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert sorted(printed["files"]) == sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )
    assert (printed["sheet"], printed["student"], printed["teacher"]) == ("001", "ada", False)


def test_a_folder_that_is_not_empty_is_kept_without_overwrite(tmp_path, capsys):
    (tmp_path / "README.md").write_text("mine", encoding="utf-8")
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    words = ["handout", "001", "--out", str(tmp_path)]
    assert "--overwrite" in refusal(main(words), capsys)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "mine"
    assert main([*words, "--overwrite"]) == 0
    assert (tmp_path / "README.md").read_text(encoding="utf-8") != "mine"
    assert (tmp_path / "notes.txt").read_text(encoding="utf-8") == "mine"


def test_nothing_is_written_through_a_link(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    folder = tmp_path / "sheet"
    folder.mkdir()
    (folder / "data").symlink_to(outside)
    with pytest.raises(Exception, match="link"):
        make_handout("001", folder, overwrite=True)
    assert not [*outside.iterdir()]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["handout", "1", "--out", "x"], "unknown sheet '1'"),
        (["handout", "010", "--out", "x"], "did you mean '0"),
        (["handout", "001"], "--out"),
        (["handout", "001", "--out", "x", "--student", "a/b"], "other characters"),
        (["handout", "001", "--out", "a_file"], "is a file"),
        (["hint", "001.1.1z"], "unknown exercise '001.1.1z'"),
        (["hint", "nothing"], "unknown exercise 'nothing'"),
        (["hint", "001.1.1b", "--step", "0"], "step=0"),
        (["hint", "001.1.1b", "--step", "9"], "2 hints"),
    ],
)
def test_what_cannot_be_handed_out_is_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_file").write_text("", encoding="utf-8")
    assert message in refusal(main(words), capsys)
    assert not (tmp_path / "x").exists()


def test_hints_come_one_at_a_time(capsys):
    assert main(["hint", "001.1.1c", "--step", "2"]) == 0
    shown = capsys.readouterr().out
    hints = read_sheet("001").find("001.1.1c").hints
    assert [hint in shown for hint in hints] == [False, True, False]
    assert main(["hint", "001.1.1c", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "exercise": "001.1.1c", "step": 1, "steps": len(hints), "hint": hints[0],
    }  # fmt: skip


def test_handouts_need_no_torch(tmp_path):
    script = (
        "import sys; from anaphor.cli.main import main;"
        f"main(['handout', '001', '--out', {str(tmp_path / 'sheet')!r}]); main(['hint', '001.1.1b']);"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_list_has_every_sheet(capsys):
    assert main(["handout", "list", "--json"]) == 0
    assert [one["number"] for one in json.loads(capsys.readouterr().out)] == [*sheet_numbers()]


def test_a_text_with_an_unknown_value_is_refused():
    from anaphor.course.student_text import fill

    with pytest.raises(ConfigError, match="did you mean 'seed'"):
        fill("--seed {{sed}}", {"seed": "1"})
