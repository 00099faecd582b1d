"""Names in a study file become names of folders and files: nothing is written outside."""

import pytest

from anaphor.errors import ConfigError
from anaphor.studies.names import check_name

STUDY = """
name: {name}
base: {{data: text, width: 4, bptt: 8, steps: 1, device: cpu}}
parameters: {parameters}
seeds: 1
test: none
"""
WIDTHS = "{width: {values: [4]}}"


@pytest.mark.parametrize("name", ["../../evil", "/tmp/evil", "..", ".", "a/b", "a\\b", '"a\\0b"', '"a\\nb"', "x" * 61])
def test_a_study_whose_name_leaves_its_folder_is_refused(text, tmp_path, error_of, name):
    (tmp_path / "study.yaml").write_text(STUDY.format(name=name, parameters=WIDTHS))
    before = sorted(tmp_path.rglob("*"))
    for more in ([], ["--dry-run"]):
        line = error_of(["study", "study.yaml", *more])
        assert "study.yaml: name=" in line
    assert sorted(tmp_path.rglob("*")) == before


def test_the_name_of_a_parameter(text, tmp_path, error_of):
    parameters = '{"../evil": {settings: {small: {width: 4}}}}'
    (tmp_path / "study.yaml").write_text(STUDY.format(name="plain", parameters=parameters))
    assert "parameter='../evil'" in error_of(["study", "study.yaml"])


@pytest.mark.parametrize("name", ["mixing", "my study (2)", "lstm-vs-gpt", "a.b_c", "3", "größe", "lr=0.1,width+1"])
def test_usual_names(name):
    check_name(name, "name")


def test_a_name_is_not_empty():
    with pytest.raises(ConfigError, match="name=''"):
        check_name("", "name")
