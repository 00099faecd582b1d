"""Bidirectional training (BiT): half of the pairs are swapped at first, then none, and a killed run ends the same."""

import json
import math

import numpy as np
import pytest

from anaphor.api import execute
from anaphor.cli.main import main
from anaphor.errors import ConfigError
from anaphor.tasks.translate import TranslationRunSpec
from anaphor.training.build import build_experiment
from anaphor.training.callbacks import NullCallback
from anaphor.training.spec_file import collect_settings
from anaphor.yaml_files import read_mapping
from stand_ins import assert_equal_batches, assert_same_after_a_kill, decode_pairs, weights

WORDS = ["ein", "kleiner", "hund", "läuft", "über", "die", "grüne", "wiese"]
PAIRS = 120
MAX_TOKENS = 8


pytestmark = pytest.mark.usefixtures("own_cache", "single_precision")


@pytest.fixture
def folder(tmp_path):
    """Two to eight words, and all but the last in capitals: no sentence is one of the other language."""
    generator = np.random.default_rng(0)
    for split, count in (("train", PAIRS), ("valid", 5)):
        drawn = [generator.choice(WORDS, generator.integers(2, MAX_TOKENS + 1)).tolist() for _ in range(count)]
        (tmp_path / f"{split}.en").write_text("".join(f"{' '.join(words)}\n" for words in drawn))
        (tmp_path / f"{split}.de").write_text("".join(f"{' '.join(words[:-1]).upper()}\n" for words in drawn))
    return tmp_path


def spec_of(folder, bidirectional=2, **settings):
    usual = {
        "joint": True, "model": "transformer-translation", "width": 16, "layers": 1, "heads": 2, "dropout": 0.1,
        "batch_size": 32, "beam": 1, "device": "cpu",
    }  # fmt: skip
    return TranslationRunSpec(data=str(folder), source="en", bidirectional_epochs=bidirectional, **usual | settings)


BPE = {"tokenizer": "bpe", "vocabulary": 320, "bpe_dropout": 0.3}


def swapped(experiment, epoch):
    """The pairs of an epoch that are the other way round; all others must be as they are."""
    plain = dict(enumerate(experiment.split("train").texts))
    found = decode_pairs(experiment, experiment.batches(epoch))
    assert found.keys() == plain.keys()
    turned = {index for index, pair in found.items() if pair == plain[index][::-1]}
    assert all(found[index] == plain[index] for index in plain.keys() - turned)
    return turned


# ---- batches


@pytest.mark.parametrize("others", [{}, {"batch_tokens": 80, "pad_to": 4}, BPE])
def test_about_half_of_the_pairs_are_swapped_and_others_in_every_epoch(folder, others):
    experiment = build_experiment(spec_of(folder, 3, **others))
    found = [swapped(experiment, epoch) for epoch in range(4)]
    assert all(0.35 * PAIRS < len(turned) < 0.65 * PAIRS for turned in found[:3])
    assert len(set(map(frozenset, found[:3]))) == 3
    assert found[3] == set()


@pytest.mark.parametrize("others", [{}, BPE])
def test_after_them_batches_are_those_of_a_run_without_it(folder, others):
    plain, experiment = (build_experiment(spec_of(folder, epochs, **others)) for epochs in (0, 2))
    for epoch in (2, 3):
        assert_equal_batches(experiment.batches(epoch), plain.batches(epoch))


def test_with_a_batch_size_every_epoch_has_as_many_batches(folder):
    experiment = build_experiment(spec_of(folder))
    assert {len(experiment.batches(epoch)) for epoch in range(4)} == {math.ceil(PAIRS / 32)}


def test_each_epoch_is_a_function_of_the_seed(folder):
    one, same, other = (build_experiment(spec_of(folder, seed=seed)) for seed in (1, 1, 2))
    same.batches(3)
    for epoch in (1, 0):
        assert_equal_batches(one.batches(epoch), same.batches(epoch))
        assert swapped(one, epoch) != swapped(other, epoch)


