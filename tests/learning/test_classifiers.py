"""What classifiers reach by default: an LSTM and attention learn nested negation, a bag of words does not; SST-2."""

import os

import pytest

from anaphor.api import execute
from anaphor.tasks.classify import ClassifyRunSpec

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lstm", "transformer"])
def test_recurrence_and_attention_learn_nested_negation(model, tmp_path):
    result, _ = execute(ClassifyRunSpec(data="negation", model=model, device="cpu"), tmp_path / model)
    assert result["test"]["accuracy"] >= 0.99


@pytest.mark.slow
def test_a_bag_of_words_does_not_learn_nested_negation(tmp_path):
    result, _ = execute(
        ClassifyRunSpec(data="negation", model="bag-of-words", epochs=3, device="cpu"), tmp_path / "bag"
    )
    assert 0.45 <= result["test"]["accuracy"] <= 0.55


@pytest.mark.slow
@pytest.mark.skipif("ANAPHOR_DATA" not in os.environ, reason="SST-2 is needed: set ANAPHOR_DATA")
def test_the_default_classifier_of_sst2_is_right_on_77_percent_of_test(tmp_path):
    result, _ = execute(ClassifyRunSpec(data="sst2", device="cpu"), tmp_path / "run")
    assert result["test"]["accuracy"] >= 0.77
