"""`check-mixer` passes a sound mixer of a user's own, and names the promise that an unsound one breaks, and where."""

import json
import re
from pathlib import Path

import pytest
import torch

from anaphor import registry
from anaphor.cli.main import main
from anaphor.imported_files import IMPORTED
from anaphor.mixers.check import CheckSettings, check_mixer, lengths_up_to
from anaphor.mixers.contract import PROMISES
from anaphor.shipped_files import EXAMPLES

LEAKY = EXAMPLES / "leaky_mixer.py"
FUTURE = """
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anaphor import register_mixer
from anaphor.mixers import Mixer, MixerSpec


class State(NamedTuple):
    total: Tensor


@dataclass(frozen=True, kw_only=True)
class Spec(MixerSpec):
    def build(self):
        return Sum(self)


class Sum(Mixer):
    state_type = State

    def __init__(self, spec):
        super().__init__(spec)
        self.out = nn.Linear(spec.width, spec.out)

    def initial_state(self, like):
        return State(self.out.weight.new_zeros(len(like), self.width_in))

    def mix(self, x, state, span):
        x = span.zero_padding(x)
        sums = state.total[:, None] + x.cumsum(1)
        # HERE
        return self.out(y), State(sums[:, -1])


register_mixer("sum", Spec)
"""
SOUND = "y = sums"


def write_mixer(folder, body, **replacements):
    text = FUTURE.replace("# HERE", body)
    for old, new in replacements.items():
        assert old in text
        text = text.replace(old, new)
    path = folder / "own.py"
    path.write_text(text)
    return path