def test_a_pair_that_does_not_fit_the_other_way_round_is_not_swapped(folder):
    # A target needs a position for its end, so a source that fills all positions can be no target.
    experiment = build_experiment(spec_of(folder, 4, position="learned", max_positions=MAX_TOKENS))
    sizes = experiment.split("train").pairs.source.sizes
    full = set(np.flatnonzero(sizes == MAX_TOKENS).tolist())
    turned = set().union(*(swapped(experiment, epoch) for epoch in range(4)))
    assert full, "there is something to leave"
    assert not turned & full
    assert len(turned) > 0.8 * (PAIRS - len(full))
    for batch in experiment.batches(0):
        assert experiment.loss(batch, None)[0].total.isfinite()


# ---- scores


def test_validation_is_in_the_asked_direction_alone(folder):
    plain, experiment = (build_experiment(spec_of(folder, epochs)) for epochs in (0, 2))
    experiment.batches(0)
    for split in ("train", "valid"):
        assert_equal_batches(experiment.split(split).batches, plain.split(split).batches)
    assert experiment.evaluate("valid").to_plain() == plain.evaluate("valid").to_plain()


# ---- training


@pytest.mark.parametrize(
    ("epochs", "others"), [(2, {}), (1, {}), (2, {"batch_tokens": 300, "pad_to": 4}), (2, {"batch_size": 30, **BPE})]
)
def test_a_run_that_was_killed_inside_an_epoch_ends_with_the_same_bits(folder, tmp_path, epochs, others):
    spec = spec_of(folder, epochs, steps=10, eval_every=3, **others)
    experiment = build_experiment(spec)
    assert sum(len(experiment.batches(epoch)) for epoch in range(2)) < 10, "the end is after the second epoch"
    assert_same_after_a_kill(spec, tmp_path)


def test_a_run_with_fewer_epochs_is_bidirectional_to_its_end(folder, tmp_path):
    one, other = (spec_of(folder, bidirectional, epochs=1) for bidirectional in (1, 50))
    for name, spec in (("one", one), ("other", other)):
        execute(spec, tmp_path / name, NullCallback(), test=False)
    assert weights(tmp_path / "one") == weights(tmp_path / "other")


def test_a_run_from_the_command_line_names_it_and_learns(folder, answer_of):
    options = "--joint --width 16 --epochs 20 --lr 0.03 --beam 1 --device cpu --bidirectional-epochs 3"
    words = ["train", "translate", "--data", str(folder), "--source", "en", "--no-test", "--json", *options.split()]
    assert answer_of([*words, "--out", str(folder / "run")])["steps"] == 20 * math.ceil(PAIRS / 32)
    assert read_mapping(folder / "run" / "spec.yaml")["training"]["bidirectional_epochs"] == 3
    last = json.loads((folder / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["valid"]["loss"] < math.log(len(WORDS)), "below that of a random word of the target language"


def test_the_settings_of_a_run_without_it_are_those_from_before_the_option(folder):
    off, on = (collect_settings(build_experiment(spec_of(folder, epochs))) for epochs in (0, 2))
    assert on == off | {"bidirectional_epochs": 2}
    assert "bidirectional_epochs" not in off


# ---- what is refused


def test_a_negative_number_of_epochs_is_refused_by_name(folder):
    with pytest.raises(ConfigError, match=r"^bidirectional_epochs=-1: it must be at least 0$"):
        spec_of(folder, -1)


def test_vocabularies_of_each_language_are_refused_in_one_line(folder, capsys):
    words = ["train", "translate", "--data", str(folder), "--source", "en", "--out", str(folder / "run")]
    assert main([*words, "--bidirectional-epochs", "2"]) == 2
    needs = "needs a joint vocabulary, as source and target are exchanged: use --joint"
    assert capsys.readouterr().err.splitlines() == [f"anaphor: bidirectional_epochs=2 {needs}"]
    assert not (folder / "run").exists()
