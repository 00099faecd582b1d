"""Training one run in several processes, the ranks, which `torchrun` starts: one for each GPU, or for some CPU cores.

The batch is that of the whole run, and the same on all ranks. Each of them computes the loss of its own rows, with
their carried state, over what the loss of all rows is divided by. So the sum of the gradients over all ranks is that of
the whole batch. What is drawn at random is drawn by row (`anaphor.row_draws`). The losses of a run do not depend on the
number of its ranks, but for rounding.

All ranks hold the same weights and take the same step. The first one, rank 0, alone writes, prints and reads the clock:
what depends on time, on signals and on listeners is decided there, and sent to the others. Where a rank fails, the
others end with it, and one of them says why.

Gradients are added up by one call after the backward pass, and not by `DistributedDataParallel`: its hooks expect one
call of `forward` for each backward pass, and our losses call parts of a model, several of them, for several batches.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn

from anaphor.data.batches import Batches
from anaphor.errors import AnaphorError, ConfigError
from anaphor.mixers.base import map_state, tensors_of
from anaphor.progress_listener import Cancelled, ProgressListener, current_listeners, use_listeners
from anaphor.row_draws import RowShare, draw_rows
from anaphor.training.callbacks import AttachedCallback
from anaphor.training.device import autocast_of
from anaphor.training.experiment import Experiment, Loss
from anaphor.training.launch import Launch, read_launch
from anaphor.training.optimizers import OptimizerSpec, build_optimizer
from anaphor.training.random_state import get_random_state, set_random_state
from anaphor.training.signals import Interruption
from anaphor.training.step import Step
from anaphor.training.time_limit import CANCELLATIONS, estimate_duration

T = TypeVar("T")

TIMEOUT = timedelta(minutes=10)
"""How long a rank waits for the others, which may write a checkpoint or draw figures meanwhile."""
LAST_WORD = timedelta(seconds=3)
"""How long the other ranks wait for the first one to say why a run ends."""


class RankLost(AnaphorError):
    """Another process of the run has ended, or does not answer."""

    exit_code = 1


class Ranks:
    """The processes that train a run together. By itself this is one process, which trains alone."""

    rank = 0
    count = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def share(self, total: int, rank: int | None = None) -> RowShare:
        """The rows of a batch that a rank computes, this one if none is given. If there are fewer rows than ranks, some
        have a row that does not count, so that all of them do the same."""
        rank = self.rank if rank is None else rank
        start, stop = rank * total // self.count, (rank + 1) * total // self.count
        if start < stop:
            return RowShare(start, stop, total)
        start = min(start, total - 1)
        return RowShare(start, start + 1, total, counts=False)

    def gather_rows(self, tensor: Tensor, total: int) -> Tensor:
        """The rows of all ranks, each of which has those of its share. [B of the share, ...] -> [B, ...]"""
        return tensor

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sum of each tensor over all ranks."""
        return list(tensors)

    def share_values(self, values: Sequence[float]) -> list[float]:
        """Numbers of the first rank, on all of them."""
        return list(values)

    def share_text(self, text: str) -> str:
        """A text of the first rank, on all of them."""
        return text

    def copy_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite tensors by those of the first rank."""

    def wait(self) -> None:
        """Wait until all ranks are here."""

    def claim_last_word(self) -> bool:
        """Whether this is the rank that says why a run ends: the first rank, or if that is gone, another one."""
        return True

    def require_same(self, metadata: Mapping[str, Any]) -> None:
        """Raise where ranks have other settings, data or files of the user than the first one."""

    def agree_on_signal(self, interruption: Interruption) -> None:
        """Let all ranks know of a signal that one of them has received."""

    def hold_listeners(self) -> AbstractContextManager[None]:
        """A block in which several ranks cannot be cancelled, but where they `lead`."""
        return nullcontext()

    def lead(self, interruption: Interruption) -> AbstractContextManager[None]:
        """A block that may be cancelled: by a listener of the first rank, and then on all of them."""
        return nullcontext()


class RankGroup(Ranks):
    """Several processes, each with its rank."""

    def __init__(self, launch: Launch, store: Any) -> None:
        self.rank, self.count = launch.rank, launch.ranks
        self.store = store
        self.is_leading = False
        """Whether what is done now may be cancelled by the first rank."""
        self.interruption: Interruption | None = None
        self.held: tuple[ProgressListener, ...] | None = None
        """Listeners that are called only where something may be cancelled."""
        self.has_last_word = False
        self.texts = 0

    def gather_rows(self, tensor: Tensor, total: int) -> Tensor:
        self._hear()
        shares = [self.share(total, rank) for rank in range(self.count)]
        sent = tensor.to(torch.uint8) if tensor.dtype is torch.bool else tensor
        padded = sent.new_zeros(max(map(len, shares)), *tensor.shape[1:])
        padded[: len(tensor)] = sent
        found = [torch.empty_like(padded) for _ in shares]
        _call(distributed.all_gather, found, padded)
        rows = [one[: len(share)] for one, share in zip(found, shares, strict=True) if share.counts]
        return torch.cat(rows).to(tensor.dtype)

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        results = list(tensors)
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            places = [place for place, tensor in enumerate(tensors) if tensor.dtype is dtype]
            flat = torch.cat([tensors[place].flatten() for place in places])
            _call(distributed.all_reduce, flat)
            parts = flat.split([tensors[place].numel() for place in places])
            for place, part in zip(places, parts, strict=True):
                results[place] = part.view(tensors[place].shape)
        return results

    def share_values(self, values: Sequence[float]) -> list[float]:
        numbers = torch.tensor(values, dtype=torch.float64)
        _call(distributed.broadcast, numbers, 0)
        found: list[float] = numbers.tolist()
        return found

    def share_text(self, text: str) -> str:
        self.texts += 1
        key = f"text-{self.texts}"
        if self.is_first:
            _call(self.store.set, key, text)
        found: bytes = _call(self.store.get, key)
        return found.decode()

    def copy_tensors(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            if tensor.numel():  # as bytes, because not every type can be sent
                sent = tensor.detach().contiguous().reshape(-1)
                _call(distributed.broadcast, sent.view(torch.uint8), 0)
                tensor.detach().copy_(sent.view(tensor.shape))

    def wait(self) -> None:
        self.share_values([0.0])

    def claim_last_word(self) -> bool:
        if not self.has_last_word:
            key = "last-word"
            try:
                if not self.is_first:
                    with suppress(RuntimeError):
                        self.store.wait([key], LAST_WORD)
                self.has_last_word = bool(self.store.add(key, 1) == 1)
            except RuntimeError:  # the store has gone with the first rank
                self.has_last_word = self.rank == 1
        return self.has_last_word

    def require_same(self, metadata: Mapping[str, Any]) -> None:
        rest = {name: metadata[name] for name in metadata.keys() - {"spec", "data", "environment"}}
        rest["imports"] = [entry["sha256"] for entry in metadata["imports"]]
        parts = {"settings": metadata["spec"], "data": metadata["data"], "preprocessing or imported files": rest}
        digests = torch.tensor([list(_digest(part)) for part in parts.values()], dtype=torch.uint8)
        found = self.gather_rows(digests[None], self.count)
        for number, others in enumerate(found):
            differs = (others != found[0]).any(1).tolist()
            if any(differs):
                names = " and ".join(name for name, one in zip(parts, differs, strict=True) if one)
                raise ConfigError(f"rank {number} has other {names} than rank 0: all ranks must have the same")

    def agree_on_signal(self, interruption: Interruption) -> None:
        received = torch.zeros(len(interruption.handled), dtype=torch.float64)
        if interruption.received is not None:
            received[interruption.handled.index(interruption.received)] = 1
        _call(distributed.all_reduce, received)
        if received.any():
            interruption.signal = interruption.handled[int(received.argmax())]

    @contextmanager
    def hold_listeners(self) -> Iterator[None]:
        self.held = current_listeners()
        try:
            with use_listeners(()):
                yield
        finally:
            self.held = None

    @contextmanager
    def lead(self, interruption: Interruption) -> Iterator[None]:
        self.is_leading, self.interruption = True, interruption
        listeners = current_listeners() if self.held is None else self.held
        try:
            with use_listeners(listeners if self.is_first else ()):
                yield
        except Cancelled as error:
            if self.is_first and self.is_leading:
                kind = type(error) if type(error) in CANCELLATIONS else Cancelled
                self._tell(1 + CANCELLATIONS.index(kind))
            raise
        else:
            self._hear()
        finally:
            self.is_leading, self.interruption = False, None

    def _hear(self) -> None:
        """Raise where the first rank has been cancelled, before the ranks do something together."""
        if not self.is_leading:
            return
        if self.is_first:
            self._tell(0)
            return
        number, received = map(int, self.share_values([0.0, 0.0]))
        if number:
            self._note_signal(received)
            self.is_leading = False
            raise CANCELLATIONS[number - 1]

    def _tell(self, number: int) -> None:
        assert self.interruption is not None, "a block that may be cancelled has one"
        received = self.interruption.received or 0
        self.share_values([float(number), float(received)])
        if number:
            self._note_signal(received)

    def _note_signal(self, received: int) -> None:
        assert self.interruption is not None, "a block that may be cancelled has one"
        if received:
            self.interruption.signal = received


def _digest(value: Any) -> bytes:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).digest()


def _call(function: Callable[..., T], *arguments: Any) -> T:
    """Do something with all ranks."""
    try:
        return function(*arguments)
    except RuntimeError as error:
        waited = "imed out" in str(error) or "timeout" in str(error)
        reason = f"another process did not answer for {TIMEOUT.total_seconds() / 60:g} minutes" if waited else ""
        raise RankLost(reason or "another process of this run has ended") from None


# ---- joining the ranks, and leaving them

_ALONE = Ranks()
_current: ContextVar[Ranks] = ContextVar("ranks", default=_ALONE)
_rendezvous: list[Any] = []
"""Where the processes find each other, from the first run on."""
_runs = [0]


def current_ranks() -> Ranks:
    """The ranks that train the present run; one process by itself where there is no run."""
    return _current.get()


@contextmanager
def work_alone() -> Iterator[None]:
    """Inside the block this process does what the others do not do."""
    before = _current.set(_ALONE)
    try:
        yield
    finally:
        _current.reset(before)


@contextmanager
def join_ranks(device: str, interruption: Interruption) -> Iterator[Ranks]:
    """Inside the block this process is one of those that torchrun has started. Where the block ends by an error, all of
    them end, and one says why; the others raise `SystemExit`."""
    launch = read_launch()
    if launch.ranks == 1:
        yield Ranks()
        return
    interruption.is_shared = True
    ranks = RankGroup(launch, _connect(launch, device))
    before = _current.set(ranks)
    try:
        yield ranks
    except BaseException as error:
        if not ranks.claim_last_word():
            raise SystemExit(getattr(error, "exit_code", 1)) from None
        if isinstance(error, AnaphorError):
            error.has_last_word = True
        raise
    finally:
        _current.reset(before)
        with suppress(RuntimeError):
            distributed.destroy_process_group()


def _connect(launch: Launch, device: str) -> Any:
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    is_on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    if is_on_gpu and torch.cuda.is_available():
        if launch.local_rank >= torch.cuda.device_count():
            raise ConfigError(
                f"{launch.local_rank + 1} or more processes on a machine with {torch.cuda.device_count()} GPUs: give "
                f"torchrun a smaller --nproc-per-node, or use --device cpu"
            )
        torch.cuda.set_device(launch.local_rank)
    try:
        if not _rendezvous:
            _rendezvous.append(next(rendezvous("env://", timeout=TIMEOUT))[0])
        _runs[0] += 1
        # The store outlives processes that torchrun starts again; their addresses in it are of no use.
        store = PrefixStore(f"anaphor-{launch.restarts}-{_runs[0]}", _rendezvous[0])
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if is_on_gpu else "gloo",
            store=store,
            rank=launch.rank,
            world_size=launch.ranks,
            timeout=TIMEOUT,
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0][:200]
        raise RankLost(f"rank {launch.rank} cannot reach the other {launch.ranks - 1}: {reason}") from None
    return store


# ---- rows of batches and of carried states


def count_rows(batch: Any) -> int:
    """The number of rows of a batch: the length of the first of its tensors that has one."""
    for value in vars(batch).values():
        if isinstance(value, Tensor) and value.ndim:
            return len(value)
    raise ConfigError(f"a {type(batch).__name__} has no tensors whose rows several ranks could share")


def take_rows(batch: Any, share: RowShare) -> Any:
    """The rows of a batch that belong to a share. A batch may say itself how rows are taken, by `select(rows: slice)`;
    of another one every tensor and list is cut that has an entry for each row."""
    rows = slice(share.start, share.stop)
    if hasattr(batch, "select"):
        return batch.select(rows)
    if not is_dataclass(batch) or isinstance(batch, type):
        raise ConfigError(f"a {type(batch).__name__} is no dataclass: give it `select(rows: slice)`, for several ranks")
    values = {field.name: getattr(batch, field.name) for field in fields(batch) if field.init}
    return replace(batch, **{name: _cut(value, rows, share.total) for name, value in values.items()})


def _cut(value: Any, rows: slice, total: int) -> Any:
    if isinstance(value, Tensor):
        return value[rows] if value.ndim and len(value) == total else value
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return value[rows] if len(value) == total else value
    if isinstance(value, Mapping):
        return {name: _cut(one, rows, total) for name, one in value.items()}
    return value


class LocalBatches(Batches[Any]):
    """The rows of this rank, of each batch."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def batch(self, index: int) -> Any:
        return local_batch(self.batches[index])


