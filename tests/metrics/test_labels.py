"""Labels of columns: one name and unit for a value, wherever it is shown."""

import math

import pytest

from anaphor.metrics.labels import Label, format_value, label_column, label_setting

METRICS = {"loss": Label("loss", "nats per token"), "top5": Label("top-5 accuracy")}


@pytest.mark.parametrize(
    ("column", "axis"),
    [
        ("valid.loss", "validation loss (nats per token)"),
        ("test.top5", "test top-5 accuracy"),
        ("train_loss", "training loss (nats per token)"),
        ("loss", "loss (nats per token)"),
        ("lr", "learning rate"),
        ("grad_norm", "gradient norm"),
        ("throughput", "speed (tokens/s)"),
        ("seconds_left", "time left (s)"),
        ("count", "training tokens"),
        ("valid.my_metric", "validation my metric"),
        ("my_value", "my value"),
    ],
)
def test_a_column_is_called_by_its_split_metric_and_unit(column, axis):
    assert label_column(column, METRICS, "tokens").axis == axis


def test_where_nothing_says_what_is_counted_it_is_items():
    assert label_column("throughput", {}, None).axis == "speed (items/s)"


@pytest.mark.parametrize(
    ("setting", "axis"),
    [("lr", "learning rate"), ("bptt", "segment length (tokens)"), ("batch_size", "batch size"), ("width", "width")],
)
def test_a_setting_is_called_by_words(setting, axis):
    assert label_setting(setting).axis == axis


@pytest.mark.parametrize(
    ("value", "shown"),
    [(3.07261, "3.073"), (166.042, "166.0"), (0.99348, "0.9935"), (0.0012345, "0.001234"), (2132.4, "2132"),
     (-0.5, "-0.5000"), (0.0, "0"), (1.2e-7, "1.2e-07"), (3e12, "3e+12"), (math.inf, "inf"), (math.nan, "nan")],
)  # fmt: skip
def test_a_value_has_at_most_four_significant_digits(value, shown):
    assert format_value(value) == shown
