"""What classifiers reach by default: an LSTM learns nested negation and SST-2, a bag of words learns no negation."""

import os

import pytest
import torch

from anaphor.tasks.classify import ClassifyRunSpec
from anaphor.training.run import execute


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)  # as outside of tests


@pytest.mark.slow
def test_an_lstm_learns_nested_negation_and_a_bag_of_words_does_not(tmp_path):
    result, _ = execute(ClassifyRunSpec(data="negation", model="lstm", device="cpu"), tmp_path / "lstm")
    assert result["test"]["accuracy"] >= 0.97
    result, _ = execute(
        ClassifyRunSpec(data="negation", model="bag-of-words", epochs=3, device="cpu"), tmp_path / "bag"
    )
    assert 0.45 <= result["test"]["accuracy"] <= 0.55


@pytest.mark.slow
@pytest.mark.skipif("ANAPHOR_DATA" not in os.environ, reason="SST-2 is needed: set ANAPHOR_DATA")
def test_the_default_classifier_of_sst2_is_right_on_77_percent_of_test(tmp_path):
    result, _ = execute(ClassifyRunSpec(data="sst2", device="cpu"), tmp_path / "run")
    assert result["test"]["accuracy"] >= 0.77
