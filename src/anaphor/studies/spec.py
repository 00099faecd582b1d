"""A study on one page: a base run, axes along which it varies, seeds, and what to choose by.

The shape is the one that sweep files have: `method`, `metric`, `parameters: {bptt: {values: [...]}}`, with `base` and
`seeds` beside them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from anaphor.config import check_fields, check_types, look_up, nearest, read_mapping
from anaphor.errors import ConfigError
from anaphor.flags import from_yaml
from anaphor.studies.axes import Axis, Range, as_label, read_axis
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.tasks.translate import TranslationRunSpec
from anaphor.training.precedence import laid_over, without_replaced
from anaphor.training.recipes import recipe_file
from anaphor.training.spec import BUDGETS, RunSpec

TASKS: dict[str, type[RunSpec]] = {kind.task: kind for kind in (LanguageRunSpec, TranslationRunSpec)}
METHODS = {
    "grid": "every combination of the values",
    "zip": "the first values together, then the second ones, and so on",
    "list": "the settings as they are written down",
    "random": "settings drawn at random",
    "bayes": "settings that look promising after those so far (needs Optuna)",
}
TESTS = {"best": "the chosen setting", "all": "every setting, once the choice is sealed", "none": "none of them"}
GOALS = {"minimize": "less is better", "maximize": "more is better"}
METRICS = {
    "valid.loss": "minimize",
    "valid.perplexity": "minimize",
    "valid.bits_per_byte": "minimize",
    "valid.bleu": "maximize",
}


@dataclass(frozen=True)
class Setting:
    """One place of a study: what its axes say there, and the run that this makes, whatever the seed."""

    parameters: Mapping[str, Any]
    run: RunSpec


@dataclass(frozen=True, kw_only=True)
class StudySpec:
    """All that makes a study."""

    name: str
    about: str = ""
    """What it asks, in one line."""
    task: str = "lm"
    base: Mapping[str, Any] = field(default_factory=dict)
    """Settings of every run; `recipe` among them names a file with more."""
    method: str = "grid"
    parameters: tuple[Axis | Range, ...] = ()
    listed: tuple[Mapping[str, Any], ...] = ()
    """The settings themselves, where the method is list."""
    metric: str = "valid.perplexity"
    """What settings are compared by. Test scores cannot be named here."""
    goal: str = "minimize"
    seeds: tuple[int, ...] = (0, 1, 2)
    trials: int = 20
    """How many settings a search tries."""
    test: str = "best"
    """Which settings are scored on test, after the choice: best, all or none."""
    lengths: tuple[int, ...] = ()
    """Lengths of segments at which every model is scored besides its own."""
    samples: Mapping[str, str] = field(default_factory=dict)
    """Texts that every model scores one by one, by name."""
    long_lines: int = 0
    """So many of the longest lines of the validation text are scored one by one as well."""
    train_score: bool = False
    """Whether every model is scored on the beginning of its training text, too, as much of it as validation has."""
    stop_hopeless: bool = False
    """Whether the runs of a setting end early that is worse than the median of the others at the same step."""

    def __post_init__(self) -> None:
        look_up(TASKS, self.task, "task")
        look_up(METHODS, self.method, "method")
        look_up(GOALS, self.goal, "goal")
        look_up(TESTS, self.test, "choice of test scores")
        look_up(METRICS, self.metric, "metric")
        best = METRICS[self.metric]
        if self.goal != best:
            raise ConfigError(f"goal={self.goal} would choose the worst: the goal of {self.metric} is {best}")
        check_types(self)
        if self.metric == "valid.bleu" and self.task != "translate":
            raise ConfigError(f"metric={self.metric} is for the task translate, not for {self.task}")
        if self.task != "lm" and (self.lengths or self.samples or self.long_lines or self.train_score):
            raise ConfigError(f"lengths, samples, long_lines and train_score are for the task lm, not for {self.task}")
        self._require_no_seed()
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds={list(self.seeds)}: give at least one, and each only once")
        if any(length < 1 for length in self.lengths):
            raise ConfigError(f"lengths={list(self.lengths)}: a segment has at least 1 token")
        for name, text in self.samples.items():
            if not text.strip():
                raise ConfigError(f"samples: {name} is empty, and there is nothing to score")
        if self.long_lines < 0:
            raise ConfigError(f"long_lines={self.long_lines}: it must be 0 or more")
        if self.trials < 1:
            raise ConfigError(f"trials={self.trials}: it must be at least 1")
        if self.method == "list":
            if self.parameters or not self.listed:
                raise ConfigError(f"study {self.name!r}: method list needs parameters as a list of settings")
        elif self.listed:
            raise ConfigError(f"study {self.name!r}: parameters as a list of settings need method list")
        if not self.parameters and not self.listed:
            raise ConfigError(f"study {self.name!r} has no parameters: name at least one, with the values it takes")
        ranges = [axis.name for axis in self.parameters if isinstance(axis, Range)]
        if ranges and not self.searches:
            raise ConfigError(f"{ranges[0]} has no list of values: method {self.method} needs one (or use bayes)")
        sizes = {axis.name: len(axis.values) for axis in self.parameters if isinstance(axis, Axis)}
        if self.method == "zip" and len(set(sizes.values())) > 1:
            told = ", ".join(f"{name} has {size}" for name, size in sizes.items())
            raise ConfigError(f"method zip needs as many values on every axis, but {told}")

    def _require_no_seed(self) -> None:
        """Every setting is run with the same seeds, which would silently take the place of any other."""
        axes = {axis.name for axis in self.parameters} | {name for setting in self.listed for name in setting}
        variants = {
            name for axis in self.parameters if isinstance(axis, Axis) for said in axis.settings for name in said
        }
        for name in ("seed", "seeds"):
            if name in axes or name in variants or name in self.base:
                what = "axis" if name in axes else "setting"
                raise ConfigError(
                    f"{name} is no {what}: `seeds: [7, 8]` or `seeds: 2` says with which seeds all are run"
                )

    @property
    def searches(self) -> bool:
        """Whether the next setting depends on chance or on the results so far."""
        return self.method in ("random", "bayes")

    @property
    def axes(self) -> dict[str, tuple[Any, ...]]:
        """The values along each axis, in order; a search has none until it has been run."""
        if self.method == "list":
            places = [labels for labels, _ in self._places()]
            return {name: tuple(dict.fromkeys(place[name] for place in places)) for name in places[0]}
        return {axis.name: axis.values for axis in self.parameters if isinstance(axis, Axis)}

    def settings(self) -> list[Setting]:
        """Every place of the study, in order, each checked before the first one is run."""
        return [self.setting(*place) for place in self._places()]

    def _places(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        if self.method == "list":
            names = dict.fromkeys(name for listed in self.listed for name in listed)
            for listed in self.listed:
                whole = laid_over(self.base, listed)  # what an item leaves out is as the base has it
                yield {name: as_label(whole.get(name)) for name in names}, dict(listed)
            return
        axes = [axis for axis in self.parameters if isinstance(axis, Axis)]
        columns = [list(zip(axis.values, axis.settings, strict=True)) for axis in axes]
        combined = zip(*columns, strict=True) if self.method == "zip" else itertools.product(*columns)
        for place in combined:
            labels = {axis.name: label for axis, (label, _) in zip(axes, place, strict=True)}
            said: dict[str, Any] = {}
            for _, settings in place:
                said |= settings
            yield labels, said

    def setting(self, parameters: Mapping[str, Any], said: Mapping[str, Any]) -> Setting:
        """The run of one place: a recipe, over it the base, over that what the place says."""
        kind = TASKS[self.task]
        given = laid_over(self.base, said)
        recipe = given.pop("recipe", None)
        values = {} if recipe is None else dict(vars(from_yaml(kind, recipe_file(str(recipe), self.task))))
        self._require_own(given)
        check_fields(kind, given, "a run of a study")
        values = without_replaced(values, given)
        values |= {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
        try:
            values = {name: _followed(name, value, values) for name, value in values.items()}
            return Setting(dict(parameters), kind(**values))
        except ConfigError as error:
            raise self.refusal(parameters, error) from None

    def _require_own(self, given: Mapping[str, Any]) -> None:
        """Refuse a setting that runs of another task have, and say of which."""
        names = {task: {one.name for one in fields(kind)} for task, kind in TASKS.items()}
        for name, task in itertools.product(given, TASKS):
            if name in names[task] and name not in names[self.task]:
                raise ConfigError(
                    f"study {self.name!r}: {name} belongs to `task: {task}`, and this study has `task: {self.task}`"
                )

    def refusal(self, parameters: Mapping[str, Any], error: ConfigError) -> ConfigError:
        """What is wrong, and at which place."""
        told = ", ".join(f"{name} {value}" for name, value in parameters.items())
        return ConfigError(f"study {self.name!r} at {told}: {error}")

    def at(self, chosen: Mapping[str, Any]) -> Setting:
        """The place of a search that has these values on its axes."""
        said: dict[str, Any] = {}
        for axis in self.parameters:
            value = chosen[axis.name]
            said |= axis.settings[axis.values.index(value)] if isinstance(axis, Axis) else {axis.name: value}
        return self.setting(chosen, said)

    def middle(self) -> Setting:
        """A place of a search, before it has begun."""
        return self.at(
            {axis.name: axis.values[0] if isinstance(axis, Axis) else axis.middle for axis in self.parameters}
        )

    def to_plain(self) -> dict[str, Any]:
        """As its file would say it, every key in it."""
        parameters: Any = {axis.name: axis.to_plain() for axis in self.parameters} or [dict(one) for one in self.listed]
        return {
            "about": self.about,
            "task": self.task,
            "base": {key: list(value) if isinstance(value, tuple) else value for key, value in self.base.items()},
            "method": self.method,
            "metric": {"name": self.metric, "goal": self.goal},
            "parameters": parameters,
            "seeds": list(self.seeds),
            "trials": self.trials,
            "test": self.test,
            "lengths": list(self.lengths),
            "samples": dict(self.samples),
            "long_lines": self.long_lines,
            "train_score": self.train_score,
            "stop_hopeless": self.stop_hopeless,
        }

    def with_base(self, **settings: Any) -> StudySpec:
        """The same study of another base."""
        return replace(self, base=laid_over(self.base, settings))

    def varied_by(self, name: str) -> str | None:
        """The axis that sets this everywhere, so that what the base says of it counts for nothing; None if none does.

        One budget takes the place of another, whatever their units.
        """
        also = BUDGETS if name in BUDGETS else (name,)
        if self.listed:
            return next((one for one in also if all(one in setting for setting in self.listed)), None)
        for axis in self.parameters:
            places = axis.settings if isinstance(axis, Axis) else ({axis.name: None},)
            if all(any(one in settings for one in also) for settings in places):
                return axis.name
        return None


def _followed(name: str, value: Any, values: Mapping[str, Any]) -> Any:
    """A value, or for `$width` whatever the width is at this place."""
    if not (isinstance(value, str) and value.startswith("$")):
        return value
    other = value[1:]
    found = look_up(values, other, f"setting for {name} to follow")
    if isinstance(found, str) and found.startswith("$"):
        raise ConfigError(f"{name} follows {other}, which follows {found[1:]}: let both follow the last")
    return found


def read_study(path: Path | str, name: str | None = None, data: str | None = None) -> StudySpec:
    """A study from its file. What the file has for that data set under `with_data` is laid over the rest."""
    path = Path(path)
    values = read_mapping(path)
    given = values.pop("with_data", {})
    if not isinstance(given, dict) or not all(isinstance(part, dict) for part in given.values()):
        raise ConfigError(f"{path}: with_data holds a data set's name and, under it, what is different there")
    special = given.get(data if data is not None else str(_mapping(values, "base", path).get("data", "")), {})
    base = laid_over(_mapping(values, "base", path), _mapping(special, "base", path))
    if data is not None:
        base["data"] = data
    return _study(path, name or path.stem, {**values, **special, "base": base})


def _study(path: Path, name: str, values: dict[str, Any]) -> StudySpec:
    metric = values.pop("metric", {})
    metric = {"name": metric} if isinstance(metric, str) else metric
    if not isinstance(metric, dict) or set(metric) - {"name", "goal"}:
        raise ConfigError(f"{path}: metric holds a name and a goal, not {metric!r}")
    parameters = values.pop("parameters", {})
    known = {"name", "about", "task", "base", "method", "seeds", "trials", "test", "lengths", "samples", "long_lines",
             "train_score", "stop_hopeless"}  # fmt: skip
    for key in values:
        if key not in known:
            said = ", ".join(sorted([*known, "metric", "parameters", "with_data"]))
            raise ConfigError(f"{path}: unknown key {key!r}{nearest(key, [*known, 'parameters'])} (known: {said})")
    seeds = values.pop("seeds", 3)
    chosen = {"name": name, **values, "seeds": _seeds(seeds, path)}
    if isinstance(parameters, list):
        if not all(isinstance(setting, dict) for setting in parameters):
            raise ConfigError(f"{path}: each item of parameters holds names and values")
        chosen["listed"] = tuple(parameters)
    elif isinstance(parameters, dict):
        chosen["parameters"] = tuple(read_axis(str(key), value, path) for key, value in parameters.items())
    else:
        raise ConfigError(f"{path}: parameters hold names and what they may be, not {parameters!r}")
    name_of_metric = str(metric.get("name", "valid.perplexity"))
    goal = str(metric.get("goal", METRICS.get(name_of_metric, "minimize")))
    lengths = tuple(_list(chosen.pop("lengths", []), "lengths", int, path))
    samples = {str(key): "" if text is None else str(text) for key, text in _mapping(chosen, "samples", path).items()}
    chosen |= {"lengths": lengths, "samples": samples}
    try:
        return StudySpec(metric=name_of_metric, goal=goal, **chosen)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _seeds(given: Any, path: Path) -> tuple[int, ...]:
    """A list of seeds, or how many there are."""
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return tuple(range(given))
    if not isinstance(given, list):
        raise ConfigError(f"{path}: seeds is how many there are, at least 1, or a list of whole numbers, not {given!r}")
    return tuple(_list(given, "seeds", int, path))


def _list(given: Any, name: str, kind: type, path: Path) -> list[Any]:
    if not isinstance(given, list) or not all(type(item) is kind for item in given):
        raise ConfigError(f"{path}: {name} is a list of whole numbers, not {given!r}")
    return given


def _mapping(values: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    given = values.get(name, {})
    if not isinstance(given, dict):
        raise ConfigError(f"{path}: {name} holds names and values, not {given!r}")
    return given
