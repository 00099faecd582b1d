"""Load a run: its model with the best weights, its data, its metrics and results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from torch import Tensor, nn

from anaphor.config import check_at_least
from anaphor.errors import AnaphorError, CheckpointError, ConfigError, DataError, Diverged, NotInstalled, print_warning
from anaphor.plain_values import plain_value
from anaphor.registry import SERVICES
from anaphor.training import checkpoint
from anaphor.training.averaging import copy_average
from anaphor.training.build import build_experiment, task_of
from anaphor.training.curves import draw_curves
from anaphor.training.device import choose_device, set_threads
from anaphor.training.differences import setting_differences
from anaphor.training.experiment import Experiment
from anaphor.training.paths import UntrustedData
from anaphor.training.random_state import keep_random_state
from anaphor.training.run_folder import RunFolder
from anaphor.training.spec import RunSpec, read_run_spec
from anaphor.training.task import TaskDefinition
from anaphor.training.trusted_data import is_trusted, trust_data
from anaphor.typecheck import check_arguments, checks_arguments

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Model = TypeVar("Model", bound=nn.Module, default=Any, covariant=True)
    OwnTokenizer = TypeVar("OwnTokenizer", default=Any, covariant=True)
    OwnExperiment = TypeVar("OwnExperiment", bound=Experiment, default=Any, covariant=True)
    Spec = TypeVar("Spec", bound=RunSpec, default=Any, covariant=True)
else:  # torch brings typing_extensions along, but only type checkers need it
    from typing import TypeVar

    Model, OwnTokenizer = TypeVar("Model"), TypeVar("OwnTokenizer")
    OwnExperiment, Spec = TypeVar("OwnExperiment"), TypeVar("Spec")

Warn = Callable[[str], None]
BEST, LAST = "best", "last"
"""The checkpoints that are chosen without their step."""
WEIGHTS = ("model", "average")


@dataclasses.dataclass(frozen=True)
class Run(Generic[Model, OwnTokenizer, OwnExperiment, Spec]):
    """A trained run. `anaphor.train` and `anaphor.load_run` give one.

    For type checkers it has the classes of its model, tokenizer, experiment and spec, where the task is known.
    """

    folder: Path
    experiment: OwnExperiment
    """Data, model and scoring."""
    step: int
    """Step of the checkpoint that was loaded: the best one, unless another was asked for."""

    @property
    def spec(self) -> Spec:
        """The settings."""
        spec: Any = self.experiment.spec
        found: Spec = spec
        return found

    @property
    def task(self) -> TaskDefinition:
        """What the task says of itself: its metrics, what throughput counts."""
        return task_of(self.spec)

    @property
    def model(self) -> Model:
        """The model with its best weights, in evaluation mode."""
        model: Any = self.experiment.model
        found: Model = model
        return found

    @property
    def tokenizer(self) -> OwnTokenizer:
        """The tokenizer of a model of text; that of a translation has a `source` and a `target`."""
        found: OwnTokenizer = self._get_offered("tokenizer", "tokenizer")
        return found

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The validations: a row for each."""
        return RunFolder(self.folder).read_metrics()

    @property
    def history(self) -> list[dict[str, Any]]:
        """The course of training: step, loss, learning rate, gradient norm and throughput every few seconds."""
        return RunFolder(self.folder).read_steps()

    @property
    def result(self) -> dict[str, Any]:
        """The scores and metadata of the finished run, as in `result.json`."""
        return RunFolder(self.folder).read_result()

    @checks_arguments
    def evaluate(self, split: str = "valid") -> dict[str, Any]:
        """All metrics on a split, with their signature."""
        return self.experiment.score(split).to_plain()

    def generate(self, prompt: str = "", *, tokens: int = 100, **options: Any) -> str:
        """Text that continues the prompt, of so many tokens. A translation model translates the prompt, a sentence.

        Options: those of `anaphor generate`, `temperature`, `top_k`, `top_p`, `beam`, `seed`; for translation `beam`.
        """
        generate = self._get_offered("generate", "text to generate")
        check_arguments(generate, prompt, tokens=tokens, **options)
        check_at_least(1, tokens=tokens)
        options = {name: plain_value(value) for name, value in options.items()}
        text: str = generate(prompt, tokens=plain_value(tokens), **options)
        return text

    def encode(self, text: str) -> Tensor:
        """Ids of a text for the model, [1, T]. The start token is prepended, as `score`, `look` and `generate` do."""
        encode = self._get_offered("encode", "text to encode")
        check_arguments(encode, text)
        ids: Tensor = encode(text)
        return ids

    def hidden_states(self, text: str) -> tuple[Tensor, ...]:
        """Embeddings and output of every layer on a text after the start token, [1, T, D] each; see `encode`."""
        hidden_states = self._get_offered("hidden_states", "hidden states of a text")
        check_arguments(hidden_states, text)
        states: tuple[Tensor, ...] = hidden_states(text)
        return states

    def look(self, *arguments: Any, **options: Any) -> Any:
        """What happens inside the model on an input, as `anaphor look` shows it: attention, states, losses.

        `run.look(text)` returns the values; `run.look(text, out="folder")` also writes the page and the figures.
        """
        look = self._get_offered("look", "view of its inside")
        check_arguments(look, *arguments, **options)
        return look(*arguments, **options)

    def predict(self, *inputs: Any, **options: Any) -> Any:
        """What the model predicts for inputs of your own, as `anaphor predict --json` has it.

        A classifier of images takes a list of image files.
        """
        predict = self._get_offered("predict", "labels to predict")
        inputs, options = tuple(map(_list_iterator, inputs)), {key: _list_iterator(options[key]) for key in options}
        check_arguments(predict, *inputs, **options)
        return predict(*inputs, **options)

    def plot(self) -> list[Path]:
        """Draw the curves of the run into its folder. Returns their paths."""
        return draw_curves(RunFolder(self.folder), self.task)

    @checks_arguments
    def show(self, text: str | None = None) -> Any:
        """Curves and a look inside, as a frame of a notebook that needs no network.

        The model reads `text`, or a passage of validation.
        """
        if "show-run" not in SERVICES:
            raise NotInstalled("show", "anaphor.web")
        return SERVICES["show-run"](self, text)

    def _repr_html_(self) -> str | None:
        """What a notebook shows of a run. None, for which it prints the run, where files are missing."""
        try:
            html: str = self.show()._repr_html_()
        except AnaphorError:
            return None
        return html

    def _get_offered(self, name: str, what: str) -> Any:
        if not hasattr(self.experiment, name):
            raise ConfigError(f"{self.folder} has no {what}: it was trained by `train {self.spec.task}`")
        return getattr(self.experiment, name)