def check_json(capsys, name, path):
    assert main(["check-mixer", name, "--import", str(path), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_documentation_shows_the_example():
    page = (Path(__file__).parents[2] / "docs" / "own-parts.md").read_text(encoding="utf-8")
    shown = page.partition('title="leaky_mixer.py" }\n')[2].partition("```")[0]
    assert shown
    assert LEAKY.read_text(encoding="utf-8").endswith(shown)


def test_the_leaky_integrator_keeps_all_promises(capsys):
    report = check_json(capsys, "leaky", LEAKY)
    assert len(report.pop("not_checked")) == 3
    assert report == {
        "mixer": "leaky",
        "holds": True,
        "promises": {name: True for name in PROMISES if name != "recording_changes_nothing"},
        "failures": {},
    }
    assert main(["check-mixer", "leaky", "--import", str(LEAKY)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "leaky keeps all 5 promises that apply"
    assert [line.split()[0] for line in lines[:6]] == list(PROMISES)
    assert lines[5].endswith("does not apply: the mixer has no taps")
    assert all(line.startswith("not checked: ") for line in lines[6:-1])


def test_the_leaky_integrator_trains_and_its_run_needs_the_file(text, capsys, answer_of, monkeypatch):
    imported = ["--import", str(LEAKY)]
    torch.set_default_dtype(torch.float32)
    words = "train lm --data text --tokenizer word --mixers leaky leaky --width 8 --steps 2 --bptt 4 --batch-size 2"
    found = answer_of([*words.split(), *imported, "--device", "cpu", "--out", "run", "--no-test", "--json"])
    assert found["steps"] == 2
    assert main(["generate", "run", "--tokens", "3", *imported]) == 0
    capsys.readouterr()
    monkeypatch.delitem(registry.MIXERS._entries, "leaky")  # as in a new process
    IMPORTED.clear()
    assert main(["generate", "run", "--tokens", "3"]) != 0
    assert "pass --import leaky_mixer.py" in capsys.readouterr().err


def test_a_mixer_that_looks_at_the_future_is_caught_and_named(tmp_path, capsys):
    path = write_mixer(tmp_path, "y = sums.clone(); y[:, 3:4] += x[:, 7:8] if x.shape[1] > 7 else 0")
    report = check_json(capsys, "sum", path)
    assert not report["holds"]
    assert not report["promises"]["chunks_equal_whole"]
    assert report["failures"]["chunks_equal_whole"] == (
        "output of token 3 changes when token 7 changes: the mixer sees the future"
    )
    assert main(["check-mixer", "sum", "--import", str(path)]) == 0
    said = capsys.readouterr().out
    assert "chunks_equal_whole         BROKEN: output of token 3 changes when token 7 changes" in said
    assert said.splitlines()[-1] == f"sum breaks {len(report['failures'])} of 5 promises"


BROKEN = {
    "all of the future": (
        "y = sums + x.mean(1, keepdim=True)",
        "chunks_equal_whole",
        "output of token 0 changes when token 1 changes: the mixer sees the future",
    ),
    "a cut": (
        "y = sums.clone(); y[:, :1] = 0",
        "chunks_equal_whole",
        "output of row 0, token 4 differs by .* when the sequence is cut before token 4",
    ),
    "random": (
        "y = sums + torch.rand(())",
        "chunks_equal_whole",
        "two calls with the same input differ: row 0, token 0",
    ),
    "padding": (
        "y = sums = sums + (~span.valid).sum(1)[:, None, None]",
        "padding_leaves_no_trace",
        "output of row 1 of length 4 at token 0 differs by",
    ),
    "padding in the state": (
        "y = sums; sums = sums + (~span.valid).sum(1)[:, None, None]",
        "padding_leaves_no_trace",
        "padding gets into the state of row 1 of length 4: token 0 after it differs by",
    ),
    "other rows": (
        "y = sums + sums.sum(0)",
        "rows_can_be_reordered",
        r"differs by .* when rows are selected in the order \[3, 0, 0, 2, 1\]",
    ),
    "detached": (
        "y = sums; sums = sums.detach()",
        "gradient_crosses_the_seam",
        "no gradient flows through a carried state: the mixer detaches it",
    ),
    "no memory": ("y = x", "gradient_crosses_the_seam", "the mixer moves nothing along time"),
    "in place": (
        "y = sums; state.total.data.add_(1)",
        "old_state_survives",
        "tensor 0 of the state was changed in place",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_the_broken_promise_is_named_with_its_place(case, tmp_path, capsys):
    body, promise, message = BROKEN[case]
    report = check_json(capsys, "sum", write_mixer(tmp_path, body))
    assert not report["promises"][promise]
    assert report["holds"] is False

    assert re.search(message, report["failures"][promise]), report["failures"]
    assert set(report["failures"]) == {name for name, holds in report["promises"].items() if not holds}


ERRORS = {
    "an exception": ("y = sums; 1 / 0", {}, r"ZeroDivisionError in line \d+ of own.py: division by zero"),
    "wrong shapes": ("y = sums @ x", {}, r"RuntimeError in line \d+ of own.py: "),
    "a wrong output": (
        "y = sums[:, :1]",
        {},
        r"mix of Sum returns outputs \[4, 1, 64\] for \[4, 20, 64\]: they must be \[4, 20, 64\]",
    ),
    "no state": ("y = sums; return self.out(y), ()", {}, r"mix of Sum must return a state of type State, not \(\)"),
    "None": ("y = sums; return self.out(y), None", {}, "mix of Sum must return a state of type State, not None"),
    "an array": (
        "import numpy; return self.out(sums), numpy.zeros(3)", {},
        "mix of Sum must return a state of type State, not ndarray",
    ),
    "numbers": (
        "return self.out(sums), State(0.5)", {},
        "mix of Sum must return a state of type State, not State without tensors",
    ),
    "one row": (
        "return self.out(sums), State(sums[:1, -1])", {},
        r"mix of Sum returns a state with a tensor \[1, 64\]: it must have 4 rows",
    ),
    "no rows": (
        "return self.out(sums), State(sums.sum())", {},
        r"mix of Sum returns a state with a tensor \[\]: it must have 4 rows",
    ),
    "no pair": ("y = sums; return 7", {}, "mix of Sum must return outputs and a state, not int"),
    "no build": (SOUND, {"def build": "def make"}, "it cannot be built with width=64: NotImplementedError"),
    "a required option": (SOUND, {"(MixerSpec):": "(MixerSpec):\n    rate: float"}, "cannot be built"),
    "a bad constructor": (SOUND, {"nn.Linear(spec.width": "nn.Linear(spec.breadth"}, "no attribute 'breadth'"),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_errors_in_a_users_mixer_are_one_line_each(case, tmp_path, capsys):

    body, replacements, message = ERRORS[case]
    report = check_json(capsys, "sum", write_mixer(tmp_path, body, **replacements))
    assert not report["holds"]
    assert any(re.search(message, text) for text in report["failures"].values()), report["failures"]
    assert all("\n" not in text for text in report["failures"].values())


def test_the_sound_twin_of_all_these_holds(tmp_path, capsys):
    assert check_json(capsys, "sum", write_mixer(tmp_path, SOUND))["holds"]


def test_a_mixer_over_whole_sequences_is_held_to_what_applies(capsys):
    report = check_mixer("bidirectional-gru")
    assert report.holds
    assert set(report.promises) == {"padding_leaves_no_trace", "rows_can_be_reordered", "recording_changes_nothing"}
    assert main(["check-mixer", "bidirectional-gru"]) == 0
    said = capsys.readouterr().out
    assert "chunks_equal_whole         does not apply: the mixer needs whole sequences" in said
    assert said.splitlines()[-1] == "bidirectional-gru keeps all 3 promises that apply"


def test_checks_are_seeded_and_leave_the_global_random_state_alone(tmp_path, capsys):
    path = write_mixer(tmp_path, "y = sums + sums.sum(0)")
    before = torch.random.get_rng_state()
    first = check_json(capsys, "sum", path)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(5)
    assert check_json(capsys, "sum", path) == first


@pytest.mark.parametrize(("words", "message"), [
    (["lsmt"], "unknown mixer 'lsmt'; did you mean 'lstm'?"),
    (["leaky", "--import", "nowhere.py"], "--import nowhere.py: No such file or directory"),
    ([], "NAME"),
])  # fmt: skip
def test_mistakes_on_the_command_line_are_one_line(words, message, error_of):
    assert message in error_of(["check-mixer", *words])


def test_a_function_that_returns_a_spec_can_be_registered(tmp_path):
    from anaphor import register_mixer
    from anaphor.mixers import GRUSpec, mixer_spec, options_of

    def narrow_gru(width: int, width_out: int | None = None) -> GRUSpec:
        return GRUSpec(width=width, width_out=width_out, weight_drop=0.5)

    register_mixer("narrow-gru", narrow_gru)
    assert options_of("narrow-gru") == {"width", "width_out"}
    assert mixer_spec("narrow-gru", width=8).weight_drop == 0.5
    assert check_mixer("narrow-gru").holds


CHUNKED = (
    "y = sums.clone(); z = x.cumsum(1); y[:, {at}:] = (z[:, {at}:] - z[:, {at} - 1 : {at}]) if x.shape[1] > {at} else 0"
)


@pytest.mark.parametrize("at", [32, 64, 128, 256])
def test_state_that_is_lost_between_chunks_inside_a_call_is_caught(at, tmp_path, capsys):
    """The outputs after so many tokens of a call know nothing of those before."""
    report = check_json(capsys, "sum", write_mixer(tmp_path, CHUNKED.format(at=at)))
    said = report["failures"]["chunks_equal_whole"]
    assert re.fullmatch(rf"output of row 0, token {at} differs by \S+ when the sequence is cut before token \d+", said)


def test_what_goes_wrong_after_the_lengths_that_are_tried_is_found_with_more(tmp_path, capsys):
    path = str(write_mixer(tmp_path, CHUNKED.format(at=300)))
    assert check_json(capsys, "sum", path)["holds"]
    assert main(["check-mixer", "sum", "--import", path, "--tokens", "310", "--width", "8", "--json"]) == 0
    assert not json.loads(capsys.readouterr().out)["holds"]


def test_lengths_are_those_around_powers_of_two():
    assert lengths_up_to(20) == [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 20]
    assert set(range(255, 258)) | {31, 32, 33, 260} <= set(lengths_up_to(260))
    assert lengths_up_to(1) == [1]


TAPPED = {
    "import register_mixer": "import register_mixer\nfrom anaphor.taps import Tap",
    "self.out = nn": "self.gates = Tap(); self.out = nn",
}
WATCHED = {
    "the output": ("y = sums * (2 if self.gates.is_recorded else 1)", "output of row 0, token 0 differs"),
    "the state": (
        "y = sums; sums = sums * (2 if self.gates.is_recorded else 1)",
        "output after a state of row 0, token 0 differs",
    ),
    "the gradient": ("y = sums.detach() if self.gates.is_recorded else sums", "gradient of row 0, token 0 differs"),
}


@pytest.mark.parametrize("case", WATCHED)
def test_recording_that_changes_something_is_caught(case, tmp_path, capsys):
    body, message = WATCHED[case]
    report = check_json(capsys, "sum", write_mixer(tmp_path, body, **TAPPED))
    assert list(report["failures"]) == ["recording_changes_nothing"]
    assert report["failures"]["recording_changes_nothing"].startswith(message)
    assert check_json(capsys, "sum", write_mixer(tmp_path, "self.gates(sums); y = sums", **TAPPED))["holds"]


def twins(folder, body, **replacements):
    """A file with the mixer, and its slow twin under the name `slow`."""
    slow = write_mixer(folder, SOUND).read_text().replace('"sum"', '"slow"')
    fast = write_mixer(folder, body, **replacements).read_text()
    path = folder / "own.py"
    path.write_text(slow + re.sub(r"\b(Sum|Spec|State)\b", r"Fast\1", fast))
    return ["check-mixer", "sum", "--import", str(path), "--against", "slow", "--json"]


def test_a_mixer_is_compared_with_its_slow_twin(tmp_path, capsys):
    assert main(twins(tmp_path, "y = (x.flip(1).cumsum(1).flip(1) * 0 + sums)")) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["holds"]
    assert report["promises"]["agrees_with_the_twin"]
    assert not any("what it computes" in line for line in report["not_checked"])


@pytest.mark.parametrize(
    ("body", "replacements", "message"),
    [
        ("y = sums * 2", {}, "output of row 0, token 0 differs by .* from the twin's"),
        ("y = sums + 0 * (sums * x).sum()", {"x.cumsum(1)": "2 * x.cumsum(1) - x.cumsum(1).detach()"},
         "gradient of row 0, token 0 differs by .* from the twin's"),
        (SOUND, {"self.out": "self.put"}, "slow has other weights: .*put.weight.* differ in name or shape"),
    ],
    ids=["outputs", "gradients", "weights"],
)  # fmt: skip
def test_a_difference_from_the_twin_is_named(body, replacements, message, tmp_path, capsys):
    assert main(twins(tmp_path, body, **replacements)) == 0
    report = json.loads(capsys.readouterr().out)
    assert not report["promises"]["agrees_with_the_twin"]
    assert re.match(message, report["failures"]["agrees_with_the_twin"])


def test_every_mixer_of_the_table_keeps_its_promises_at_every_length():
    """Lengths, width and precision are those of training; the tests of the contract have few tokens."""
    for name in ("linear", "qrnn"):  # these work in chunks
        assert check_mixer(name, CheckSettings(dtype="float32", tokens=140)).holds


def test_a_mixer_with_a_limit_is_tried_up_to_it(tmp_path, capsys):
    limited = {"    def build": "    @property\n    def limit(self):\n        return 40\n\n    def build"}
    body = "assert state.total.shape and span.following.max() <= 40; y = sums"
    report = check_json(capsys, "sum", write_mixer(tmp_path, body, **limited))
    assert report["holds"], report["failures"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--tokens 0", "tokens=0: it must be at least 1"),
        ("--width 0", "width=0: it must be at least 1"),
        ("--dtype float16", "dtype='float16': it must be one of float64, float32, bfloat16"),
        ("--device gpu", "unknown device 'gpu'"),
        ("--against lsmt", "unknown mixer 'lsmt'; did you mean 'lstm'?"),
    ],
)
def test_impossible_settings_are_one_line(words, message, error_of):
    assert message in error_of(["check-mixer", "lstm", *words.split()])
