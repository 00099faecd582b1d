"""Experiment: data, model and scoring of one run, all that the training loop knows of a task; and where it runs."""

from __future__ import annotations

import math
import platform
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

import anaphor
from anaphor.config import look_up
from anaphor.errors import ConfigError, DataError
from anaphor.metrics.result import Result
from anaphor.mixers.base import tensors_of, use_threads
from anaphor.training.spec import DEVICES, RunSpec

LARGEST_CROSS_ENTROPY = math.log(sys.float_info.max)
"""`largest_loss` of tasks that predict classes or tokens: the perplexity of a larger one is no number."""
MAX_THREADS = 1024


@dataclass(frozen=True)
class Loss:
    """Loss of a batch: a sum, never a mean, because batches differ in size. Batches know their counts."""

    total: Tensor
    penalty: Tensor | None = None
    """Regularization that is added to the total for the gradient; it is not reported."""
    correct: Tensor | None = None
    """Number of the batch's items that were predicted correctly, where the task reports a training accuracy."""

    @property
    def objective(self) -> Tensor:
        """What the gradient is taken of."""
        return self.total if self.penalty is None else self.total + self.penalty


LossTerm = Callable[[Tensor, Any, Any], Tensor]
"""A penalty beside the loss: `(hidden_states, head, batch)` -> the sum of the penalties of all examples []."""


class Experiment(ABC):
    """One run's data, model and scoring. A task subclasses it; the loop never asks which task it has.

    A batch is a dataclass with two numbers: `count`, the items that throughput counts, as an int, and `amount`, what
    the summed loss is divided by, an int or a tensor on the device.
    """

    spec: RunSpec
    model: nn.Module
    device: torch.device
    known: Mapping[str, Any] = {}
    """`fingerprint()` of the run when it was trained; empty for a new run."""
    largest_loss: ClassVar[float] = math.inf
    """Mean losses above this count as divergence, beside those that are not finite."""

    @abstractmethod
    def batches(self, epoch: int) -> Sequence[Any]:
        """Training batches of an epoch, in an order that depends on the seed and the epoch alone."""

    @abstractmethod
    def loss(self, batch: Any, carry: Any) -> tuple[Loss, Any]:
        """Loss of a batch, and the state carried to the next batch, detached."""

    def initial_carry(self) -> Any:
        """A carry of the right structure, to read one back from a file; None where nothing is carried."""
        return None

    @abstractmethod
    def evaluate(self, split: str) -> Result:
        """Result on a split while training: the metrics that are cheap, and the one that selects."""

    def score(self, split: str) -> Result:
        """Final result on a split, with all metrics."""
        return self.evaluate(split)

    def score_test(self, valid: Result) -> Result:
        """Final result on test, given the one on valid."""
        return self.score("test")

    def draw(self, folder: Path, valid: Result) -> list[Path]:
        """Draw figures of the final model into the folder, beside the curves, given its `score` on valid. Gives their
        paths."""
        return []

    def sample(self, seed: int) -> str:
        """Something to look at while the model trains, such as generated text; empty for nothing."""
        return ""

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """Digests of the data (`data`: by split, without test) and the preprocessing. They must not change on
        resume."""

    def validate(self, test: bool) -> None:
        """Raise before the first step what could not be scored later; `test` says whether test will be scored."""
        return

    def prepare_for_inference(self) -> None:
        """Prepare the model, whose weights were loaded, for use without training."""
        self.model.eval()

    def notes(self) -> list[str]:
        """Warnings about the data, one line each."""
        return []

    def statistics(self) -> dict[str, Any]:
        """Facts about the training data for `--dry-run` and the result, such as `padding_share`."""
        return {}

    def resolved_settings(self) -> dict[str, Any]:
        """Settings that were left open, with the values used: of the model, for example. None: it does not apply."""
        return {}

    def changed_splits(self) -> list[str]:
        """Splits whose data differ from those of training. Test was not fingerprinted."""
        before = self.known.get("data", {})
        now = self.fingerprint()["data"] if before else {}
        return [split for split in before if before[split] != now.get(split)]


# What follows checks what the methods of a user's own task return: later it would look like a fault of ours.


def get_batches(experiment: Experiment, epoch: int) -> Sequence[Any]:
    """The training batches of an epoch, at least one."""
    batches: Any = experiment.batches(epoch)
    method = f"batches of {type(experiment).__name__}"
    if not (hasattr(batches, "__len__") and hasattr(batches, "__getitem__")):
        raise ConfigError(f"{method} must return a list of batches, not a {type(batches).__name__}")
    if not len(batches):
        raise ConfigError(f"{method} returns no batch for epoch {epoch}: there is nothing to train on")
    found: Sequence[Any] = batches
    return found


