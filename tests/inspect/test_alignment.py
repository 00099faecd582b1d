"""Which words of a source a translation looked at: the weights themselves, and how people are shown them."""

import json
from xml.etree import ElementTree

import pytest
import torch

from anaphor.data.bpe import BPE
from anaphor.data.pairs import PairTokenizers
from anaphor.data.tokenizer import Character, Word
from anaphor.errors import ConfigError, DataError
from anaphor.inspect import recorded
from anaphor.inspect.alignment import (
    Alignment,
    alignment,
    alignment_page,
    as_text,
    cross_attention_taps,
    draw_alignment,
    weight_at,
)
from anaphor.models import SEQ2SEQ_PRESETS, build_seq2seq

HOSTILE = "<script>alert(1)</script>"
SOURCE = f"the cat </script><!-- saw {HOSTILE} @data@"
WORDS = PairTokenizers(Word.train(SOURCE), Word.train("die Katze sah ein Skript"))
HAND = Alignment(("a", "b", "c"), ("c", "<eos>"), torch.tensor([[0.1, 0.5, 0.4], [0.0, 0.0, 1.0]]))


def model_of(name, tokenizers=WORDS, **options):
    sizes = {"source_vocabulary": len(tokenizers.source), "vocabulary": len(tokenizers.target)}
    return build_seq2seq(name, **sizes, width=16, **{"layers": 2, **options})


def target_of(text, tokenizers=WORDS):
    return tokenizers.target.encode_sentence(text).tolist()


