"""Resuming with other settings or in another environment, and flags that decide on an existing run."""

import json
import signal
from dataclasses import replace

import pytest
import torch

from anaphor import load_run
from anaphor.api import execute
from anaphor.cli.main import main
from anaphor.errors import CheckpointError
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.training import checkpoint, loop
from anaphor.training.callbacks import NullCallback
from anaphor.training.run_folder import RunFolder
from command_line import override

TRAIN = "train lm --data text --model lstm --width 8 --layers 1 --batch-size 2 --bptt 5 --steps 4 --eval-every 2"
NEW = [*TRAIN.split(), "--device", "cpu", "--no-test", "--json", "--out", "run"]
RESUME = ["train", "lm", "--resume", "--no-test", "--json", "--out", "run"]

pytestmark = pytest.mark.usefixtures("text")
FINISHED = "anaphor: run has been trained to its end: it is only scored"


@pytest.fixture(autouse=True)
def _as_the_command_has_it():
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """A run of two steps of four, as after a kill."""
    with monkeypatch.context() as patch:
        patch.setattr(loop, "prune_finished", lambda run: None)  # both checkpoints stay whole
        assert main(NEW) == 0
    checkpoint.prune(tmp_path / "run" / "checkpoints", keep=0, also=[2])
    capsys.readouterr()
    return RunFolder(tmp_path / "run")


def warnings_of(capsys, words):
    assert main(words) == 0
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("anaphor: ")]


def refused(difference):
    return f"settings differ from the checkpoint: {difference}; use --force to resume anyway"


def test_another_dtype_is_refused_and_accepted_by_force(run, capsys, error_of):
    difference = "dtype was float32 and is bfloat16"
    before = run.spec.read_bytes()
    assert error_of([*RESUME, "--dtype", "bfloat16"]) == refused(difference)
    assert run.spec.read_bytes() == before
    warnings = warnings_of(capsys, [*RESUME, "--dtype", "bfloat16", "--force"])
    assert warnings == [f"anaphor: resuming run with changes: {difference}"]
    assert (run.read_settings()["dtype"], run.read_environment()["dtype"]) == ("bfloat16", "bfloat16")
    assert warnings_of(capsys, RESUME) == [FINISHED], "it is the dtype of the run now"


def test_another_name_of_the_same_dtype_is_no_difference(run, capsys):
    assert warnings_of(capsys, [*RESUME, "--dtype", "float32"]) == []


def test_another_default_dtype_of_torch_is_refused(run, error_of):
    torch.set_default_dtype(torch.float64)  # weights are made with it
    assert error_of(RESUME) == refused("dtype was float32 and is float64")


def test_another_device_is_refused_and_accepted_by_force(run, capsys, error_of):
    """As if the run had been trained on a GPU so far."""
    saved = checkpoint.read(run.checkpoints / "step-2")
    saved.metadata["environment"] |= {"device": "cuda", "dtype": "bfloat16"}
    checkpoint.write(run.checkpoints, 2, saved.parts, saved.metadata)
    difference = "device was cuda and is cpu; dtype was bfloat16 and is float32"
    assert error_of(RESUME) == refused(difference)
    assert warnings_of(capsys, [*RESUME, "--force"]) == [f"anaphor: resuming run with changes: {difference}"]
    assert checkpoint.read(run.checkpoints / "step-4").metadata["environment"]["device"] == "cpu"
    assert warnings_of(capsys, RESUME) == [FINISHED]


def test_another_number_of_threads_is_refused_and_accepted_by_force(run, capsys, error_of):
    others = [*RESUME, "--threads", "3"]
    assert error_of(others) == refused("threads was 1 and is 3")
    assert warnings_of(capsys, [*others, "--force"]) == ["anaphor: resuming run with changes: threads was 1 and is 3"]
    assert run.read_environment()["threads"] == 3
    assert torch.get_num_threads() == 1, "the process has its own number back"


