"""Sixteen questions about language models: each with an answer in words and, behind it, something that runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anaphor.draw import Line, bands
from anaphor.labs import evidence
from anaphor.labs.evidence import Found
from anaphor.labs.lab import CURVES, Check, Outcome
from anaphor.labs.specs import ConceptsSpec
from anaphor.labs.table import LABS


@dataclass(frozen=True)
class Question:
    """A question, what was offered where the options are short, and our answer with its evidence."""

    asked: str
    answer: str
    why: str
    shown: Callable[[int], Found]
    """Runs with a seed: whether it is so, a number, and what that number is."""


QUESTIONS: dict[int, Question] = {
    1: Question(
        "True or false: a language model is usually pretrained without labels written by people.",
        "True.",
        "The target of each token is the token after it, so the text labels itself.",
        evidence.text_labels_itself,
    ),
    2: Question(
        "What are model, architecture and weights?",
        "The architecture is a succession of functions, the weights are their parameters, the model is both.",
        "The same functions with other weights are another model, and with the same weights the same one.",
        evidence.weights_make_the_model,
    ),
    3: Question(
        "Which kind of model completes a prompt?",
        "A decoder.",
        "It predicts each token from those before it only, so what it has read stays valid while it writes on.",
        evidence.decoders_never_look_ahead,
    ),
    4: Question(
        "Which kind of model classifies a text?",
        "An encoder.",
        "The text is there as a whole, and every token may be read in the light of what follows it.",
        evidence.encoders_look_both_ways,
    ),
    5: Question(
        "For which tasks is a many-to-one recurrent network made: transcripts, sentiment, the speaker's gender?",
        "Sentiment and the speaker's gender: one label for a whole sequence. A transcript is a sequence itself.",
        "However long the input, the last state has one size, and one label is read off it.",
        evidence.one_state_for_any_length,
    ),
    6: Question(
        "Where can a model's bias come from: the pretrained model, the data, the metric?",
        "From all three.",
        "A fit repeats the shares of its data, a short fine-tuning keeps those of its start, and another loss has "
        "another best answer.",
        evidence.bias_has_three_sources,
    ),
    7: Question(
        "In which order do tokenizer and model work?",
        "Tokenizer, model, tokenizer again: text becomes ids, the model maps ids to predictions, ids become text.",
        "What the tokenizer takes apart it can put together.",
        evidence.ids_go_there_and_back,
    ),
    8: Question(
        "Which dimensions has the output of a decoder's layers?",
        "Three: batch, length of the sequence, hidden size.",
        "There is one vector for every token of every row.",
        evidence.three_dimensions,
    ),
    9: Question(
        "What does a recurrent language model estimate at step t?",
        "P(y_t | y_1 … y_(t-1)): the next token, given all before it.",
        "The product of these over t is the probability of a text, so over all texts of one length it sums to one.",
        evidence.probabilities_sum_to_one,
    ),
    10: Question(
        "Weights and activations of a recurrent network have become NaN. Why, most likely?",
        "Gradients exploded.",
        "A large update makes the next gradient larger still, until the numbers overflow; bounding the norm stops it.",
        evidence.explosion_ends_in_nan,
    ),
    11: Question(
        "A crab's mood depends on today's weather and on that of days past. One direction or both?",
        "One: the mood of day t depends on x_1 … x_t and on no later day.",
        "In one direction later inputs have no influence at all; in both they have, which here could only be noise.",
        evidence.later_days_do_not_matter,
    ),
    12: Question(
        "True or false: the encoder of a conditional language model models the probability of its input.",
        "False: only the target has a probability, given the source.",
        "The encoder ends in vectors; logits exist for the target's vocabulary alone.",
        evidence.only_targets_have_probabilities,
    ),
    13: Question(
        "Where do we expect attention to help most, against recurrence and fixed windows?",
        "On long inputs.",
        "The first token is one step away from the last in attention, and n − 1 steps away in a recurrence.",
        evidence.attention_reaches_far,
    ),
    14: Question(
        "What is a model head?",
        "A component on top, of one or a few layers, that turns the network's vectors into what a task needs.",
        "Two heads on the same vectors give a language model and a classifier.",
        evidence.heads_share_a_body,
    ),
    15: Question(
        "What must one know to batch sequences of different lengths?",
        "Truncating, padding and attention masking; the type of the tensors has nothing to do with it.",
        "With padding masked, every row gives what it gives alone.",
        evidence.padding_leaves_no_trace,
    ),
    16: Question(
        "A tokenizer from one checkpoint and a model from another: is something wrong?",
        "Yes: both must come from the same checkpoint.",
        "The same id stands for another token, so the model reads another text.",
        evidence.ids_mean_nothing_elsewhere,
    ),
}


def run(spec: ConceptsSpec) -> Outcome:
    asked = QUESTIONS if spec.question is None else {spec.question: QUESTIONS[spec.question]}
    checks = []
    for number, question in asked.items():
        found = question.shown(spec.seed)
        checks.append(Check(f"{number}. {found.what}", found.value, found.expected, found.so))
    rows = {str(number): {"question": one.asked, "answer": one.answer, "why": one.why} for number, one in asked.items()}
    curves: dict[str, Any] = {"reach": evidence.reach(spec.seed)} if 13 in asked else {}
    if spec.question is None:  # people get the answers, and whoever asks for JSON the reasons too
        curves["answers"] = rows
        told: dict[str, Any] = {f"{number}. {row['question']}": row["answer"] for number, row in rows.items()}
    else:
        told = dict(rows[str(spec.question)])
    return Outcome("concepts", LABS["concepts"].claim, tuple(checks), {**told, CURVES: curves})


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """The thirteenth answer as a figure: what is left of the first token as texts grow."""
    found = outcome.numbers[CURVES].get("reach")
    if found is None:
        return []
    lines = [Line(name, evidence.LENGTHS, values, values, values) for name, values in found.items()]
    path = folder / "concepts-reach.png"
    bands(
        {"": lines},
        [path],
        x_label="length of the text",
        y_label="gradient of the first token, last = 1",
        log_x=True,
        log_y=True,
    )
    return [path]
