"""A cell is judged by the number that was asked for, or by none."""

import json
import math

import pytest

from anaphor.studies.axes import make_axis
from anaphor.studies.cell import MEASURES, Cell, code_version, make_cell, normalize_code
from anaphor.studies.spec import StudySpec
from anaphor.studies.study import Study
from anaphor.tasks.lm.study import STUDY
from anaphor.tasks.metrics import BITS_PER_BYTE, PERPLEXITY
from studies.here import Here, Silent


def judged(tmp_path, metric, **score):
    spec = StudySpec(name="one", parameters=(make_axis("width", [8]),), metric=metric)
    cell = Cell(spec.settings()[0], 0, tmp_path)
    (tmp_path / "result.json").write_text(json.dumps({"status": "finished", "valid": score}))
    (tmp_path / MEASURES).write_text(json.dumps({"wanted": spec.measures}))
    return cell, Study(spec, tmp_path, Here(), Silent())


@pytest.mark.parametrize(
    ("metric", "score", "value"),
    [
        ("valid.perplexity", {"loss": 2.0, "perplexity": 7.4}, 7.4),
        ("valid.perplexity", {"loss": 2.0, "perplexity": None}, math.exp(2)),
        ("valid.perplexity", {"loss": 800.0, "perplexity": None}, math.inf),
        ("valid.perplexity", {"loss": None, "perplexity": None}, math.inf),
        ("valid.bits_per_byte", {"loss": 2.0, "perplexity": 7.4, "bits_per_byte": 1.5}, 1.5),
        ("valid.bits_per_byte", {"loss": 2.0, "perplexity": 7.4, "bits_per_byte": None}, None),
        ("valid.bits_per_byte", {"loss": 2.0}, None),
        ("valid.bits_per_byte", {"loss": None, "bits_per_byte": None}, math.inf),
        ("valid.loss", {"loss": None}, math.inf),
    ],
)
def test_only_a_perplexity_has_a_stand_in(tmp_path, metric, score, value):
    cell, study = judged(tmp_path, metric, **score)
    assert study.value(cell) == value
    told = study.reason(cell, "finished")
    assert told == ("" if value is not None else "the result has no bits_per_byte")


def test_a_test_score_is_named_or_left_out():
    assert STUDY.value({"loss": 2.0, "bits_per_byte": None}, BITS_PER_BYTE) is None
    assert STUDY.value({"loss": 2.0, "bits_per_byte": 1.5}, BITS_PER_BYTE) == 1.5
    assert STUDY.value({"loss": 2.0, "perplexity": None}, PERPLEXITY) == pytest.approx(math.exp(2))
    assert STUDY.value({}, PERPLEXITY) is None


def test_comments_and_docstrings_do_not_change_the_code_version():
    code = "def f(x):\n    return x + 1\n"
    commented = '"""A module."""\n\n\ndef f(x):  # a comment\n    """One more."""\n    return (x + 1)\n'
    assert normalize_code(code) == normalize_code(commented)
    assert normalize_code(code) != normalize_code(code.replace("1", "2"))
    assert normalize_code('A = "text"\n') != normalize_code('A = "other"\n')
    assert len(code_version()) == 64


def test_the_name_of_a_cell_depends_on_device_and_torch(tmp_path, monkeypatch):
    spec = StudySpec(name="one", base={"data": "grammar"}, parameters=(make_axis("width", [8]),))

    def key(device="auto"):
        return make_cell(spec.with_base(device=device).settings()[0], 0, tmp_path, spec.task, 1).key

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert key() == key("cpu") != key("cuda")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert key() == key("cuda")
    before = key("cpu")
    monkeypatch.setattr("torch.__version__", "0.0.1")
    assert key("cpu") != before
