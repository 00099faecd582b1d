"""The benchmark of packing compares cells an hour, and tells whether the promise is kept."""

import pytest
import torch

from anaphor.bench import packing


@pytest.mark.parametrize(
    ("rates", "kept"), [({1: 100, 4: 250, 8: 190, 12: 50}, True), ({1: 100, 4: 150, 8: 120, 12: 9}, False)]
)
def test_the_best_packing_is_held_against_one_at_a_time(monkeypatch, rates, kept):
    monkeypatch.setattr(packing, "cells_an_hour", lambda device, packed, tick: float(rates[packed]))
    (found,) = packing.measure(torch.device("cuda"), print)
    assert found.value == pytest.approx(rates[4] / 100)
    assert found.kept is kept
    assert "4 processes" in found.what
    assert "8 at a time" in found.detail
