"""A study's spec: a base run, axes along which it varies, seeds, and the metric that selects.

The format is that of sweep files: `method`, `metric`, `parameters: {bptt: {values: [...]}}`, with `base` and `seeds`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from anaphor.config import check_at_least, check_fields, look_up
from anaphor.errors import ConfigError
from anaphor.flags import from_yaml
from anaphor.metrics.result import Metric
from anaphor.registry import TASKS, import_object
from anaphor.studies.axes import Axis, Range, format_setting, to_label
from anaphor.studies.names import check_name
from anaphor.studies.reported import Reported, read_reported
from anaphor.training.spec import BUDGETS, RunSpec, merge_settings
from anaphor.training.task import StudySupport, TaskDefinition, recipe_file
from anaphor.typecheck import check_types

METHODS = {
    "grid": "all combinations of the values",
    "zip": "the first values of all axes, then the second ones, and so on",
    "list": "a list of settings",
    "random": "random search (needs Optuna)",
    "bayes": "Bayesian search, TPE (needs Optuna)",
}
TESTS = {"best": "the selected setting", "all": "every setting, after the selection", "none": "no setting"}
MAX_PARAMETERS = 10**12
GOALS = {"min": "minimize", "max": "maximize"}
REQUIRED = {"init": "--init, a run or a folder of transformers with pretrained weights", "data": "--data"}
"""Flags that give what a study may require."""


class SizeMismatch(ConfigError):
    """A setting cannot have the number of parameters that all are to have."""


@dataclass(frozen=True)
class Setting:
    """One setting of a study: its value on each axis, and the run that it stands for, for any seed."""

    parameters: Mapping[str, Any]
    run: RunSpec
    tuned: Mapping[str, Any] = field(default_factory=dict)
    """Its value of what is tuned, by name."""
    size: int | None = None
    """Number of parameters, where the study matches it."""

    @property
    def labels(self) -> dict[str, Any]:
        """All its values by name."""
        return {**self.parameters, **self.tuned}


@dataclass(frozen=True, kw_only=True)
class StudySpec:
    """Everything that defines a study."""

    name: str
    about: str = ""
    """The question, in one line."""
    task: str = ""
    """Task of every run; the first one of the registry if not given."""
    base: Mapping[str, Any] = field(default_factory=dict)
    """Settings of every run; `recipe` names a file with more."""
    required: tuple[str, ...] = ()
    """Settings that have no default and must be given with the command, such as `init`."""
    method: str = "grid"
    parameters: tuple[Axis | Range, ...] = ()
    listed: tuple[Mapping[str, Any], ...] = ()
    """The settings themselves, for method list."""
    tune: tuple[Axis, ...] = ()
    """What is tuned: for every setting of the parameters the best of these values are chosen by validation, and only
    they are compared."""
    tune_seeds: tuple[int, ...] | int | None = None
    """Seeds that tuning runs with: so many of the first of `seeds`, or a list of others; all of `seeds` if not
    given."""
    metric: str = ""
    """Validation metric that selects, with or without the prefix `valid.`; if not given, what `select` of the base
    names, or the task's first metric."""
    goal: str = ""
    """minimize or maximize; the metric's own goal if not given."""
    seeds: tuple[int, ...] = (0, 1, 2)
    trials: int = 20
    """Number of settings that a search tries."""
    test: str = "best"
    """Settings that are evaluated on test after the selection: best, all or none."""
    match: Mapping[str, Any] = field(default_factory=dict)
    """The same number of `parameters` for every setting, `by` its width or another integer."""
    report: tuple[str, ...] = ()
    """Further metrics of the table and the figure, such as `accuracy`, or `accuracy_2x` at twice the training
    length."""
    measures: Mapping[str, Any] = field(default_factory=dict)
    """What is measured besides the validation result: options of the task, which are keys of a study file."""
    callbacks: tuple[str, ...] = ()
    """Called in every run, as "FILE.py:Class"; none of them changes training."""
    devices: int = 1
    """GPUs that each run trains on, or processes on a CPU; `torchrun` starts them. Losses depend on it by rounding."""
    prune: bool = False
    """Whether settings that are worse than the median of the others at the same step are stopped early."""

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "task", self.task or next(iter(TASKS)))
        look_up(TASKS, self.task, "task")
        look_up(METHODS, self.method, "method")
        look_up(TESTS, self.test, "choice of test scores")
        set_field(self, "metric", self._find_metric())
        goal = GOALS[self.target.goal]
        if self.goal and look_up({goal: goal for goal in GOALS.values()}, self.goal, "goal") != goal:
            raise ConfigError(f"goal={self.goal} would select the worst setting: the goal of {self.metric} is {goal}")
        set_field(self, "goal", goal)
        check_types(self)
        check_name(self.name, "name")  # of its folder
        for axis in self.parameters:
            check_name(axis.name, "parameter")  # of a figure
        set_field(self, "measures", self._complete_measures())
        read_reported(self.report, self.definition)
        self._refuse_seed()
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds={list(self.seeds)}: give at least one seed, without duplicates")
        check_at_least(1, trials=self.trials, devices=self.devices)
        self._check_parameters()
        self._check_tuning()
        self._check_match()

    def _find_metric(self) -> str:
        """The metric as `valid.NAME`. Test metrics are unknown here: nothing is selected by them."""
        metrics = {f"valid.{metric.name}": metric for metric in self.definition.metrics}
        given = str(self.metric or self.base.get("select") or self.support.metric or self.definition.metrics[0].name)
        name = given if given in metrics else f"valid.{given}"
        if name not in metrics:
            look_up(metrics, given, "metric")
        return name

    def _complete_measures(self) -> dict[str, Any]:
        """All options of the task's measures, checked."""
        if self.support.options is None:
            if self.measures:
                raise ConfigError(f"task {self.task} measures nothing else: leave out {', '.join(self.measures)}")
            return {}
        check_fields(self.support.options, self.measures, f"task {self.task}")
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self.support.options(**self.measures)).items()
        }

    def _check_parameters(self) -> None:
        if self.method == "list":
            if self.parameters or not self.listed:
                raise ConfigError(f"study {self.name!r}: method list needs parameters as a list of settings")
        elif self.listed:
            raise ConfigError(f"study {self.name!r}: parameters as a list of settings need method list")
        if not self.parameters and not self.listed:
            raise ConfigError(f"study {self.name!r} has no parameters: give at least one, with its values")
        ranges = [axis.name for axis in self.parameters if isinstance(axis, Range)]
        if ranges and not self.is_search:
            raise ConfigError(f"{ranges[0]} has no list of values: method {self.method} needs one (or use bayes)")
        sizes = {axis.name: len(axis.values) for axis in self.parameters if isinstance(axis, Axis)}
        if self.method == "zip" and len(set(sizes.values())) > 1:
            counts = ", ".join(f"{name} has {size}" for name, size in sizes.items())
            raise ConfigError(f"method zip needs as many values on every axis, but {counts}")

    def _check_tuning(self) -> None:
        """Raise for values to tune that could not be chosen, or that an axis would set as well."""
        if not self.tune:
            if self.tune_seeds is not None:
                raise ConfigError(f"tune_seeds={self.tune_seeds} has no effect without `tune`")
            return
        if self.is_search:
            raise ConfigError(f"method {self.method} searches itself: `tune` needs method grid, zip or list")
        for axis in self.tune:
            check_name(axis.name, "tune")
        varied = self._varied_settings()
        for name in (name for axis in self.tune for name in (axis.name, *_names_set_by(axis))):
            if name in varied:
                raise ConfigError(f"{name} is tuned and varied: leave it out of `tune` or of `parameters`")
        names = [name for axis in self.tune for name in _names_set_by(axis)]
        for name in (name for name in names if names.count(name) > 1):
            raise ConfigError(f"tune: {name} is set twice")
        if isinstance(self.tune_seeds, int) and not 1 <= self.tune_seeds <= len(self.seeds):
            raise ConfigError(
                f"tune_seeds={self.tune_seeds}: give so many of the {len(self.seeds)} seeds, or a list of seeds"
            )
        if len(set(self.tuning_seeds)) < max(len(self.tuning_seeds), 1):
            raise ConfigError(f"tune_seeds={list(self.tuning_seeds)}: give at least one seed, without duplicates")

    def _check_match(self) -> None:
        """Raise for sizes that could not be matched, or that are set as well."""
        if not self.match:
            return
        if set(self.match) != {"parameters", "by"}:
            raise ConfigError(f"match={dict(self.match)}: write `match: {{parameters: 117000, by: width}}`")
        parameters, by = self.match["parameters"], self.match["by"]
        if type(parameters) is not int or not 1 <= parameters <= MAX_PARAMETERS:
            raise ConfigError(f"match: parameters={parameters!r} must be an integer from 1 to {MAX_PARAMETERS:,}")
        names = {one.name for one in dataclasses.fields(self.definition.run_spec)}
        if not isinstance(by, str) or by not in names:
            look_up(dict.fromkeys(names), str(by), "setting to match by")
        if by in self.base:
            raise ConfigError(f"match finds {by}: leave {by}={self.base[by]} out of the study's base")
        tuned = {name for axis in self.tune for name in _names_set_by(axis)}
        if by in self._varied_settings() | tuned:
            raise ConfigError(f"match finds {by}, and the study varies it: leave it out of one of them")

    def _varied_settings(self) -> set[str]:
        """Names of the axes, and of all settings that they set."""
        listed = {name for setting in self.listed for name in setting}
        return listed.union(*({axis.name, *_names_set_by(axis)} for axis in self.parameters))

    @property
    def tuning_seeds(self) -> tuple[int, ...]:
        """Seeds of the runs that tune."""
        if self.tune_seeds is None:
            return self.seeds
        return self.seeds[: self.tune_seeds] if isinstance(self.tune_seeds, int) else self.tune_seeds

    def _refuse_seed(self) -> None:
        """All settings run with the same seeds, which would silently replace any other."""
        axes = {axis.name for axis in (*self.parameters, *self.tune)}
        axes |= {name for setting in self.listed for name in setting}
        variants = {name for axis in (*self.parameters, *self.tune) for name in _names_set_by(axis)} - axes
        for name in ("seed", "seeds"):
            if name in axes or name in variants or name in self.base:
                what = "axis" if name in axes else "setting"
                raise ConfigError(f"{name} is no {what}: use `seeds: [7, 8]` or `seeds: 2` for the seeds of all runs")

    @property
    def definition(self) -> TaskDefinition:
        found: TaskDefinition = TASKS[self.task]
        return found

    @property
    def support(self) -> StudySupport:
        return find_support(self.definition)

    @property
    def target(self) -> Metric:
        """The metric that selects."""
        name = self.metric.removeprefix("valid.")
        return next(metric for metric in self.definition.metrics if metric.name == name)

    @property
    def reported(self) -> tuple[Reported, ...]:
        """Metrics beside the one that selects."""
        return tuple(one for one in read_reported(self.report, self.definition) if one.metric != self.target)

    @property
    def longer(self) -> list[int]:
        """How many times as long as in training the examples are on which every model is evaluated as well."""
        return sorted({one.factor for one in self.reported if one.factor > 1})

    @property
    def wanted(self) -> dict[str, Any]:
        """What is measured besides the validation result."""
        return {**self.measures, **({"longer": self.longer} if self.longer else {})}

    @property
    def is_search(self) -> bool:
        """Whether settings are drawn while the study runs."""
        return self.method in ("random", "bayes")

    @property
    def axes(self) -> dict[str, tuple[Any, ...]]:
        """Values of each axis, in order; a search has none before it ran."""
        if self.method == "list":
            rows = [labels for labels, _ in self._combinations()]
            return {name: tuple(dict.fromkeys(row[name] for row in rows)) for name in rows[0]}
        return {axis.name: axis.values for axis in self.parameters if isinstance(axis, Axis)}

    def settings(self) -> list[Setting]:
        """All settings of the study, in order, each checked; with what is tuned, all candidates."""
        return [
            self.make_setting(parameters, {**given, **settings}, tuned)
            for parameters, given in self._combinations()
            for tuned, settings in _combine(self.tune)
        ]

    def count_cells(self) -> int:
        """The number of cells; not of a search, whose settings may occur twice."""
        settings = sum(1 for _ in self._combinations())
        candidates = settings * math.prod(len(axis.values) for axis in self.tune)
        compared = set(self.seeds) - set(self.tuning_seeds) if self.tune else self.seeds
        return settings * len(compared) + (candidates * len(self.tuning_seeds) if self.tune else 0)

    def _combinations(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Value on each axis, and what it sets."""
        if self.method == "list":
            names = dict.fromkeys(name for listed in self.listed for name in listed)
            for listed in self.listed:
                filled = self._fill_in(self._merge(self.base, listed))
                yield {name: to_label(filled.get(name)) for name in names}, dict(listed)
            return
        axes = [axis for axis in self.parameters if isinstance(axis, Axis)]
        yield from _combine(axes, partial(zip, strict=True) if self.method == "zip" else itertools.product)

    def _fill_in(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Settings with those that were left out, as a run has them: of the recipe, or by default."""
        defaults = {one.name: one.default for one in dataclasses.fields(self.definition.run_spec)}
        start = self._read_recipe(given.get("recipe")) or defaults
        # No value for each layer is none at all.
        return self._merge({name: start[name] for name in start if start[name] not in ((), dataclasses.MISSING)}, given)

    def _read_recipe(self, name: Any) -> dict[str, Any]:
        """The settings of a recipe; none without a name."""
        kind = self.definition.run_spec
        return {} if name is None else dict(vars(from_yaml(kind, recipe_file(str(name), self.definition))))

    def _merge(self, base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        return merge_settings(self.definition.run_spec, base, given)

    def make_setting(
        self, parameters: Mapping[str, Any], given: Mapping[str, Any], tuned: Mapping[str, Any] | None = None
    ) -> Setting:
        """The run of one setting: the recipe, overridden by the base, overridden by what is given."""
        labels, values = {**parameters, **(tuned or {})}, self._complete(given)
        try:
            run, same = self._make_run(values)
            if not self.match:
                return Setting(dict(parameters), run, dict(tuned or {}))
            from anaphor.studies.size_matching import match_size  # it imports torch, and this module

            run, size = match_size(run, self.match["by"], self.match["parameters"], same)
        except SizeMismatch as error:
            raise self.error_at(labels, ConfigError(f"{error}; {self._suggest_size()}")) from None
        except ConfigError as error:
            raise self.error_at(labels, error) from None
        return Setting(dict(parameters), run, dict(tuned or {}), size)

    def _complete(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All settings of a run whose own ones are given."""
        kind = self.definition.run_spec
        merged = self._merge(self.base, given)
        values = self._read_recipe(merged.pop("recipe", None))
        self._refuse_other_tasks(merged)
        check_fields(kind, merged, "a run of a study")
        for name in self.required:
            if merged.get(name) is None:
                flag = REQUIRED.get(name, f"--set {name}=VALUE")
                raise ConfigError(f"study {self.name!r} has no {name} of its own: give it with {flag}")
        return self._merge(
            values, {name: tuple(value) if isinstance(value, list) else value for name, value in merged.items()}
        )

    def _make_run(self, values: Mapping[str, Any]) -> tuple[RunSpec, tuple[str, ...]]:
        """A run, before its size is matched, and the settings that refer to what is matched, such as `$width`."""
        matched = f"${self.match['by']}" if self.match else None
        same = tuple(name for name, value in values.items() if value == matched)
        given = {name: _resolve_reference(name, values[name], values) for name in values if name not in same}
        return self.definition.run_spec(**given), same

    def _suggest_size(self) -> str:
        """What to do where a setting cannot have the size of all."""
        from anaphor.studies.size_matching import suggest_size

        first = {name: value for axis in self.tune for name, value in axis.settings[0].items()}
        runs = [self._make_run(self._complete({**given, **first})) for _, given in self._combinations()]
        return suggest_size(runs, self.match["by"], self.match["parameters"])

    def _refuse_other_tasks(self, given: Mapping[str, Any]) -> None:
        """Raise for a setting of another task, and name the task."""
        own = {one.name for one in dataclasses.fields(self.definition.run_spec)}
        for name, other in itertools.product(given, TASKS):
            if name not in own and name in {one.name for one in dataclasses.fields(TASKS[other].run_spec)}:
                raise ConfigError(
                    f"study {self.name!r}: {name} is a setting of `task: {other}`, and this study has "
                    f"`task: {self.task}`"
                )

    def error_at(self, parameters: Mapping[str, Any], error: ConfigError) -> ConfigError:
        """The same error with the setting at which it occurred."""
        return ConfigError(f"study {self.name!r} at {format_setting(parameters)}: {error}")

    def setting_at(self, chosen: Mapping[str, Any]) -> Setting:
        """The setting of a search with these values on its axes."""
        given: dict[str, Any] = {}
        for axis in self.parameters:
            value = chosen[axis.name]
            given |= axis.settings[axis.values.index(value)] if isinstance(axis, Axis) else {axis.name: value}
        return self.make_setting(chosen, given)

    def example_setting(self) -> Setting:
        """Some setting of a search, to check it before it starts."""
        return self.setting_at(
            {axis.name: axis.values[0] if isinstance(axis, Axis) else axis.middle for axis in self.parameters}
        )

    def to_plain(self) -> dict[str, Any]:
        """As in a file, with all keys."""
        parameters: Any = {axis.name: axis.to_plain() for axis in self.parameters} or [dict(one) for one in self.listed]
        return {
            "about": self.about,
            "task": self.task,
            "base": {key: list(value) if isinstance(value, tuple) else value for key, value in self.base.items()},
            **({"required": list(self.required)} if self.required else {}),
            "method": self.method,
            "metric": {"name": self.metric, "goal": self.goal},
            "parameters": parameters,
            **({"tune": {axis.name: axis.to_plain() for axis in self.tune}} if self.tune else {}),
            "seeds": list(self.seeds),
            **({} if self.tune_seeds is None else {"tune_seeds": self._plain_tune_seeds()}),
            "trials": self.trials,
            "test": self.test,
            **({"match": dict(self.match)} if self.match else {}),
            **({"report": list(self.report)} if self.report else {}),
            **self.measures,
            **({} if self.devices == 1 else {"devices": self.devices}),
            "prune": self.prune,
        }

    def _plain_tune_seeds(self) -> Any:
        return list(self.tune_seeds) if isinstance(self.tune_seeds, tuple) else self.tune_seeds

    def with_base(self, **settings: Any) -> StudySpec:
        """The same study with other settings in its base."""
        return replace(self, base=self._merge(self.base, settings))

    def find_axis_of(self, name: str) -> str | None:
        """The axis that sets this everywhere, so that the base has no effect on it; None if none does.

        One budget replaces any other.
        """
        names = BUDGETS if name in BUDGETS else (name,)
        if self.listed and (found := [one for one in names if all(one in setting for setting in self.listed)]):
            return found[0]
        for axis in (*self.parameters, *self.tune):
            all_settings = axis.settings if isinstance(axis, Axis) else ({axis.name: None},)
            if all(any(one in settings for one in names) for settings in all_settings):
                return axis.name
        return None


def find_support(definition: TaskDefinition) -> StudySupport:
    study = StudySupport() if definition.study is None else definition.study
    found: StudySupport = import_object(study) if isinstance(study, str) else study
    return found


def _combine(axes: Sequence[Axis], combine: Callable[..., Iterable[Any]] = itertools.product) -> Iterator[Any]:
    """Value on each axis, and what it sets, for all combinations of their values."""
    columns = [list(zip(axis.values, axis.settings, strict=True)) for axis in axes]
    for combination in combine(*columns):
        labels = {axis.name: label for axis, (label, _) in zip(axes, combination, strict=True)}
        yield labels, {name: value for _, settings in combination for name, value in settings.items()}


def _names_set_by(axis: Axis | Range) -> set[str]:
    """Names of the settings that an axis sets."""
    return {name for given in axis.settings for name in given} if isinstance(axis, Axis) else {axis.name}


def _resolve_reference(name: str, value: Any, values: Mapping[str, Any]) -> Any:
    """A value; `$width` stands for the width of the same setting."""
    if not (isinstance(value, str) and value.startswith("$")):
        return value
    found = look_up(values, value[1:], f"setting in {name}={value}:")
    if isinstance(found, str) and found.startswith("$"):
        raise ConfigError(f"{name}: {value} refers to {found}: refer to the last setting directly")
    return found
