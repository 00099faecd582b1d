"""What a report begins with: the winner in a sentence with its interval, and the best settings of a study."""

import pytest

from anaphor.web.report_head import describe_head, describe_study, describe_winner, describe_winners, name_report

LOSS = {"name": "loss", "goal": "min", "label": "loss", "unit": "nats per token", "digits": 4}
ACCURACY = {"name": "accuracy", "goal": "max", "label": "accuracy", "unit": "", "digits": 4}


def row(name, best, metric=LOSS, **more):
    return {"id": name, "run": name, "task": "lm", "study": None, "metric": metric["name"], "goal": metric["goal"],
            "metrics": [metric], "best": best, "counted": "tokens", "settings": {"data": "grammar"}} | more  # fmt: skip


def compared(first, second, difference, low, high):
    overall = {"difference": difference, "low": low, "high": high}
    return {"runs": [first, second], "overall": overall, "item": "token"}


@pytest.mark.parametrize(
    ("comparison", "said"),
    [
        (None, ""),
        (compared("b", "a", 0.5, 0.4, 0.6), " (its loss is 0.5000 nats per token higher, 95 % interval of the "
         "difference +0.4000 to +0.6000)"),
        (compared("a", "b", -0.5, -0.6, -0.4), " (its loss is 0.5000 nats per token higher, 95 % interval of the "
         "difference +0.4000 to +0.6000)"),
        (compared("b", "a", 0.1, -0.1, 0.3), " (its loss is 0.1000 nats per token higher, 95 % interval of the "
         "difference −0.1000 to +0.3000, which includes 0)"),
        (compared("a", "c", 0.1, 0.1, 0.3), ""),
        (compared("b", "a", 0.1, None, None), ""),
    ],
)  # fmt: skip
def test_the_winner_is_named_with_the_interval_of_its_lead(comparison, said):
    rows = [row("a", 2.5), row("b", 2.0), row("c", 3.0)]
    sentence = f"b is the best of 3 runs, with a loss of 2.000 on validation; a follows with 2.500{said}."
    assert describe_winner(rows, comparison) == sentence


def test_a_larger_accuracy_wins():
    rows = [row("a", 0.9, ACCURACY), row("b", 0.8, ACCURACY)]
    assert describe_winner(rows, None).startswith("a is the best of 2 runs, with an accuracy of 0.9")


def test_one_run_has_its_value():
    assert describe_winner([row("a", 2.5)], None) == "a has a loss of 2.500 on validation."


def test_runs_on_other_data_are_not_compared():
    rows = [row("a", 2.5), row("b", 2.0, settings={"data": "other"})]
    assert describe_winners(rows, None) == [
        "a has a loss of 2.500 on validation.",
        "b has a loss of 2.000 on validation.",
    ]


def test_a_run_that_was_not_validated_has_no_sentence():
    head = describe_head([row("a", None)], [], {})
    assert (head["title"], head["pictures"]) == ("a", [])
    assert describe_winners([row("a", None)], None) == []


def test_the_picture_has_the_curves_in_words_of_the_one_table():
    found = {"a": {"columns": {"step": [1, 2, 3], "valid.loss": [3.0, None, 2.5]}}}
    (picture,) = describe_head([row("a", 2.5)], [], found)["pictures"]
    assert picture["alt"] == "validation loss (nats per token) of a by step"
    assert picture["source"].startswith("data:image/svg+xml;base64,")


@pytest.mark.parametrize(
    ("names", "title"), [(["a"], "a"), (["a", "b", "c"], "a, b and c"), (list("abcde"), "5 runs of lm")]
)
def test_few_runs_are_named_in_the_title(names, title):
    assert name_report([row(name, 1.0) for name in names], []) == title


def test_the_best_two_settings_of_a_study_are_shown_with_their_intervals():
    def group(width, mean, low=None, high=None):
        return {"parameters": {"width": width}, "mean": mean, "low": low, "high": high, "seeds": [1, 2]}

    study = {"study": "widths", "about": "", "label": "loss", "digits": 2, "goal": "min",
             "findings": ["Wider is better."],
             "groups": [group(8, 3.0), group(16, 2.0, 1.9, 2.1), group(32, None), group(64, 2.5)]}  # fmt: skip
    found = describe_study(study)
    assert found["findings"] == ["Wider is better."]
    assert [(one["setting"], one["value"], one["interval"]) for one in found["best"]] == [
        ("width=16", "2.000", "1.900 to 2.100"),
        ("width=64", "2.500", ""),
    ]
