"""The command: quick help, one-line errors, one JSON value."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from anaphor.cli.main import main
from anaphor.registry import TASKS, VERBS

HELPS = [["--help"], *([verb, "--help"] for verb in VERBS), *(["train", task, "--help"] for task in TASKS)]


def test_no_help_imports_torch_or_a_type_checker():
    """Either would take longer than all that the help needs. `python -m benchmarks --parts start` measures it."""
    script = (
        "import sys; from anaphor.cli.main import main\n"
        f"for words in {HELPS}:\n"
        "    assert main(words) == 0\n"
        "    assert not {'torch', 'typeguard'} & set(sys.modules), words"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: anaphor") == len(HELPS)


def test_help_comes_from_field_docstrings(capsys):
    assert main(["models", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "Vocabulary size; the default is that of WikiText-2" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["modls"],
            "unknown verb 'modls'; did you mean 'models'? (known: ",
        ),
        (["models", "lstn"], "unknown model 'lstn'; did you mean 'lstm'?"),
        (["models", "luon"], "unknown model 'luon'; did you mean 'luong'?"),
        (["evaluate", "nowhere", "--bptt", "3", "--json", "3"], "unexpected argument '3': --json takes no value"),
        (["evaluate", "nowhere", "--beam", "1", "3"], "unexpected argument '3': --beam takes one value"),
        (["evaluate", "--beam", "1", "3", "nowhere"], "unexpected argument 'nowhere': --beam takes one value"),
        (["evaluate", "nowhere", "--split", "valid", "test", "--beam", "1"], "--split takes one value"),
        (["evaluate", "nowhere", "3", "--beam", "1"], "unexpected argument '3'"),
        (["generate", "nowhere", "a b"], "unexpected argument 'a b': did you mean --prompt 'a b'?"),
        (["evaluate", "nowhere", "--json", "3"], "unexpected argument '3': --json takes no value"),
        (["models", "--import"], "--import needs a value"),
        (["models", "--max-file-bytes", "much"], "max_file_bytes='much': it must be a number of bytes"),
        (["models", "--max-file-bytes="], "max_file_bytes='': it must be a number of bytes"),
        (["models", "--max-file-bytes", "5", "--max-file-bytes", "6"], "--max-file-bytes is given twice: give it once"),
        (["models", "--vocabulry", "3"], "--vocabulry"),
        (["models", "--vocabulary", "many"], "'many'"),
        (["models", "--vocabulary", "0"], "vocabulary=0: it must be at least 1"),
        (["models", "--tokens", "-5"], "tokens=-5"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(error_of, words, message):
    assert message in error_of(words)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("color", ["0", "1"])
def test_the_one_line_is_the_same_in_every_terminal(encoding, color):
    environment = os.environ | {"PYTHONIOENCODING": encoding, "FORCE_COLOR": color}
    done = subprocess.run(
        [sys.executable, "-m", "anaphor", "models", "--vocabulry", "3"],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "anaphor: unknown option --vocabulry; did you mean '--vocabulary'?\n"


def test_models_lists_every_preset(capsys, answer_of):
    from anaphor.models import IMAGE_PRESETS, PRESETS, SEQ2SEQ_PRESETS, TEXT_PRESETS

    rows = answer_of(["models", "--json"])
    assert [row["name"] for row in rows] == [*PRESETS, *SEQ2SEQ_PRESETS, *IMAGE_PRESETS, *TEXT_PRESETS]
    assert all(row["parameters"] > 0 for row in rows)
    streaming = rows[: len(PRESETS) + len(SEQ2SEQ_PRESETS)]  # what reads a whole input at once carries no state
    assert all(row["state_bytes"] > 0 for row in streaming)
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if " M" in line] == [
        *PRESETS,
        *SEQ2SEQ_PRESETS,
        *IMAGE_PRESETS,
        *TEXT_PRESETS,
    ]


def test_models_for_translation_are_sized_too(capsys, answer_of):
    from anaphor.models import build_seq2seq

    rows = answer_of(["models", "mixed", "lstm", "luong", "--vocabulary", "100", "--tokens", "1", "--json"])
    assert [row["name"] for row in rows] == ["mixed", "lstm", "luong"]
    model = build_seq2seq("mixed", source_vocabulary=100, vocabulary=100)
    assert rows[0] == {
        "name": "mixed", "encoder": ["bidirectional-lstm"] * 2, "decoder": ["attention"] * 2, "width": 256,
        "parameters": model.count_parameters(), "state_bytes": model.state_bytes(1, 1), "tokens": 1,
        "state_grows": True, "limit": None,
    }  # fmt: skip
    assert "encoder" not in rows[1]
    assert main(["models", "luong", "--tokens", "1"]) == 0
    heading, row, remark = capsys.readouterr().out.splitlines()
    assert heading.split() == ["translation", "encoder", "decoder", "width", "parameters"]
    assert row.split()[:4] == ["luong", "lstm", "lstm", "256"]
    assert "state and limit with --json" in remark
    assert main(["models", "lstm", "--tokens", "1"]) == 0
    assert "after 1 token;" in capsys.readouterr().out


def test_models_prints_a_table(capsys):
    assert main(["models", "hybrid", "gpt2", "--vocabulary", "50257"]) == 0
    output = capsys.readouterr().out
    assert "lstm, 3 × attention" in output
    assert "124.4 M" in output


def test_version(capsys):
    from anaphor import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"anaphor {__version__}\n"


def test_no_verb_shows_what_there_is(capsys):
    assert main([]) == 0
    output = capsys.readouterr().out
    assert all(verb in output for verb in VERBS)


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has"),
            " (tried to allocate 2.50 GiB)",
        ),
        (RuntimeError("Triton Error [CUDA]: out of memory"), ""),
    ],
)
def test_a_gpu_without_memory_is_one_line(error, detail, monkeypatch, capsys):
    def fail(words):
        raise error

    monkeypatch.setattr("anaphor.cli.main.dispatch", fail)
    assert main(["train", "lm"]) == 2
    line = f"anaphor: the GPU is out of memory{detail}: use a smaller batch or model, or --device cpu\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(
    ("fill", "size"),
    [
        (lambda: torch.empty(1 << 50, dtype=torch.uint8), "1125899906842624 bytes"),
        (lambda: np.empty(1 << 50, np.uint8), "1.00 PiB"),
    ],
)
def test_a_machine_without_memory_is_one_line(fill, size, monkeypatch, capsys):
    monkeypatch.setattr("anaphor.cli.main.dispatch", lambda words: fill())
    assert main(["train", "lm"]) == 2
    line = f"anaphor: this machine is out of memory (tried to allocate {size}): use a smaller batch or model\n"
    assert capsys.readouterr().err == line


def test_another_error_of_the_program_is_shown_as_it_is(monkeypatch):
    def fail(words):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr("anaphor.cli.main.dispatch", fail)
    with pytest.raises(RuntimeError, match="shapes differ"):
        main(["train", "lm"])
