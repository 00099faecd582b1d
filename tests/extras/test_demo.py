"""The demonstration: three models of equal size, one table, a sample of each and one figure."""

import runpy

import pytest

from anaphor.models import preset
from anaphor.registry import TASKS
from anaphor.shipped_files import EXAMPLES

DEMO = runpy.run_path(str(EXAMPLES / "demo.py"))


@pytest.mark.parametrize("vocabulary", [3000, 3432, 4000])
def test_the_models_are_of_equal_size_whatever_python_brings_the_text(vocabulary):
    """Every version of Python has another text, and so another vocabulary."""
    counts = []
    for settings in DEMO["MODELS"].values():
        spec = TASKS["lm"].run_spec(**{**DEMO["COMMON"], **settings})
        counts.append(preset(spec.model, vocabulary=vocabulary, **spec.model_options()).build().count_parameters())
    assert max(counts) / min(counts) < 1.02


def test_it_prints_a_table_and_samples_and_writes_the_figure(tmp_path, capsys, own_cache, single_precision):
    tiny = {"width": 16, "epochs": None, "steps": 2, "eval_every": 1, "eval_batch_size": 100, "device": "cpu"}
    models = {name: {**settings, **tiny} for name, settings in DEMO["MODELS"].items()}
    figure = DEMO["demo"](tmp_path / "demo", models)
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0].split() == ["model", "test", "perplexity", "parameters", "tokens/s"]
    assert [line.split()[0] for line in lines[1:4]] == ["lstm", "transformer", "hybrid"]
    assert "state:carried" in lines[4]
    for name in models:
        assert f"\n{name} writes:\n" in printed.out
        assert f"{name}: epoch 0.0" in printed.err
    assert printed.out.rstrip().splitlines()[-2] == f"figure: {figure}"
    assert figure.read_bytes().startswith(b"\x89PNG")
