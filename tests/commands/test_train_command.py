"""`train`, `evaluate` and `generate`: refusals, messages, and the files of a run."""

import json
import math
import re
import shlex
import shutil
from pathlib import Path

import pytest

from anaphor.cli.main import main
from anaphor.cli.train import read_command_line
from anaphor.errors import ConfigError
from anaphor.registry import TASKS
from anaphor.training.run_folder import RunFolder
from anaphor.training.signals import Interruption
from command_line import override

SMALL = ["--model", "lstm", "--width", "8", "--layers", "1", "--batch-size", "2", "--device", "cpu"]
TINY = [*SMALL, "--bptt", "5"]
PADDED = [*SMALL, "--batching", "padded"]

pytestmark = pytest.mark.usefixtures("text")


def train(*more, code=0):
    assert main(override(["train", "lm", "--data", "text", "--no-test", *TINY], *more)) == code


def test_an_interrupted_run_says_so_and_is_scored(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Interruption, "is_requested", lambda self: True)
    train("--steps", "9", "--out", "run", "--json")
    result = json.loads(capsys.readouterr().out)
    assert (result["status"], result["steps"]) == ("interrupted", 1)
    assert result["valid"]["loss"] > 0
    monkeypatch.setattr(Interruption, "is_requested", lambda self: False)
    train("--steps", "9", "--out", "run", "--resume")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "finished"


def test_an_interrupted_run_names_the_command_that_resumes_it(capsys, monkeypatch):
    monkeypatch.setattr(Interruption, "is_requested", lambda self: True)
    train("--steps", "9", "--out", "run")
    assert "interrupted at step 1; resume with: anaphor train lm --resume --out run" in capsys.readouterr().out


def test_the_command_that_resumes_can_be_pasted(tmp_path, capsys, monkeypatch):
    (tmp_path / "own parts.py").write_text(
        "import anaphor\nfrom anaphor.mixers.recurrent import GRUSpec\nanaphor.register_mixer('my-gru', GRUSpec)\n"
    )
    with monkeypatch.context() as patch:
        patch.setattr(Interruption, "is_requested", lambda self: True)
        train("--steps", "2", "--out", "my run", "--import", "own parts.py", "--model", "my-gru")
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "resume with: " in line)
    program, *words = shlex.split(line.partition("resume with: ")[2])
    assert program == "anaphor"
    assert main(words) == 0
    assert "run: my run" in capsys.readouterr().out


def test_epochs_that_cannot_be_counted_are_refused(error_of):
    assert "epochs=1e+308: " in error_of(["train", "lm", "--data", "text", *TINY, "--epochs", "1e308"])


def test_resuming_with_other_settings_changes_the_spec_too(tmp_path, capsys):
    train("--steps", "2", "--out", "run")
    train("--steps", "4", "--lr", "0.02", "--out", "run", "--resume", "--force")
    spec = RunFolder(tmp_path / "run").read_settings()
    assert (spec["steps"], spec["lr"]) == (4, 0.02)
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("anaphor: ")]
    assert warnings == ["anaphor: resuming run with changes: lr was 0.001 and is 0.02; steps was 2 and is 4"]
    train("--steps", "4", "--lr", "0.02", "--out", "run", "--resume")


def test_a_run_begun_without_test_does_not_read_it_on_resume(tmp_path, monkeypatch):
    shutil.copy("text/valid.txt", "text/test.txt")
    words = ["train", "lm", "--data", "text", *TINY, "--steps", "4", "--out"]
    monkeypatch.setattr(Interruption, "is_requested", lambda self: True)
    for more in (["unread", "--no-test"], ["read"]):
        assert main([*words, *more]) == 0
    monkeypatch.setattr(Interruption, "is_requested", lambda self: False)
    for name in ("unread", "unread", "read"):
        assert main(["train", "lm", "--resume", "--out", name]) == 0
    tests = [json.loads((tmp_path / name / "result.json").read_text())["test"] for name in ("unread", "read")]
    assert tests[0] is None
    assert tests[1]["loss"] > 0


