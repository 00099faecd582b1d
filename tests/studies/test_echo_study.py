"""The study of the echo in the examples: its conditions, and the curves that are drawn of it."""

import json
import runpy

from anaphor.shipped_files import EXAMPLES
from anaphor.studies.study_file import find_study_file, read_study

ECHO = runpy.run_path(str(EXAMPLES / "echo.py"))


def test_the_study_holds_the_three_conditions_and_its_curves_are_drawn(tmp_path):
    settings = read_study(find_study_file("echo")).settings()
    assert [setting.run.condition for setting in settings] == ["none", "state", "attention"]
    assert {(setting.run.data, setting.run.epochs) for setting in settings} == {("echo-fit", 10)}
    cells = []
    for number, condition in enumerate(["none", "none", "attention"]):
        run = tmp_path / str(number)
        run.mkdir()
        rows = [{"epoch": epoch, "valid": {"perplexity": 9.0 / epoch + number}} for epoch in (1, 2)]
        (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in rows))
        cells.append({"parameters": {"condition": condition}, "run": str(run)})
    (tmp_path / "result.json").write_text(json.dumps({"cells": cells}))
    ECHO["draw_curves"](tmp_path, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
