"""Sheet 002, problem 4: a tokenizer of words and punctuation."""

import re


class Tokenizer:
    """002.4a: ids of the words of a text. Every encoded text begins with <start>; words it does not know are <unk>."""

    def __init__(self) -> None:
        self.specials = ["<start>", "<pad>", "<unk>"]
        self.start, self.pad, self.unk = 0, 1, 2

    def split(self, text: str) -> list[str]:
        """Given: words and punctuation marks."""
        return re.findall(r"\w+|[^\w\s]", text)

    def train(self, text: str) -> None:
        """Give an id to each word of the text, after the special ones."""
        self.words = self.specials + sorted(set(self.split(text)))
        self.ids = {word: number for number, word in enumerate(self.words)}

    def encode(self, text: str) -> list[int]:
        return [self.start, *(self.ids.get(word, self.unk) for word in self.split(text))]

    def decode(self, ids: list[int]) -> str:
        """The words, joined with spaces."""
        return " ".join(self.words[number] for number in ids)