def test_averaging_may_start_on_resume(capsys):
    train("--steps", "2", "--out", "run")
    train("--steps", "4", "--out", "run", "--resume", "--force", "--average", "ema")
    assert "average was 'none' and is 'ema'" in capsys.readouterr().err
    assert main(["evaluate", "run", "--split", "valid"]) == 0


def test_resuming_needs_no_flag_again(tmp_path, error_of, monkeypatch):
    monkeypatch.setattr(Interruption, "is_requested", lambda self: True)
    train("--steps", "9", "--lr", "0.02", "--layer-dropouts", "0.1", "--out", "run")
    monkeypatch.setattr(Interruption, "is_requested", lambda self: False)
    before = (tmp_path / "run" / "spec.yaml").read_text()
    assert main(["train", "lm", "--resume", "--no-test", "--out", "run"]) == 0
    assert (tmp_path / "run" / "spec.yaml").read_text() == before
    assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"] == 9
    assert "is for the task 'lm', not for 'translate'" in error_of(["train", "translate", "--resume", "--out", "run"])


def test_without_a_checkpoint_other_settings_are_refused_as_well(tmp_path, capsys):
    train("--steps", "2", "--out", "run")
    for path in sorted((tmp_path / "run" / "checkpoints").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (tmp_path / "run" / "result.json").unlink()  # as if it had been killed
    capsys.readouterr()
    train("--steps", "3", "--out", "run", "--resume", code=2)
    assert "steps was 2 and is 3" in capsys.readouterr().err
    train("--steps", "3", "--out", "run", "--resume", "--force")
    assert RunFolder(tmp_path / "run").read_settings()["steps"] == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "foo"], "unknown model 'foo'"),
        (["--clip", "nan"], "clip=nan: it must be 0 or more, and finite"),
        (["--seed", "99999999999999999999999"], "seed=99999999999999999999999: it must be"),
        (["--seed", "-1"], "seed=-1: it must be from 0"),
        (["--batch-size", "100000"], "too short for 100,000 rows"),
        (["--width", "100000000"], " parameters, and the memory of this machine does not"),
    ],
)  # fmt: skip
def test_a_refused_run_leaves_nothing_behind(tmp_path, error_of, words, message):
    assert message in error_of(override(["train", "lm", "--data", "text", "--no-test", *TINY, "--out", "run"], *words))
    assert not (tmp_path / "run").exists()


def test_a_refused_run_leaves_an_existing_folder_as_it_was(tmp_path, error_of):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")
    assert "unknown model 'foo'" in error_of(["train", "lm", "--data", "text", "--out", "run", "--model", "foo"])
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]


def test_resuming_needs_a_folder(tmp_path, error_of):
    assert "--resume needs --out" in error_of(["train", "lm", "--resume"])
    assert not (tmp_path / "runs").exists()


def test_without_a_test_split_the_error_names_no_test(error_of):
    words = ["train", "lm", "--data", "text", *TINY, "--out", "run"]
    assert "no test split (it has: train, valid); use --no-test to train without it" in error_of(words)


@pytest.mark.parametrize("form", [["--steps", "5"], ["--steps=5"]])
def test_a_budget_replaces_that_of_the_file(tmp_path, form):
    (tmp_path / "mine.yaml").write_text("model: lstm\nepochs: 4.0\n")
    for file in (["--recipe", "word-language-model-lstm"], ["--config", "mine.yaml"]):
        _, found, _ = read_command_line(TASKS["lm"], [*file, *form])
        assert (found.epochs, found.steps, found.minutes) == (None, 5, None)
        _, kept, _ = read_command_line(TASKS["lm"], [*file, "--lr", "0.1", "--steps", "None"])
        assert (kept.epochs > 3, kept.steps) == (True, None)
        with pytest.raises(ConfigError, match=r"^steps=5, minutes=1\.0: give one of them$"):
            read_command_line(TASKS["lm"], [*file, *form, "--minutes", "1"])