def check_batch(experiment: Experiment, batch: Any) -> None:
    """Raise for a batch without its two numbers."""
    if lacking := [name for name in ("count", "amount") if not hasattr(batch, name)]:
        raise ConfigError(
            f"a batch of {type(experiment).__name__} is a {type(batch).__name__} without {' and '.join(lacking)}: give "
            f"the number of its items, and what the summed loss is divided by"
        )


def compute_loss(experiment: Experiment, batch: Any, carry: Any) -> tuple[Loss, Any]:
    """Loss of a batch, and the state carried to the next one."""
    result: Any = experiment.loss(batch, carry)
    method = f"loss of {type(experiment).__name__}"
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Loss)):
        items = result if isinstance(result, tuple) else (result,)
        kinds = ", ".join(type(item).__name__ for item in items)
        raise ConfigError(f"{method} must return a Loss and a carry (None for none), not {kinds}")
    if result[0].total.ndim:
        raise ConfigError(f"{method} has a total {list(result[0].total.shape)}: give its sum, one number")
    if any(tensor.requires_grad for tensor in tensors_of(result[1])):
        raise ConfigError(f"{method} returns a carry with gradient: detach it")
    if carry is None and isinstance(result[1], tuple) and not isinstance(experiment.initial_carry(), tuple):
        raise ConfigError(f"{method} returns a carry, but initial_carry does not: a run could not be resumed")
    return result


def evaluate_split(experiment: Experiment, split: str) -> Result:
    """Result on a split while training."""
    result: Any = experiment.evaluate(split)
    method = f"evaluate of {type(experiment).__name__}"
    if not isinstance(result, Result):
        raise ConfigError(f"{method} must return a Result, not a {type(result).__name__}")
    for name, value in result.values.items():
        if value is not None and not isinstance(value, int | float):
            raise ConfigError(f"{method} returns {name} as a {type(value).__name__}: give a float")
    return result


def get_fingerprint(experiment: Experiment) -> dict[str, Any]:
    """Digests of the data and the preprocessing. Without those of the data a checkpoint could not be used."""
    found: Any = experiment.fingerprint()
    if not isinstance(found, dict) or not isinstance(found.get("data"), dict):
        raise ConfigError(
            f"fingerprint of {type(experiment).__name__} must return a dict with 'data', the digests of train and valid"
        )
    return found


class HasSplits(Protocol):
    """Data in splits."""

    def check_split(self, split: str) -> str: ...


def require_splits(data: HasSplits, test: bool) -> None:
    """Refuse data without a split that will be scored."""
    data.check_split("valid")
    if test:
        try:
            data.check_split("test")
        except DataError as error:
            raise DataError(f"{error}; use --no-test to train without it") from None


@contextmanager
def use_seed(seed: int, keep_state: bool) -> Iterator[None]:
    """Draw initial weights from the seed. With `keep_state` the global random state is restored afterwards."""
    if not keep_state:
        torch.manual_seed(seed)
        yield
        return
    with torch.random.fork_rng(devices=()):  # weights are drawn on the CPU
        torch.default_generator.manual_seed(seed)
        yield


def choose_device(name: str) -> torch.device:
    look_up(DEVICES, name, "device")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device='cuda': torch finds no GPU here; use --device auto or --device cpu")
    return torch.device(name)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Precision of the computation: auto is float32 on a CPU, where bfloat16 is far slower. A program that has set
    another default dtype of torch has weights of that one in place of float32."""
    half = name == "bfloat16" or (name == "auto" and device.type == "cuda")
    return torch.bfloat16 if half else torch.get_default_dtype()


def autocast_of(name: str, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """A context manager for the forward pass."""
    if choose_dtype(name, device) is torch.bfloat16:
        return partial(torch.autocast, device.type, torch.bfloat16)
    return nullcontext


def check_threads(threads: int | None) -> None:
    """Refuse a number of threads that torch cannot have; None leaves it as it is."""
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise ConfigError(f"threads={threads}: it must be from 1 to {MAX_THREADS}")


def set_threads(threads: int | None) -> None:
    """Use so many CPU threads in this process; None leaves the number as it is."""
    check_threads(threads)
    if threads is not None:
        torch.set_num_threads(threads)


def thread_count(threads: int | None) -> AbstractContextManager[None]:
    """So many CPU threads inside the block, as before afterwards; None leaves the number as it is."""
    check_threads(threads)
    return use_threads(torch.get_num_threads() if threads is None else threads)


def describe_environment(device: torch.device, dtype: str) -> dict[str, Any]:
    """Versions, resolved device and dtype, and threads, for a run's spec and checkpoints."""
    return {
        "anaphor": anaphor.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "device": device.type,
        "dtype": str(choose_dtype(dtype, device)).removeprefix("torch."),
        "threads": torch.get_num_threads(),
    }