def local_batch(batch: T) -> T:
    """The rows of this rank; the batch itself in a process that is alone."""
    ranks = current_ranks()
    part: T = batch if ranks.count == 1 else take_rows(batch, ranks.share(count_rows(batch)))
    return part


def local_batches(batches: Sequence[T]) -> Sequence[T]:
    """The rows of this rank, of each batch; the batches themselves in a process that is alone."""
    return batches if current_ranks().count == 1 else LocalBatches(batches)


def gather_rows(tensor: Tensor, total: int) -> Tensor:
    """What each rank has computed for its rows of a batch, for all `total` rows. [B of the share, ...] -> [B, ...]"""
    return current_ranks().gather_rows(tensor, total)


def map_rows(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """A function of rows, which ranks compute together, each for some of them. [B, ...] -> [B, ...]"""
    share = current_ranks().share(len(rows))
    return gather_rows(function(rows[share.start : share.stop]), len(rows))


def split_state(state: Any, ranks: Ranks) -> Any:
    """The rows of a carried state that belong to this rank."""

    def take(tensor: Tensor) -> Tensor:
        share = ranks.share(len(tensor)) if tensor.ndim else None
        return tensor if share is None else tensor[share.start : share.stop].clone()

    return state if ranks.count == 1 else map_state(take, state)


def join_state(state: Any, whole: Any, ranks: Ranks) -> Any:
    """A carried state of all rows, of which each rank has its own. `whole` has as many rows."""
    rows = next(len(tensor) for tensor in tensors_of(whole) if tensor.ndim)
    return map_state(lambda tensor: ranks.gather_rows(tensor, rows) if tensor.ndim else tensor, state)


# ---- what the first rank decides


def copy_state(ranks: Ranks, experiment: Experiment) -> None:
    """Give all ranks the weights and the random generators of the first one. They have the same already, unless a
    user's task draws its weights without a seed."""
    ranks.copy_tensors([*experiment.model.parameters(), *experiment.model.buffers()])
    random = get_random_state(experiment.device)
    ranks.copy_tensors(list(random.values()))
    set_random_state(random, experiment.device)


def select_callbacks(ranks: Ranks, callbacks: tuple[AttachedCallback, ...]) -> tuple[AttachedCallback, ...]:
    """The callbacks that a rank calls: the first one all of them, the others those that change training."""
    return tuple(one for one in callbacks if ranks.is_first or one.changes_training)


def estimate_on_ranks(
    ranks: Ranks, interruption: Interruption, call: Callable[[], Any], limit: float, device: torch.device
) -> float:
    """`estimate_duration` of what all ranks do together: that of the first one."""

    def lead() -> None:
        with ranks.lead(interruption):
            call()

    (seconds,) = ranks.share_values([estimate_duration(lead, limit, device)])
    return seconds


# ---- the step


@dataclass
class DistributedStep(Step):
    """As `Step`, where each rank computes its rows of the batch."""

    ranks: Ranks = field(default_factory=Ranks)

    def _forward(self, batch: Any, carry: Any) -> tuple[Loss, Any]:
        share = self.ranks.share(count_rows(batch))
        with draw_rows(share):
            loss, carry = super()._forward(take_rows(batch, share), carry)
        return loss if share.counts else loss.without_weight(), carry

    def _sum(self, total: Tensor, correct: Tensor | None) -> tuple[Tensor, Tensor | None]:
        weights = [weight for weight in self.experiment.model.parameters() if weight.requires_grad]
        wide = torch.promote_types(total.dtype, torch.float32)
        counts = [] if correct is None else [correct.to(wide)]
        kinds = [float(_kind(weight.grad)) for weight in weights]
        more = torch.stack([total.to(wide), *counts, *total.new_tensor(kinds, dtype=wide)])
        gradients = [_dense(weight) for weight in weights]
        more, *gradients = self.ranks.sum([more, *gradients])
        # A weight has no gradient where it has none on any rank.
        kinds = more[1 + len(counts) :].tolist()
        for weight, gradient, kind in zip(weights, gradients, kinds, strict=True):
            if kind:
                weight.grad = gradient.to_sparse(1) if kind >= _SPARSE else gradient
        return more[0], more[1] if counts else None


def build_distributed_step(experiment: Experiment, ranks: Ranks) -> DistributedStep:
    """The step of an experiment that several processes train. It is no CUDA graph: what is captured cannot wait for
    other processes."""
    spec = experiment.spec
    optimizer = build_optimizer(OptimizerSpec.of(spec), experiment.model)
    autocast = autocast_of(spec.dtype, experiment.device)
    return DistributedStep(experiment, optimizer, clip=spec.clip, autocast=autocast, ranks=ranks)


_SPARSE = 1 << 12  # more than there are ranks


def _kind(gradient: Tensor | None) -> int:
    return 0 if gradient is None else _SPARSE if gradient.is_sparse else 1


def _dense(weight: nn.Parameter) -> Tensor:
    if weight.grad is None:
        return torch.zeros_like(weight, memory_format=torch.contiguous_format)
    return weight.grad.to_dense() if weight.grad.is_sparse else weight.grad