def test_divergence_before_the_first_checkpoint_says_so(tmp_path, capsys):
    train("--model", "rnn-relu", "--lr", "1e9", "--clip", "0", "--steps", "30", "--out", "run", code=3)
    assert "there was no checkpoint yet" in capsys.readouterr().err


@pytest.fixture
def without_torch(monkeypatch):
    """What comes before torch is imported: its import ends the command."""

    class Importing(Exception):
        pass

    def stop():
        raise Importing

    monkeypatch.setattr("anaphor.cli.train.import_torch", stop)
    return Importing


@pytest.mark.parametrize(
    ("more", "end"),
    [
        ([], "3 epochs"),
        (["--epochs", "1"], "1 epoch"),
        (["--minutes", "0.5"], "0.5 min, validation and scores included"),
        (["--steps", "9", "--patience", "1"], "9 steps at most, fewer after 1 validation without improvement"),
    ],
)
def test_the_first_line_says_what_is_trained_and_comes_before_torch(capsys, without_torch, more, end):
    with pytest.raises(without_torch):
        train(*more, "--out", "run", "--json")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"training lm: model lstm, data text, {end}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("lm --data grammer", "unknown data set 'grammer'; did you mean 'grammar'?"),
        ("lm --data ./nowhere", "no file or folder at ./nowhere"),
        ("lm --model lsmt", "unknown model 'lsmt'; did you mean 'lstm'?"),
        ("translate --data multi30", "unknown data set 'multi30'; did you mean 'multi30k'?"),
        ("translate --model loung", "unknown model 'loung'; did you mean 'luong'?"),
        ("images --model vit-tini", "unknown model 'vit-tini'; did you mean 'vit-tiny'?"),
        ("classify --data negatoin", "unknown data set 'negatoin'; did you mean 'negation'?"),
    ],
)
@pytest.mark.usefixtures("without_torch")
def test_a_name_that_nobody_knows_is_refused_before_torch_is_imported(error_of, words, said):
    assert said in error_of(["train", *words.split(), "--out", "run"])
    assert not Path("run").exists()


@pytest.mark.needs("web")
def test_a_training_ends_with_what_to_do_next(tmp_path, capsys):
    for out, folder in (("runs/one", ""), (str(tmp_path.parent / "elsewhere"), f" {tmp_path.parent / 'elsewhere'}")):
        train("--steps", "1", "--out", out)
        shown = capsys.readouterr()
        assert shown.err.splitlines()[-1] == f"next: anaphor serve{folder}"
        assert shown.out.splitlines()[-1] == f"run: {out}"


def test_the_second_line_has_parameters_device_and_batches(capsys):
    train("--steps", "2", "--out", "run")
    assert re.search(r"^[\d,]+ parameters on the CPU, \d+ batches per epoch, run run$", capsys.readouterr().err, re.M)
    train("--steps", "3", "--out", "run", "--resume", "--force")
    assert ", resumed at step 2, run run" in capsys.readouterr().err


def test_validations_within_an_epoch_show_its_fraction(capsys):
    train("--steps", "4", "--eval-every", "2", "--out", "run")
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch")]
    places = [float(line.split()[1].rstrip(":")) for line in lines]
    assert len(places) == 2
    assert 0 < places[0] < places[1] < 1


def test_evaluate_uses_the_protocol_of_training(capsys, answer_of):
    train("--steps", "4", "--protocol", "example", "--eval-batch-size", "3", "--out", "run", "--json")
    trained = json.loads(capsys.readouterr().out)["valid"]
    (row,) = answer_of(["evaluate", "run", "--json", "--device", "cpu"])
    assert (row["loss"], row["signature"]) == (trained["loss"], trained["signature"])


def test_json_has_no_infinity(capsys, monkeypatch):
    train("--steps", "1", "--out", "run")
    capsys.readouterr()
    monkeypatch.setattr("anaphor.metrics.losses.math.exp", lambda loss: math.inf)
    assert main(["evaluate", "run", "--json", "--device", "cpu"]) == 0
    (row,) = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert row["perplexity"] is None


