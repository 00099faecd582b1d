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


def test_folders_may_be_strings(tmp_path):
    with pytest.raises(anaphor.ConfigError, match="no run at"):
        anaphor.load_run(str(tmp_path / "nowhere"), device="cpu")


def test_an_error_that_names_flags_says_what_they_are_in_python():
    with pytest.raises(anaphor.ConfigError, match="learned positions: use --no-carry, or another --position") as caught:
        anaphor.train("lm", data="grammar", model="transformer", position="learned", carry=True, memory=8, device="cpu")
    assert caught.value.__notes__ == [
        "in Python flags are keywords: --no-carry is carry=False, --position is position=…"
    ]


@pytest.mark.parametrize(
    ("message", "keywords"),
    [
        ("use --no-test", "--no-test is no_test=True"),
        ("--resume, --overwrite or --out", "--resume is resume=True, --overwrite is overwrite=True, --out is out=…"),
        ("--cuda-graph needs a GPU", "--cuda-graph is cuda_graph=True"),
        ("pass --import a.py, --import b.py", "--import is imports=[…] or anaphor.import_file(…)"),
        ("device='cpu' does not fit; train one with `anaphor train lm --init RUN`", None),
        ("a -- b, some--thing and ---x are no flags", None),
    ],
)
def test_only_flags_of_a_message_are_translated(message, keywords):
    notes = getattr(anaphor.DataError(message), "__notes__", [])
    assert notes == ([] if keywords is None else [f"in Python flags are keywords: {keywords}"])
