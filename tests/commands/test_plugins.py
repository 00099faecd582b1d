"""Installed packages that register parts: of names that are taken, and packages that cannot be imported."""

import os
import subprocess
import sys

import pytest

HELLO = "import anaphor\nanaphor.register_verb('hello', 'says {0}', lambda words: print('{0}', *words))\n"


@pytest.fixture
def install(tmp_path):
    """A function that installs a package with one module, which is its plug-in."""

    def install(name, code):
        (tmp_path / f"{name}.py").write_text(code)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[anaphor.plugins]\n{name} = {name}\n")

    return install


@pytest.fixture
def run(tmp_path):
    """A function that runs a command where these packages are installed, and returns what it prints."""
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    def run(*words):
        return subprocess.run(
            [sys.executable, "-m", "anaphor", *words], capture_output=True, text=True, check=False,
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": paths},
        )  # fmt: skip

    return run


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise OSError('no such library')\n", "OSError: no such library"),
        ("import sys\nsys.exit('not today')\n", "SystemExit: not today"),
        ("class Odd(BaseException): pass\nraise Odd\n", "Odd"),
        (HELLO.format("again"), "verb name 'hello' is already registered by the plug-in 'first': choose another name"),
        ("import anaphor\nanaphor.register_verb('train', 'mine', print)\n", "verb name 'train' is already registered"),
    ],
)
def test_a_plugin_that_fails_or_takes_a_name_is_named_and_left_out_and_the_others_work(install, run, code, reason):
    install("first", HELLO.format("first"))
    install("second", f"import anaphor\nanaphor.register_verb('half', 'done', print)\n{code}")
    install("third", "import anaphor\nanaphor.register_verb('later', 'works', lambda words: print('later'))\n")
    done = run("hello", "you")
    assert (done.returncode, done.stdout) == (0, "first you\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith("anaphor: the plug-in 'second' is left out: ")
    assert reason in line
    assert run("later").stdout == "later\n"
    listed = run("--help").stdout
    assert "  later " in listed
    assert "  half " not in listed, "nothing of it stays"


@pytest.mark.parametrize("words", [["--import", "own.py", "hello"], ["hello", "--import", "own.py"]])
def test_an_imported_file_wins_over_a_plugin_with_a_line(install, run, tmp_path, words):
    install("first", HELLO.format("first"))
    (tmp_path / "own.py").write_text(HELLO.format("own"))
    done = run(*words)
    assert (done.returncode, done.stdout) == (0, "own\n")
    assert (
        done.stderr
        == f"anaphor: verb 'hello' of {tmp_path / 'own.py'} takes the place of that of the plug-in 'first'\n"
    )


def test_an_imported_mixer_wins_over_that_of_a_plugin_whichever_is_imported_first(install, run, tmp_path):
    mixer = "import anaphor\nanaphor.register_mixer('mine', anaphor.MIXERS[{!r}])\n"
    install("first", mixer.format("gru"))
    (tmp_path / "own.py").write_text(mixer.format("lstm"))
    done = run("train", "lm", "--data", "grammar", "--mixers", "mine", "--dry-run", "--import", "own.py")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("mixer 'mine' of ") == 1
    script = (
        "import anaphor; from anaphor.registry import MIXERS; known = [*MIXERS]; "
        "anaphor.import_file('own.py'); assert MIXERS['mine'] is MIXERS['lstm']"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, env=environment)
