"""Tokenizers that come with weights: the ids of `transformers` for 1,000 odd strings, and what a run keeps of them."""

import json

import pytest
from peers import odd_strings, text_for_training, tokenizer_of

from anaphor.data.pretrained_tokenizer import PretrainedTokenizer, tokenizer_json
from anaphor.data.tokenizer import TOKENIZERS, tokenizer_from_plain
from anaphor.errors import ConfigError, DataError

FAMILIES = ("bert", "roberta", "gpt2")


def ours(family):
    text = tokenizer_of(family).backend_tokenizer.to_str()
    return PretrainedTokenizer.from_text(text, where="tokenizer.json", boundary=None, pad=None)


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request):
    return ours(request.param), tokenizer_of(request.param)


def test_1000_odd_strings_have_the_ids_of_transformers(pair):
    mine, peer = pair
    start = [] if peer("")["input_ids"] else [mine.boundary]  # GPT-2 itself puts nothing before a text
    for text in odd_strings():
        assert mine.encode_prompt(text) == start + peer(text)["input_ids"], repr(text)
        plain = peer(text, add_special_tokens=False)["input_ids"]
        assert mine.encode(text).tolist() == mine.encode_sentence(text).tolist() == plain
        assert mine.decode(plain) == peer.decode(plain, clean_up_tokenization_spaces=False)


def test_special_tokens_are_those_of_the_file(pair):
    mine, peer = pair
    assert len(mine) == len(peer)
    assert mine.boundary == (peer.cls_token_id if peer.cls_token_id is not None else peer.bos_token_id)
    assert mine.pad == (peer.pad_token_id if peer.pad_token_id is not None else mine.boundary)


@pytest.mark.parametrize(("family", "is_joined"), [("bert", False), ("roberta", True), ("gpt2", True)])
def test_tokens_that_have_no_space_of_their_own_are_shown_with_spaces(family, is_joined):
    assert ours(family).is_joined is is_joined


def test_exported_words_are_shown_with_spaces_again():
    text = tokenizer_json(TOKENIZERS["word"].train("to be or not to be\n"))
    assert not PretrainedTokenizer.from_text(text, where="tokenizer.json", boundary=None, pad=None).is_joined


def test_a_checkpoint_keeps_it_whole(pair):
    mine, _ = pair
    again = tokenizer_from_plain(json.loads(json.dumps(mine.to_plain())))
    assert again == mine
    assert (again.boundary, again.pad, again.unknown, again.tokens) == (
        mine.boundary,
        mine.pad,
        mine.unknown,
        mine.tokens,
    )
    for text in odd_strings(50):
        assert again.encode_prompt(text) == mine.encode_prompt(text)


def test_limits_of_length_in_the_file_do_not_apply():
    library = tokenizer_of("bert").backend_tokenizer
    plain = json.loads(library.to_str())
    plain["truncation"] = {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    plain["padding"] = {
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]",
    }  # fmt: skip
    mine = PretrainedTokenizer.from_text(json.dumps(plain), where="it", boundary=None, pad=None)
    assert mine.encode_prompt("a b c d e f") == ours("bert").encode_prompt("a b c d e f")


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_tokenizers_of_ours_encode_alike_in_the_library(kind):
    texts = text_for_training()
    mine = TOKENIZERS[kind].train("\n".join(texts), 600)
    written = tokenizer_json(mine)
    library = PretrainedTokenizer(written, mine.boundary, mine.pad)
    assert len(library) == len(mine)
    for text in [*odd_strings(), *texts]:
        ids = mine.encode_sentence(text).tolist()
        assert library.encode_sentence(text).tolist() == ids, repr(text)
        if kind == "bpe":
            assert library.decode(ids) == mine.decode(ids)


def test_kinds_that_the_library_cannot_express_have_no_file():
    assert tokenizer_json(TOKENIZERS["byte"].train("")) is None
    assert tokenizer_json(TOKENIZERS["character"].train("abc")) is None


def test_bytes_are_shown_as_characters():
    assert " the" in ours("gpt2").tokens
    assert "<0xE2>" in ours("gpt2").tokens


def test_what_is_no_tokenizer_is_refused():
    with pytest.raises(DataError, match=r"tokenizer\.json is not a tokenizer"):
        PretrainedTokenizer.from_text("{}", where="tokenizer.json", boundary=None, pad=None)
    with pytest.raises(DataError, match="described by"):
        tokenizer_from_plain({"kind": "pretrained"})
    with pytest.raises(DataError, match="boundary=999 is outside"):
        PretrainedTokenizer(ours("gpt2").text, 999, 0)
    with pytest.raises(ConfigError, match="comes with pretrained weights"):
        PretrainedTokenizer.train("a b c")
    with pytest.raises(DataError, match="not UTF-8 at character 1"):
        ours("gpt2").encode("a\udc80")
