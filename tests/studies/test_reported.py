"""What a study reports beside the metric that selects: a column and a panel each, also on longer examples."""

import json
import math

import pytest
import torch

from anaphor.errors import ConfigError
from anaphor.imported_files import import_file
from anaphor.shipped_files import EXAMPLES
from anaphor.studies.report import report
from anaphor.studies.study import Study
from anaphor.studies.study_file import read_study
from anaphor.studies.validation import validate_study
from anaphor.tasks.lm.length import losses_by_length
from anaphor.training.load import load_run
from studies.here import Here, Silent

DIGITS = """
task: digit-sum
base: {steps: 4, eval_every: 2, device: cpu}
parameters: {model: {values: [gru, rnn]}}
metric: mse
report: [mse, within_half, mse_2x]
seeds: 3
"""


@pytest.fixture
def run(tmp_path, single_precision):
    """A function that runs a study and gives it and its result."""
    import_file(EXAMPLES / "digit_sum.py")

    def run(text, engine=None):
        (tmp_path / "study.yaml").write_text(text)
        spec = read_study(tmp_path / "study.yaml")
        validate_study(spec, spec.settings())
        (tmp_path / "out").mkdir(exist_ok=True)
        study = Study(spec, tmp_path / "out", engine or Here(), Silent())
        study.run()
        return study, report(study)

    return run


def test_every_metric_has_a_column_and_a_panel_and_longer_examples_are_scored_on_both_splits(run, monkeypatch):
    panels = []
    monkeypatch.setattr("anaphor.studies.figures.dot_panels", lambda found, *rest: panels.append(found))
    study, result = run(DIGITS)
    header = [cell.strip() for cell in result["table"].splitlines()[0].split("|")[1:-1]]
    label = "mean squared error"
    assert header == [
        "model", f"validation {label}", "±", "seeds", "validation share within 0.5", f"validation {label} at 2× length",
        "parameters", "test", "test share within 0.5", f"test {label} at 2× length",
    ]  # fmt: skip
    (found,) = panels
    assert [scale.label.split("\n")[0] for scale in found] == [
        f"validation {label}", "validation share within 0.5", f"validation {label} at 2× length"
    ]  # fmt: skip
    names = [[dot.name for dot in dots] for dots in found.values()]
    assert names[0] == names[1] == names[2]
    for cell in result["cells"]:
        experiment = load_run(cell["run"], device="cpu").experiment
        for split in ("valid", "test") if "test" in cell else ("valid",):
            data = experiment._draw(split, 2)
            with torch.inference_mode():
                error = (experiment.model(data.digits) - data.sums).square().mean()
            assert cell[split]["mse_2x"] == pytest.approx(float(error), rel=1e-6)
    assert len([cell for cell in result["cells"] if "test" in cell]) == 3
    text = (study.folder / "table.tex").read_text()
    assert text.count(r"\textbf") >= 3, "every metric has a best value of its own"
    assert r"2$\times$ length" in text


@pytest.mark.slow
def test_longer_examples_that_are_added_are_measured_without_training_again(run):
    _, first = run(DIGITS.replace(", mse_2x", ""))
    before = [cell["valid"]["mse"] for cell in first["cells"]]
    _, second = run(DIGITS, engine := Here())
    assert [action for action, _ in engine.jobs] == ["train"] * 6 + ["test"] * 3
    assert [cell["valid"]["mse"] for cell in second["cells"]] == before
    _, third = run(DIGITS, engine := Here())
    assert (third, engine.jobs) == (second, [])


