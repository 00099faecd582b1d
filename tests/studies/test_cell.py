"""A cell is judged by the number that was asked for, or by none."""

import json
import math

import pytest

from anaphor.studies.axes import plain_axis
from anaphor.studies.cell import MEASURES, Cell, measures_of
from anaphor.studies.report import _named
from anaphor.studies.spec import StudySpec
from anaphor.studies.study import Study
from studies.here import Here, Silent


def judged(tmp_path, metric, **score):
    spec = StudySpec(name="one", parameters=(plain_axis("width", [8]),), metric=metric)
    cell = Cell(spec.settings()[0], 0, tmp_path)
    (tmp_path / "result.json").write_text(json.dumps({"status": "finished", "valid": score}))
    (tmp_path / MEASURES).write_text(json.dumps({"wanted": measures_of(spec)}))
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
    assert told == ("" if value is not None else "its score has no bits_per_byte")


def test_a_test_score_is_named_or_left_out():
    assert _named({"loss": 2.0, "bits_per_byte": None}, "bits_per_byte") is None
    assert _named({"loss": 2.0, "bits_per_byte": 1.5}, "bits_per_byte") == 1.5
    assert _named({"loss": 2.0, "perplexity": None}, "perplexity") == pytest.approx(math.exp(2))
    assert _named({}, "perplexity") is None
