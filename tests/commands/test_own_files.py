"""Files of a user's own: every verb that loads a run takes them, by their content and not by their name."""

import asyncio
import shutil
from pathlib import Path

import pytest

from anaphor.cli.main import main
from anaphor.imported_files import IMPORTED, import_file
from anaphor.registry import MIXERS, has_shelf
from anaphor.shipped_files import EXAMPLES

VERBS = ["evaluate", "generate", "score", "translate", "look", "predict", "models", "check-mixer", "train lm"]
VERBS += ["export"] if has_shelf("interchange") else []
VERBS += ["report", "runs", "serve"] if has_shelf("web") else []
VERBS += ["study"] if has_shelf("studies") else []
SIZES = ["--data", "text", "--width", "8", "--bptt", "8", "--batch-size", "2", "--steps", "2", "--no-test"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_that_loads_a_run_takes_files(verb, capsys):
    main([*verb.split(), "--help"])
    assert "--import PATH" in capsys.readouterr().out


@pytest.fixture
def run(text, tmp_path, monkeypatch, single_precision):
    """A run with a file that was moved and renamed since, in a process that has not imported it yet."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLES / "leaky_mixer.py", "first.py")
    words = ["--import", "first.py", "--model", "leaky", "--device", "cpu", "--out", "run"]
    assert main(["train", "lm", *SIZES, *words]) == 0
    (tmp_path / "elsewhere").mkdir()
    Path("first.py").rename("elsewhere/second.py")
    monkeypatch.delitem(MIXERS._entries, "leaky")
    IMPORTED.clear()
    return tmp_path / "run"


MOVED = ["--import", "elsewhere/second.py"]


def test_a_file_that_was_moved_and_renamed_is_the_same(run, error_of, capsys):
    assert error_of(["generate", "run", "--tokens", "2"]).endswith(f"pass --import {run.parent / 'first.py'}")
    assert main(["generate", "run", "--tokens", "2", *MOVED]) == 0
    assert main(["train", "lm", "--resume", "--out", "run", "--steps", "3", "--force", *MOVED]) == 0
    assert "second.py" in Path("run/spec.yaml").read_text()


@pytest.mark.needs("interchange")
def test_export_takes_it(run, error_of):
    assert "pass --import" in error_of(["export", "run", "--out", "there"])
    assert "run cannot be exported" in error_of(["export", "run", "--out", "there", *MOVED])


@pytest.mark.slow
@pytest.mark.needs("web")
def test_the_page_takes_the_files_of_its_command_alone(run):
    from anaphor.web.jobs import Jobs, worker_command

    async def ask(*commands):
        errors = []
        for command in commands:
            queue = Jobs(command)
            request = {"verb": "look", "run": str(run), "text": "the cat"}
            job = queue.submit({"request": request, "names": {str(run): "run"}})
            while not job.is_closed:
                await job.wait(1.0)
            errors.append(job.error)
            await queue.close()
        return errors

    file = import_file("elsewhere/second.py")
    without, taken = asyncio.run(ask(worker_command([], force=False), worker_command([file], force=False)))
    assert "run was trained with parts of first.py: pass --import" in without
    assert taken == ""
