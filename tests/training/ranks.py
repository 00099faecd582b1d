"""Runs that several processes train together: forked from the tests, so that none imports torch first."""

import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from anaphor.registry import TASKS
from anaphor.training import loop
from anaphor.training.distributed import DistributedStep
from anaphor.training.options import TrainOptions
from anaphor.training.step import Step

STORES: list[torch.distributed.TCPStore] = []
"""Of processes that may still run."""


def start_ranks(count: int, function: Callable[[int], Any], folder: Path, **environment: str) -> list[int]:
    """Fork so many processes, as torchrun would start them, which also has the store where they find each other. What
    `function(rank)` returns is written into the folder, as JSON. Returns their process ids."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    STORES.append(store)
    processes: list[int] = []
    for rank in range(count):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            process = os.fork()
        if process:
            processes.append(process)
            continue
        code = 1
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_PORT": store.port}
            os.environ.update({name: str(value) for name, value in names.items()}, MASTER_ADDR="127.0.0.1")
            os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
            os.environ.update(environment)
            with open(folder / f"output-{rank}", "w", buffering=1, encoding="utf-8") as output:
                sys.stdout = sys.stderr = output
                sys.__stderr__ = output
                found = function(rank)
                (folder / f"result-{rank}.json").write_text(json.dumps(found), encoding="utf-8")
            code = found if isinstance(found, int) else 0
        except SystemExit as done:
            code = int(done.code or 0)
        except BaseException:  # noqa: BLE001  # whatever happens, this copy of the tests must end here
            with open(folder / f"output-{rank}", "a", encoding="utf-8") as output:
                traceback.print_exc(file=output)
        finally:
            os._exit(code)
    return processes


def wait_for(processes: Sequence[int], seconds: float = 120, log: Path | None = None) -> list[int]:
    """Their exit codes, negative after a signal. Kills what has not ended in time, or since the log was longer."""
    end, codes, length = time.monotonic() + seconds, dict[int, int](), 0
    try:
        while len(codes) < len(processes):
            for process in processes:
                found, status = (process, 0) if process in codes else os.waitpid(process, os.WNOHANG)
                if found and process not in codes:
                    codes[process] = os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
            if log is not None and log.exists() and log.stat().st_size > length:
                end, length = time.monotonic() + seconds, log.stat().st_size
            assert time.monotonic() < end, "processes hang"
    finally:
        for process in set(processes) - codes.keys():
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    return [codes[process] for process in processes]


def on_ranks(count: int, function: Callable[[int], Any], folder: Path, **environment: str) -> list[Any]:
    """What a function returns in each of so many processes."""
    folder.mkdir(parents=True, exist_ok=True)
    wait_for(start_ranks(count, function, folder, **environment), seconds=600)
    failed = [rank for rank in range(count) if not (folder / f"result-{rank}.json").exists()]
    assert not failed, (folder / f"output-{failed[0]}").read_text(encoding="utf-8")
    return [json.loads((folder / f"result-{rank}.json").read_text(encoding="utf-8")) for rank in range(count)]


class Losses:
    """Inside the block the summed loss of each step is kept, in double precision."""

    def __enter__(self) -> list[float]:
        found: list[float] = []

        def record(kind: type[Step]) -> None:
            original = kind._sum

            def _sum(step: Any, total: Any, correct: Any) -> Any:
                result = original(step, total, correct)
                found.append(float(result[0]))
                return result

            kind._sum = _sum  # type: ignore[method-assign]
            self.undo.append(lambda: setattr(kind, "_sum", original))

        self.undo: list[Callable[[], None]] = []
        record(Step)
        record(DistributedStep)
        return found

    def __exit__(self, *raised: object) -> None:
        for one in self.undo:
            one()


def in_double(experiment: Any) -> Any:
    """An experiment whose model computes in double precision, whatever its inputs."""

    def cast(module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(one.double() if torch.is_tensor(one) and one.is_floating_point() else one for one in inputs)

    experiment.model.double().register_forward_pre_hook(cast)
    return experiment


@contextmanager
def losses_in_double(log: Path | None = None) -> Iterator[list[float]]:
    """Inside the block runs compute in double precision, and the loss of each step is kept. `log`: a file to which the
    number and the loss of each step are appended."""
    build, rebuild, step = loop.build_experiment, loop.rebuild_experiment, loop.train_step
    with Losses() as losses:

        def train_step(run: Any, group: Any) -> Any:
            done = step(run, group)
            if log is not None and run.ranks.is_first:
                with log.open("a", encoding="utf-8") as file:
                    file.write(f"{done.step} {losses[-1]!r}\n")
            return done

        loop.build_experiment = lambda spec: in_double(build(spec))  # type: ignore[assignment]
        loop.rebuild_experiment = lambda spec, folder: in_double(rebuild(spec, folder))
        loop.train_step = train_step
        try:
            yield losses
        finally:
            loop.build_experiment, loop.rebuild_experiment, loop.train_step = build, rebuild, step


def train(
    task: str, folder: Path, options: dict[str, Any] | None = None, log: Path | None = None, **settings: Any
) -> dict[str, Any]:
    """Train a run in this process. Returns its losses, its validations and its exit code. `log`: as above."""
    torch.set_num_threads(1)
    with losses_in_double(log) as losses:
        spec = TASKS[task].run_spec(device="cpu", **settings)
        result, code = loop.train_run(spec, folder, options=TrainOptions(**{"test": False, **(options or {})}))
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    valid = [json.loads(line)["valid"]["loss"] for line in lines]
    return {"losses": losses, "valid": valid, "code": code, "result": result}


def read_log(log: Path) -> dict[int, float]:
    """The loss of each step, of one that was trained again the last one."""
    rows = (
        (line.split() for line in log.read_text(encoding="utf-8").splitlines() if line.count(" "))
        if log.exists()
        else ()
    )
    return {int(step): float(loss) for step, loss in rows}


def wait_until(is_true: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)
