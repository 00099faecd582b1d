"""Settings that a worker would refuse are refused before the first one is started."""

import pytest

from anaphor.errors import ConfigError
from anaphor.studies.study_file import find_study_file, read_study
from anaphor.studies.validation import validate_study
from studies.preset_cases import PRESETS


def check(tmp_path, text):
    path = tmp_path / "study.yaml"
    path.write_text(text)
    spec = read_study(path)
    validate_study(spec, None if spec.is_search else spec.settings())


@pytest.mark.parametrize(("name", "data"), PRESETS)
def test_every_preset_is_sound(name, data):
    spec = read_study(find_study_file(name), data=data)
    spec = spec.with_base(**dict.fromkeys(spec.required, "given"))  # what the command line must give
    settings = spec.settings()
    assert settings
    validate_study(spec, settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("parameters: {optimizer: {values: [sgd, adamx]}}\n", "at optimizer adamx: unknown optimizer 'adamx'; did you"),
        (
            "parameters: {mixers: {values: [[lstm], [lstmm]]}}\n",
            "at mixers [lstmm]: unknown mixer 'lstmm'; did you mean",
        ),
        ("base: {model: transformer, width: 8}\nparameters: {heads: {values: [2, 3]}}\n", "at heads 3: "),
        ("base: {warmup: 2}\nparameters: {width: {values: [8]}}\n", "warmup=2 is not a fraction of the budget"),
        ("task: translate\nparameters: {model: {values: [luong, lstm]}}\n", "at model lstm: unknown model 'lstm'"),
        ("task: translate\nparameters: {condition: {values: [stat]}}\n", "unknown condition 'stat'; did you mean"),
        ("base: {layers: 2}\nparameters: {layer_lr: {values: [[1, 1], [1]]}}\n", "1 layer_lr are given for 2 layers"),
        (
            "task: translate\nbase: {model: mixed, layers: 2}\nparameters: {layer_lr: {values: [[1, 1]]}}\n",
            "2 layer_lr are given for 4 layers",
        ),
        (
            "method: bayes\nbase: {optimizer: adamx}\nparameters: {lr: {min: 0.1, max: 1}}\n",
            "unknown optimizer 'adamx'",
        ),
        (
            "metric: valid.bits_per_byte\nbase: {width: 8}\nparameters: {protocol: {values: [complete, example]}}\n",
            "at protocol example: protocol=example does not measure bits_per_byte",
        ),
        (
            "metric: valid.bits_per_byte\nmethod: random\nbase: {protocol: example}\n"
            "parameters: {lr: {min: 0.1, max: 1}}\n",
            "protocol=example does not measure bits_per_byte",
        ),
        (
            "metric: valid.bits_per_byte\nbase: {model: transformer, causal: false, width: 8, heads: 2}\n"
            "parameters: {merge: {values: [concatenate, reweight-matrix]}}\n",
            "at merge reweight-matrix: a model that attends to later tokens has no bits_per_byte",
        ),
        ("method: random\nbase: {model: lsmt}\nparameters: {layers: {min: 1, max: 4}}\n", "at layers 2: unknown model"),
    ],
)
def test_a_place_that_cannot_be_run_is_named(tmp_path, text, message):
    with pytest.raises(ConfigError) as caught:
        check(tmp_path, text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_search_may_meet_values_that_do_not_fit_together(tmp_path):
    spec = "method: random\nbase: {model: transformer}\nparameters: {heads: {values: [3]}, width: {min: 8, max: 9}}\n"
    check(tmp_path, spec)
    with pytest.raises(ConfigError, match="at heads 3, width 8"):
        check(tmp_path, spec.replace("random", "grid").replace("{min: 8, max: 9}", "{values: [8, 9]}"))


def test_separate_examples_have_bits_whatever_the_protocol_of_streams(tmp_path):
    check(
        tmp_path,
        "metric: valid.bits_per_byte\nbase: {protocol: example, batching: padded}\n"
        "parameters: {width: {values: [8]}}\n",
    )
