"""A tokenizer of words: right ones pass in every style, planted mistakes are caught and named."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anaphor.course.catalog import find_reference
from anaphor.data.treebank import Treebank
from anaphor.errors import ConfigError
from course.students import check_source, names_of, plant

RIGHT = """
import re

class Tokenizer:
    def __init__(self):
        self.specials = ["<start>", "<pad>", "<unk>"]
        self.start, self.pad, self.unk = 0, 1, 2

    def split(self, text):
        return re.findall(r"\\w+|[^\\w\\s]", text)

    def train(self, text):
        self.words = self.specials + sorted(set(self.split(text)))
        self.ids = {word: i for i, word in enumerate(self.words)}

    def encode(self, text):
        return [self.start] + [self.ids.get(word, self.unk) for word in self.split(text)]

    def decode(self, ids):
        return " ".join(self.words[i] for i in ids)
"""
STYLES = [
    """
from nltk.tokenize import TreebankWordTokenizer

class MyTokenizer:
    def __init__(self, all_dialogues):
        self.word_to_id = {"[START]": 0, "[PAD]": 1, "[UNK]": 2}
        self.pad_id = 1
        for dialogue in all_dialogues:
            for word in TreebankWordTokenizer().tokenize(dialogue):
                self.word_to_id.setdefault(word, len(self.word_to_id))
        self.id_to_word = {i: w for w, i in self.word_to_id.items()}
    def encode(self, text):
        ids = [self.word_to_id["[START]"]]
        for word in TreebankWordTokenizer().tokenize(text):
            ids.append(self.word_to_id[word] if word in self.word_to_id else self.word_to_id["[UNK]"])
        return torch.tensor(ids)
    def decode(self, ids):
        return " ".join([self.id_to_word[int(i)] for i in ids])
""",
    plant(RIGHT, "    def train(self, text):", "    @classmethod\n    def fit(cls, corpus):\n        self = cls()\n"
          "        text = ' '.join(corpus)\n        self._fit(text)\n        return self\n\n    def _fit(self, text):"),
    plant(RIGHT, "for i in ids)", "for i in ids if i > 1)"),
    plant(RIGHT, "sorted(set(self.split(text)))",
          "[w for w, _ in __import__('collections').Counter(self.split(text)).most_common()]"),
    plant(plant(RIGHT, '["<start>", "<pad>", "<unk>"]', '["<pad>", "<unk>", "<s>"]'),
          "self.start, self.pad, self.unk = 0, 1, 2", "self.pad, self.unk, self.start = 0, 1, 2"),
    plant(RIGHT, "train(self, text):\n", "train(self, texts):\n        text = '\\n'.join(texts)\n"),
    """
import re

class Tokenizer:
    def __init__(self, vocab):
        self.words = ["<start>", "<pad>", "<unk>", *vocab]
    def encode(self, text):
        words = re.findall(r"\\w+|[^\\w\\s]", text)
        return [0] + [self.words.index(word) if word in self.words else 2 for word in words]
    def decode(self, ids):
        return " ".join(map(self.words.__getitem__, ids))
