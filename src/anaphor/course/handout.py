"""A handout: the folder of a sheet for one student, or the teacher's copy of it.

    README.md       the exercises, with this student's numbers
    course.yaml     which sheet, which student, which files
    *.py            stubs to fill in
    answers.md, numbers.yaml
    data/           texts of this student, and small data of the sheet
    sheet-NNN.ipynb the exercises as a notebook

The teacher's copy has the same files with everything filled in, and `solutions.md` with expected results and rubrics.
Nothing here imports torch.
"""

from __future__ import annotations

from pathlib import Path

from anaphor.course.handout_notebook import notebook, notebook_name
from anaphor.course.handout_pages import SOLUTIONS, answers_page, numbers_page, readme, solutions_page
from anaphor.course.sheet import ANSWERS, NUMBERS, Sheet, read_sheet
from anaphor.course.student_data import student_files
from anaphor.course.submission import check_student, write_manifest
from anaphor.errors import ConfigError
from anaphor.files import make_folder, write_file
from anaphor.user_paths import user_path, writing_to

IGNORED = ("__pycache__", ".pyc")


def make_handout(
    number: str, folder: Path | str, *, student: str = "", teacher: bool = False, overwrite: bool = False
) -> list[str]:
    """Write the handout of a sheet into a folder.

    Args:
        number: Of the sheet: "000" to "004".
        folder: Where it is written; it must be empty, or not exist.
        student: ID from which data, texts and numbers are derived. Empty: those that every student without an ID has.
        teacher: With solutions, this student's results and the rubric.
        overwrite: Replace the files of a handout in a folder that is not empty; other files stay.

    Returns:
        The names of the files.
    """
    sheet = read_sheet(number)
    files = handout_files(sheet, check_student(student), teacher=teacher)
    folder = user_path(folder)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"out={folder} is a file: name a folder")
    if not overwrite and folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(
            f"out={folder} is not empty: name another folder, or replace the handout in it with --overwrite"
        )
    with writing_to(folder):
        for name, content in files.items():
            make_folder((folder / name).parent, within=folder)
            write_file(folder / name, content, within=folder)
        write_manifest(folder, sheet, student, files_to_fill_in(sheet))
    return ["course.yaml", *files]


def files_to_fill_in(sheet: Sheet) -> list[str]:
    """Names of the files in which a student writes."""
    kinds = {exercise.kind for exercise in sheet.exercises}
    names = [*_read_folder(sheet.folder / "stubs")]
    names += [ANSWERS] if "answer" in kinds else []
    names += [NUMBERS] if "number" in kinds else []
    return names


def handout_files(sheet: Sheet, student: str, *, teacher: bool = False) -> dict[str, bytes]:
    """The content of every file but the manifest, by its path in the folder."""
    kinds = {exercise.kind for exercise in sheet.exercises}
    code = _read_folder(sheet.folder / "stubs")
    code |= _read_folder(sheet.folder / "solutions") if teacher else {}
    files = {"README.md": readme(sheet, student).encode(), **code}
    files[notebook_name(sheet)] = notebook(sheet, student, code, teacher=teacher).encode()
    if teacher:
        files[SOLUTIONS] = solutions_page(sheet, student).encode()
    if "answer" in kinds:
        files[ANSWERS] = answers_page(sheet, student, solved=teacher).encode()
    if "number" in kinds:
        files[NUMBERS] = numbers_page(sheet, student, solved=teacher).encode()
    files |= {f"data/{name}": content for name, content in _read_folder(sheet.folder / "data").items()}
    return files | {name: text.encode() for name, text in student_files(sheet.number, student).items()}


def _read_folder(folder: Path) -> dict[str, bytes]:
    """The files below a folder by their path in it; none where it does not exist."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    return {name: path.read_bytes() for name, path in names.items() if not any(part in name for part in IGNORED)}
