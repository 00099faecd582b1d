"""What a number of a run counts: numbers that count other tokens, or another text, say nothing about each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from anaphor.data.vocab import Byte
from anaphor.studies.cell import digests_of
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.tasks.translate import TranslationRunSpec
from anaphor.training.spec import RunSpec

BY_TOKEN = ("loss", "perplexity")
TEXT_SETTINGS = ("data", "source", "target", "batching")
"""Settings that decide what text is scored."""
TOKEN_SETTINGS = (*TEXT_SETTINGS, "tokenizer", "vocabulary", "joint")
"""Settings that decide what its tokens are."""

OTHER_TEXTS = "settings are scored on different texts, which no number compares: give each text a study of its own"
OTHER_TOKENS = "settings differ in what a token is, so that numbers by token do not compare them"
OTHER_WORDS = "settings differ in which words are unknown, whose letters cost nothing: bits compare those without any"
WAY_OUT = "; `metric: valid.bits_per_byte` does"


@dataclass(frozen=True)
class Unit:
    """Two numbers of one name may be compared where this is the same."""

    text: tuple[str, ...]
    """What was scored."""
    tokens: tuple[str, ...] = ()
    """What its tokens are; nothing where the number is the same whatever they are."""


def unit_of(run: RunSpec, score: Mapping[str, Any], name: str) -> Unit:
    """What the number of that name counts, in the score of a run on validation."""
    assert isinstance(run, LanguageRunSpec | TranslationRunSpec), "one of the tasks that can be studied"
    held, facts = digests_of(run), facts_of(score)
    text = (held["valid"], getattr(run, "batching", ""))  # separate examples leave out what stands between them
    partly = name == "bits_per_byte" and has_unknown_words(score)  # of an unknown word nobody predicts the letters
    if name not in BY_TOKEN and not partly:
        return Unit(text)
    kind = facts.get("tokenizer", run.tokenizer)
    # The size that it came to, for a text may have fewer words than were allowed. All of them but bytes are learnt from
    # the training text; of one text, and with one size, there is one tokenizer of each kind.
    learnt = "" if kind == Byte.kind else held["train"]
    return Unit(text, (kind, facts.get("vocab", str(run.vocabulary)), learnt))


def facts_of(score: Mapping[str, Any]) -> dict[str, str]:
    """What the signature of a score tells: `bptt:35|tokenizer:word|…`."""
    told = (fact.partition(":") for fact in str(score.get("signature", "")).split("|"))
    return {name: value for name, colon, value in told if colon}


def has_unknown_words(score: Mapping[str, Any]) -> bool:
    return facts_of(score).get("unk") == "kept"


def told_apart(units: Collection[Unit], name: str) -> str:
    """Why numbers of that name that count these cannot be compared; nothing where they can."""
    if len({unit.text for unit in units}) > 1:
        return OTHER_TEXTS
    if len(set(units)) > 1:
        return OTHER_TOKENS if name in BY_TOKEN else OTHER_WORDS
    return ""