""",
]  # fmt: skip
MISTAKES = [
    ("[self.start] + ", "", "start-missing"),
    ("return [self.start] + [self.ids.get(word, self.unk) for word in self.split(text)]",
     "return [self.ids.get(word, self.unk) for word in self.split(text)] + [self.start]", "start-at-the-end"),
    ('re.findall(r"\\w+|[^\\w\\s]", text)', "text.split()", "punctuation-not-split"),
    ('r"\\w+|[^\\w\\s]"', 'r"\\w+"', "punctuation-lost"),
    ('|[^\\w\\s]", text)', '|[^\\w\\s]", text.lower())', "lower-cased"),
    ('re.findall(r"\\w+|[^\\w\\s]", text)', "list(text)", "characters"),
    ("self.ids.get(word, self.unk)", "self.ids[word]", "unknown-words-raise"),
    ("for word in self.split(text)]", "for word in self.split(text) if word in self.ids]", "unknown-words-lost"),
    ("self.ids.get(word, self.unk)", "self.ids.get(word, self.pad)", "unknown-as-padding"),
    ("self.ids.get(word, self.unk)", "self.ids.get(word, self.start)", "unknown-as-start"),
    ("self.ids.get(word, self.unk)", "self.ids.setdefault(word, self.words.append(word) or len(self.words) - 1)",
     "vocabulary-grows"),
    ("sorted(set(self.split(text)))", "[w for w in set(self.split(text)) if self.split(text).count(w) > 1]",
     "rare-words-unknown"),
    ("sorted(set(self.split(text)))", "sorted(set(self.split(text)))[:-1]", "words-lost"),
    ("sorted(set(self.split(text)))", "self.split(text)", "ids-with-gaps"),
    ('" ".join', '"".join', "joined-without-space"),
    ('" ".join(self.words[i] for i in ids)', "[self.words[i] for i in ids]", "decodes-to-a-list"),
    ('" ".join(self.words[i] for i in ids)', '"".join(self.words[i] + " " for i in ids)', "space-at-the-end"),
    ("for i in ids)", "for i in ids if i > 2)", "unknown-not-shown"),
    ("self.ids.get(word, self.unk)", "(word if word in self.ids else 'unk')", {"raises"}),
    ("for word in self.split(text)]", "for word in self.split(text)[::-1]]", "reversed"),
    ("self.pad, self.unk = 0, 1, 2", "self.pad, self.unk = 0, 3, 2", "pad-shares-an-id"),
    ("[self.start] + [", "[self.start] + [self.start] + [", "start-twice"),
    ("self.words[i] for", "self.words[i].upper() for", "unknown"),
]  # fmt: skip


@pytest.mark.parametrize("source", [RIGHT, *STYLES])
def test_a_right_tokenizer_passes(source, tmp_path):
    name = "MyTokenizer" if "MyTokenizer" in source else "Tokenizer"
    report = check_source(tmp_path, source, name)
    assert report.passed, report.mistakes


@pytest.mark.parametrize(("old", "new", "mistake"), MISTAKES)
def test_a_mistake_in_a_tokenizer_is_named(old, new, mistake, tmp_path):
    expected = mistake if isinstance(mistake, set) else {mistake}
    assert names_of(check_source(tmp_path, plant(RIGHT, old, new), "Tokenizer")) == expected


def test_words_that_share_an_id_with_a_special_token(tmp_path):
    source = plant(RIGHT, "self.words = self.specials + sorted(set(self.split(text)))\n        self.ids = {word: i for "
                   "i, word in enumerate(self.words)}", "self.words = sorted(set(self.split(text)))\n"
                   "        self.ids = {word: i for i, word in enumerate(self.words)}\n"
                   "        self.ids['<unk>'] = self.unk")  # fmt: skip
    assert names_of(check_source(tmp_path, source, "Tokenizer")) == {"ids-overlap"}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def Tokenizer(text):\n    return text\n", "must be a class"),
        ("class Tokenizer:\n    def encode(self, text):\n        return []\n", "has no method decode"),
        (plant(RIGHT, "train(self, text)", "train(self, text, size)"), "train\\(text, size\\) has other arguments"),
        (plant(RIGHT, "__init__(self)", "__init__(self, size)"), "Tokenizer\\(size\\) has other arguments"),
    ],
)  # fmt: skip
def test_another_signature_of_a_tokenizer_is_one_line(source, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        check_source(tmp_path, source, "Tokenizer")


def test_the_reference_splits_its_texts_as_our_tokenizer_does():
    from anaphor.course.references.tokenizer import split_words

    for case in find_reference("Tokenizer").cases({}):
        for text in [*case.inputs["lines"], case.inputs["text"]]:
            tokenizer = Treebank.train(text)
            assert tokenizer.decode(tokenizer.encode_example(text)).split() == ["<start>", *split_words(text)]


SPLITS = ["re.findall(r'\\w+|[^\\w\\s]', t)", "re.sub(r'([^\\w\\s])', r' \\1 ', t).split()",
          "[w for w in re.split(r'(\\W)', t) if w.strip()]", "re.findall(r'[A-Za-z]+|[^A-Za-z\\s]', t)"]  # fmt: skip
ORDERS = ["sorted(set(words))", "list(dict.fromkeys(words))", "[w for w, n in Counter(words).most_common()]",
          "sorted(Counter(words), key=words.index, reverse=True)"]  # fmt: skip
LOOKUPS = ["self.ids.get(w, self.ids[U])", "(self.ids[w] if w in self.ids else self.ids[U])",
           "self.ids[w if w in self.ids else U]"]  # fmt: skip
RESULTS = ["ids", "torch.tensor(ids)", "tuple(ids)", "np.array(ids, dtype=int)"]
SPECIALS = ["'<start>', '<pad>', '<unk>'", "'<pad>', '<unk>', '<start>'", "'[PAD]', '[UNK]', '[BOS]'",
            "'<s>', '<pad>', '<oov>'"]  # fmt: skip
NAMES_OF = ["self.tokens[int(i)]", "{v: k for k, v in self.ids.items()}[int(i)]"]
NAMES = ["train", "fit", "build_vocab"]


def write_tokenizer(draw):
    pick = lambda kind: draw(st.sampled_from(kind))  # noqa: E731
    specials = pick(SPECIALS)
    listed = specials.split(", ")
    start = next(one for one in listed if any(word in one for word in ("start", "BOS", "<s>")))
    unknown = next(one for one in listed if any(word in one.lower() for word in ("unk", "oov")))
    is_list = draw(st.booleans())
    argument = pick(["texts", "lines", "sentences"]) if is_list else pick(["text", "data", "s"])
    whole = f"' '.join({argument})" if is_list else argument
    return f"""
import re
import numpy as np
from collections import Counter
U = {unknown}

class Tokenizer:
    def _split(self, t):
        return {pick(SPLITS)}
    def {pick(NAMES)}(self, {argument}):
        words = self._split({whole})
        self.tokens = [{specials}] + {pick(ORDERS)}
        self.ids = dict(zip(self.tokens, range(len(self.tokens))))
        return {pick(["self", "None"])}
    def encode(self, text):
        ids = [self.ids[{start}]] + [{pick(LOOKUPS)} for w in self._split(text)]
        return {pick(RESULTS)}
    def decode(self, ids):
        return ' '.join({pick(NAMES_OF)} for i in ids)
"""


@pytest.mark.slow
@given(st.composite(write_tokenizer)())
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_right_tokenizer_is_refused(tmp_path, source):
    report = check_source(tmp_path, source, "Tokenizer")
    assert report.passed, (source, report.mistakes)
