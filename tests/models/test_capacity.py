"""A model that no memory holds is refused in one line, before it takes any, and says how large it would be."""

import pytest
import torch

from anaphor.errors import ConfigError
from anaphor.models import build, build_seq2seq, initialize, preset, summarize

SIZES = {"source_vocabulary": 9, "vocabulary": 9}


def test_a_model_that_is_too_large_says_how_many_parameters_it_would_have(monkeypatch):
    small = build("lstm", vocabulary=9, width=8)
    monkeypatch.setattr(initialize, "LARGE", 100)
    monkeypatch.setattr(initialize, "total_memory", lambda: 8 * small.count_parameters() - 1)
    with pytest.raises(
        ConfigError, match=f"would have {small.count_parameters():,} parameters, and the memory"
    ) as caught:
        build("lstm", vocabulary=9, width=8)
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(initialize, "total_memory", lambda: 8 * small.count_parameters())
    torch.manual_seed(0)
    again = build("lstm", vocabulary=9, width=8)
    assert all(map(torch.equal, again.parameters(), small.parameters())), "counting draws no numbers"


@pytest.mark.parametrize(
    ("make", "parameters"),
    [
        (lambda: build("lstm", vocabulary=9, width=10**8), "would have 160,000,00"),
        (lambda: build_seq2seq("luong", **SIZES, width=10**8), "would have 230,000,00"),
        (lambda: build("lstm", vocabulary=9, width=10**10), "more than 10^18 parameters"),
        (lambda: build("transformer", vocabulary=9, width=10**20), "more than 10^18 parameters"),
        (lambda: build("transformer", vocabulary=9, feedforward=10**17), "more than 10^18 parameters"),
        (lambda: build("transformer", vocabulary=9, position="learned", max_positions=10**20), "more than 10^18 param"),
        (lambda: summarize(preset("lstm", vocabulary=9, width=10**10)), "more than 10^18 parameters"),
    ],
    ids=["wide", "translation", "overflow", "beyond-integers", "feedforward", "positions", "sketch"],
)
def test_sizes_without_measure_are_refused(make, parameters):
    with pytest.raises(ConfigError) as caught:
        make()
    assert parameters in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_errors_stay_what_they_are():
    def wrong(spec):
        raise RuntimeError("a bug of ours")

    with pytest.raises(RuntimeError, match="a bug of ours"):
        initialize.build_checked(wrong, None)


def test_nothing_is_counted_afterwards(monkeypatch):
    build("lstm", vocabulary=9, width=8)
    monkeypatch.setattr(initialize, "LARGE", 0)
    monkeypatch.setattr(initialize, "total_memory", lambda: 0)
    assert torch.nn.Linear(3, 3).weight.shape == (3, 3)


@pytest.mark.parametrize("name", ["lstm", "hybrid", "qrnn", "gpt-nano"])
def test_a_model_that_is_only_counted_draws_no_weights(monkeypatch, name):
    """Without a device torch draws them in Python, and imports its compiler for that: a second."""

    def draw(self, *_, **__):
        raise AssertionError("drawn")

    spec = preset(name, vocabulary=50)
    parameters = spec.build().count_parameters()
    monkeypatch.setattr(torch.Tensor, "normal_", draw)
    assert summarize(spec).parameters == parameters
    with pytest.raises(AssertionError, match="drawn"):
        spec.build()
