"""Experiments in Python: train, read the history, generate, look inside, load again."""

import inspect
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import anaphor
from anaphor.api import make_spec
from anaphor.cli.main import main
from anaphor.errors import ConfigError
from anaphor.registry import TASKS
from anaphor.training.callbacks import NullCallback
from anaphor.training.load import Run
from anaphor.typecheck import check_arguments

TINY = {"model": "lstm", "width": 16, "layers": 1, "steps": 4, "eval_every": 2, "bptt": 8, "batch_size": 2}


@pytest.fixture
def run(text):
    return anaphor.train("lm", data="text", out="run", no_test=True, device="cpu", progress=False, **TINY)


@pytest.fixture
def translation(tmp_path, monkeypatch, own_cache):
    monkeypatch.chdir(tmp_path)
    for name in ("train.en", "train.de", "valid.en", "valid.de"):
        (tmp_path / name).write_text("a b a b a b\na b c d e f\nb a\n")
    settings = {"data": str(tmp_path), "source": "en", "width": 8, "steps": 1, "beam": 2, "device": "cpu"}
    return anaphor.train("translate", out="run", no_test=True, progress=False, **settings)


def test_a_run_has_its_model_tokenizer_history_and_result(run):
    ids = torch.from_numpy(run.tokenizer.encode_sentence("the cat sat"))[None]
    logits, state = run.model(ids)
    assert logits.shape == (1, 3, len(run.tokenizer))
    assert state.past_length.tolist() == [3]
    assert not run.model.training
    rows = [row for row in run.metrics if "valid" in row]
    assert [row["step"] for row in rows] == [2, 4]
    assert rows[-1]["valid"]["perplexity"] > 1
    assert run.result["status"] == "finished"
    assert run.result["valid"] == run.evaluate("valid")
    assert run.spec.model == "lstm"
    assert run.spec.width == 16
    assert run.step in (2, 4)


def test_runs_without_a_folder_that_start_in_the_same_second_get_one_each(text, tmp_path, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda pattern: "20300101-120000")
    words = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]
    for _ in range(2):
        assert main(["train", "lm", "--data", "text", "--no-test", "--device", "cpu", *words]) == 0
    third = anaphor.train("lm", data="text", no_test=True, device="cpu", progress=False, **TINY)
    names = ["lstm-20300101-120000", "lstm-20300101-120000-2", "lstm-20300101-120000-3"]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == names
    assert third.folder.name == names[-1]


def test_it_generates_as_the_command_does(run, capsys):
    assert main(["generate", "run", "--prompt", "the", "--tokens", "6", "--seed", "3", "--device", "cpu"]) == 0
    assert capsys.readouterr().out == run.generate("the", tokens=6, seed=3) + "\n"
    assert run.generate("the", tokens=5, temperature=0) == run.generate("the", tokens=5, temperature=0, seed=9)
    assert len(run.generate(tokens=5, beam=2).split()) >= 1


def test_what_cannot_be_generated_is_refused_as_by_the_command(run):
    for prompt in (5, None, ["the"]):
        with pytest.raises(ConfigError, match=r"prompt=.*: it must be a string"):
            run.generate(prompt)
    for tokens in (0, -1):
        with pytest.raises(ConfigError, match=f"^tokens={tokens}: it must be at least 1$"):
            run.generate("the", tokens=tokens)
    with pytest.raises(ConfigError, match=r"^tokens='5': it must be a whole number$"):
        run.generate("the", tokens="5")
    for read in (run.encode, run.hidden_states):
        with pytest.raises(ConfigError, match=r"^text=5: it must be a string$"):
            read(5)


def test_a_seed_that_no_generator_takes_is_refused_as_by_the_command(run, error_of):
    for seed in (-1, 2**70):
        with pytest.raises(ConfigError) as refused:
            run.generate("the", tokens=2, seed=seed)
        assert error_of(["generate", "run", "--tokens", "2", "--seed", str(seed)]) == f"{refused.value}"


def test_a_callback_without_its_methods_is_refused_before_the_run_is_created(text, tmp_path):
    for callback in (print, 5, NullCallback):
        with pytest.raises(ConfigError, match=r"callback=.*: it must be an object with on_step and on_evaluation"):
            anaphor.train("lm", data="text", out="run", device="cpu", callback=callback, **TINY)
    assert not (tmp_path / "run").exists()


def test_sampling_options_are_refused_with_a_beam_as_by_the_command(run, error_of):
    for name, value in {"temperature": 0.5, "top_k": 3, "top_p": 0.9, "seed": 7}.items():
        message = f"{name}={value} has no effect with --beam, which does not sample"
        with pytest.raises(ConfigError) as refused:
            run.generate("the", tokens=2, beam=2, **{name: value})
        assert str(refused.value) == message
        flag = f"--{name.replace('_', '-')}"
        assert message in error_of(["generate", "run", "--tokens", "2", "--beam", "2", flag, str(value)])
    assert run.generate("the", tokens=2, beam=2, temperature=np.float64(1), seed=0) == run.generate(
        "the", tokens=2, beam=2
    )


