"""Inputs that are drawn anew for each grading: nobody knows the results beforehand, and mistakes are still found."""

import pytest
import torch

from anaphor.course.catalog import CATALOG, find_reference
from anaphor.course.check import check_implementation
from anaphor.course.compare import agrees
from anaphor.course.implementation import Built, vary_cases
from anaphor.course.reference import DoesNotFit, change_rules

VARIED = [name for name in CATALOG if find_reference(name).vary is not None]
SEEDS = range(3)


class ByHeart:
    """It knows the results for the inputs of `anaphor check`, call by call, and computes nothing."""

    def __init__(self, reference):
        self.name = reference.name
        self.known = [reference.compute({}, case.inputs, reference.designs[0]) for case in reference.cases({})]

    def build(self):
        return Built({}, [], [], False)

    def set_weights(self, loaded):
        pass

    def to(self, dtype):
        pass

    def run(self, call):
        return self.known[call.number]

    def run_without_memory(self, call):
        pass


def is_fixed(reference):
    """Whether a grading has the inputs of another one, and no random weights."""
    if reference.constructors:
        return False
    one, other = (vary_cases(reference, {**reference.sizes}, seed) for seed in (1, 2))
    return all(agrees(a.inputs, b.inputs) for a, b in zip(one, other, strict=True))


def test_no_function_is_graded_on_inputs_that_are_always_the_same():
    assert [name for name in CATALOG if is_fixed(find_reference(name))] == []


@pytest.mark.parametrize("name", VARIED)
def test_who_knows_the_results_by_heart_passes_the_check_but_no_grading(name):
    reference = find_reference(name)
    assert check_implementation(reference, ByHeart(reference)).passed
    for seed in SEEDS:
        assert not check_implementation(reference, ByHeart(reference), seed=seed).passed


def results(reference, rules, seed):
    """Of a variant on all cases; None where the inputs do not allow it."""
    try:
        return [reference.compute({}, case.inputs, rules) for case in vary_cases(reference, {}, seed)]
    except (DoesNotFit, KeyError, IndexError, RuntimeError, ValueError, ZeroDivisionError):
        return None


def agree(one, other):
    return one is not None and other is not None and all(map(agrees, one, other))


@pytest.mark.parametrize("name", VARIED)
def test_other_inputs_tell_mistakes_apart_as_the_fixed_ones_do(name):
    reference = find_reference(name)
    right = reference.designs[0]
    for seed in SEEDS:
        expected = results(reference, right, seed)
        for mistake in reference.mistakes:
            wrong = change_rules(right, mistake.change)
            if not agree(results(reference, wrong, None), results(reference, right, None)):
                assert not agree(results(reference, wrong, seed), expected), (mistake.name, seed)


def test_every_right_search_finds_the_tokens_that_were_exchanged():
    reference = find_reference("beam_search")
    for rules in reference.designs:
        fixed, varied = results(reference, rules, None), results(reference, rules, 1)
        cases = vary_cases(reference, {}, 1)
        for case, one, other in zip(cases, fixed, varied, strict=True):
            assert [case.inputs["table"].order[token] for token in other["tokens"]] == one["tokens"]
            assert other["score"] == pytest.approx(one["score"])


def test_words_are_exchanged_and_capitals_stay():
    reference = find_reference("Tokenizer")
    fixed, varied = reference.cases({})[0].inputs, vary_cases(reference, {}, 1)[0].inputs
    for one, other in zip([*fixed["lines"], fixed["text"]], [*varied["lines"], varied["text"]], strict=True):
        assert one != other
        assert len(one.split()) == len(other.split())
    names = {line.split(":")[0] for line in varied["lines"]}
    assert len(names) == 2
    assert all(name.isupper() for name in names)


def test_tokens_are_drawn_without_repetition():
    for name, field in (("batchify", "data"), ("get_batch", "source")):
        for case in vary_cases(find_reference(name), {}, 1):
            tokens = case.inputs[field]
            assert len(torch.unique(tokens)) == tokens.numel()
