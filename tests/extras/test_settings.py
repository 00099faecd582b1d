"""Settings of an extra are settings of the runs that may have it: flags, keywords, keys of files, sections."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import pytest

import anaphor
from anaphor.api import execute
from anaphor.cli.main import main
from anaphor.config import compose_spec, settings_of
from anaphor.errors import ConfigError
from anaphor.flags import from_yaml
from anaphor.registry import LOSS_TERMS, TASKS, register_loss_term
from anaphor.training.build import build_experiment
from anaphor.training.run_folder import RunFolder

SMALL = {"data": "grammar", "width": 8, "layers": 1, "batch_size": 4, "bptt": 8, "steps": 2, "device": "cpu"}


@dataclass(frozen=True, kw_only=True)
class Shrinkage:
    section: ClassVar[str] = "shrinkage"

    shrink: float = 0.0
    """Weight of the mean square of the head's weights."""
    shrink_names: tuple[str, ...] = ()
    """Names that mean nothing."""

    def __post_init__(self):
        if self.shrink < 0:
            raise ConfigError(f"shrink={self.shrink}: it must be at least 0")


def make_shrinkage(settings):
    if not settings.shrink:
        return None
    return lambda hidden_states, head, batch: settings.shrink * head.weight.square().mean() * batch.denominator


@pytest.fixture
def shrinkage(monkeypatch):
    """The extra, registered for the time of a test."""
    monkeypatch.setattr(LOSS_TERMS, "_entries", dict(LOSS_TERMS._entries))
    register_loss_term("shrinkage", make_shrinkage, Shrinkage)


@pytest.mark.usefixtures("shrinkage")
def test_the_spec_of_a_run_has_them_and_gives_them_back():
    spec = TASKS["lm"].run_spec(shrink=0.5, shrink_names=["a"])
    assert isinstance(spec, TASKS["lm"].spec)
    assert isinstance(spec, anaphor.LanguageRunSpec)
    assert settings_of(spec, Shrinkage) == Shrinkage(shrink=0.5, shrink_names=("a",))
    assert settings_of(TASKS["lm"].spec(), Shrinkage) == Shrinkage(), "a spec from before the extra was registered"
    assert settings_of(dataclasses.replace(spec, shrink=2.0), Shrinkage).shrink == 2.0
    assert "shrink" not in {field.name for field in dataclasses.fields(TASKS["images"].run_spec)}


@pytest.mark.usefixtures("shrinkage")
@pytest.mark.parametrize(
    ("value", "message"), [(-1.0, "shrink=-1.0: it must be at least 0"), ("no", "shrink='no': it must be a number")]
)
def test_impossible_values_are_refused(value, message):
    with pytest.raises(ConfigError, match=message):
        TASKS["lm"].run_spec(shrink=value)


@pytest.mark.usefixtures("shrinkage")
def test_help_has_a_section_for_them(capsys):
    assert main(["train", "lm", "--help"]) == 0
    assert "shrinkage options" in (text := capsys.readouterr().out)
    assert "Weight of the mean square of the head's weights." in " ".join(text.replace("│", " ").split())
    assert main(["train", "images", "--help"]) == 0
    assert "shrink" not in capsys.readouterr().out


