"""Verbs of a user's own: from a file, from an installed package, by a name that is imported when the verb is used."""

import os
import subprocess
import sys

import pytest

import anaphor
from anaphor.cli.main import main

COUNT = """
import anaphor

def count(words):
    print(*words, sep="|")
    return len(words)

anaphor.register_verb("count-words", "count the words behind it", count)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "count.py"
    path.write_text(COUNT)
    return path


def test_a_verb_of_a_file_gets_the_words_behind_it_and_returns_the_exit_code(file, capsys):
    assert main(["count-words", "a", "--import", str(file), "--deep", "b"]) == 3
    assert main(["--import", str(file), "count-words", "a", "--json"]) == 2
    assert main([f"--import={file}", "count-words"]) == 0
    assert capsys.readouterr().out.splitlines() == ["a|--deep|b", "a|--json", ""]


def test_a_verb_of_a_file_is_in_the_overview(file, capsys):
    assert main(["--import", str(file), "--help"]) == 0
    assert "  count-words  count the words behind it\n" in capsys.readouterr().out


def test_a_file_named_before_a_verb_of_ours_is_handed_to_it(tmp_path, error_of):
    path = tmp_path / "gate.py"
    path.write_text("import anaphor\nanaphor.register_mixer('named-first', anaphor.MIXERS['lstm'])\n")
    words = "train lm --data grammar --mixers named-first --width 4 --steps 1 --dry-run --device cpu --json"
    assert main(["--import", str(path), *words.split(), "--out", str(tmp_path / "run")]) == 0
    assert main(["--import", str(path), "bleu", "--help"]) == 0
    assert "unknown option --import" in error_of(["--import", str(path), "bleu", "a", "b"])


def test_what_a_verb_of_a_file_raises_is_one_line(file, capsys):
    file.write_text(COUNT.replace("return len(words)", "return words[7]"))
    assert main(["count-words", "--import", str(file)]) == 2
    assert capsys.readouterr().err == f"anaphor: IndexError in line 6 of {file}: list index out of range\n"


@pytest.mark.parametrize("name", ["train", "models"])
def test_the_name_of_one_of_our_verbs_is_taken(name, tmp_path, error_of):
    path = tmp_path / "taken.py"
    path.write_text(f"import anaphor\nanaphor.register_verb({name!r}, 'another one', print)\n")
    line = error_of(["--import", str(path), "--help"])
    assert f"verb name {name!r} is already registered: choose another name" in line


@pytest.mark.parametrize("run", [None, "print", 3])
def test_what_a_verb_runs_is_a_function_or_the_name_of_one(run):
    with pytest.raises(anaphor.ConfigError, match='must be a function or "module:function"'):
        anaphor.register_verb("no-function", "does nothing", run)


def test_a_verb_of_an_installed_package_is_listed_and_runs_without_a_flag(tmp_path):
    """Its function, given by name, is imported when the verb runs: the overview does not wait for it."""
    (tmp_path / "counting.py").write_text(
        "import anaphor\nanaphor.register_verb('count-words', 'count the words behind it', 'counted:count')\n"
    )
    (tmp_path / "counted.py").write_text("def count(words):\n    print(len(words))\n")
    info = tmp_path / "counting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[anaphor.plugins]\ncounting = counting\n")
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    script = (
        "import sys; from anaphor.cli.main import main; main(['--help']); assert 'counted' not in sys.modules;"
        "sys.exit(main(['count-words', 'a', 'b']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "  count-words  count the words behind it\n" in done.stdout
    assert done.stdout.splitlines()[-1] == "2"