@pytest.mark.parametrize("words", [["--bptt", "5"], ["--protocol", "example"], ["--no-carry"], ["--state", "carried"]])
def test_padded_examples_have_no_segments(capsys, error_of, words):
    padded = ["train", "lm", "--data", "text", "--no-test", *PADDED, "--max-examples", "4", "--steps", "1"]
    assert main([*padded, "--out", "run"]) == 0
    reason = f"{words[0].replace('--no-', '--')} needs a stream of text"
    assert reason in error_of(["evaluate", "run", "--device", "cpu", *words])
    assert main(["evaluate", "run", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.startswith("padded examples: loss ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--temperature", "nan"], "temperature=nan: it must be 0 or more, and finite"),
        (["--seed", "99999999999999999999999"], "seed=99999999999999999999999"),
        (["--beam", "2", "--top-k", "1"], "top_k=1 has no effect with --beam"),
        (["--beam", "2", "--seed", "7"], "seed=7 has no effect with --beam"),
        (["--tokens", "20"], "the model has 16 positions: after a prompt of 1 token it can generate 16 more, not 20"),
    ],
)
def test_writing_is_refused_before_the_first_token(error_of, words, message):
    train("--model", "gpt-nano", "--heads", "2", "--max-positions", "16", "--steps", "1", "--out", "run")
    assert message in error_of(["generate", "run", "--device", "cpu", *words])


def test_rows_of_an_evaluation_are_refused_by_the_name_of_their_flag(error_of):
    train("--steps", "1", "--out", "run")
    assert "batch_size=0: it must be at least 1" in error_of(["evaluate", "run", "--batch-size", "0"])


def test_as_many_tokens_as_there_are_positions_can_be_written(answer_of):
    train("--model", "gpt-nano", "--heads", "2", "--max-positions", "16", "--steps", "1", "--out", "run")
    assert len(answer_of(["generate", "run", "--tokens", "16", "--json", "--device", "cpu"])["tokens"]) == 16


@pytest.mark.parametrize("more", [[], ["--beam", "2"]])
def test_the_text_is_the_same_whether_printed_or_as_json(capsys, answer_of, more):
    train("--tokenizer", "byte", "--steps", "1", "--out", "run")
    capsys.readouterr()
    words = ["generate", "run", "--tokens", "40", "--device", "cpu", *more]
    assert main(words) == 0
    printed = capsys.readouterr().out
    answer = answer_of([*words, "--json"])
    assert printed == answer["text"] + "\n"
    assert len(answer["tokens"]) == 40


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--temperature", "0"], ": no other token was likelier at any step"),
        ([], ""),
    ],
)
def test_a_text_of_line_ends_alone_is_explained(capsys, monkeypatch, more, reason):
    train("--steps", "1", "--out", "run")
    capsys.readouterr()
    monkeypatch.setattr(
        "anaphor.cli.generate_texts.generate", lambda model, prompt, *rest, **options: iter([prompt[0]] * 12)
    )
    assert main(["generate", "run", "--tokens", "12", "--device", "cpu", *more]) == 0
    shown = capsys.readouterr()
    assert not shown.out.strip()
    tokens = " ".join(["'<eos>'"] * 8)
    assert f"only line ends and spaces were generated{reason} (first tokens: {tokens} …); train longer" in shown.err


def test_a_text_with_words_is_not_explained(capsys):
    train("--steps", "1", "--out", "run")
    capsys.readouterr()
    assert main(["generate", "run", "--tokens", "12", "--device", "cpu"]) == 0
    shown = capsys.readouterr()
    assert shown.out.strip()
    assert "only line ends" not in shown.err


def test_unknown_words_of_a_prompt_are_reported(capsys):
    train("--steps", "1", "--out", "run")
    capsys.readouterr()
    assert main(["generate", "run", "--prompt", "the zzz", "--tokens", "1", "--device", "cpu"]) == 0
    assert "1 of 2 tokens of the prompt is not in the vocabulary: replaced by <unk>" in capsys.readouterr().err


def test_a_spent_budget_is_no_early_stop(capsys):
    train("--steps", "2", "--eval-every", "1", "--patience", "1", "--lr", "3", "--out", "run")
    assert "stopped early" not in capsys.readouterr().out


