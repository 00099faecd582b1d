"""The benchmark of kernels finds those that run in a step, and times the step without each of them."""

import torch

from anaphor.registry import TASKS
from anaphor.tasks.lm import LanguageRunSpec
from benchmarks import kernels


def test_every_kernel_of_a_step_is_timed(monkeypatch, single_precision):
    spec = LanguageRunSpec(data="grammar", model="lstm", width=8, layers=1, optimizer="sgd", lr=1.0, clip=0.25)
    monkeypatch.setattr(kernels, "find_recipes", lambda names: {names[0]: (TASKS["lm"], spec)})
    monkeypatch.setattr(kernels, "RECIPES", {"cpu": ("small",)})
    ticks = []
    findings = kernels.measure(2, torch.device("cpu"), ticks.append)
    assert len(ticks) == kernels.count_ticks(2, torch.device("cpu"))
    assert [finding.what for finding in findings] == ["small: a step with the kernel cross_entropy.cpu"]
    assert all(finding.value > 0 for finding in findings)


def test_a_hidden_kernel_does_not_run():
    spec = LanguageRunSpec(data="grammar", model="lstm", width=8, layers=1, optimizer="adamw", device="cpu")
    loop = kernels.build_loop(spec)
    assert "cross_entropy.cpu" in kernels.record_kernels(loop)
    with kernels.hidden_kernel("cross_entropy.cpu"):
        assert "cross_entropy.cpu" not in kernels.record_kernels(loop)
