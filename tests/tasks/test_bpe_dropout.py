"""BPE-dropout in training: off it changes nothing, on it changes training alone, and a killed run ends the same."""

import json
import math

import numpy as np
import pytest

from anaphor.beam_search import Beam
from anaphor.cli.main import main
from anaphor.errors import ConfigError
from anaphor.tasks.translate import TranslationRunSpec
from anaphor.training.build import build_experiment
from anaphor.training.spec_file import collect_settings
from anaphor.yaml_files import read_mapping
from stand_ins import assert_equal_batches, assert_same_after_a_kill, decode_pairs

TEXT = "ein kleiner Hund läuft über die grüne Wiese und bellt laut einen anderen Hunden hinterher"


pytestmark = pytest.mark.usefixtures("own_cache", "single_precision")


@pytest.fixture
def folder(tmp_path):
    """Sentences of these words, and the words in reverse."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 60), ("valid", 5)):
        drawn = [generator.choice(TEXT.split(), generator.integers(2, 9)).tolist() for _ in range(count)]
        (tmp_path / f"{split}.en").write_text("".join(f"{' '.join(words)}\n" for words in drawn))
        (tmp_path / f"{split}.de").write_text("".join(f"{' '.join(reversed(words))}\n" for words in drawn))
    return tmp_path


def spec_of(folder, dropout=0.3, **settings):
    usual = {
        "tokenizer": "bpe", "vocabulary": 320, "joint": True, "model": "transformer-translation", "width": 16,
        "layers": 1, "heads": 2, "dropout": 0.1, "batch_size": 8, "beam": 1, "device": "cpu",
    }  # fmt: skip
    return TranslationRunSpec(data=str(folder), source="en", bpe_dropout=dropout, **usual | settings)


# ---- batches


def test_without_dropout_batches_are_the_plain_ones(folder):
    experiment = build_experiment(spec_of(folder, dropout=0.0))
    for epoch in (0, 3):
        assert_equal_batches(experiment.batches(epoch), experiment.split("train").batches.at_epoch(epoch))


@pytest.mark.parametrize("size", [{}, {"batch_tokens": 80, "pad_to": 4}])
def test_every_pair_has_its_text_once_in_every_epoch(folder, size):
    experiment = build_experiment(spec_of(folder, **size))
    expected = dict(enumerate(experiment.split("train").texts))
    for epoch in range(3):
        batches = experiment.batches(epoch)
        assert batches.examples == len(expected) == sum(len(batch.indices) for batch in batches)
        assert decode_pairs(experiment, batches) == expected


def test_with_a_batch_size_every_epoch_has_as_many_batches(folder):
    experiment, plain = build_experiment(spec_of(folder)), build_experiment(spec_of(folder, dropout=0.0))
    assert {len(experiment.batches(epoch)) for epoch in range(5)} == {len(plain.batches(0))} == {8}


def test_epochs_differ_and_each_is_a_function_of_the_seed(folder):
    one, same, other = (build_experiment(spec_of(folder, seed=seed)) for seed in (1, 1, 2))
    same.batches(5)
    for epoch in (2, 0):
        assert_equal_batches(one.batches(epoch), same.batches(epoch))
    counts = [sum(batch.count for batch in at) for at in (one.batches(0), one.batches(1), other.batches(0))]
    assert len(set(counts)) == 3
    assert min(counts) > sum(batch.count for batch in one.split("train").batches)


def test_max_examples_limits_the_sampled_pairs_too(folder):
    experiment = build_experiment(spec_of(folder, max_examples=10))
    assert sorted(decode_pairs(experiment, experiment.batches(1))) == list(range(10))


@pytest.mark.parametrize("bound", ["positions", "max_length"])
def test_no_sampled_sentence_is_longer_than_a_plain_one_may_be(folder, bound):
    free = build_experiment(spec_of(folder))
    plain = free.split("train").pairs
    longest = int(max(plain.source.sizes.max(), plain.target.sizes.max()))
    drawn = [batch.lengths.max() - 1 for batch in free.batches(0)]
    assert max(drawn) > longest, "there is something to bound"
    limit = {"position": "learned", "max_positions": longest + 1}
    experiment = build_experiment(spec_of(folder, **limit if bound == "positions" else {"max_length": longest}))
    batches = experiment.batches(0)
    assert max(batch.lengths.max() for batch in batches) == longest + 1
    assert sum(batch.count for batch in batches) > plain.target.sizes.sum() + len(plain), "others are sampled"
    assert max(batch.source[1].max() for batch in batches) <= longest + (bound == "positions")
    for batch in batches:
        loss, _ = experiment.loss(batch, None)
        assert loss.total.isfinite()


# ---- scores


def test_validation_and_translation_see_the_plain_segmentation_alone(folder):
    plain, dropped = (build_experiment(spec_of(folder, dropout=p)) for p in (0.0, 0.7))
    dropped.batches(0)
    for split in ("train", "valid"):
        assert_equal_batches(dropped.split(split).batches, plain.split(split).batches)
    assert dropped.evaluate("valid").to_plain() == plain.evaluate("valid").to_plain()
    sentences, beam = ["ein kleiner Hund", "bellt laut"], Beam(width=2, max_length=8)
    one, other = (experiment.translate(sentences, beam) for experiment in (plain, dropped))
    assert [[each.tokens for each in found] for found in one] == [[each.tokens for each in found] for found in other]


# ---- training


@pytest.mark.parametrize("size", [{"batch_size": 16}, {"batch_tokens": 400, "pad_to": 4}])
def test_a_run_that_was_killed_inside_an_epoch_ends_with_the_same_bits(folder, tmp_path, size):
    assert_same_after_a_kill(spec_of(folder, average="ema", steps=8, eval_every=3, **size), tmp_path)


def test_a_run_from_the_command_line_names_it_and_learns(folder, answer_of):
    options = "--tokenizer bpe --vocabulary 320 --width 16 --steps 20 --eval-every 10 --lr 0.03 --beam 1 --device cpu"
    words = ["train", "translate", "--data", str(folder), "--source", "en", "--no-test", "--json", *options.split()]
    assert answer_of([*words, "--bpe-dropout", "0.1", "--out", str(folder / "run")])["steps"] == 20
    assert read_mapping(folder / "run" / "spec.yaml")["training"]["bpe_dropout"] == 0.1
    last = json.loads((folder / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["valid"]["loss"] < math.log(320) - 1, "well below that of a uniform distribution"


def test_the_settings_of_a_run_without_it_are_those_from_before_the_option(folder):
    off, on = (collect_settings(build_experiment(spec_of(folder, dropout=p))) for p in (0.0, 0.1))
    assert on == off | {"bpe_dropout": 0.1}
    assert "bpe_dropout" not in off


# ---- what is refused


@pytest.mark.parametrize("dropout", [-0.1, 1.0, float("nan")])
def test_what_is_no_probability_is_refused_by_name(folder, dropout):
    with pytest.raises(ConfigError, match=f"^bpe_dropout={dropout}: it must be at least 0 and below 1$"):
        spec_of(folder, dropout=dropout)


def test_a_tokenizer_without_merges_is_refused_in_one_line(folder, capsys):
    words = ["train", "translate", "--data", str(folder), "--source", "en", "--out", str(folder / "run")]
    assert main([*words, "--bpe-dropout", "0.1"]) == 2
    expected = "anaphor: bpe_dropout=0.1 leaves out merges, and tokenizer='word' has none: use --tokenizer bpe"
    assert capsys.readouterr().err.splitlines() == [expected]