def test_early_stopping_is_reported(capsys):
    train("--steps", "40", "--eval-every", "1", "--patience", "1", "--lr", "3", "--out", "run")
    assert "stopped early at step " in capsys.readouterr().out
    assert json.loads(Path("run/result.json").read_text())["stopped_early"]


def test_a_flag_for_all_layers_replaces_values_for_each_in_the_file(tmp_path, capsys):
    each = "--layers 2 --mixers lstm gru --layer-widths 8 6 --layer-residuals True True"
    train(*each.split(), "--steps", "1", "--out", "run")
    capsys.readouterr()
    for flags in (["--width", "4"], ["--model", "gru"], ["--no-residual"]):
        assert main(["train", "lm", "--config", "run/spec.yaml", *flags, "--dry-run", "--json", "--out", "other"]) == 0
    sizes = [json.loads(line)["parameters"] for line in capsys.readouterr().out.splitlines()]
    assert len(set(sizes)) == 3
    narrow = ["--config", "run/spec.yaml", "--width", "4", "--no-test", "--out", "other"]
    assert main(["train", "lm", *narrow]) == 0
    settings = RunFolder(tmp_path / "other").read_settings()
    assert settings["width"] == 4
    assert "layer_widths" not in settings


def test_another_optimizer_does_not_inherit_the_options_of_a_file(capsys):
    Path("adamw.yaml").write_text("optimizer: adamw\nbetas: [0.75, 0.99]\nlr: 0.005\n")
    train("--config", "adamw.yaml", "--optimizer", "sgd", "--steps", "1", "--out", "run")
    settings = RunFolder(Path("run")).read_settings()
    assert (settings["optimizer"], settings["momentum"]) == ("sgd", 0)
    assert "betas" not in settings


@pytest.mark.parametrize(
    ("words", "rates"),
    [
        (["--lr", "1", "--schedule", "linear", "--min-lr-ratio", "0.4"], [0.8, 0.6, 0.4]),
        (["--lr", "1e-30", "--schedule", "plateau", "--plateau-factor", "10"], [1e-30, 1e-30, 1e-31]),
    ],
)
def test_a_schedule_takes_its_options(words, rates):
    train("--optimizer", "sgd", *words, "--steps", "3", "--eval-every", "1", "--out", "run")
    found = [json.loads(line)["lr"] for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert found == pytest.approx(rates, rel=1e-9, abs=0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--betas", "0.9"], "give two, of the first and the second moment"),
        (["--momentum", "0.5"], "is not used by adamw"),
        (["--optimizer", "adamx"], "did you mean 'adamw'"),
        (["--schedule", "cosin"], "did you mean 'cosine'"),
        (["--lr", "-1"], "must be above 0"),
        (["--min-lr-ratio", "2"], "it must be from 0 to 1"),
        (["--plateau-factor", "2"], "is not used by a cosine schedule"),
        (["--layers", "2", "--layer-lr", "1", "0.5", "0.1"], "3 layer_lr are given for 2 layers"),
        (["--data", "multi30k"], "data set 'multi30k' has the columns (source, target); needed: (text)"),
    ],
)
def test_a_dry_run_refuses_what_a_run_refuses(error_of, words, message):
    assert message in error_of(override(["train", "lm", "--data", "text", "--dry-run", *TINY], *words))


def test_a_dry_run_refuses_what_examples_do_not_have(error_of):
    words = ["train", "lm", "--data", "text", "--dry-run", *PADDED, "--carry"]
    assert "carry=True applies to segments of a stream" in error_of(words)


def test_a_folder_of_a_study_is_refused(tmp_path, error_of):
    (tmp_path / "many").mkdir()
    (tmp_path / "many" / "study.yaml").write_text("base: {}\n")
    assert "many holds a study" in error_of(["train", "lm", "--data", "text.txt", "--overwrite", "--out", "many"])
    assert [path.name for path in (tmp_path / "many").iterdir()] == ["study.yaml"]