def test_it_looks_inside_and_writes_the_page_on_request(run, tmp_path):
    look = run.look("the cat sat")
    assert look.tokens[1:] == ("the", "cat", "sat")
    assert len(look.scored.losses) == 3
    assert {one.part for one in look.units} >= {"hidden", "cell"}
    assert not (tmp_path / "look").exists()
    run.look("the cat sat", layers=[0], out=tmp_path / "look")
    assert "<html" in (tmp_path / "look" / "attention.html").read_text()
    assert (tmp_path / "look" / "states.png").is_file()


def refuse_each(messages):
    """Each call raises its message."""
    for call, message in messages.items():
        with pytest.raises(ConfigError) as caught:
            call()
        assert str(caught.value) == message


def test_arguments_of_a_wrong_type_are_refused_in_one_line(run):
    calls = {
        lambda: run.evaluate(["valid"]): "split=['valid']: it must be a string",
        lambda: run.show(5): "text=5: it must be a string",
        lambda: run.look(5): "text=5: it must be a string",
        lambda: run.look(None): "text=None: it must be a string",
        lambda: run.look("the", layers=0): "layers=0: it must be a list of whole numbers",
        lambda: run.look("the", layers="0"): "layers='0': it must be a list of whole numbers",
        lambda: run.look("the", layers=[0, 0.5]): "layers[1]=0.5: it must be a whole number",
        lambda: run.look("the", out=5): "out=5: it must be a path",
        lambda: run.look(
            "the", layer=0
        ): "look: got an unexpected keyword argument 'layer' (it takes text, layers, out)",
        lambda: run.look(): "look: missing a required argument: 'text' (it takes text, layers, out)",
        lambda: run.look("a", "b"): "look: too many positional arguments (it takes text, layers, out)",
        lambda: run.generate("the", seed="1"): "seed='1': it must be a whole number",
        lambda: run.generate("the", seed=1.5): "seed=1.5: it must be a whole number",
        lambda: run.generate("the", tokens=True): "tokens=True: it must be a whole number",
        lambda: run.generate("the", beam="2"): "beam='2': it must be a whole number",
        lambda: anaphor.load_run(5): "folder=5: it must be a path",
        lambda: anaphor.load_run("run", threads="2"): "threads='2': it must be a whole number",
        lambda: anaphor.train(["lm"]): "task=['lm']: it must be a string",
        lambda: anaphor.train("lm", out=5): "out=5: it must be a path",
        lambda: anaphor.train("lm", imports="own.py"): "imports='own.py': it must be a list of paths",
        lambda: anaphor.train("lm", imports=[5]): "imports[0]=5: it must be a path",
        lambda: anaphor.train("lm", save_minutes="1"): "save_minutes='1': it must be a number",
        lambda: anaphor.train("lm", save_minutes=float("nan")): "save_minutes=nan: it must be above 0",
        lambda: anaphor.train("lm", resume=1): "resume=1: it must be True or False",
    }
    refuse_each(calls)


def test_arguments_of_a_wrong_type_are_refused_by_a_translation(translation):
    calls = {
        lambda: translation.look(["a b"]): "text=['a b']: it must be a string",
        lambda: translation.look("a b", layer="0"): "layer='0': it must be a whole number",
        lambda: translation.generate("a b", top_k=3): (
            "generate: got an unexpected keyword argument 'top_k' (it takes prompt, tokens, beam)"
        ),
    }
    refuse_each(calls)


def test_arguments_of_numpy_and_iterators_are_accepted(run):
    chosen = {"temperature": np.float32(0.5), "top_k": np.int64(4), "seed": np.int64(2)}
    plain = {"temperature": 0.5, "top_k": 4, "seed": 2}
    assert run.generate("the", tokens=np.int64(3), **chosen) == run.generate("the", tokens=3, **plain)
    check_arguments(anaphor.train, "lm", overwrite=np.True_)
    check_arguments(run.look, "the", layers=iter([0]))
    check_arguments(run.look, "the", layers=np.array([0]), out=None)


def test_settings_of_numpy_and_paths_are_plain_in_a_spec():
    given = {
        "steps": np.int64(2), "lr": np.float64(0.1), "carry": np.True_, "model": np.str_("lstm"), "data": Path("text"),
        "layer_widths": np.array([8, 16]), "layer_dropouts": (np.float64(0.5), 0.0),
    }  # fmt: skip
    plain = {"steps": 2, "lr": 0.1, "carry": True, "model": "lstm", "data": "text", "layer_widths": [8, 16]}
    specs = [make_spec(TASKS["lm"], None, each) for each in (given, plain | {"layer_dropouts": [0.5, 0.0]})]
    assert repr(specs[0]) == repr(specs[1]), "numbers are Python's own"


PADDED = {"tokenizer": "treebank", "batching": "padded", "bptt": None}