def test_a_resumed_run_has_the_threads_that_it_had(run, capsys):
    """Whatever number the process would use for a new run."""
    torch.set_num_threads(2)
    try:
        assert warnings_of(capsys, RESUME) == []
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert run.read_environment()["threads"] == 1
    assert checkpoint.read(run.checkpoints / "step-4").metadata["environment"]["threads"] == 1


def test_the_number_of_threads_does_not_matter_on_a_gpu():
    from anaphor.training.differences import differences

    metadata = {"spec": {}, "data": {}, "environment": {"device": "cuda", "dtype": "bfloat16", "threads": 1}}
    other = {**metadata, "environment": {**metadata["environment"], "threads": 7}}
    assert list(differences(metadata, other, "lm")) == []


def test_another_version_of_torch_is_no_difference(run, capsys, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "9.9")
    assert warnings_of(capsys, RESUME) == []
    assert run.read_environment()["torch"] == "9.9"


def test_all_differences_are_named_in_one_line(run, tmp_path, error_of):
    (tmp_path / "text" / "valid.txt").write_text("the dog\n" * 30)
    words = [*RESUME, "--lr", "0.5", "--dropout", "0.25", "--dtype", "bfloat16"]
    expected = (
        "dropout was 0.0 and is 0.25; dropout_kind was not set and is 'each'; input_dropout was 0.0 and is 0.25; "
        "lr was 0.001 and is 0.5; valid has changed; dtype was float32 and is bfloat16"
    )
    assert error_of(words) == refused(expected)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--force"], "--force belongs to --resume; use --overwrite to replace the run in --out"),
        (["--force", "--overwrite"], "--force and --overwrite: one resumes the run, the other deletes it"),
        (["--resume", "--overwrite"], "--resume and --overwrite: --overwrite deletes the run"),
        (["--resume", "--force", "--overwrite"], "--overwrite"),
    ],
)
def test_flags_that_contradict_each_other_are_refused_in_one_line(run, error_of, flags, message):
    before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    assert message in error_of(override(NEW, *flags))
    assert before == {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}


def test_an_existing_run_is_refused_with_both_ways_out(run, error_of):
    assert error_of(NEW) == (
        "run already holds a run: resume it with --resume, replace it with --overwrite, or choose another --out"
    )


def test_overwriting_says_what_it_deletes(run, capsys):
    (run.folder / "notes.txt").write_text("mine")
    (line,) = warnings_of(capsys, override(NEW, "--overwrite", "--steps", "1"))
    assert line == "anaphor: overwriting run: deleting 1 checkpoint (step 2) and its result"
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-1"]
    assert (run.folder / "notes.txt").read_text() == "mine"
    assert json.loads(run.result.read_text())["steps"] == 1


def test_overwriting_where_there_is_no_run_says_nothing(tmp_path, capsys):
    assert warnings_of(capsys, [*NEW, "--overwrite"]) == []
    assert RunFolder(tmp_path / "run").exists


def test_a_run_that_cannot_begin_overwrites_nothing(run, error_of):
    before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file() and path.name != ".lock"}
    assert "too short for 9,999 rows" in error_of(override(NEW, "--overwrite", "--batch-size", "9999"))
    assert "unknown model 'lstn'" in error_of(override(NEW, "--overwrite", "--model", "lstn"))
    after = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file() and path.name != ".lock"}
    assert after == before


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf"])
def test_minutes_between_checkpoints_must_be_above_0(error_of, minutes):
    assert error_of([*NEW, "--save-minutes", minutes]) == (f"save_minutes={float(minutes)}: it must be above 0")


@pytest.mark.parametrize(
    ("flags", "flag"),
    [
        (["--lr", "1", "--lr", "1"], "--lr"),
        (["--lr=1", "--lr", "2"], "--lr"),
        (["--batch_size", "1"], "--batch-size"),
        (["--betas", "0.9", "0.9", "--betas", "0.8", "0.8"], "--betas"),
        (["--tied", "--no-tied"], "--tied"),
        (["--out", "other"], "--out"),
    ],
)
def test_a_flag_given_twice_is_refused(tmp_path, error_of, flags, flag):
    assert error_of([*NEW, *flags]) == f"{flag} is given twice: give it once"
    assert not (tmp_path / "run").exists()


