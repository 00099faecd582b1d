"""Runs of an earlier version load, are scored and used as before, and resume with the losses that version had.

They were stopped by Ctrl-C before their last steps. `recorded_runs.json` has what that version said of them.
"""

import json

import pytest
from recorded_runs import FILE_NAME, RUNS, command_output, copy_run, differences, resume, write_inputs
from recording import read_recorded

import anaphor

RECORDED = {
    kind: {name: of_run for recorded in read_recorded(FILE_NAME).values() for name, of_run in recorded[kind].items()}
    for kind in ("resumed", "commands")
}
COMMANDS = [
    pytest.param(
        name,
        command,
        id=f"{name}: {' '.join(command['words'])}",
        marks=[pytest.mark.slow] if command.get("slow") else [],
    )
    for name, commands in RECORDED["commands"].items()
    for command in commands
]


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_verbs_say_of_an_old_run_what_they_said(tmp_path, name, command):
    run = copy_run(name, tmp_path)
    write_inputs(tmp_path)
    assert list(differences(command["printed"], command_output(command["words"], run))) == []


@pytest.mark.parametrize("name", RECORDED["resumed"])
def test_an_old_run_resumes_with_the_losses_it_had(tmp_path, name, capsys):
    recorded = RECORDED["resumed"][name]
    run = copy_run(name, tmp_path)
    before = json.loads((run / "result.json").read_text(encoding="utf-8"))
    resumed = resume(recorded["task"], run)
    assert list(differences(recorded, resumed)) == []
    said = capsys.readouterr().err
    assert not any(word in said for word in ("differ", "changed", "changes", "force", "skipping"))
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert result["status"] == "finished"
    assert result["steps"] == before["steps"] + len(recorded["losses"])
    assert before.keys() <= result.keys()
    assert anaphor.load_run(run).metrics[-1]["step"] == result["steps"]


def test_every_old_run_is_used():
    assert RECORDED["resumed"].keys() == RECORDED["commands"].keys() == RUNS.keys()
