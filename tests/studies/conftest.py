"""Studies of a short text."""

import pytest

from anaphor.studies.study import Study
from anaphor.studies.study_file import read_study
from studies.here import Silent


@pytest.fixture
def begin(tmp_path):
    """A function that makes a study with these lines in its file, or goes on with it."""
    (tmp_path / "text.txt").write_text("the cat sat on the mat\n" * 40)

    def begin(engine, lines="parameters: {width: {values: [4, 8]}}\nseeds: 1"):
        file = tmp_path / "study.yaml"
        file.write_text(f"base: {{data: {tmp_path}/text.txt, device: cpu}}\n{lines}\n")
        folder = tmp_path / "out"
        folder.mkdir(exist_ok=True)
        return Study(read_study(file), folder, engine, Silent())

    return begin


@pytest.fixture
def room(tmp_path, own_cache):
    """A folder with a longer text."""
    (tmp_path / "text.txt").write_text("the cat sat on the mat\nthe dog ate the rat\n" * 200)
    return tmp_path
