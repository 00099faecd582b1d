"""What the page asks of models: looks, losses of tokens, passages where two runs differ, continuations.

A task says which of these verbs it offers and how, in `TaskDefinition.page`:

- look `(experiment, *, text, example, length, image) -> LookParts`: one of text, example (of validation) and image
- tokens `(experiments by name, *, text) -> dict`: the loss of each token in one or two runs
- passages `(experiment, split) -> SplitLosses`: the loss of every item of a split
- continue `(experiment, *, text, at, tokens, temperature, seed) -> dict`: text that the model generates

The verb `head` gives one map of a look, and `groups` the mean loss of one run by position and the like, for reports.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from anaphor.config import look_up
from anaphor.errors import AnaphorError, ConfigError, DataError
from anaphor.inspect.parts import LookParts
from anaphor.inspect.split_losses import SplitLosses
from anaphor.plain_values import replace_nonfinite
from anaphor.progress_listener import progress_part
from anaphor.registry import import_object
from anaphor.training import checkpoint
from anaphor.training.load import Run, load_run
from anaphor.training.run_folder import RunFolder
from anaphor.web.passages import bring_together, compare_losses

LOOKS = 4
"""The latest looks that are kept."""
MAX_WEIGHTS = 250_000_000
"""Values of all kept looks but the latest: a gigabyte in single precision."""
SPLITS = 8
"""Runs whose losses of a split are kept."""

T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """A value of a request."""

    kind: type | tuple[type, ...]
    low: float = 0
    high: float = 2**31 - 1

    def check(self, name: str, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, self.kind):
            kinds = self.kind if isinstance(self.kind, tuple) else (self.kind,)
            raise ConfigError(f"{name}={value!r}: it must be {' or '.join(_KINDS[kind] for kind in kinds)}")
        if isinstance(value, int | float) and not self.low <= value <= self.high:
            raise ConfigError(f"{name}={value}: it must be from {self.low:,} to {self.high:,}")
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                raise ConfigError(f"{name} has half a character, which no text has") from None
        return value


_KINDS = {str: "a text", int: "a whole number", float: "a number"}
_TEXT, _PLACE, _LENGTH = Option(str), Option(int), Option(int, 1, 1024)
_INPUT = {"text": _TEXT, "example": _PLACE, "length": _LENGTH, "image": _TEXT}
VERBS: dict[str, dict[str, Option]] = {
    "look": _INPUT,
    "head": {**_INPUT, "look": _TEXT, "tap": _TEXT, "head": Option((int, str)), "of": _TEXT, "unit": _TEXT},
    "tokens": {"text": _TEXT},
    "passages": {"split": _TEXT, "length": _LENGTH, "count": Option(int, 2, 400), "at": _PLACE},
    "groups": {"split": _TEXT},
    "continue": {
        "text": _TEXT,
        "at": _PLACE,
        "tokens": Option(int, 1, 1024),
        "temperature": Option((int, float), 0, 100),
        "seed": _PLACE,
    },
}


class Cache:
    """What the page may ask for again: at most two models, the latest looks, the losses of splits. For one thread."""

    def __init__(self, models: int = 2, device: str = "cpu", *, force: bool = False, trust: bool = False) -> None:
        """`force` and `trust` are those of `load_run`."""
        self.models, self.device, self.force, self.trust = models, device, force, trust
        self._runs: OrderedDict[Hashable, Run] = OrderedDict()
        self._looks: OrderedDict[Hashable, LookParts] = OrderedDict()
        self._losses: OrderedDict[Hashable, SplitLosses] = OrderedDict()

    def run(self, path: Path) -> Run:
        """The run with the best of its checkpoints; loaded again as soon as it has a new one."""
        refuse_links(path)
        return _remember(self._runs, _version(path), lambda: self._load(path), self.models)

    def _load(self, path: Path) -> Run:
        for stale in [key for key, run in self._runs.items() if run.folder == path]:
            del self._runs[stale]
        while len(self._runs) >= self.models:  # before the new one is loaded, not after
            self._runs.popitem(last=False)
        return load_run(path, device=self.device, force=self.force, trust=self.trust, warn=lambda line: None)

    def losses(self, path: Path, split: str) -> SplitLosses:
        """The losses of a split. They stay when the model is gone."""

        def compute() -> SplitLosses:
            run = self.run(path)
            found: SplitLosses = _hook(run, "passages")(run.experiment, split)
            with suppress(AnaphorError):  # train may be gone
                changed = [name for name in run.experiment.changed_splits() if name == split]
                found = replace(
                    found,
                    notes=(*(f"{name} has changed since {path.name} was trained" for name in changed), *found.notes),
                )
            return found

        return _remember(self._losses, (_version(path), split), compute, SPLITS)

    def has_losses(self, path: Path, split: str) -> bool:
        """Whether the losses of a split are kept."""
        return (_version(path), split) in self._losses

    def look(self, path: Path, options: Mapping[str, Any]) -> tuple[str, LookParts]:
        """A look and its key, which is the same for the same checkpoint and input."""
        sources = [name for name in ("text", "example", "image") if options.get(name) is not None]
        if len(sources) != 1:
            raise ConfigError("look at one input: a text, an example of validation, or an image")
        version = json.dumps([*map(str, _version(path)), dict(options)], sort_keys=True)
        key = hashlib.sha256(version.encode()).hexdigest()[:16]

        def compute() -> LookParts:
            run = self.run(path)
            found: LookParts = _hook(run, "look")(run.experiment, **options)
            return found

        parts = _remember(self._looks, key, compute, LOOKS)
        while len(self._looks) > 1 and sum(one.weights for one in self._looks.values()) > MAX_WEIGHTS:
            self._looks.popitem(last=False)
        return key, parts

    def cached_look(self, key: str) -> LookParts | None:
        return self._looks.get(key)


def refuse_links(folder: Path) -> None:
    """Raise for a run with links, which may lead out of the folder that is shown. The files of a checkpoint are never
    read through links."""
    run = RunFolder(folder)
    for path in (run.spec, run.checkpoints, *run.checkpoints.glob("step-*")):
        if path.is_symlink():
            raise ConfigError(f"{path.relative_to(folder)} of {folder} is a link, which the page does not follow")


def compare_runs(
    first: Run | Path | str, second: Run | Path | str, *, split: str = "valid", length: int = 64, count: int = 40
) -> dict[str, Any]:
    """The passages of a split where two runs differ most, and their difference by groups of tokens, as the page has
    them. Examples take the place of passages where a task has no running text.

    The keys of the answer are the folders of the runs; a difference is that of the second minus that of the first.
    """
    runs = {
        str(run.folder if isinstance(run, Run) else run): run if isinstance(run, Run) else load_run(run)
        for run in (first, second)
    }
    if len({run.folder.resolve() for run in runs.values()}) < 2:
        raise ConfigError("choose two different runs")
    _refuse_incomparable(runs, split)
    losses = {name: _hook(run, "passages")(run.experiment, split) for name, run in runs.items()}
    found = compare_losses(losses, lambda name: runs[name].experiment, length=length, count=count)
    plain: dict[str, Any] = replace_nonfinite(found)
    return plain


def _refuse_incomparable(runs: Mapping[str, Run], split: str) -> None:
    """Refuse two runs, by what messages call them, of different tasks, with different data or with items that differ,
    before one is scored."""
    (one, first), (two, second) = runs.items()
    if first.task.name != second.task.name:
        raise ConfigError(f"{one} and {two} were trained for different tasks and cannot be compared")
    experiments = [first.experiment, second.experiment]
    trained_on = {experiment.saved.get("data", {}).get(split) for experiment in experiments}
    # Where they were trained on the same, nothing is read for this. What counts is the data as they are now.
    digests: set[str | None] = set()
    if len(trained_on) > 1:
        with suppress(AnaphorError):  # missing data are an error where they are scored
            digests |= {experiment.fingerprint()["data"].get(split) for experiment in experiments}
    if len(digests) > 1:
        raise DataError(f"{one} and {two} have different data in {split}: compare runs with the same data")
    if first.task.items is not None:
        read, items = import_object(first.task.items), list[SplitLosses]()
        with suppress(AnaphorError):  # as above
            items = [read(experiment, split) for experiment in experiments]
        if items:
            bring_together(items[0], items[1], (one, two))


def _remember(kept: OrderedDict[Hashable, T], key: Hashable, compute: Callable[[], T], most: int) -> T:
    """The least recently used goes first."""
    if key not in kept:
        kept[key] = compute()
    kept.move_to_end(key)
    while len(kept) > most:
        kept.popitem(last=False)
    return kept[key]


def _version(path: Path) -> tuple[Hashable, ...]:
    """Changes whenever the run gets a new checkpoint."""
    folder = RunFolder(path)
    folder.require()
    newest = next(checkpoint.newest_first(folder.checkpoints), None)
    return (path, None) if newest is None else (path, newest.name, newest.stat().st_mtime_ns)


def _hook(run: Run, verb: str) -> Callable[..., Any]:
    if verb not in run.task.page:
        offered = ", ".join(run.task.page) or "nothing"
        raise ConfigError(f"{run.folder.name} has no {verb}: a run of `train {run.task.name}` offers {offered}")
    hook: Callable[..., Any] = import_object(run.task.page[verb])
    return hook


def answer(request: Mapping[str, Any], cache: Cache) -> dict[str, Any]:
    """The answer to one request as plain JSON: `verb`, `run` (a path) or `runs` (paths by name), and its options."""
    verb = str(request.get("verb"))
    parameters = look_up(VERBS, verb, "verb")
    given = {
        name: value for name, value in request.items() if name not in ("verb", "run", "runs") and value is not None
    }
    options = {name: look_up(parameters, name, "option").check(name, value) for name, value in given.items()}
    plain: dict[str, Any] = replace_nonfinite(ANSWERS[verb](request, options, cache))
    return plain


def _look(request: Mapping[str, Any], options: dict[str, Any], cache: Cache) -> dict[str, Any]:
    key, parts = cache.look(_run_of(request), options)
    return {"look": key, **parts.plain}


def _head(request: Mapping[str, Any], options: dict[str, Any], cache: Cache) -> dict[str, Any]:
    source = {name: options[name] for name in _INPUT if name in options}
    parts = cache.cached_look(options.get("look", ""))
    if parts is None and source and request.get("run"):
        _, parts = cache.look(_run_of(request), source)
    if parts is None:
        raise ConfigError("this look is no longer in memory: look at the text again")
    if "unit" in options:
        return parts.unit(options["unit"])
    if "tap" not in options or "head" not in options:
        raise ConfigError("name a map: tap and head, or a unit")
    return parts.head(options["tap"], options["head"], **{name: options[name] for name in ("of",) if name in options})


def _tokens(request: Mapping[str, Any], options: dict[str, Any], cache: Cache) -> dict[str, Any]:
    runs = {name: cache.run(path) for name, path in _runs_of(request, 1).items()}
    _require_text(options)
    first, *others = runs.values()
    for other in others:
        if other.task.name != first.task.name:
            raise ConfigError(f"a run of `train {other.task.name}` cannot be compared with one of {first.task.name}")
    found: dict[str, Any] = _hook(first, "tokens")({name: run.experiment for name, run in runs.items()}, **options)
    return found


def _passages(request: Mapping[str, Any], options: dict[str, Any], cache: Cache) -> dict[str, Any]:
    runs, split = _runs_of(request, 2), options.pop("split", "valid")
    if split not in ("train", "valid"):
        raise ConfigError(f"split={split!r}: it must be train or valid; nothing is to be selected by passages of test")
    if not all(cache.has_losses(path, split) for path in runs.values()):
        # By their paths: the server puts names in the place of them.
        _refuse_incomparable({str(path): cache.run(path) for path in runs.values()}, split)
    losses = {}
    for number, (name, path) in enumerate(runs.items()):
        with progress_part(number, len(runs)):
            losses[name] = cache.losses(path, split)
    titles = {name: str(path) for name, path in runs.items()}  # the server puts names in the place of paths
    return compare_losses(losses, lambda name: cache.run(runs[name]).experiment, titles=titles, **options)


def _groups(request: Mapping[str, Any], options: dict[str, Any], cache: Cache) -> dict[str, Any]:
    found = cache.losses(_run_of(request), options.get("split", "valid"))
    tables = []
    for groups in found.groups.values():
        parts = [(label, found.losses[groups.codes == code]) for code, label in enumerate(groups.labels)]
        rows = [{"label": label, "items": len(part), "loss": float(part.mean())} for label, part in parts if len(part)]
        tables.append({"title": groups.title, "rows": rows})
    return {"counted": found.unit, "tables": tables}


def _continue(request: Mapping[str, Any], options: dict[str, Any], cache: Cache) -> dict[str, Any]:
    run = cache.run(_run_of(request))
    options.setdefault("text", "")
    found: dict[str, Any] = _hook(run, "continue")(run.experiment, **options)
    return found


ANSWERS: dict[str, Callable[[Mapping[str, Any], dict[str, Any], Cache], dict[str, Any]]] = {
    "look": _look,
    "head": _head,
    "tokens": _tokens,
    "passages": _passages,
    "groups": _groups,
    "continue": _continue,
}


def _run_of(request: Mapping[str, Any]) -> Path:
    if not isinstance(request.get("run"), str):
        raise ConfigError("choose a run")
    return Path(request["run"])


def _runs_of(request: Mapping[str, Any], least: int) -> dict[str, Path]:
    runs = request.get("runs")
    if not isinstance(runs, Mapping) or not least <= len(runs) <= 2 or len({*runs.values()}) < len(runs):
        raise ConfigError("choose two different runs" if least == 2 else "choose one run, or two different ones")
    return {name: Path(path) for name, path in runs.items()}


def _require_text(options: Mapping[str, Any]) -> None:
    if not options.get("text", "").strip():
        raise ConfigError("the text is empty: there is nothing to score")
