"""Pairs with known answers: an echo, letters backwards, dates."""

import datetime
import os
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anaphor.data.dataset import PAIR_COLUMNS, count_row_overlap
from anaphor.data.datasets import find_dataset, open_dataset
from anaphor.data.embedded import FIRST_DAY, LAST_DAY, Dates, Reverse, spellings, split_sentences
from anaphor.data.pairs import build_pair_tokenizers
from anaphor.errors import ConfigError
from anaphor.registry import DATASETS

EMBEDDED = [name for name in DATASETS if find_dataset(name).columns == PAIR_COLUMNS and not find_dataset(name).files]


@pytest.mark.parametrize("name", EMBEDDED)
def test_splits_are_disjoint_unless_they_are_there_to_fit(name):
    pairs = open_dataset(name)
    sources = {split: [source for source, _ in pairs.rows(split).values] for split in pairs.splits}
    assert len(set(sources["train"])) == len(sources["train"]) >= 1500
    if pairs.metadata:
        assert sources["train"] == sources["valid"] == sources["test"]
        assert count_row_overlap(pairs, pairs.rows("train").values).in_train == len(sources["test"])
    else:
        every = [source for part in sources.values() for source in part]
        assert len(set(every)) == len(every)
        assert min(map(len, sources.values())) >= 80
        assert count_row_overlap(pairs, pairs.rows("train").values).in_train == 0


def test_pairs_are_the_same_in_every_process():
    script = (
        "from anaphor.data import open_dataset\n"
        f"for name in {EMBEDDED}: print(*map(open_dataset(name).digest, ('train', 'valid', 'test')))"
    )
    digests = set()
    for seed in ("1", "2"):
        command = [sys.executable, "-c", script]
        environment = os.environ | {"PYTHONHASHSEED": seed}
        digests.add(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)
    assert len(digests) == 1
    assert digests.pop().strip()


def test_an_echo_says_sentences_of_the_reference_once_more():
    pairs = open_dataset("echo")
    assert not pairs.metadata
    assert open_dataset("echo-fit").metadata == {"data": "fit"}
    assert open_dataset("echo-fit").swap().metadata
    for split in pairs.splits:
        text = open_dataset("python-reference").text(split)
        for source, target in pairs.rows(split).values:
            assert source == target
            assert source in text
            assert 4 <= len(source.split()) <= 40
    assert open_dataset("echo-fit").rows("test").values == pairs.rows("train").values


def test_paragraphs_are_cut_where_sentences_end():
    paragraph = "Use e.g . the name . See PEP 8 for it . . . and so on ? “ Why not ” they said ! Too short ."
    assert list(split_sentences(paragraph)) == [
        "Use e.g . the name .",
        "See PEP 8 for it . . . and so on ?",
        "“ Why not ” they said !",
    ]
    assert list(split_sentences("word " * 41)) == []
    assert list(split_sentences("")) == []


def test_letters_come_back_from_their_end():
    pairs = Reverse(pairs=500, seed=3)
    rows = [source.split() for source, _ in pairs.rows("train").values]
    assert [target.split() for _, target in pairs.rows("train").values] == [row[::-1] for row in rows]
    assert {len(row) for row in rows} == set(range(4, 21))
    assert {letter for row in rows for letter in row} == set("abcdefghijklmnopqrst")
    assert Reverse(pairs=500, seed=4).rows("train").values != pairs.rows("train").values
    assert len(pairs.rows("valid").values) == len(pairs.rows("test").values) == 50


def test_a_day_has_known_spellings():
    assert spellings(datetime.date(2026, 11, 15)) == [
        "15 November 2026",
        "November 15, 2026",
        "November 15th, 2026",
        "15th of November 2026",
        "the 15th of November, 2026",
        "Sunday, 15 November 2026",
        "Sunday, November 15th, 2026",
        "Sun 15 Nov 2026",
        "15 Nov 2026",
        "Nov 15, 2026",
        "15-Nov-26",
        "NOV 15 '26",
        "15.11.2026",
        "15.11.26",
        "11/15/2026",
        "11/15/26",
        "2026 november 15",
        "20261115",
    ]
    nth = [spellings(datetime.date(2001, 1, day))[3].split()[0] for day in (1, 2, 3, 4, 11, 12, 13, 21, 22, 23, 30, 31)]
    assert nth == ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "23rd", "30th", "31st"]


def read_back(text):
    """By other means: the parser of the standard library, with the one form that fits."""
    text = re.sub(r"(\d)(st|nd|rd|th)\b", r"\1", text).replace("the ", "").replace(" of ", " ").replace(",", "")
    text = re.sub(r"^[A-Z][a-z]+ (?=\d+ [A-Z])|^[A-Z][a-z]+day ", "", text)
    forms = ["%d %B %Y", "%B %d %Y", "%d %b %Y", "%b %d %Y", "%d-%b-%y", "%b %d '%y", "%Y %B %d", "%Y%m%d"]
    forms += ["%d.%m.%Y", "%d.%m.%y", "%m/%d/%Y", "%m/%d/%y"]
    for form in forms:
        try:
            found = datetime.datetime.strptime(text, form).date()
        except ValueError:
            continue
        # The parser's century begins with 1969.
        return found.replace(year=found.year - 100) if found > LAST_DAY else found
    raise AssertionError(f"nobody can read {text!r}")


@given(st.dates(FIRST_DAY, LAST_DAY))
def test_every_spelling_means_its_day_and_no_other(day):
    for text in spellings(day):
        assert read_back(text) == day


def test_no_two_days_share_a_spelling():
    days = [FIRST_DAY + datetime.timedelta(number) for number in range(0, (LAST_DAY - FIRST_DAY).days + 1, 3)]
    seen = {}
    for day in days:
        for text in spellings(day):
            assert seen.setdefault(text, day) == day


def test_dates_are_answered_by_iso_8601():
    pairs = Dates(pairs=300, seed=1)
    for split in pairs.splits:
        for text, answer in pairs.rows(split).values:
            assert text in spellings(datetime.date.fromisoformat(answer))
    days = [answer for split in pairs.splits for _, answer in pairs.rows(split).values]
    assert len(set(days)) == len(days), "no day is in two splits, however it is spelled"
    assert len(build_pair_tokenizers(open_dataset("dates"), "character", joint=True).target) < 70


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Reverse(pairs=0), "pairs=0: there must be at least 1"),
        (lambda: Dates(pairs=40_000).rows("train").values, "pairs=40000: that is 48,000 days, but there are 36,525"),
    ],
)
def test_sizes_that_cannot_be_drawn_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_the_smallest_set_has_a_pair_in_each_split():
    assert [len(Reverse(pairs=1).rows(split).values) for split in ("train", "valid", "test")] == [1, 1, 1]