@pytest.mark.parametrize("choice", [PADDED, {"model": "hybrid", "layers": 2}])
def test_hidden_states_of_a_text_are_those_that_score_sees(choice, text, answer_of):
    """The head on them gives the losses that `anaphor score` prints, which depend on the start token."""
    settings = {name: value for name, value in {**TINY, **choice}.items() if value is not None}
    run = anaphor.train("lm", data="text", out="run", no_test=True, device="cpu", progress=False, **settings)
    states = run.hidden_states("the cat sat")
    tokens = run.encode("the cat sat")
    assert tokens[0, 0] == run.tokenizer.boundary
    assert [run.tokenizer.tokens[token] for token in tokens[0]] == list(run.look("the cat sat").tokens)
    assert [state.shape for state in states] == [(1, 4, 16)] * (1 + len(run.model.blocks))
    assert torch.equal(run.model.predict(states[-1], run.model(tokens)[1]), run.model(tokens)[0])
    losses = torch.nn.functional.cross_entropy(run.model.head(states[-1])[0, :-1], tokens[0, 1:], reduction="none")
    (scored,) = answer_of(["score", "run", "the cat sat", "--json", "--device", "cpu"])
    assert losses.tolist() == pytest.approx([token["loss"] for token in scored["tokens"]], abs=1e-5)


def test_hidden_states_are_embeddings_and_the_output_of_every_layer(run):
    tokens = run.encode("the cat sat")
    embedded, output = run.hidden_states("the cat sat")
    assert torch.equal(embedded, run.model.embed(tokens))
    assert torch.equal(output, run.model.compute_hidden_states(tokens)[0])
    assert not output.requires_grad
    assert not any(module._forward_hooks for module in run.model.modules())


def test_it_warns_of_unknown_words(run, capsys):
    run.look("the zebra sat")
    assert "1 of 3 tokens of the text is not in the vocabulary" in capsys.readouterr().err


def test_it_draws_its_curves(run):
    paths = run.plot()
    assert all(path.is_file() for path in paths)
    assert {path.suffix for path in paths} == {".pdf", ".png", ".svg"}


def test_a_loaded_run_is_the_same(run):
    loaded = anaphor.load_run("run", device="cpu")
    assert loaded.step == run.step
    assert loaded.metrics == run.metrics
    assert loaded.generate("a dog", tokens=8) == run.generate("a dog", tokens=8)
    for name, tensor in loaded.model.state_dict().items():
        torch.testing.assert_close(tensor, run.model.state_dict()[name], rtol=0, atol=0)


def test_loading_leaves_the_random_state_alone(run):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    loaded = anaphor.load_run("run", device="cpu")
    loaded.generate(tokens=3)
    loaded.look("the cat")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_callback_gets_steps_and_validations(text):
    class Recorder:
        def __init__(self):
            self.losses, self.results = [], []

        def on_step(self, info):
            self.losses.append(info.loss)

        def on_evaluation(self, info):
            self.results.append((info.result.values["perplexity"], info.is_best))

    recorder = Recorder()
    run = anaphor.train("lm", data="text", out="run", no_test=True, device="cpu", callback=recorder, **TINY)
    assert len(recorder.losses) == 4
    assert [value for value, _ in recorder.results] == [row["valid"]["perplexity"] for row in run.metrics]
    assert recorder.results[0][1]


def test_unknown_keywords_are_refused(text):
    with pytest.raises(anaphor.ConfigError, match="epoch"):
        anaphor.train("lm", data="text", out="run", epoch=2)
    with pytest.raises(anaphor.ConfigError, match="did you mean 'lm'"):
        anaphor.train("lmm", data="text", out="run")


def test_a_run_that_exists_is_not_replaced_by_accident(run):
    with pytest.raises(anaphor.ConfigError, match="--overwrite"):
        anaphor.train("lm", data="text", out="run", no_test=True, device="cpu", progress=False, **TINY)
    again = anaphor.train(
        "lm", data="text", out="run", no_test=True, device="cpu", progress=False, overwrite=True, **TINY
    )
    assert again.result["valid"] == run.result["valid"]


def test_a_translation_is_generated_and_aligned(translation, tmp_path):
    with pytest.raises(ConfigError, match=r"^prompt=5: it must be a string$"):
        translation.generate(5)
    with pytest.raises(ConfigError, match=r"^tokens=0: it must be at least 1$"):
        translation.generate("a b c", tokens=0)
    assert set(translation.generate("a b c").split()) <= set("abcdef")
    assert len(translation.generate("a b c d e f", tokens=2).split()) <= 2
    assert len(translation.tokenizer.source) == len(translation.tokenizer.target)
    alignment = translation.look("a b c", out=tmp_path / "look")
    assert alignment.source == ("a", "b", "c")
    assert alignment.weights.shape == (len(alignment.target), 3)
    assert (tmp_path / "look" / "alignment.html").is_file()


def test_everything_public_is_documented():
    for name in anaphor.__dir__():
        value = getattr(anaphor, name)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert (value.__doc__ or "").strip(), name
    members = [member for name, member in vars(Run).items() if not name.startswith("_")]
    for member in members:
        documented = member.fget if isinstance(member, property) else member
        if callable(documented):
            assert documented.__doc__, documented
            assert inspect.signature(documented).return_annotation is not inspect.Signature.empty, documented
