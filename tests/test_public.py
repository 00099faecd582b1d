"""The names of `import anaphor`."""

import subprocess
import sys

import pytest

import anaphor


@pytest.mark.parametrize("name", dir(anaphor))
def test_every_public_name_is_there(name):
    assert getattr(anaphor, name) is not None


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'biuld'"):
        anaphor.biuld  # noqa: B018


def test_importing_the_package_does_not_import_torch():
    script = (
        "import sys, anaphor; anaphor.build; anaphor.preset; assert 'torch' not in sys.modules; "
        "anaphor.build('lstm', vocabulary=9); assert 'torch' in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_folders_and_files_may_be_strings(tmp_path):
    with pytest.raises(anaphor.ConfigError, match="no run at"):
        anaphor.load_run(str(tmp_path / "nowhere"), device="cpu")
    (tmp_path / "own.yaml").write_text("base: {model: lstm}\nparameters: {width: {values: [8, 16]}}\n")
    assert anaphor.read_study(str(tmp_path / "own.yaml")).name == "own"