def test_segments_of_a_language_model_are_longer_with_the_state_as_in_training(run, tmp_path):
    (tmp_path / "text.txt").write_text("the cat sat on the mat\nthe dog ate the rat\n" * 300)
    _, result = run(
        f"base: {{data: {tmp_path}/text.txt, width: 8, layers: 1, bptt: 4, steps: 20, device: cpu, carry: false,"
        " eval_batch_size: 1}\n"
        "parameters: {model: {settings: {lstm: {model: lstm}, learned: {model: transformer, heads: 2, "
        "position: learned, max_positions: 4}}}}\nreport: [perplexity_2x]\nseeds: 1\n"
    )
    lstm, learned = result["cells"]
    experiment = load_run(lstm["run"], device="cpu").experiment
    (score,) = losses_by_length(experiment, "valid", [8], [False])
    assert lstm["valid"]["perplexity_2x"] == pytest.approx(score.score.values["perplexity"])
    assert not math.isclose(lstm["valid"]["perplexity"], lstm["valid"]["perplexity_2x"])
    assert "perplexity_2x" not in learned["valid"], "there are no positions beyond those of training"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("report: accuracy", "report='accuracy': it must be a list of names of metrics"),
        ("report: [top5]", r"unknown metric to report 'top5' \(known: accuracy, .*loss, perplexity, "),
        ("report: [accuracy]", "data=grammar does not measure accuracy"),
        ("report: [perplexity_x]", "did you mean 'perplexity'"),
        ("report: [perplexity_1x]", "give 2 to 1024 times the length of training, such as perplexity_2x"),
        ("report: [perplexity_99999x]", "give 2 to 1024 times"),
        ("report: [loss, valid.loss]", "report has loss twice"),
        ("report: [test.loss]", "unknown metric to report 'test.loss'"),
        ("task: classify\nreport: [accuracy_2x]", "task classify does not say how it is evaluated on longer examples"),
        ("report: [loss_2x]", "batching=padded reads separate examples"),
    ],
)
def test_what_cannot_be_reported_is_refused(lines, message, tmp_path):
    data = "negation" if "classify" in lines else "grammar"
    batching = ", batching: padded" if lines == "report: [loss_2x]" else ""
    (tmp_path / "study.yaml").write_text(
        f"base: {{data: {data}, device: cpu{batching}}}\nparameters: {{lr: {{values: [0.1, 0.2]}}}}\n{lines}\n"
    )
    with pytest.raises(ConfigError, match=message):
        validate_study(spec := read_study(tmp_path / "study.yaml"), spec.settings())


def test_what_is_reported_is_kept_in_the_folder(run):
    study, _ = run(DIGITS)
    job = json.loads((study.cells[0].folder / "job.json").read_text())
    assert (job["longer"], job["measures"]) == ([2], {})
    assert study.spec.to_plain()["report"] == ["mse", "within_half", "mse_2x"]


def test_samples_and_the_training_text_have_the_reported_metrics_too(run, tmp_path):
    """The table of heads and positions has the rows of the course: perplexity and loss of each text."""
    (tmp_path / "text.txt").write_text("the cat sat on the mat\nthe dog ate the rat\n" * 40)
    _, result = run(
        f"base: {{data: {tmp_path / 'text.txt'}, width: 8, layers: 1, batch_size: 2, bptt: 4, steps: 2, device: cpu}}\n"
        "parameters: {model: {values: [lstm]}}\nseeds: 1\nreport: [loss]\ntrain_score: true\nsamples: {cat: the cat}\n"
    )
    header, _, row = (line.split("|")[1:-1] for line in result["table"].splitlines())
    found = {name.strip(): cell.strip() for name, cell in zip(header, row, strict=True)}
    for name in ("train", "cat"):
        assert float(found[name]) == pytest.approx(math.exp(float(found[f"{name} (loss)"])), rel=0.01)
    assert "validation loss (nats per token)" in found


def test_a_synthetic_task_reports_accuracy_on_longer_sequences(run):
    _, result = run(
        """
        base: {data: "parity:length=5,sequences=80", steps: 2, width: 8, layers: 1, device: cpu}
        parameters: {model: {values: [lstm, linear]}}
        metric: accuracy
        report: [accuracy, accuracy_2x, accuracy_3x]
        seeds: 1
        """
    )
    header = [cell.strip() for cell in result["table"].splitlines()[0].split("|")[1:-1]]
    lengths = ("", " at 2 times the length", " at 3× length")
    assert {f"validation accuracy{length}" for length in lengths} <= {*header}
    assert all(0 <= cell["valid"]["accuracy"] <= 1 for cell in result["cells"])


def test_a_study_measures_speed_and_the_bytes_of_a_state(run):
    """Attention keeps keys and values of all tokens, an LSTM two vectors in each layer."""
    study, result = run(
        """
        base: {data: "parity:length=5,sequences=80", steps: 2, width: 8, layers: 1, device: cpu}
        parameters:
          model:
            settings:
              lstm: {model: lstm}
              attention: {model: transformer, heads: 2, max_positions: 100, position: learned}
        metric: accuracy
        seeds: 2
        speed: true
        """
    )
    header, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in result["table"].splitlines())
    first, second = (dict(zip(header, row, strict=True)) for row in rows)
    assert first["state bytes after 1,024 tokens"] == str(2 * 8 * 4)
    assert int(second["state bytes after 1,024 tokens"].replace(",", "")) >= 2 * 100 * 8 * 4
    for cell in study.cells:
        numbers = json.loads((cell.folder / "measures.json").read_text())["numbers"]
        assert (
            numbers["training tokens/s"] == json.loads((cell.folder / "result.json").read_text())["tokens_per_second"]
        )
        assert numbers["generated tokens/s"] > 1
    assert all("generated tokens/s" in row and row["training tokens/s"] for row in (first, second))
