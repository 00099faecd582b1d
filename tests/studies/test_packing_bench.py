"""The benchmark of packing: several runs on one device against one at a time."""

import pytest
import torch

from benchmarks import packing


@pytest.mark.parametrize(("rates", "kept"), [({1: 100, 8: 250, 16: 190}, True), ({1: 100, 8: 150, 16: 120}, False)])
def test_the_best_packing_is_held_against_one_at_a_time(monkeypatch, rates, kept):
    monkeypatch.setattr(packing, "cells_per_hour", lambda device, packed, count, tick: float(rates[packed]))
    (found,) = packing.measure(2, torch.device("cuda"), print)
    assert found.value == pytest.approx(rates[8] / 100)
    assert found.kept is kept
    assert "8 processes" in found.what
    assert "16 at a time" in found.detail
