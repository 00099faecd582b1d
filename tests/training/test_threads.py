"""Threads: spinning is bounded before torch is loaded, and their number depends on nothing but what was asked for."""

import json
import os
import subprocess
import sys

import pytest
import torch

import anaphor
from anaphor.cli.main import main
from anaphor.generate import Sampler, generate_rows
from anaphor.models import build
from anaphor.training.device import thread_count
from anaphor.training.run_folder import RunFolder

TINY = ["--model", "lstm", "--width", "8", "--layers", "1", "--steps", "2", "--batch-size", "4", "--bptt", "6",
        "--device", "cpu", "--no-test", "--json"]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text("the cat sat on the mat\nthe dog sat on the log\n" * 40)
    return str(path)


def environment_of(code, **variables):
    """What a new process has in its environment after the code."""
    unset = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in unset} | variables
    program = f"{code}; import os, sys, json; print(json.dumps([dict(os.environ), 'torch' in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_spinning_is_bounded_before_torch_is_loaded():
    variables, has_torch = environment_of("import anaphor")
    assert not has_torch
    assert 0 < int(variables["GOMP_SPINCOUNT"]) <= 1000


def test_the_commands_module_loads_torch_afterwards_as_well():
    variables, has_torch = environment_of("import anaphor.cli.main")
    assert not has_torch
    assert "GOMP_SPINCOUNT" in variables


@pytest.mark.parametrize("own", [{"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "ACTIVE"}])
def test_a_users_own_way_of_waiting_wins(own):
    variables, _ = environment_of("import anaphor", **own)
    assert {name: variables.get(name) for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY") if name in variables} == own


@pytest.fixture(scope="module")
def trained(tmp_path_factory, text):
    out = tmp_path_factory.mktemp("threads") / "run"
    torch.set_default_dtype(torch.float32)
    assert main(["train", "lm", *TINY, "--data", text, "--threads", "2", "--out", str(out)]) == 0
    return out


def test_training_records_the_threads_it_was_given_and_puts_the_old_number_back(trained):
    assert RunFolder(trained).read_environment()["threads"] == 2
    assert torch.get_num_threads() == 1


def test_the_default_is_the_number_of_the_process_whatever_the_load(tmp_path, monkeypatch, text):
    for load in (0.0, 99.0):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, load, load))
        out = tmp_path / str(load)
        assert main(["train", "lm", *TINY, "--data", text, "--out", str(out)]) == 0
        assert RunFolder(out).read_environment()["threads"] == torch.get_num_threads()


def test_training_from_python_takes_threads(tmp_path, text):
    run = anaphor.train(
        "lm", data=text, model="lstm", width=8, layers=1, steps=1, device="cpu", no_test=True,
        threads=2, progress=False, out=tmp_path / "run",
    )  # fmt: skip
    assert RunFolder(run.folder).read_environment()["threads"] == 2


@pytest.mark.parametrize("verb", ["evaluate", "generate", "score", "translate", "look", "check-mixer"])
def test_every_verb_that_computes_takes_threads(verb, capsys):
    assert main([verb, "--help"]) == 0
    assert "--threads" in capsys.readouterr().out


def test_threads_are_set_before_anything_is_computed(trained, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    assert main(["score", str(trained), "the cat", "--threads", "2", "--json"]) == 0
    assert asked[0] == 2


@pytest.mark.parametrize("threads", ["0", "-1", "99999"])
def test_a_number_of_threads_that_torch_cannot_have_is_refused(trained, text, capsys, threads):
    for words in (
        ["score", str(trained), "a b"],
        ["train", "lm", *TINY, "--data", text, "--out", "elsewhere"],
    ):
        assert main([*words, "--threads", threads]) == 2
        assert capsys.readouterr().err.splitlines()[-1] == f"anaphor: threads={threads}: it must be from 1 to 1024"


def test_a_small_step_of_generation_runs_on_one_thread_and_gives_the_tokens_of_several(monkeypatch):
    model = build("gpt-nano", vocabulary=5, width=8, layers=1, heads=2).eval()
    weights = sum(weight.numel() for weight in model.layers.parameters()) + model.head.weight.numel()
    prompts, found, threads = [[0, 1], [3]], [], []
    model.head.register_forward_hook(lambda *_: threads.append(torch.get_num_threads()))
    with thread_count(2):
        for largest in (2 * weights, 2 * weights - 1):
            monkeypatch.setattr("anaphor.evaluation.MAX_PRODUCTS_ON_ONE_THREAD", largest)
            rows = []
            for new in generate_rows(model, prompts, 4, Sampler(temperature=0)):
                rows.append(new)
                assert torch.get_num_threads() == 2, "between two tokens the caller has its own number"
            found.append(rows)
    assert threads == [2, 1, 1, 1, 2, 2, 2, 2], "the prompts are processed by all"
    assert found[0] == found[1]


BUSY = "import torch; torch.set_num_threads(2); a = torch.randn(256, 256)\nwhile True: a @ a"


@pytest.mark.slow
def test_training_beside_a_busy_process_takes_15_seconds_at_most(tmp_path):
    """Processor time is compared, since other tests may run: the spinning of unbounded threads is in it."""
    environment = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS",)}
    environment.pop("GOMP_SPINCOUNT", None)
    words = ["train", "lm", "--data", "grammar", "--model", "lstm", "--width", "128", "--steps", "40", "--threads", "2"]
    code = (
        "import sys, time; from anaphor.cli.main import main\n"
        f"code = main({[*words, '--out', str(tmp_path / 'run')]!r}); print(time.process_time()); sys.exit(code)"
    )
    busy = subprocess.Popen([sys.executable, "-c", BUSY], env=environment)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=120
        )
    finally:
        busy.kill()
        busy.wait()
    assert float(done.stdout.splitlines()[-1]) < 15
