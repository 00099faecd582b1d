"""The benchmark of generation: both sides generate the same tokens; a pair that does not is refused."""

import sys
from contextlib import nullcontext

import pytest
import torch

from anaphor.errors import ConfigError
from benchmarks import decoding

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch, single_precision):
    monkeypatch.setattr(decoding, "NEW_TOKENS", 6)
    monkeypatch.setattr(decoding, "ROWS", 3)
    monkeypatch.setattr(decoding, "READS", 1)
    monkeypatch.setitem(decoding.MODELS, "7.5 M parameters", {"name": "gpt2", "width": 16, "layers": 1, "heads": 2})


@pytest.mark.slow
def test_every_case_has_a_finding_and_reading_the_weights_is_the_limit():
    pytest.importorskip("transformers")
    ticks = []
    findings = decoding.measure(2, CPU, ticks.append)
    assert len(ticks) == decoding.count_ticks(2, CPU) == 12
    assert len(findings) == 7
    (reading,) = [finding for finding in findings if "bytes of weights" in finding.what]
    assert 0 < reading.value < 1
    assert all("all equal" in finding.detail for finding in findings if finding is not reading)


def test_prompts_are_unequal_or_repeated():
    assert [len(prompt) for prompt in decoding.draw_prompts("prompts")] == [8, 9, 10]
    first, *others = decoding.draw_prompts("samples")
    assert others == [first, first]
    assert len(decoding.draw_prompts("one")) == 1


def test_sides_that_generate_different_tokens_are_refused(monkeypatch):
    monkeypatch.setattr(decoding, "require", lambda part, *names: None)
    monkeypatch.setattr(decoding, "run_ours", lambda model, prompts: [[1]])
    monkeypatch.setattr(decoding, "start_peer", lambda device, make, *given: nullcontext(lambda prompts, count: [[2]]))
    with pytest.raises(ConfigError, match="gpt-nano, one prompt: the two generate different tokens"):
        decoding.measure(2, CPU, lambda what: None)


def test_without_transformers_one_line_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match="the part decoding needs transformers"):
        decoding.measure(2, CPU, lambda what: None)
