"""Numbers that count different things are not held against each other: other tokens, or another text."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file

from anaphor.errors import ConfigError
from anaphor.studies.cell import JOB, data_digests
from anaphor.studies.engines import JobResult
from anaphor.studies.report import report
from anaphor.studies.study import Study
from anaphor.studies.study_file import read_study
from anaphor.studies.validation import validate_study
from anaphor.tasks.images import ImageRunSpec
from anaphor.tasks.images import study as images
from anaphor.tasks.lm.measures import LOSSES
from anaphor.tasks.metrics import ACCURACY, BITS_PER_BYTE, LOSS
from anaphor.tasks.translate import BLEU, TranslationRunSpec
from anaphor.tasks.translate.study import STUDY
from anaphor.training.build import build_experiment
from studies.here import Here, Silent
from studies.pretended import Pretending, finish

VOCABULARY = {"word": 27, "byte": 256, "bpe": 300}


@pytest.fixture(autouse=True)
def _as_a_worker_has_it(tmp_path, monkeypatch):
    monkeypatch.setenv("ANAPHOR_CACHE", str(tmp_path / "cache"))
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def data(tmp_path):
    """Two data sets with other training texts; what they validate on is the same, and that of a third is not."""
    for name, train, valid in (("one", "the cat", "the dog"), ("two", "the mat", "the dog"), ("three", "a", "a rat")):
        (tmp_path / name).mkdir()
        for split, text in (("train", train), ("valid", valid), ("test", "the rat")):
            (tmp_path / name / f"{split}.txt").write_text(f"{text} sat on the mat\n" * 40)
    return tmp_path


def scored(job):
    """What a run with these settings might come to: bytes are many, and each is easily told."""
    spec = json.loads((job.folder / JOB).read_text())["spec"]
    kind, seed = spec["tokenizer"], spec["seed"]
    size = min(VOCABULARY[kind], spec["vocabulary"] or 1000)
    loss = {"word": 3.3, "byte": 2.1, "bpe": 2.9}[kind] + spec["width"] / 100 + seed / 1000
    unknown = "kept" if size < VOCABULARY[kind] else "none"
    return {
        "loss": loss,
        "perplexity": float(np.exp(loss)),
        "bits_per_byte": None if unknown == "kept" else {"word": 2.0, "byte": 2.5, "bpe": 2.2}[kind] + seed / 1000,
        "signature": f"tokens:240|tokenizer:{kind}|vocab:{size}|unk:{unknown}",
    }


def worked(job):
    if job.action == "train":
        score = scored(job)
        finish(job.folder, **score)
        lines = np.repeat(np.arange(40, dtype=np.int32), 6)
        noise = np.random.default_rng(0).normal(size=lines.size) / 100
        save_file({"losses": (score["loss"] + noise).astype(np.float32), "lines": lines}, job.folder / LOSSES)
    else:
        (job.folder / "test.json").write_text(json.dumps(scored(job)))
    return JobResult(0)


def studied(data, more, name="one", engine=None):
    file = data / "study.yaml"
    file.write_text(f"base: {{data: {data}/{name}, width: 8, device: cpu}}\nseeds: 3\n{more}\n")
    (data / "out").mkdir(exist_ok=True)
    study = Study(read_study(file), data / "out", engine or Pretending(ends=worked), Silent())
    study.run()
    return report(study)


def said(result, start):
    (found,) = [sentence for sentence in result["findings"] if sentence.startswith(start)]
    return found


@pytest.mark.parametrize("axis", ["tokenizer: {values: [word, byte]}", "vocabulary: {values: [5, 27]}"])
@pytest.mark.parametrize("metric", ["valid.perplexity", "valid.loss"])
def test_what_goes_by_token_ranks_no_settings_whose_tokens_differ(data, axis, metric):
    result = studied(data, f"parameters: {{{axis}}}\nmetric: {metric}")
    assert result["best"] is None
    assert result["findings"][0] == "No best setting: the settings cannot be compared."
    told = said(result, "Not ranked: ")
    name = axis.partition(":")[0]
    assert told.count(f"{name} ") == 2
    assert "different tokens" in told
    assert "`metric: bits_per_byte`" in told
    assert not [line for line in result["findings"] if "same tokens" in line or "best first" in line]
    assert "different tokens" in result["table"]
    assert not (data / "out" / "seal.json").exists(), "nothing was chosen, so that a choice can still be made"


def test_bits_per_byte_rank_tokenizers_and_train_nothing_again(data):
    study = "parameters: {tokenizer: {values: [byte, bpe, word]}}\n"
    studied(data, study)
    result = studied(data, f"{study}metric: valid.bits_per_byte", engine=(idle := Pretending(ends=worked)))
    assert {what for what, _ in idle.jobs} == {"test"}
    assert result["best"]["parameters"] == {"tokenizer": "word"}
    assert said(result, "By tokenizer, best first: ").startswith("By tokenizer, best first: word 2.001, bpe 2.201, ")
    assert not [line for line in result["findings"] if "same tokens" in line or "Not ranked" in line]


def test_bits_that_are_not_known_for_unknown_words_are_told_and_not_advised(data):
    study = "parameters: {vocabulary: {values: [5, 27]}}\n"
    assert "for tokenizers without unknown words" in said(studied(data, study), "Not ranked: ")
    result = studied(data, f"{study}metric: valid.bits_per_byte")
    assert result["best"]["parameters"] == {"vocabulary": 27}
    failed = said(result, "3 of 6 cells have no result: ")
    assert "vocabulary 5 (3 of 3 seeds: the result has no bits_per_byte: it has unknown words" in failed
    assert {cell.get("reason", "")[:33] for cell in result["cells"][:3]} == {"the result has no bits_per_byte: "}


def test_bits_that_leave_out_the_letters_of_unknown_words_rank_no_tokenizers(data):
    """As runs told them once, and may lie in a folder."""

    def told(job):
        ended = worked(job)
        if job.action == "train":
            score = scored(job)
            finish(job.folder, **{**score, "bits_per_byte": score["bits_per_byte"] or 0.5})
        return ended

    bits = "metric: valid.bits_per_byte"
    result = studied(data, f"parameters: {{vocabulary: {{values: [5, 27]}}}}\n{bits}", engine=Pretending(ends=told))
    assert result["best"] is None
    assert "different unknown words" in said(result, "Not ranked: vocabulary 5: ")
    same = f"parameters: {{vocabulary: {{values: [5]}}, width: {{values: [4, 6]}}}}\n{bits}"
    assert studied(data, same, engine=Pretending(ends=told))["best"] is not None, "the same words are unknown to both"


def test_a_vocabulary_that_holds_all_words_anyway_is_the_same_one(data):
    result = studied(data, "parameters: {vocabulary: {values: [null, 27, 500], }, width: {values: [4, 8]}}")
    assert result["best"]["parameters"]["width"] == 4
    assert not [line for line in result["findings"] if "Not ranked" in line]
    assert said(result, "On the same tokens ")


@pytest.mark.parametrize(
    ("tokenizer", "other", "metric", "why"),
    [
        ("word", "two", "valid.perplexity", "different tokens"),  # words are those of the training text
        ("word", "two", "valid.bits_per_byte", ""),
        ("byte", "two", "valid.perplexity", ""),
        ("byte", "three", "valid.perplexity", "different texts"),
        ("byte", "three", "valid.bits_per_byte", "different texts"),
    ],
)
def test_data_sets_are_compared_by_what_they_have_in_common(data, tokenizer, other, metric, why):
    axis = f"{{settings: {{one: {{}}, other: {{data: {data}/{other}}}}}}}"
    study = f"parameters: {{from: {axis}, tokenizer: {{values: [{tokenizer}]}}}}\nmetric: {metric}"
    result = studied(data, study)
    assert (result["best"] is None) == bool(why)
    if why:
        assert why in said(result, "Not ranked: ")


def test_settings_that_see_later_tokens_do_not_keep_the_others_from_being_ranked(data):
    variants = "{plain: {}, wide: {width: 9}, seeing: {causal: false, tokenizer: byte}}"
    result = studied(data, f"parameters: {{variant: {{settings: {variants}}}}}")
    assert result["best"]["parameters"] == {"variant": "plain"}
    assert "attends to later tokens" in said(result, "Not ranked: variant seeing: ")


def test_lines_that_are_not_the_same_are_not_compared_token_by_token(data):
    def shifted(job):
        ended = worked(job)
        if job.action == "train" and json.loads((job.folder / JOB).read_text())["spec"]["width"] == 9:
            lines = np.repeat(np.arange(60, dtype=np.int32), 4)
            save_file({"losses": np.ones(240, np.float32), "lines": lines}, job.folder / LOSSES)
        return ended

    result = studied(data, "parameters: {width: {values: [8, 9]}}", engine=Pretending(ends=shifted))
    assert not [line for line in result["findings"] if "same tokens" in line]


@pytest.mark.parametrize("content", [b"damaged", b"", "another tensor"])
def test_losses_that_cannot_be_read_are_not_compared(data, content):
    compared = "parameters: {width: {values: [8, 9]}}"
    assert said(studied(data, compared), "On the same tokens ")
    for path in (data / "out" / "cells").glob(f"*/{LOSSES}"):
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            save_file({"other": np.ones(3, np.float32)}, path)
    result = studied(data, compared)
    assert result["best"]["parameters"] == {"width": 8}
    assert not [line for line in result["findings"] if "same tokens" in line]


def test_runs_say_themselves_what_their_tokens_are(data):
    """The signature of a real run is read as it is written; by length there are only numbers by token."""
    base = "parameters: {vocabulary: {values: [5, 50]}}\nlengths: [2, 4]\nseeds: [0]\n"
    file = data / "study.yaml"
    file.write_text(f"base: {{data: {data}/one, width: 4, layers: 1, steps: 1, bptt: 4, device: cpu}}\n{base}")
    (data / "out").mkdir()
    study = Study(read_study(file), data / "out", Here(), Silent())
    study.run()
    result = report(study)
    assert result["best"] is None
    by_length = [line for line in result["findings"] if line.startswith("By length: Not ranked: ")]
    assert len(by_length) == 1
    assert "different tokens" in by_length[0]
    assert "`metric: bits_per_byte`" in by_length[0]
    assert not [line for line in result["findings"] if "est of" in line or "same tokens" in line]


def test_translations_are_compared_by_bleu_whatever_their_tokens_are():
    apart, joint = ({"signature": f"tokens:9|tokenizer:word|vocab:{size}"} for size in ("30+40", "50"))
    run, other = TranslationRunSpec(data="echo"), TranslationRunSpec(data="reverse")

    def unit(run, score, metric):
        return STUDY.unit(run, data_digests("translate", run), score, metric)

    for metric in (BLEU, BITS_PER_BYTE):
        assert unit(run, apart, metric) == unit(run, joint, metric) != unit(other, joint, metric)
    assert unit(run, apart, LOSS) != unit(run, joint, LOSS)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("parameters: {tokenizer: {values: [word, byte]}}\n", "vary tokenizer by metric=valid.perplexity"),
        ("parameters: {vocabulary: {min: 10, max: 90}}\nmetric: valid.loss\n", "vary vocabulary by metric=valid.loss"),
        ("parameters: {kind: {settings: {a: {tokenizer: bpe}, b: {}}}}\n", "vary kind by metric=valid.perplexity"),
        (
            "parameters: {data: {values: [a, b]}}\nmetric: valid.bits_per_byte\n",
            "it changes the text that is evaluated",
        ),
    ],
)
def test_a_search_that_would_follow_such_numbers_is_refused_before_it_begins(tmp_path, text, told):
    path = tmp_path / "study.yaml"
    path.write_text(f"method: bayes\n{text}")
    with pytest.raises(ConfigError) as caught:
        validate_study(read_study(path), None)
    assert told in str(caught.value)
    assert ("`metric: bits_per_byte`" in str(caught.value)) == ("changes the text" not in told)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "parameters: {tokenizer: {values: [word, byte]}}\nmetric: valid.bits_per_byte\n",
        "parameters: {tokenizer: {values: [byte]}, lr: {min: 0.1, max: 0.2}}\n",
        "task: translate\nparameters: {vocabulary: {values: [50, 90]}}\nmetric: valid.bleu\n",
    ],
)
def test_a_search_by_what_can_be_compared_is_sound(tmp_path, text):
    path = tmp_path / "study.yaml"
    path.write_text(f"method: bayes\n{text}")
    validate_study(read_study(path), None)


def test_the_same_images_at_two_sizes_are_comparable(tmp_path):
    random = np.random.default_rng(0)
    for split in ("train", "valid"):
        for label in ("a", "b"):
            (tmp_path / "images" / split / label).mkdir(parents=True)
            for number in range(8):
                pixels = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "images" / split / label / f"{number}.png")
    Image.new("RGB", (20, 12)).save(tmp_path / "images" / "train" / "a" / "0.png")
    small, large = (ImageRunSpec(data=str(tmp_path / "images"), image_size=size) for size in (8, 16))
    digests = [data_digests("images", spec) for spec in (small, large)]
    units = {images.STUDY.unit(spec, found, {}, ACCURACY) for spec, found in zip((small, large), digests, strict=True)}
    assert len(units) == 1
    assert digests[0] == build_experiment(replace(small, patch_size=4)).fingerprint()["data"]
