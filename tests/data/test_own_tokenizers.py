"""A user's own tokenizer: trained by its name, saved with the run, and loaded with its file only."""

from pathlib import Path

import pytest

import anaphor
from anaphor.cli.main import main
from anaphor.data.corpus import build_tokenizer, encode_split
from anaphor.data.dataset import InMemory
from anaphor.data.tokenizer import Word, tokenizer_from_plain
from anaphor.errors import ConfigError
from anaphor.imported_files import IMPORTED

FILE = """
import anaphor
from anaphor.data.tokenizer import Word


class Lower(Word):
    @classmethod
    def train(cls, text, size=None):
        return super().train(text.lower(), size)

    def encode(self, text):
        return super().encode(text.lower())

    def encode_sentence(self, text):
        return super().encode_sentence(text.lower())


anaphor.register_tokenizer("lower", Lower)
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "lower.py").write_text(FILE)
    return str(tmp_path / "lower.py")


@pytest.fixture
def run(file, tmp_path, capsys, own_cache):
    (tmp_path / "text.txt").write_text("A dog SAT\na cat sat\n" * 40)
    words = ["train", "lm", "--import", file, "--data", str(tmp_path / "text.txt"), "--tokenizer", "lower"]
    words += ["--width", "8", "--steps", "2", "--device", "cpu", "--out", str(tmp_path / "run"), "--json"]
    assert main(words) == 0
    capsys.readouterr()
    return tmp_path / "run"


def test_a_run_has_its_tokens_and_generates_them(run, file, answer_of):
    assert anaphor.load_run(run, device="cpu").experiment.tokenizer.tokens == (
        "a", "dog", "sat", "<eos>", "cat", "<unk>",
    )  # fmt: skip
    (row,) = answer_of(["score", str(run), "A DOG", "--import", file, "--device", "cpu", "--json"])
    assert [token["token"] for token in row["tokens"]] == ["a", "dog"]


def test_a_run_is_resumed_with_the_file_and_names_it_without(run, file, answer_of, error_of):
    words = ["train", "lm", "--resume", "--out", str(run), "--steps", "3", "--force", "--device", "cpu"]
    assert answer_of([*words, "--import", file, "--json"])["steps"] == 3
    IMPORTED.clear()  # as in another process
    line = error_of(["evaluate", str(run), "--device", "cpu"])
    assert f"was trained with parts of lower.py: pass --import {Path(file)}" in line


def test_its_name_is_listed_with_the_others():
    anaphor.register_tokenizer("letters", type("Letters", (Word,), {}))
    with pytest.raises(ConfigError, match=r"unknown tokenizer 'leters'; did you mean 'letters'\?"):
        build_tokenizer(InMemory("text", {"train": ["a b"]}), "leters")
    with pytest.raises(ConfigError, match="tokenizer name 'word' is already registered"):
        anaphor.register_tokenizer("word", Word)


def test_a_description_is_read_by_the_class_of_that_name_and_not_by_the_one_it_derives_from():
    class Shout(Word):
        def decode(self, ids):
            return super().decode(ids).upper()

    anaphor.register_tokenizer("shout", Shout)
    plain = Shout.train("a b").to_plain()
    assert plain["kind"] == "shout"
    assert tokenizer_from_plain(plain).decode([0, 1]) == "A B"
    assert Word.kind == "word"


def test_nothing_of_it_is_cached_because_its_code_may_change(monkeypatch, tmp_path):
    monkeypatch.setenv("ANAPHOR_CACHE", str(tmp_path))
    text = InMemory("text", {"train": ["a b", "b a"]})
    anaphor.register_tokenizer("reversing", type("First", (Word,), {}))
    first = build_tokenizer(text, "reversing")

    class Second(Word):
        @classmethod
        def train(cls, text, size=None):
            return super().train(text[::-1], size)

        def encode(self, text):
            return super().encode(text)[::-1]

    anaphor.register_tokenizer("reversing", Second)
    second = build_tokenizer(text, "reversing")
    assert second.tokens != first.tokens
    assert (encode_split(text, "train", second).tokens == second.encode("a b\nb a\n")).all()
    assert not any(tmp_path.rglob("*.json"))
