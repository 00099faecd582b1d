"""Does a registered mixer keep the promises of the contract? `check_mixer` builds it and tries all of them.

Each promise is tried on a few tokens first, where a failure is easy to read, and then on many: a kernel that works in
chunks, in powers of two for example, may go wrong from a certain length on.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from anaphor.config import check_at_least
from anaphor.errors import AnaphorError, ConfigError, describe_exception
from anaphor.mixers import contract
from anaphor.mixers.base import Mixer
from anaphor.mixers.contract import PROMISES, PromiseBroken
from anaphor.mixers.spec import mixer_spec, options_of
from anaphor.taps import taps_of

Value = TypeVar("Value")
ROWS, FEW, MORE = 4, 20, 5
"""Rows, tokens of the first trials, and tokens after a state."""
WHOLE_SEQUENCE_PROMISES = ("padding_leaves_no_trace", "rows_can_be_reordered", "recording_changes_nothing")
"""The promises of a mixer that does not stream."""
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
TWIN = "agrees_with_the_twin"
"""What `against` adds to the promises."""


@dataclass(frozen=True, kw_only=True)
class CheckSettings:
    """On what a mixer is tried."""

    tokens: int = 260
    """Most tokens of a sequence; lengths are tried around each power of two up to it."""
    width: int = 64
    """Width of the mixer."""
    device: str = "cpu"
    """Device, as torch names it."""
    dtype: str = "float64"
    """Precision: float64, float32 or bfloat16."""
    against: str | None = None
    """A mixer that computes the same, slowly; None: there is no such trial."""

    def __post_init__(self) -> None:
        check_at_least(1, tokens=self.tokens, width=self.width)
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype={self.dtype!r}: it must be one of {', '.join(DTYPES)}")


@dataclass(frozen=True)
class ContractReport:
    """Which promises a mixer keeps."""

    mixer: str
    promises: dict[str, bool]
    """Every promise that applies, and whether it holds."""
    failures: dict[str, str]
    """What goes wrong where, for each promise that does not hold."""
    inapplicable: dict[str, str]
    """Why a promise does not apply."""
    not_checked: tuple[str, ...]
    """What these trials say nothing about."""

    @property
    def holds(self) -> bool:
        """Whether all promises are kept."""
        return all(self.promises.values())

    def to_plain(self) -> dict[str, Any]:
        return {
            "mixer": self.mixer,
            "holds": self.holds,
            "promises": self.promises,
            "failures": self.failures,
            "not_checked": list(self.not_checked),
        }


def check_mixer(name: str, settings: CheckSettings | None = None) -> ContractReport:
    """Build a registered mixer and try every promise that applies to it, on inputs of a fixed seed."""
    settings = settings or CheckSettings()
    for known in (name, settings.against):
        if known is not None:
            options_of(known)  # an unknown name is the caller's mistake, not the mixer's
    failures: dict[str, str] = {}
    inapplicable: dict[str, str] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mixer, problem = _try(partial(_build, name, settings))
        if mixer is None:
            failures = dict.fromkeys(PROMISES, f"it cannot be built with width={settings.width}: {problem}")
        else:
            inapplicable = _find_inapplicable(mixer)
            for promise, trial in _trials(mixer, settings):
                if promise not in inapplicable and promise not in failures:
                    _, problem = _try(partial(trial, mixer))
                    failures |= {promise: problem} if problem else {}
    names = [*PROMISES, *([] if settings.against is None else [TWIN])]
    promises = {promise: promise not in failures for promise in names if promise not in inapplicable}
    return ContractReport(name, promises, failures, inapplicable, tuple(_not_checked(settings)))


def _build(name: str, settings: CheckSettings) -> Mixer:
    mixer = mixer_spec(name, width=settings.width).build()
    return mixer.to(settings.device, DTYPES[settings.dtype]).eval()


def _find_inapplicable(mixer: Mixer) -> dict[str, str]:
    unneeded = [] if mixer.streams else [name for name in PROMISES if name not in WHOLE_SEQUENCE_PROMISES]
    found = dict.fromkeys(unneeded, "the mixer needs whole sequences")
    return found if taps_of(mixer) else {**found, "recording_changes_nothing": "the mixer has no taps"}


def _not_checked(settings: CheckSettings) -> Iterator[str]:
    if settings.against is None:
        yield "what it computes (a mean of the past keeps every promise and is no attention): see --against"
    yield "training mode, with dropout and kernels that run in training only"
    kind = f"width {settings.width}, {settings.device} and {settings.dtype}"
    yield f"more than {settings.tokens} tokens, and anything but {kind}"


def lengths_up_to(tokens: int) -> list[int]:
    """Lengths around each power of two, and the largest: 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, …, tokens."""
    powers = [2**exponent for exponent in range(tokens.bit_length() + 1)]
    near = {power + offset for power in powers for offset in (-1, 0, 1)}
    return sorted(length for length in {*near, tokens} if 0 < length <= tokens)


def _trials(mixer: Mixer, settings: CheckSettings) -> Iterator[tuple[str, Callable[[Mixer], None]]]:
    """What is tried, with the promise that it belongs to: on few tokens, and then on many."""
    limit = mixer.spec.limit
    most = settings.tokens if limit is None else max(1, min(settings.tokens, limit - 2 - 2 * MORE))
    for tokens in dict.fromkeys((min(FEW, most), most)):
        x, more = (_draw(tokens, settings), _draw(MORE, settings))
        ends = [tokens, 4, 1, 0] if tokens <= FEW else [tokens, 129, 33, 0]
        lengths = torch.tensor([min(end, tokens) for end in ends], device=x.device)
        order = torch.tensor([3, 0, 0, 2, 1], device=x.device)
        yield "chunks_equal_whole", partial(_try_cuts, x=x, is_short=tokens <= FEW)
        yield "padding_leaves_no_trace", partial(contract.padding_leaves_no_trace, x=x, more=more, lengths=lengths)
        yield "rows_can_be_reordered", partial(contract.rows_can_be_reordered, x=x, more=more, order=order)
        yield "gradient_crosses_the_seam", partial(contract.gradient_crosses_the_seam, x=x, more=more)
        yield "old_state_survives", partial(contract.old_state_survives, x=x, more=more)
        yield "recording_changes_nothing", partial(contract.recording_changes_nothing, x=x, more=more, lengths=lengths)
        if settings.against is not None:
            yield TWIN, partial(_try_twin, settings=settings, x=x, more=more, lengths=lengths)


def _draw(tokens: int, settings: CheckSettings) -> Tensor:
    """The same numbers on every device."""
    return torch.randn(ROWS, tokens, settings.width, dtype=torch.float64).to(settings.device, DTYPES[settings.dtype])


def _try_cuts(mixer: Mixer, x: Tensor, is_short: bool) -> None:
    tokens = x.shape[1]
    every = list(range(1, tokens))
    if is_short:
        for cuts in ([min(4, tokens)], every, [0, min(5, tokens), min(5, tokens), tokens]):
            contract.chunks_equal_whole(mixer, x, cuts)
        return
    row = x[:1]
    for length in lengths_up_to(tokens - 1):
        contract.chunks_equal_whole(mixer, row, [length])
    contract.chunks_equal_whole(mixer, row, lengths_up_to(tokens))
    contract.chunks_equal_whole(mixer, row, every)


def _try_twin(mixer: Mixer, settings: CheckSettings, x: Tensor, more: Tensor, lengths: Tensor) -> None:
    """The twin has the weights of the mixer, by their names."""
    assert settings.against is not None, "there is a twin"
    twin = _build(settings.against, settings)
    mine, others = ({name: weight.shape for name, weight in one.state_dict().items()} for one in (mixer, twin))
    if mine != others:
        names = [name for name in {**mine, **others} if mine.get(name) != others.get(name)]
        raise PromiseBroken(f"{settings.against} has other weights: {', '.join(names)} differ in name or shape")
    if mixer.streams != twin.streams:
        raise PromiseBroken(f"only one of the two streams, and {settings.against} is to be a twin")
    twin.load_state_dict(mixer.state_dict())
    contract.is_same(mixer, twin, x, more, lengths)


def _try(action: Callable[[], Value]) -> tuple[Value | None, str]:
    """The result, or what went wrong in one line."""
    try:
        return action(), ""
    except (PromiseBroken, AnaphorError) as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001 (a user's mixer may raise anything)
        library = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent))
        frames = traceback.extract_tb(error.__traceback__)
        users = [frame for frame in frames if not frame.filename.startswith(library)]
        place = f"line {users[-1].lineno} of {Path(users[-1].filename).name}" if users else ""
        return None, describe_exception(error, place)