def read_spec(folder: Path | str) -> RunSpec:
    """The settings of a run, whatever its task."""
    run_folder = RunFolder(Path(folder))
    return read_run_spec(run_folder.read_task().run_spec, run_folder.spec)


@checks_arguments
def load_run(
    folder: Path | str,
    *,
    device: str = "auto",
    threads: int | None = None,
    force: bool = False,
    trust: bool = False,
    checkpoint: str | int = BEST,
    warn: Warn = print_warning,
) -> Run:
    """A run with the best weights that can be read, or those of another checkpoint. The global random state is left
    alone.

    Args:
        folder: The folder of the run.
        device: Where the model is put: auto, cpu or cuda.
        threads: CPU threads of this process from now on; without it their number stays as it is.
        force: Accept an imported file that was edited since the run was trained.
        trust: The run is the user's own: read the data that it names, now and later, wherever it was trained.
        checkpoint: Which weights: `best` (by validation), `last`, or the step of a checkpoint that is there.
        warn: Is called with each warning.
    """
    set_threads(threads)
    run_folder = RunFolder(Path(folder))
    run_folder.require()
    run_folder.check_imports(force=force, warn=warn)
    spec = dataclasses.replace(read_spec(folder), device=device)
    saved, newest = _find_checkpoint(run_folder, checkpoint, warn)
    # The newest, because a run may have been resumed by --force with other settings after the best.
    changed = list(setting_differences(newest.metadata["spec"], run_folder.read_settings()))
    if changed:
        raise CheckpointError(
            f"{run_folder.spec} differs from {newest.path}: {'; '.join(changed)}; restore the file as it was"
        )
    known = spec.data, run_folder.read_data_path(), newest.metadata["data"]
    if trust:
        trust_data(*known)
    with keep_random_state(choose_device(device)):
        try:
            if trust or is_trusted(*known, run_folder.folder):
                experiment = build_experiment(spec, saved.metadata, known[1])
            else:
                experiment = _build_without_data(spec, saved.metadata, run_folder.folder)
        except DataError as error:  # no data are read, but the description of the preprocessing is
            raise CheckpointError(f"{saved.metadata_file}: {error}") from None
    saved.load_into(experiment.model)
    if "average" in saved.parts:  # whatever the spec says now: a run may be resumed by --force without an average
        copy_average(saved.parts["average"], experiment.model)
    experiment.prepare_for_inference()
    return Run(Path(folder), experiment, saved.step)


