"""`anaphor look`: what it prints, what it writes and what it refuses."""

import json
import math
import shutil
from dataclasses import dataclass
from xml.etree import ElementTree

import pytest
import torch

from anaphor.cli.main import main
from anaphor.data.tokenizer import Word
from anaphor.errors import ConfigError, DataError
from anaphor.inspect import attention_maps, figures, look, look_at
from anaphor.inspect.figures import draw_attention
from anaphor.inspect.look import layer_label
from anaphor.inspect.page import build_page
from anaphor.mixers import MIXERS, Mixer, MixerSpec
from anaphor.models import LanguageModelSpec, build
from anaphor.training.load import load_run

TEXT = "the cat sat on the mat"


@pytest.fixture(autouse=True)
def _as_the_command_has_it(monkeypatch, own_cache):
    monkeypatch.setenv("COLUMNS", "100")
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def _no_figures(monkeypatch):
    """Drawing takes longest; those who do not look at the figures need not wait for them."""
    monkeypatch.setattr(figures, "heat_maps", lambda panels, paths, **names: None)


def looked(capsys, *words):
    assert main(["look", *map(str, words), "--device", "cpu", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_writes_a_page_and_figures_and_tells_everything_as_json(runs, tmp_path, capsys, answer_of):
    told = looked(capsys, runs["hybrid"], TEXT, "--out", tmp_path / "out")
    assert told["written"] == [
        str(tmp_path / "out" / name)
        for name in ("attention.html", "attention.png", "attention.svg", "states.png", "states.svg")
    ]
    assert sorted(str(path) for path in (tmp_path / "out").iterdir()) == sorted(told["written"])
    assert (tmp_path / "out" / "attention.png").read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(tmp_path / "out" / "attention.svg").getroot().tag.endswith("svg")

    (run,) = told["runs"]
    assert told["differences"] is None
    assert run["tokens"] == ["<eos>", *TEXT.split()]
    loaded = load_run(runs["hybrid"], device="cpu")
    ids = torch.tensor([loaded.tokenizer.boundary, *loaded.tokenizer.encode_sentence(TEXT).tolist()])
    maps = attention_maps(loaded.model, ids)
    assert list(run["weights"]) == list(maps) == ["layers.1.mixer.weights", "layers.2.mixer.weights"]
    for name, weights in maps.items():
        torch.testing.assert_close(torch.tensor(run["weights"][name]), weights)
    assert {(head["layer"], head["head"]) for head in run["summary"]} == {(1, 0), (1, 1), (2, 0), (2, 1)}
    assert run["summary"][0]["induction_tokens"] == 1, "'the' comes twice"
    assert set(run["units"]) == {
        f"layers.0.mixer.{part}"
        for part in ("states.hidden", "states.cell", "gates.input", "gates.forget", "gates.candidate", "gates.output")
    }
    (scored,) = answer_of(["score", str(runs["hybrid"]), TEXT, "--device", "cpu", "--json"])
    assert run["losses"] == [None, *(token["loss"] for token in scored["tokens"])]
    assert run["loss"] == scored["loss"]


@pytest.mark.usefixtures("_no_figures")
def test_people_get_a_table_and_the_paths(runs, tmp_path, capsys):
    assert main(["look", str(runs["hybrid"]), TEXT, "--out", str(tmp_path / "out"), "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("parameters")
    assert "perplexity" in lines[1]
    assert " ".join(lines[2].split()) == "layer head entropy distance itself previous first induction pattern"
    assert len(lines[3].split()) >= 8
    assert lines[-5:] == [str(tmp_path / "out" / name) for name in
                          ("attention.html", "attention.png", "attention.svg", "states.png", "states.svg")]  # fmt: skip
    assert "The rollout skips layer 0: no attention." in lines


@pytest.mark.usefixtures("_no_figures")
def test_unknown_words_are_counted_among_those_of_the_text(runs, tmp_path, capsys):
    words = ["look", str(runs["lstm"]), "Quetzalcoatl", "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert main(words) == 0
    assert "1 of 1 token of the text is not in the vocabulary" in capsys.readouterr().err


def test_one_layer_and_one_head(runs, tmp_path, capsys):
    told = looked(capsys, runs["hybrid"], TEXT, "--out", tmp_path, "--layer", 2, "--head", 1)
    (weights,) = told["runs"][0]["weights"].values()
    assert torch.tensor(weights).shape == (1, 7, 7)
    told = looked(capsys, runs["hybrid"], TEXT, "--out", tmp_path, "--layers", 1)
    assert list(told["runs"][0]["weights"]) == ["layers.1.mixer.weights"]
    assert "No rollout: it needs every attention layer." in told["runs"][0]["notes"]


@pytest.mark.usefixtures("_no_figures")
def test_a_recurrent_model_shows_states_and_gates(runs, tmp_path, capsys):
    told = looked(capsys, runs["lstm"], TEXT, "--out", tmp_path / "out")
    assert [path.rpartition("/")[2] for path in told["written"]] == ["attention.html", "states.png", "states.svg"]
    assert told["runs"][0]["weights"] == {}
    assert main(["look", str(runs["lstm"]), TEXT, "--out", str(tmp_path / "out"), "--device", "cpu"]) == 0
    assert "no layer has attention; the page shows states and gates" in capsys.readouterr().out


@pytest.mark.usefixtures("_no_figures")
def test_two_runs_are_compared_token_by_token(runs, tmp_path, capsys):
    told = looked(capsys, runs["hybrid"], TEXT, "--compare", runs["lstm"], "--out", tmp_path)
    first, second = told["runs"]
    assert told["differences"] == pytest.approx(
        [two - one for one, two in zip(first["losses"][1:], second["losses"][1:], strict=True)]
    )
    words = ["look", str(runs["hybrid"]), TEXT, "--compare", str(runs["lstm"]), "--out", str(tmp_path)]
    assert main([*words, "--device", "cpu"]) == 0
    assert f"{runs['lstm']} minus {runs['hybrid']}: " in capsys.readouterr().out


FIGURES = [f"{what}{whose}.{ending}" for whose in ("", "-compared") for what in ("attention", "states")
           for ending in ("png", "svg")]  # fmt: skip


@pytest.mark.slow
def test_of_two_runs_each_has_figures_of_its_own_with_its_name_on_them(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    other = "other $1_2$"  # which the drawing could take for a formula
    for name in ("hybrid", other):
        shutil.copytree(runs["hybrid"], name)
    out = tmp_path / "out"
    told = looked(capsys, "hybrid", TEXT, "--compare", other, "--out", out, "--layers", 0, 1)
    assert told["written"] == [str(out / name) for name in ("attention.html", *FIGURES)]
    assert sorted(path.name for path in out.iterdir()) == sorted(["attention.html", *FIGURES])
    for name in FIGURES:
        if name.endswith("svg"):
            text = (out / name).read_text(encoding="utf-8")
            whose, another = (other, "hybrid") if "compared" in name else ("hybrid", other)
            assert f"<!-- {whose}" in text, "letters are drawn as shapes, and told in a remark"
            assert f"<!-- {another}" not in text
    assert main(["look", "hybrid", TEXT, "--compare", other, "--out", str(out), "--device", "cpu"]) == 0
    assert capsys.readouterr().out.splitlines()[-9:] == told["written"]


@pytest.mark.usefixtures("_no_figures")
def test_a_layer_that_only_the_first_run_has_is_no_obstacle(runs, tmp_path, capsys):
    words = [runs["hybrid"], TEXT, "--compare", runs["lstm"], "--out", tmp_path, "--layer", 1]
    told = looked(capsys, *words)
    names = [path.rpartition("/")[2] for path in told["written"]]
    assert names == ["attention.html", "attention.png", "attention.svg", "states.png", "states.svg",
                     "states-compared.png", "states-compared.svg"]  # fmt: skip
    assert list(told["runs"][0]["weights"]) == ["layers.1.mixer.weights"]
    assert told["runs"][1]["weights"] == {}
    assert told["runs"][1]["notes"][-1] == "layer 1 has no attention map: no layer has one"


@pytest.mark.usefixtures("_no_figures")
def test_one_token_is_one_token(runs, tmp_path, capsys):
    words = ["look", str(runs["hybrid"]), "cat", "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert main([*words, "--compare", str(runs["lstm"])]) == 0
    output = capsys.readouterr().out
    assert ", 1 token\n" in output
    assert "of 1 token\n" in output
    assert "1 tokens" not in output


@pytest.mark.usefixtures("_no_figures")
def test_a_file_can_hold_the_text(runs, tmp_path, capsys):
    (tmp_path / "bytes.bin").write_bytes(b"a\n\xff<b>")
    told = looked(capsys, runs["bytes"], "--file", tmp_path / "bytes.bin", "--out", tmp_path / "out")
    assert told["runs"][0]["tokens"] == ["<0x0A>", "a", "<0x0A>", "<0xFF>", "<", "b", ">"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["RUN"], "look at one text: write it after the run, or name a file with --file"),
        (["RUN", "a", "--file", "b"], "look at one text"),
        (
            ["RUN", "--layers", "1", "the cat"],
            "layers='1 the cat': it must be a list of whole numbers",
        ),
        (["--layers", "1", "RUN", "the cat"], "it must be a list of whole numbers"),
        (["RUN", "--layers", "1", "1984"], "--layers takes all values after it, so write the text before it"),
        (["RUN", "a", "--head", "1"], "head=1 needs --layer"),
        (["RUN", "a", "--layer", "0"], "layer 0 has no attention map: attention maps are in layers 1, 2"),
        (["RUN", "a", "--layer", "1", "--head", "2"], "layer 1 has no head 2: its heads are 0 to 1"),
        (["RUN", "a", "--layers", "7"], "there is no layer 7: layers are 0 to 2"),
        (["RUN", "a", "--layer", "1", "--layers", "2"], "layer=1 is not among layers=(2,)"),
        (["RUN", "a", "--compare", "RUN"], "is the run itself"),
        (["RUN", "cat", "--compare", "BYTES"], "the models tokenize the text differently: token 0"),
        (["RUN", "--file", "nowhere"], "nowhere cannot be read: No such file or directory"),
        (["RUN", " "], "has no tokens to score"),
        (["nowhere", "a"], "nowhere"),
    ],
)
def test_what_cannot_be_looked_at_gets_one_line(runs, tmp_path, error_of, words, message):
    names = {"RUN": str(runs["hybrid"]), "BYTES": str(runs["bytes"])}
    out = tmp_path / "out"
    line = error_of(["look", *(names.get(word, word) for word in words), "--out", str(out), "--device", "cpu"])
    assert message in line
    assert not out.exists()


def test_a_folder_that_cannot_be_written_to_gets_one_line(runs, tmp_path, error_of):
    (tmp_path / "taken").write_text("a file")
    line = error_of(["look", str(runs["lstm"]), TEXT, "--out", str(tmp_path / "taken"), "--device", "cpu"])
    assert "taken cannot be written to" in line


@pytest.mark.usefixtures("_no_figures")
def test_too_many_weights_are_left_out_of_json_and_named(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("anaphor.tasks.lm.look.MAX_WEIGHTS", 100)
    told = looked(capsys, runs["hybrid"], TEXT, "--out", tmp_path)
    assert list(told["runs"][0]["weights"]) == ["layers.1.mixer.weights"]
    assert (
        "The weights of layers.2.mixer.weights are too many for JSON: choose --layer and --head."
        in (told["runs"][0]["notes"])
    )


def test_a_text_too_long_for_the_memory_is_refused(monkeypatch):
    tokenizer = Word.train("a b c")
    model = build("transformer", vocabulary=len(tokenizer), width=8, layers=2)
    monkeypatch.setattr(look, "MAX_WEIGHTS", 4 * 2 * 36)
    assert len(look_at(model, tokenizer, "a b c a b").tokens) == 6
    with pytest.raises(DataError, match="8 heads on 7 tokens have 392 weights, but at most 288 can be shown"):
        look_at(model, tokenizer, "a b c a b c")
    assert len(look_at(model, tokenizer, "a b c a b c", layers=[1]).maps) == 1


def test_rows_that_do_not_sum_to_one_are_told():
    tokenizer = Word.train("a b c")
    model = LanguageModelSpec(vocabulary=len(tokenizer), layers=2, width=8, normalize="sigmoid").build()
    found = look_at(model, tokenizer, "a b c")
    assert found.notes == ("Rows do not sum to one in layers 0, 1: summary and rollout divide them by their sum.",)
    torch.testing.assert_close(found.rollouts["layers.1.mixer.weights"].sum(-1), torch.ones(4))


def seeing(*mixers):
    tokenizer = Word.train("a b c")
    spec = {"vocabulary": len(tokenizer), "width": 8, "causal": False, "heads": 2}
    return look_at(LanguageModelSpec(mixers=mixers, **spec).build(), tokenizer, "a b c a")


def test_layers_that_see_later_tokens_are_shown_and_what_they_do_not_have_is_told(tmp_path):
    found = seeing("attention", "low-rank", "bidirectional-linear")
    assert [layer_label(name) for name in found.maps] == ["0", "1", "2 forward", "2 backward"]
    assert found.scored.total.perplexity is None
    assert found.rollouts == {}
    assert found.notes == (
        "This model is not causal: it sees the tokens that it predicts.",
        "Rows do not sum to one in layer 1: summary and rollout divide them by their sum.",
        "No rollout: layer 1 has negative weights.",
    )
    assert found.heads_of(2, 3) == [("layers.2.mixer.backward_layer.weights", 1)]
    assert len(draw_attention(found, tmp_path, 2)) == 2
    assert seeing("bidirectional-linear").notes[-1].startswith("No rollout: layer 0 reads in two directions")
    assert seeing("attention", "lstm").rollouts != {}


class Plain(Mixer):
    """A layer as anybody may write one: it mixes nothing and has no place to look at."""

    def initial_state(self, like):
        return (like.new_zeros(len(like), 1),)

    def mix(self, x, state, span):
        return x, state


@dataclass(frozen=True, kw_only=True)
class PlainSpec(MixerSpec):
    def build(self):
        return Plain(self)


@pytest.mark.parametrize(("mixers", "maps"), [(("plain", "attention"), 1), (("plain", "plain"), 0)])
def test_a_layer_without_taps_is_passed_over(monkeypatch, mixers, maps):
    monkeypatch.setitem(MIXERS._entries, "plain", PlainSpec)
    tokenizer = Word.train("a b c")
    heads = {"heads": 2} if maps else {}
    model = LanguageModelSpec(vocabulary=len(tokenizer), width=8, mixers=mixers, **heads).build()
    found = look_at(model, tokenizer, "a b c a")
    assert len(found.maps) == maps
    which = "Layer 0" if maps else "Layers 0, 1"
    assert f"{which}: nothing to show, because there is no tap." in found.notes
    build_page({"run": found}, None)


def test_a_layer_that_is_not_there_is_named():
    tokenizer = Word.train("a b")
    found = look_at(build("gru", vocabulary=len(tokenizer), width=8), tokenizer, "a b")
    with pytest.raises(ConfigError, match="layer 1 has no attention map: no layer has one"):
        found.heads_of(1)


@pytest.mark.usefixtures("_no_figures")
def test_a_perplexity_beyond_all_numbers_is_no_number_in_json_nor_on_the_page(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("anaphor.metrics.losses.math.exp", lambda loss: math.inf)
    told = looked(capsys, runs["hybrid"], TEXT, "--out", tmp_path / "out")
    assert told["runs"][0]["perplexity"] is None
    page = (tmp_path / "out" / "attention.html").read_text(encoding="utf-8")
    assert "Infinity" not in page.split('id="data">')[1].split("</script>")[0]
    assert main(["score", str(runs["hybrid"]), TEXT, "--device", "cpu", "--json"]) == 0
    (scored,) = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert scored["perplexity"] is None


def test_a_look_at_the_end_of_a_notebook_cell_is_short():
    model = build("hybrid", vocabulary=4, width=64, layers=2, heads=4)
    found = look_at(model, Word.train("the cat sat\n"), "the cat sat")
    assert len(repr(found)) < 400
    assert "1 × lstm, 1 × attention" in repr(found)
    assert "tensor(" not in repr(found)
