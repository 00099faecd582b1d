"""Translation: padding changes nothing, every target counts once, resuming is exact, what does not fit is refused."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from anaphor.api import execute
from anaphor.beam_search import Beam, search_rows
from anaphor.cli.main import main
from anaphor.data.datasets import open_dataset
from anaphor.data.embedded import Reverse
from anaphor.data.pairs import build_pair_tokenizers
from anaphor.models import SEQ2SEQ_PRESETS, build_seq2seq
from anaphor.models.cross_entropy import IGNORE_INDEX, smoothed_cross_entropy
from anaphor.models.head import Head
from anaphor.registry import DATASETS
from anaphor.tasks.translate import TranslationRunSpec
from anaphor.tasks.translate import experiment as module
from anaphor.tasks.translate.experiment import MAX_ROWS, ROWS, TranslationExperiment, count_rows
from anaphor.training.callbacks import NullCallback
from stand_ins import Interrupted, weights

pytestmark = pytest.mark.usefixtures("own_cache")


def experiment_of(source, name="luong", rows=16, layers=2, **options):
    tokenizers = build_pair_tokenizers(source, "word", joint=False)
    sizes = {"source_vocabulary": len(tokenizers.source), "vocabulary": len(tokenizers.target)}
    model = build_seq2seq(name, **sizes, width=16, layers=layers)
    spec = TranslationRunSpec(data="reverse", max_examples=10**6, batch_size=rows, **options)
    return TranslationExperiment(spec, model, tokenizers, lambda: source)


def test_a_quasi_recurrent_encoder_has_a_kernel_size(capsys):
    spec = TranslationRunSpec(encoder=("qrnn",), kernel_size=3).model_spec(source_vocabulary=7, vocabulary=9)
    assert [getattr(block.mixer, "kernel_size", None) for block in spec.blocks()] == [3, None]
    words = ["train", "translate", "--data", "reverse", "--dry-run", "--width", "8", "--device", "cpu", "--kernel-size"]
    assert main([*words, "3", "--encoder", "qrnn"]) == 0
    capsys.readouterr()
    assert main([*words, "3"]) == 2
    assert capsys.readouterr().err.endswith("is not used by the layers lstm; mixers with this option: qrnn\n")


def train(experiment, steps):
    optimizer = torch.optim.AdamW(experiment.model.parameters(), lr=0.01)
    for _, batch in zip(range(steps), experiment.batches(0), strict=False):
        loss, _ = experiment.loss(batch, None)
        (loss.total / batch.count).backward()
        optimizer.step()
        optimizer.zero_grad()
    return experiment


# ---- padding


def test_more_sentences_are_translated_at_once_on_a_gpu_unless_they_are_long_or_the_vocabulary_is():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert count_rows(gpu, logits=5 * 10_000, longest=50) == MAX_ROWS
    assert ROWS < count_rows(gpu, logits=5 * 10_000, longest=200) < MAX_ROWS
    assert ROWS < count_rows(gpu, logits=5 * 30_000, longest=50) < MAX_ROWS
    assert count_rows(gpu, logits=5 * 10_000, longest=2000) == count_rows(gpu, logits=10**7, longest=50) == ROWS
    assert count_rows(cpu, logits=5, longest=5) == ROWS


@pytest.mark.parametrize("steps", [0, 12])
@pytest.mark.parametrize("name", SEQ2SEQ_PRESETS)
def test_a_sentence_alone_and_in_a_batch_of_64_is_translated_alike(name, steps, single_precision):
    source = Reverse(pairs=200)
    experiment = train(experiment_of(source, name), steps)
    sentences = [text for text, _ in source.rows("train").values[:64]]
    assert len({len(sentence) for sentence in sentences}) > 10, "there is something to pad"
    beam = Beam(width=3, max_length=12, length_penalty=1.0)
    together = experiment.translate(sentences, beam)
    assert len(together) == 64
    for place in (0, 17, 40, 63):
        (alone,) = experiment.translate([sentences[place]], beam)
        assert [one.tokens for one in alone] == [one.tokens for one in together[place]]
        for one, other in zip(alone, together[place], strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-5)
            assert one.log_probability == pytest.approx(other.log_probability, abs=1e-5)


def test_one_long_sentence_makes_no_other_batch_smaller_on_a_gpu(monkeypatch):
    experiment, beam, sizes = train(experiment_of(Reverse(pairs=200)), 3), Beam(width=2, max_length=5), []
    sentences = ["a b c d", *(["a b c", "d e"] * 300)]
    sentences[17] = " ".join(["a b c d e"] * 100)
    plain = experiment.translate(sentences, beam)

    def search(step, first, *others):
        sizes.append(len(first))
        return search_rows(step, first, *others)

    monkeypatch.setattr(module, "search_rows", search)
    monkeypatch.setattr(module, "count_rows", lambda device, *others: count_rows(torch.device("cuda"), *others))
    found = experiment.translate(sentences, beam)
    assert sizes == [MAX_ROWS, 601 - MAX_ROWS - 1, 1]
    assert [[one.tokens for one in row] for row in found] == [[one.tokens for one in row] for row in plain]


def test_two_models_vote_and_one_twice_is_itself():
    one, other = (train(experiment_of(Reverse(pairs=50)), 3) for _ in range(2))
    first, second = one.model, other.model
    beam = Beam(width=2, max_length=6)
    (alone,), (twice,), (both,) = (
        one.translate(["a b c d e"], beam, models) for models in ([first], [first, first], [first, second])
    )
    assert [one.tokens for one in alone] == [one.tokens for one in twice]
    assert alone[0].log_probability == pytest.approx(twice[0].log_probability, abs=1e-12)
    assert both[0].log_probability != pytest.approx(alone[0].log_probability, abs=1e-6)


# ---- the loss


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.7])
def test_label_smoothing_is_that_of_the_framework(share, bias):
    head = Head(6, 11, bias, None)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    hidden_states = torch.randn(3, 5, 6, requires_grad=True)
    targets = torch.randint(0, 11, (3, 5))
    targets[1, 3:] = targets[2, 1:] = IGNORE_INDEX
    expected = F.cross_entropy(
        head(hidden_states).flatten(0, 1),
        targets.flatten(),
        reduction="sum",
        ignore_index=IGNORE_INDEX,
        label_smoothing=share,
    )
    inputs = [hidden_states, *head.parameters()]
    wanted = torch.autograd.grad(expected, inputs)
    ours = smoothed_cross_entropy(hidden_states, head, targets, share)
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(torch.autograd.grad(ours, inputs), wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_every_target_counts_once_whatever_the_batches(rows):
    source = Reverse(pairs=40)
    experiment = experiment_of(source, rows=rows, label_smoothing=0.3)
    model = experiment.model.train()
    score = experiment.evaluate("train")
    pairs = source.rows("train").values
    assert score.total.tokens == sum(len(target.split()) + 1 for _, target in pairs)
    assert score.total.bytes == sum(len(target.encode()) + 1 for _, target in pairs)
    assert model.training, "as it was"
    read, write = experiment.tokenizers.source, experiment.tokenizers.target
    expected = 0.0
    with torch.no_grad():
        for sentence, target in pairs:
            ids = [write.boundary, *write.encode_sentence(target).tolist(), write.boundary]
            state = model.encode(torch.from_numpy(read.encode_sentence(sentence)).long()[None])
            logits, _ = model(torch.tensor([ids[:-1]]), state)
            expected += float(F.cross_entropy(logits[0], torch.tensor(ids[1:]), reduction="sum"))
    assert score.total.total == pytest.approx(expected, rel=1e-9), "without smoothing: it is for training"


# ---- training


@pytest.fixture
def _few_pairs(monkeypatch):
    """Few pairs."""
    few = dataclasses.replace(DATASETS["reverse"], open=lambda: Reverse(pairs=100))
    monkeypatch.setitem(DATASETS._entries, "reverse", few)


@pytest.mark.usefixtures("_few_pairs")
def test_the_best_can_be_chosen_by_bleu(tmp_path, answer_of, monkeypatch, single_precision):
    measured, given = TranslationExperiment.bleu, iter([10.0, 30.0, 20.0])

    def bleu(self, *words):
        found = measured(self, *words)
        assert found.bleu == 0, "so little was learnt that not one run of four letters is right"
        return SimpleNamespace(bleu=next(given, 30.0), signature=found.signature)

    monkeypatch.setattr(TranslationExperiment, "bleu", bleu)
    words = "train translate --data reverse --width 16 --steps 6 --eval-every 2 --select bleu --no-test --beam 1"
    result = answer_of([*words.split(), "--device", "cpu", "--out", str(tmp_path / "run"), "--json"])
    told = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["valid"]["bleu"] for line in told] == [10.0, 30.0, 20.0]
    assert told[2]["valid"]["loss"] < told[1]["valid"]["loss"], "by its loss the last one would be the best"
    assert "search:greedy" in told[0]["valid"]["signature"]
    assert result["best_step"] == 4
    assert result["valid"]["loss"] == pytest.approx(told[1]["valid"]["loss"])


@pytest.mark.usefixtures("_few_pairs")
@pytest.mark.parametrize("model", ["luong", "transformer-translation"])
def test_a_run_that_was_killed_ends_with_the_same_bits(tmp_path, model, single_precision):
    spec = TranslationRunSpec(
        data="reverse", model=model, width=16, layers=2, dropout=0.2, label_smoothing=0.1, average="ema", steps=8,
        eval_every=3, batch_size=8, beam=1, device="cpu",
    )  # fmt: skip
    execute(spec, tmp_path / "whole", NullCallback(), test=False)
    with pytest.raises(ChildProcessError):
        execute(spec, tmp_path / "parts", Interrupted(5), test=False)
    result, code = execute(spec, tmp_path / "parts", NullCallback(), resume=True, test=False)
    assert (code, result["steps"]) == (0, 8)
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")


# ---- what is refused, in one line


def refused(error_of, folder, *more):
    words = ["train", "translate", "--data", str(folder), "--source", "en", "--device", "cpu", "--width", "16"]
    return error_of([*words, "--out", str(folder / "run"), "--steps", "1", "--no-test", *more])


def folder_of(path, source, target):
    for split in ("train", "valid"):
        (path / f"{split}.en").write_text(source)
        (path / f"{split}.de").write_text(target)
    return path


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("a dog\na cat\na cow\n", "ein Hund\neine Katze\n", "has 3 lines and "),
        ("a dog\n\na cow\n", "ein Hund\neine Katze\neine Kuh\n", "line 2 of "),
        ("a dog\na cat\n", "ein Hund\n  \n", "train.de is empty, but line 2 of "),
        ("\n", "\n", "hold no sentences"),
    ],
)
def test_lines_that_are_no_pairs_are_refused_in_one_line(tmp_path, error_of, source, target, message):
    assert message in refused(error_of, folder_of(tmp_path, source, target))


def test_lines_that_are_empty_on_both_sides_are_left_out_and_counted(tmp_path):
    folder = folder_of(tmp_path, "a dog\n\na cow\n", "ein Hund\n\neine Kuh\n")
    experiment = experiment_of(open_dataset(str(folder), source="en"))
    assert len(experiment.split("train").texts) == 2
    assert experiment.split("train").pairs.blank == 1
    assert experiment.evaluate("train").total.tokens == 6


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (
            "a b\n",
            "1 2 3 4 5 6 7 8\n",
            "line 1 of {}/train.de is too long: it has 9 tokens with its end, and the limit",
        ),
        ("a b c d e f g h i\n", "1\n", "line 1 of {}/train.en is too long: it has 9 tokens, and the limit is 8"),
    ],
)
def test_a_sentence_longer_than_the_models_positions_is_refused(tmp_path, error_of, source, target, message):
    folder = folder_of(tmp_path, source, target)
    learned = "--model transformer-translation --position learned --max-positions 8 --heads 2"
    assert message.format(folder) in refused(error_of, folder, *learned.split())