@pytest.mark.parametrize("name", SEQ2SEQ_PRESETS)
def test_each_row_is_what_its_token_was_predicted_with(name):
    model, tokens = model_of(name).eval(), target_of("die Katze sah")
    found = alignment(model, WORDS, SOURCE, tokens)
    assert found.source == tuple(SOURCE.split())
    assert found.target == ("die", "Katze", "sah", "<eos>")
    assert found.weights.shape == (4, len(found.source))
    torch.testing.assert_close(found.weights.sum(-1), torch.ones(4))
    # The same step by step: before a token is there, its row is known already.
    tap = cross_attention_taps(model)[-1]
    state = model.encode(torch.from_numpy(WORDS.source.encode_sentence(SOURCE)).long()[None])
    for row, given in enumerate([WORDS.target.boundary, *tokens]):
        with recorded(model, tap) as seen, torch.no_grad():
            _, state = model(torch.tensor([[given]]), state)
        step = seen[tap][0]
        step = step if step.ndim == 2 else step.mean(0)
        torch.testing.assert_close(found.weights[row], step[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", SEQ2SEQ_PRESETS)
def test_a_target_that_was_cut_has_the_same_rows_without_an_end(name):
    model, tokens = model_of(name), target_of("die Katze sah")
    whole, cut = alignment(model, WORDS, SOURCE, tokens), alignment(model, WORDS, SOURCE, tokens, finished=False)
    assert cut.target == ("die", "Katze", "sah")
    torch.testing.assert_close(cut.weights, whole.weights[:3])


def test_a_cut_target_may_fill_all_positions():
    model = model_of("transformer-translation", position="learned", max_positions=3)
    assert len(alignment(model, WORDS, "the cat", target_of("die Katze sah"), finished=False).target) == 3
    with pytest.raises(ConfigError, match="the target has 4 tokens, but the limit is 3"):
        alignment(model, WORDS, "the cat", target_of("die Katze sah ein"), finished=False)
    with pytest.raises(ConfigError, match="the target has 4 tokens with its end, but the limit is 3"):
        alignment(model, WORDS, "the cat", target_of("die Katze sah"))
    with pytest.raises(ConfigError, match="the target is empty"):
        alignment(model, WORDS, "the cat", [], finished=False)


def test_of_several_layers_one_is_shown_and_the_last_unless_told_otherwise():
    model, tokens = model_of("transformer-translation", layers=3), target_of("ein Skript")
    rows = [alignment(model, WORDS, SOURCE, tokens, layer).weights for layer in (0, 1, 2)]
    assert torch.equal(alignment(model, WORDS, SOURCE, tokens).weights, rows[2])
    assert not torch.allclose(rows[0], rows[2])
    with pytest.raises(ConfigError, match="layer=3: cross-attention is in the layers 0 to 2"):
        alignment(model, WORDS, SOURCE, tokens, 3)
    with pytest.raises(ConfigError, match="layer=1: cross-attention is in layer 0 only"):
        alignment(model_of("luong"), WORDS, SOURCE, tokens, 1)


@pytest.mark.parametrize("condition", ["none", "state"])
def test_a_model_that_looks_at_no_source_is_refused_in_one_line(condition):
    with pytest.raises(ConfigError) as caught:
        alignment(model_of("luong", condition=condition), WORDS, SOURCE, [])
    assert f"condition='{condition}' has no cross-attention" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sources_and_targets_that_do_not_fit_are_refused():
    model = model_of("transformer-translation", position="learned", max_positions=3)
    with pytest.raises(DataError, match="too long"):
        alignment(model, WORDS, SOURCE, [])
    with pytest.raises(DataError, match="sentence 1 is empty"):
        alignment(model, WORDS, " ", [])


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(training):
    model = model_of("luong", dropout=0.5).train(training)
    first, second = (alignment(model, WORDS, SOURCE, target_of("sah")).weights for _ in range(2))
    assert torch.equal(first, second), "no dropout while one looks"
    assert model.training is training
    assert not any(tap.is_recorded for tap in model.modules() if hasattr(tap, "is_recorded"))


def test_the_text_form_is_that_of_the_exercise():
    assert as_text(HAND) == "c: [a/0.10, b/0.50, c/0.40]\n<eos>: [a/0.00, b/0.00, c/1.00]"


def test_the_weight_at_the_right_places_is_told_for_each_token():
    assert weight_at(HAND, [2]).tolist() == pytest.approx([0.4])
    assert weight_at(HAND, [1, 2]).tolist() == pytest.approx([0.5, 1.0])
    assert weight_at(HAND, []).tolist() == []
    with pytest.raises(ConfigError, match="3 positions were given, but 2 tokens were predicted"):
        weight_at(HAND, [0, 1, 2])
    for place in (3, -1):
        with pytest.raises(ConfigError, match=f"position {place} is not in the source, whose positions are 0 to 2"):
            weight_at(HAND, [0, place])


def test_white_space_and_line_ends_are_shown_as_signs():
    letters = Character.train("a b\n")
    tokenizers = PairTokenizers(letters, BPE.train("a b\n" * 3, 258))
    model = model_of("luong", tokenizers)
    found = alignment(model, tokenizers, "a b", tokenizers.target.encode_sentence("a b").tolist())
    assert found.source == ("a", " ", "b")
    assert as_text(found).splitlines()[-1].startswith("<eos>: [a/")
    assert all(", ␣/" in line for line in as_text(found).splitlines())


def test_the_figures_are_a_picture_and_a_drawing(tmp_path):
    found = Alignment(("$a_1$", "b", "c"), ("c", "<eos>"), HAND.weights)
    paths = draw_alignment(found, tmp_path / "alignment-1")
    assert [path.name for path in paths] == ["alignment-1.png", "alignment-1.svg"]
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(paths[1]).getroot().tag.endswith("svg")


# ---- the page


def hostile():
    return alignment(model_of("luong"), WORDS, SOURCE, target_of("die Katze sah ein Skript"))


def test_the_page_is_one_file_whose_data_stays_data(parts_of):
    found = hostile()
    text = alignment_page(found)
    parts = parts_of(text)
    assert [attributes.get("type") for tag, attributes in parts.tags if tag == "script"] == ["application/json", None]
    assert not [tag for tag, attributes in parts.tags if "src" in attributes]
    assert [attributes["href"] for _, attributes in parts.tags if "href" in attributes] == ["data:,"]
    data = json.loads(parts.scripts[0])
    assert data["source"] == SOURCE.split()
    assert "<" not in parts.scripts[0]
    torch.testing.assert_close(torch.tensor(data["weights"]), found.weights, rtol=1e-3, atol=1e-4, check_dtype=False)
    assert "http" not in text.replace("http-equiv", "")
    policy = next(attributes["content"] for _, attributes in parts.tags if "http-equiv" in attributes)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_a_browser_shows_each_weight_and_runs_nothing_of_the_text(browser, tmp_path):
    found, path, wrong, asked = hostile(), tmp_path / "page.html", [], []
    path.write_text(alignment_page(found), encoding="utf-8")
    tab = browser.new_page(viewport={"width": 1000, "height": 800})
    tab.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(path.as_uri())
    tab.wait_for_selector("html[data-ready=yes]", state="attached")
    tab.wait_for_selector("#matrix canvas[data-wide]")
    assert HOSTILE in tab.locator("#facts").inner_text()
    assert tab.locator("script").count() == 2
    assert tab.locator("#words li").count() == len(found.target)
    place = tab.locator("#matrix canvas").evaluate("canvas => ({...canvas.dataset})")
    for row, column in ((0, 0), (2, 4), (5, 3)):
        x = float(place["left"]) + (column + 0.5) * float(place["wide"])
        y = float(place["top"]) + (row + 0.5) * float(place["high"])
        tab.locator("#matrix canvas").hover(position={"x": x, "y": y})
        told = tab.locator("#matrix .tip").inner_text()
        assert told.startswith(f"{found.target[row]} attends to {found.source[column]}\n")
        assert float(told.split("\n")[-1]) == pytest.approx(float(found.weights[row, column]), rel=0.01)
    tab.close()
    assert wrong == []
    assert [address for address in asked if not address.startswith("data:")] == [path.as_uri()]