def _build_without_data(spec: RunSpec, saved: dict[str, Any], folder: Path) -> Experiment:
    """The experiment of a run whose data are not read: only what needs them fails."""
    experiment = build_experiment(dataclasses.replace(spec, data=UntrustedData.of(spec.data, folder)), saved)
    experiment.spec = dataclasses.replace(experiment.spec, data=spec.data)
    return experiment


def _list_iterator(value: Any) -> Any:
    """Returns the items of an iterator as a list, for it can be read only once; any other value as it is."""
    return list(value) if isinstance(value, Iterator) else value


def _find_checkpoint(
    folder: RunFolder, wanted: str | int, warn: Warn
) -> tuple[checkpoint.Checkpoint, checkpoint.Checkpoint]:
    """The checkpoint that is wanted, and the newest."""
    if wanted in (BEST, LAST):
        return _best_or_last(folder, str(wanted), warn)
    if not str(wanted).isdecimal():
        raise ConfigError(f"checkpoint={wanted!r}: it must be {BEST}, {LAST} or the step of a checkpoint")
    _, newest = _best_or_last(folder, LAST, warn)
    path = folder.checkpoints / f"step-{int(wanted)}"
    if not path.is_dir():
        steps = sorted(int(path.name[5:]) for path in folder.checkpoints.glob("step-*") if path.name[5:].isdecimal())
        there = ", ".join(map(str, steps))
        raise CheckpointError(f"{folder.folder} has no checkpoint of step {int(wanted)} (those that are kept: {there})")
    saved = checkpoint.read(path, WEIGHTS)
    saved.check_usable()
    return saved, newest


def _best_or_last(folder: RunFolder, wanted: str, warn: Warn) -> tuple[checkpoint.Checkpoint, checkpoint.Checkpoint]:
    """The best checkpoint, or the newest where that is wanted, or the best cannot be read; and the newest. No file is
    read twice."""
    failures = list[tuple[CheckpointError | Diverged, str]]()  # and what is done about it
    for path in checkpoint.newest_first(folder.checkpoints):
        try:
            newest = checkpoint.read(path, ())
        except (CheckpointError, Diverged) as error:
            failures.append((error, "skipping this checkpoint"))
            continue
        newest.check_usable()
        best = newest.read_best_step() if wanted == BEST else None
        if best not in (None, newest.step):
            try:
                saved = checkpoint.read(folder.checkpoints / f"step-{best}", WEIGHTS)
                saved.check_usable()
            except (CheckpointError, Diverged) as error:
                failures.append((error, "using the newest checkpoint instead of the best"))
            else:
                break
        try:
            saved = newest.with_parts(WEIGHTS)
        except (CheckpointError, Diverged) as error:
            failures.append((error, "skipping this checkpoint"))
        else:
            break
    else:
        checkpoint.raise_divergence(failure for failure, _ in failures)
        reasons = [f"{folder.folder} has no checkpoint that can be read", *(str(failure) for failure, _ in failures)]
        raise CheckpointError("; ".join(reasons) + folder.describe_previous())
    for failure, remedy in failures:
        warn(f"{failure}; {remedy}")
    return saved, newest