@pytest.mark.usefixtures("shrinkage")
def test_a_flag_trains_with_them_and_the_spec_file_has_their_section(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    assert main(["train", "lm", *flags, "--shrink", "0.5", "--no-test", "--out", "run"]) == 0
    assert RunFolder(tmp_path / "run").read_document()["shrinkage"] == {"shrink": 0.5}
    spec = from_yaml(TASKS["lm"].run_spec, tmp_path / "run" / "spec.yaml")
    assert spec.shrink == 0.5
    free, penalized = (build_experiment(dataclasses.replace(spec, shrink=weight)) for weight in (0.0, 0.5))
    (plain, _), (shrunk, _) = (one.loss(one.batches(0)[0], None) for one in (free, penalized))
    assert plain.penalty is None
    assert shrunk.penalty > 0
    assert plain.total == shrunk.total


def test_a_run_from_before_an_extra_is_resumed_with_it(tmp_path, request):
    execute(TASKS["lm"].run_spec(**SMALL), tmp_path / "run", test=False)
    request.getfixturevalue("shrinkage")
    longer = TASKS["lm"].run_spec(**{**SMALL, "steps": 3})
    assert not hasattr(TASKS["lm"].spec(), "shrink")
    with pytest.raises(ConfigError, match="settings differ from the checkpoint: steps was 2 and is 3;"):
        execute(longer, tmp_path / "run", resume=True, test=False)
    result, _ = execute(longer, tmp_path / "run", resume=True, force=True, test=False)
    assert result["steps"] == 3
    with pytest.raises(ConfigError, match=r"settings differ from the checkpoint: shrink was 0.0 and is 1.0"):
        execute(dataclasses.replace(longer, shrink=1.0), tmp_path / "run", resume=True, test=False)


def test_a_setting_may_stand_in_the_section_that_it_had_before(tmp_path):
    """Settings of the extras of today were once in sections of the core."""
    (tmp_path / "old.yaml").write_text("format: 2\ntask: lm\ntraining: {activation_reg: 3.0, steps: 2}\n")
    assert from_yaml(TASKS["lm"].run_spec, tmp_path / "old.yaml").activation_reg == 3.0


@pytest.mark.parametrize("text", ["shrink: 0.5\n", "shrinkage: {shrink: 0.5}\n"])
def test_a_file_whose_extra_is_missing_is_refused_in_one_line(tmp_path, error_of, text):
    (tmp_path / "own.yaml").write_text(text)
    line = error_of(["train", "lm", "--config", str(tmp_path / "own.yaml"), "--dry-run"])
    assert "has no field 'shrink" in line
    assert "settings of an extra need the extra: pass --import FILE, or install it" in line


def test_a_flag_whose_extra_is_missing_is_refused_in_one_line(capsys, error_of):
    line = error_of(["train", "lm", "--shrink", "0.5", "--dry-run"])
    assert line.startswith("unknown option --shrink;")
    assert "settings of an extra need the extra: pass --import FILE, or install it" in line
    assert main(["train", "lm", "--layer", "0.5", "--dry-run"]) == 2
    assert "extra" not in capsys.readouterr().err, "misspelt, and no setting of an extra"


@dataclass(frozen=True, kw_only=True)
class Taken:
    section: ClassVar[str] = "taken"
    lr: float = 0.0


def test_two_settings_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="Taken has the setting 'lr', and so has LanguageRunSpec: choose another"):
        compose_spec(TASKS["lm"].spec, (Taken,))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict, "settings=dict: it must be a frozen dataclass"),
        (
            dataclasses.make_dataclass("Open", [("a", int)], frozen=True, namespace={"section": "a"}),
            "field 'a' needs a default",
        ),
        (
            dataclasses.make_dataclass("Loose", [("a", int, 0)], frozen=True),
            "settings=Loose: section=None must be a name",
        ),
    ],
)
def test_a_class_that_cannot_hold_settings_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        register_loss_term("mine", make_shrinkage, settings)


def test_a_task_that_takes_no_such_extra_says_so(monkeypatch):
    monkeypatch.setattr(LOSS_TERMS, "_entries", dict(LOSS_TERMS._entries))
    register_loss_term("shrinkage", make_shrinkage, Shrinkage, tasks=("images",))
    with pytest.raises(
        ConfigError, match="loss term 'shrinkage' is registered for `train images`, which takes no such"
    ):
        TASKS["images"].run_spec(data="shapes")
    with pytest.raises(ConfigError, match="tasks='lm' is not a list of names"):
        register_loss_term("other", make_shrinkage, Shrinkage, tasks="lm")
