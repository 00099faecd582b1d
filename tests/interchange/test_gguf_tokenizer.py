"""The tokenizer of a GGUF file encodes as the one of `transformers` that it was made from."""

import json
from pathlib import Path

import pytest
from gguf_files import CONTROL, NORMAL, SPECIALS, described, gpt2_tokenizer, train_bpe
from peers import library, odd_strings, text_for_training, tokenizer_of

from anaphor.data.pretrained_tokenizer import PretrainedTokenizer
from anaphor.errors import DataError
from anaphor.interchange.gguf_tokenizer import end_ids, tokenizer_json

FILE = Path("model.gguf")
BYTE = 6


def read(metadata):
    return PretrainedTokenizer.from_text(tokenizer_json(metadata, FILE), where=str(FILE), boundary=0, pad=0)


def smollm():
    from tokenizers import pre_tokenizers

    parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    return train_bpe(pre_tokenizers.Sequence(parts))


def qwen2():
    """Made by the class of `transformers`, which has the expression."""
    model = json.loads(smollm().to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    made = library().Qwen2Tokenizer(vocab=model["vocab"], merges=merges)
    made.add_special_tokens({"additional_special_tokens": SPECIALS[1:]})
    return made.backend_tokenizer


@pytest.mark.parametrize(("pre", "make"), [("smollm", smollm), ("qwen2", qwen2), ("gpt-2", gpt2_tokenizer)])
def test_byte_level_tokenizers_encode_as_those_they_were_made_from(pre, make):
    made = make()
    ours = read(described(made, pre))
    for text in [*odd_strings(300), "in 2024: <|im_start|>user\n12,345.67<|im_end|>\n\n e\u0301"]:
        ids = made.encode(text).ids
        assert ours.encode(text).tolist() == ids
        assert ours.decode(ids) == made.decode(ids, skip_special_tokens=False)


def test_llama3_splits_numbers_in_threes_and_takes_whole_words_first():
    metadata = described(gpt2_tokenizer(), "llama-bpe")
    tokens = metadata["tokenizer.ggml.tokens"]
    added = ["123", "456", "unreachable", "<|begin_of_text|>"]
    metadata["tokenizer.ggml.tokens"] = [*tokens, *added]
    metadata["tokenizer.ggml.token_type"] += [NORMAL, NORMAL, NORMAL, CONTROL]
    metadata["tokenizer.ggml.bos_token_id"] = len(tokens) + 3
    ours = read(metadata)
    assert ours.encode_prompt("123456unreachable") == [len(tokens) + place for place in (3, 0, 1, 2)]
    assert ours.boundary == len(tokens) + 3
    metadata["tokenizer.ggml.add_bos_token"] = False
    assert read(metadata).encode("123").tolist() == [len(tokens)]


def sentencepiece():
    """A BPE as Llama 2 has it: spaces are written ▁, and what is unknown becomes bytes."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    words = [word for text in text_for_training() for word in text.split()]
    made.train_from_iterator(words, trainers.BpeTrainer(vocab_size=700, show_progress=False, special_tokens=specials))
    model = json.loads(made.to_str())["model"]
    return library().LlamaTokenizer(vocab=model["vocab"], merges=[tuple(merge) for merge in model["merges"]]), model


def test_a_tokenizer_with_scores_encodes_as_that_of_llama_2():
    peer, model = sentencepiece()
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    # As sentencepiece has it: a merge of lower rank has the higher score, and comes before all with a lower one.
    rank = {left + right: -float(place) for place, (left, right) in reversed(list(enumerate(model["merges"])))}
    known = {"<unk>": 2, "<s>": CONTROL, "</s>": CONTROL}
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [rank.get(token, 0.0) for token in tokens],
        "tokenizer.ggml.token_type": [
            known.get(token, BYTE if token.startswith("<0x") else NORMAL) for token in tokens
        ],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    ours = read(metadata)
    texts = ["The value of a function is an object.", "  spaces  and\nlines ", "naïve 日本 😀", "x", "12 + 34 == 46"]
    for text in texts:
        ids = peer(text, add_special_tokens=False)["input_ids"]
        assert ours.encode_prompt(text) == [1, *ids]
        assert ours.decode(ids) == peer.decode(ids)


def test_unused_tokens_fill_up_the_vocabulary():
    metadata = described(gpt2_tokenizer(), "gpt-2")
    size = len(metadata["tokenizer.ggml.tokens"])
    metadata["tokenizer.ggml.tokens"] += ["[PAD500]", "[PAD501]"]
    metadata["tokenizer.ggml.token_type"] += [5, 5]
    ours = read(metadata).with_size(size + 2)
    assert len(ours) == size + 2
    assert ours.tokens[-1] == f"<{size + 1}>"
    again = PretrainedTokenizer.from_plain(json.loads(json.dumps(ours.to_plain())))
    assert again == ours
    assert len(again) == size + 2
    assert ours.decode([size + 1]) == ""


def test_a_text_ends_with_the_tokens_that_the_file_names_and_those_whose_names_say_so():
    metadata = described(gpt2_tokenizer(), "gpt-2")
    tokens = metadata["tokenizer.ggml.tokens"]
    assert end_ids(metadata) == [tokens.index("<|endoftext|>"), tokens.index("<|im_end|>")]
    assert end_ids(metadata | {"tokenizer.ggml.eos_token_id": 9, "tokenizer.ggml.eot_token_id": 2}) == [9, 2, 0]
    ours = PretrainedTokenizer(tokenizer_json(metadata, FILE), 0, 0, ends=(0, 2))
    assert list(ours.until_end(iter([5, 6, 2, 7]))) == [5, 6]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "bert"}, "tokenizer.ggml.model='bert' cannot be converted; known: gpt2, llama"),
        ({"tokenizer.ggml.pre": "tekken"}, "tokenizer.ggml.pre='tekken' cannot be converted; known: gpt-2, smollm"),
        ({"tokenizer.ggml.pre": ["gpt-2"]}, r"tokenizer.ggml.pre=\['gpt-2'\] cannot be converted"),
        ({"tokenizer.ggml.merges": ["a b", "abc"]}, "merge 1 of its tokenizer is not a pair: 'abc'"),
        ({"tokenizer.ggml.merges": ["a \u00df\u00df"]}, "is not a tokenizer of the tokenizers library"),
        ({"tokenizer.ggml.merges": None}, "lacks tokenizer.ggml.merges"),
        ({"tokenizer.ggml.tokens": 7}, "lacks tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.tokens": []}, "its tokenizer has 0 tokens"),
        ({"tokenizer.ggml.token_type": [1]}, "token_type has another number of values"),
        ({"tokenizer.ggml.model": "llama"}, "scores has another number of values"),
    ],
)
def test_a_tokenizer_that_cannot_be_converted_is_refused_in_one_line(change, message):
    with pytest.raises(DataError, match=message) as caught:
        read(described(gpt2_tokenizer(), "gpt-2") | change)
    assert "\n" not in str(caught.value)


def test_a_token_of_a_million_characters_is_refused():
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["a" * 1_000_000, "b"],
        "tokenizer.ggml.scores": [0.0, 0.0],
    }
    with pytest.raises(DataError, match="a token of 1,000,000 characters; at most 1,000 are read"):
        read(metadata)


def test_the_tokenizer_of_gpt2_is_the_same_from_both_kinds_of_file():
    made = tokenizer_of("gpt2").backend_tokenizer
    ours = read(described(made, "gpt-2"))
    assert [ours.encode(text).tolist() for text in odd_strings(50)] == [
        made.encode(text).ids for text in odd_strings(50)
    ]
