"""`anaphor generate`: text that is printed while it is written."""

import json
from functools import cache
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anaphor.cli.generate_texts import decode_stream
from anaphor.cli.main import main
from anaphor.data.tokenizer import TOKENIZERS

TEXT = "the cat sat on the mât .\n\nthe 🐈 sat too , naïve ﷺ � .\n" * 3


@cache
def tokenizer_of(kind):
    return TOKENIZERS[kind].train(TEXT, 300 if kind == "bpe" else None)


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(data=st.data())
def test_what_is_printed_piece_by_piece_is_the_whole_text(kind, data):
    tokenizer = tokenizer_of(kind)
    sound = tokenizer.encode(TEXT).tolist()
    some = st.integers(0, len(sound)).flatmap(lambda start: st.just(sound[start : start + 9]))
    anything = st.lists(st.integers(0, len(tokenizer) - 1), max_size=9)
    ids = list(chain.from_iterable(data.draw(st.lists(some | anything, max_size=5))))
    printed = list(decode_stream(tokenizer, ids))
    assert "".join(printed) == tokenizer.decode(ids)
    for place in range(len(ids)):
        so_far = tokenizer.decode(ids[: place + 1])
        assert "".join(printed[: place + 1]) == so_far.removesuffix("\ufffd"), "only what may yet change is held back"


def letters_as_bytes(count):
    """Leading and following bytes of UTF-8, more often in order than not: every way in which a character can break."""
    odd = st.sampled_from([0x00, 0x41, 0x80, 0xBF, 0xC0, 0xC3, 0xE0, 0xED, 0xEF, 0xBD, 0xF0, 0x9F, 0x90, 0xF4, 0xFF])
    whole = st.characters(exclude_categories=["Cs"]).map(str.encode)
    return st.lists(whole | odd.map(lambda value: bytes([value])), max_size=count).map(b"".join)


@given(letters_as_bytes(20), st.integers(0, 3))
def test_characters_of_several_bytes_come_out_whole(values, missing):
    tokenizer = tokenizer_of("byte")
    ids = values[: len(values) - missing]
    assert "".join(decode_stream(tokenizer, ids)) == ids.decode("utf-8", "replace")


def test_a_character_is_printed_once_it_is_complete():
    printed = list(decode_stream(tokenizer_of("byte"), "a🐈b".encode()))
    assert [text for text in printed if text] == ["a", "🐈", "b"]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_each_token_costs_the_same_however_long_the_text_has_become(kind, monkeypatch):
    tokenizer, asked = tokenizer_of(kind), []
    decode = tokenizer.decode
    monkeypatch.setattr(tokenizer, "decode", lambda ids: asked.append(len(ids)) or decode(ids))
    ids = [*(tokenizer.encode(TEXT).tolist() * 5), *([len(tokenizer) - 1] * 100)]
    for _ in decode_stream(tokenizer, ids):
        pass
    assert len(asked) <= 2 * len(ids) + 1
    assert max(asked) <= 5


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small model whose next token depends much on its prompt."""
    out = tmp_path_factory.mktemp("generate") / "run"
    words = "train lm --data grammar --model gpt-nano --width 12 --heads 2 --layers 1 --steps 1 --no-test --device cpu"
    assert main([*words.split(), "--max-positions", "40", "--out", str(out)]) == 0
    return out


def generate(capsys, run, *words):
    assert main(["generate", str(run), "--device", "cpu", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_samples_are_what_each_seed_gives_alone(capsys, run):
    words = ["--prompt", "the dog", "--tokens", "9"]
    (*rows,) = generate(capsys, run, *words, "--samples", "5", "--batch-size", "2", "--seed", "3")["samples"]
    assert [row["seed"] for row in rows] == [3, 4, 5, 6, 7]
    assert rows == [generate(capsys, run, *words, "--seed", str(seed)) for seed in range(3, 8)]
    assert len({row["text"] for row in rows}) > 1


def test_prompts_of_a_file_are_continued_as_each_alone(capsys, run, tmp_path):
    prompts = ["", "the old dog", "Ada sees", "every young green cat that"]
    (tmp_path / "prompts.txt").write_text("\n".join(prompts) + "\n")
    words = ["--tokens", "9", "--temperature", "0"]
    rows = generate(capsys, run, *words, "--file", str(tmp_path / "prompts.txt"))["samples"]
    assert [row["prompt"] for row in rows] == prompts
    for prompt, row in zip(prompts, rows, strict=True):
        assert row["tokens"] == generate(capsys, run, *words, "--prompt", prompt)["tokens"]
    beams = generate(capsys, run, "--tokens", "5", "--beam", "2", "--file", str(tmp_path / "prompts.txt"))["samples"]
    assert beams[2]["tokens"] == generate(capsys, run, "--tokens", "5", "--beam", "2", "--prompt", "Ada sees")["tokens"]


def test_several_texts_are_printed_below_their_numbers(capsys, run, tmp_path):
    (tmp_path / "prompts.txt").write_text("Ada\nthe dog\n")
    words = ["generate", str(run), "--device", "cpu", "--tokens", "3", "--samples", "2"]
    assert main([*words, "--file", str(tmp_path / "prompts.txt"), "--temperature", "0"]) == 0
    shown = capsys.readouterr()
    heads = [line for line in shown.out.splitlines() if line.startswith("---")]
    assert heads == [f"--- line {line}, sample {sample}" for line in (1, 2) for sample in (1, 2)]
    assert "all samples of a prompt are equal" in shown.err
    assert main(words) == 0
    assert "--- sample 2\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cuda-graph"], "needs a GPU"),
        (["--samples", "0"], "samples=0: it must be at least 1"),
        (["--batch-size", "0"], "batch_size=0: it must be at least 1"),
        (["--samples", "2", "--beam", "2"], "samples=2 has no effect with --beam"),
        (["--prompt", "a", "--file", "b"], "give one of them"),
        (["--file", "empty.txt"], "empty.txt has no lines"),
        (["--file", "long.txt", "--tokens", "30"], "the model has 40 positions"),
    ],
)
def test_what_cannot_be_generated_is_refused(capsys, run, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "long.txt").write_text("Ada\n" + "the dog " * 10)
    assert main(["generate", str(run), "--device", "cpu", *words]) != 0
    shown = capsys.readouterr()
    assert message in shown.err
    assert not shown.out


def test_ctrl_c_ends_the_line_of_what_has_been_generated(text, monkeypatch, capsys):
    def interrupted(*_):
        yield "the cat"
        raise KeyboardInterrupt

    words = (
        "train lm --data text --width 8 --layers 1 --batch-size 2 --bptt 5 --steps 1 --device cpu --no-test --out run"
    )
    assert main(words.split()) == 0
    capsys.readouterr()
    monkeypatch.setattr("anaphor.cli.generate_texts.decode_stream", interrupted)
    assert main(["generate", "run"]) == 130
    assert tuple(capsys.readouterr()) == ("the cat\n", "anaphor: interrupted\n")