PART = """
import anaphor
anaphor.register_preset("lm", "{name}", {{"mixers": ("lstm",), "layers": 1}})
"""


def test_import_alone_may_be_given_several_times(tmp_path, error_of):
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text(PART.format(name=name))
    imports = ["--import", "first.py", "--import", "second.py"]
    for name in ("first", "second"):
        assert main([*override(NEW, "--model", name, "--out", name), *imports]) == 0
        recorded = RunFolder(tmp_path / name).read_document()["imports"]
        assert f"{tmp_path / name}.py" in [entry["file"] for entry in recorded]
    assert error_of([*NEW, *imports, "--seed", "1", "--seed", "1"]) == "--seed is given twice: give it once"


CELL = LanguageRunSpec(data="text", model="lstm", width=8, layers=1, batch_size=2, bptt=5, steps=12, eval_every=2)
CELL = replace(CELL, device="cpu", dropout=0.2, average="ema")


class Leaves(NullCallback):
    """Ends a run in its midst, as a kill does."""

    def on_step(self, info):
        if info.progress > 0.6:
            raise InterruptedError


def train(out, callback=None, **options):
    return execute(CELL, out, callback or NullCallback(), test=False, save_only_model=True, **options)


def metrics_of(folder):
    """Without the times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["train_loss"], line["lr"], line["valid"]) for line in lines]


def saved_parts(folder):
    return {
        path.name: sorted(file.stem for file in path.glob("*.safetensors"))
        for path in (folder / "checkpoints").glob("step-*")
    }


def test_a_run_that_saves_the_best_weights_alone_has_the_result_of_any_other(tmp_path):
    whole, _ = execute(CELL, tmp_path / "whole", test=False)
    lean, _ = train(tmp_path / "lean")
    assert metrics_of(tmp_path / "lean") == metrics_of(tmp_path / "whole")
    assert (lean["valid"], lean["best_step"]) == (whole["valid"], whole["best_step"])
    assert saved_parts(tmp_path / "lean") == {f"step-{lean['best_step']}": ["average", "model"]}
    assert load_run(tmp_path / "lean", device="cpu").evaluate() == load_run(tmp_path / "whole", device="cpu").evaluate()
    with pytest.raises(CheckpointError, match=r"lean cannot be resumed: it has the weights of its best step alone"):
        execute(CELL, tmp_path / "lean", test=False, resume=True)


@pytest.mark.parametrize(("save_minutes", "resumed_at"), [(60.0, None), (1e-9, "step-7")])
def test_such_a_run_resumes_exactly_or_starts_anew(tmp_path, save_minutes, resumed_at):
    """With minutes between the checkpoints that can be resumed, and with one after every step."""
    train(tmp_path / "whole")
    with pytest.raises(InterruptedError):
        train(tmp_path / "parts", Leaves(), save_minutes=save_minutes)
    resumable = [name for name, parts in saved_parts(tmp_path / "parts").items() if "optimizer" in parts]
    assert max(resumable, default=None) == resumed_at
    train(tmp_path / "parts", save_minutes=60.0, resume=True)
    assert metrics_of(tmp_path / "parts") == metrics_of(tmp_path / "whole")
    assert (tmp_path / "parts" / "result.json").is_file()


def test_such_a_run_that_is_stopped_saves_all_that_a_resume_needs(tmp_path):
    class Stops(NullCallback):
        def on_step(self, info):
            if info.progress > 0.5:
                signal.raise_signal(signal.SIGTERM)

    train(tmp_path / "whole")
    _, code = train(tmp_path / "parts", Stops())
    assert code == 128 + signal.SIGTERM
    assert [name for name, parts in saved_parts(tmp_path / "parts").items() if "random" in parts] == ["step-7"]
    train(tmp_path / "parts", resume=True)
    assert metrics_of(tmp_path / "parts") == metrics_of(tmp_path / "whole")


def test_such_a_run_that_is_stopped_while_validating_can_be_resumed_twice(tmp_path):
    """The validation that was missing finds the best weights so far, and saves them where the resumable ones are."""

    class Stops(NullCallback):
        def on_step(self, info):
            if info.progress > 0.6:
                signal.raise_signal(signal.SIGTERM)

    class LeavesLater(NullCallback):
        def on_step(self, info):
            if info.progress > 0.7:
                raise InterruptedError

    train(tmp_path / "whole")
    train(tmp_path / "parts", Stops())
    assert metrics_of(tmp_path / "parts")[-1][0] == 6
    with pytest.raises(InterruptedError):
        train(tmp_path / "parts", LeavesLater(), resume=True)
    assert metrics_of(tmp_path / "parts")[-1][0] == 8
    assert "optimizer" in saved_parts(tmp_path / "parts")["step-8"]
    train(tmp_path / "parts", resume=True)
    assert metrics_of(tmp_path / "parts") == metrics_of(tmp_path / "whole")


LONG = replace(CELL, dropout=0.0, average="none", steps=4, lr=0.01)


def resumed(out, first, second):
    """The results of a run, and of the same run resumed with other settings."""
    options = {"test": False, "warn": lambda line: None}
    return execute(first, out, **options)[0], execute(second, out, resume=True, force=True, **options)[0]


def values_of(folder, name="loss"):
    return {step: valid[name] for step, _, _, valid in metrics_of(folder)}


@pytest.mark.parametrize(
    ("average", "others"),
    [("ema", {"average": "none", "steps": 6}), ("tail", {"steps": 10})],
    ids=["without", "larger"],
)
def test_the_best_weights_stay_an_average_with_other_settings(tmp_path, average, others):
    averaged = replace(LONG, average=average)
    before, after = resumed(tmp_path / "run", averaged, replace(averaged, lr=50.0, **others))
    assert after["best_step"] == before["best_step"], "the larger learning rate spoils the weights"
    assert after["valid"] == before["valid"]
    assert load_run(tmp_path / "run", device="cpu").evaluate()["loss"] == before["valid"]["loss"]


def test_a_tail_average_that_a_larger_budget_begins_later_is_not_validated_before(tmp_path):
    tail = replace(LONG, average="tail")
    resumed(tmp_path / "run", tail, replace(tail, steps=16))
    values = values_of(tmp_path / "run")
    resumed(tmp_path / "plain", tail, replace(tail, average="none", steps=16))
    plain = values_of(tmp_path / "plain")
    assert [values[step] == plain[step] for step in (4, 6, 8, 10, 16)] == [True, True, True, False, False]


def test_another_metric_selects_among_its_own_values(tmp_path):
    """A perplexity is larger than the best loss, however good it is."""
    before, after = resumed(tmp_path / "run", LONG, replace(LONG, steps=8, select="perplexity", patience=2))
    perplexities = values_of(tmp_path / "run", "perplexity")
    assert after["best_step"] == min(perplexities, key=perplexities.get) > before["best_step"]


def test_a_plateau_compares_values_of_one_metric(tmp_path):
    plateau = replace(LONG, schedule="plateau")
    resumed(tmp_path / "run", plateau, replace(plateau, steps=8, select="perplexity"))
    saved = checkpoint.newest(tmp_path / "run" / "checkpoints")[0]
    assert saved.metadata["schedule"] == {"best": min(values_of(tmp_path / "run", "perplexity").values()), "cuts": 0}


@pytest.mark.parametrize("change", ["valid", "bptt", "nothing"])
def test_values_that_were_measured_in_another_way_are_not_compared(tmp_path, change):
    execute(LONG, tmp_path / "run", test=False)
    if change == "valid":
        (tmp_path / "text" / "valid.txt").write_text("a mat sat on the log\nthe dog sat on the cat\n" * 20)
    spoiled = replace(LONG, steps=6, lr=50.0, bptt=4 if change == "bptt" else LONG.bptt)
    after, _ = execute(spoiled, tmp_path / "run", test=False, resume=True, force=True, warn=lambda line: None)
    assert values_of(tmp_path / "run")[6] > values_of(tmp_path / "run")[4]
    assert after["best_step"] == (4 if change == "nothing" else 6)
