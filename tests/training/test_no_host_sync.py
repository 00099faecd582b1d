"""No step reads a value of the device on the host: it could not be captured, and the host would wait."""

import dataclasses
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from anaphor.evaluation import prefill_padded
from anaphor.mixers import base
from anaphor.mixers.recurrences import matrix_state
from anaphor.mixers.recurrent import Recurrent
from anaphor.models.decoding import Decoding, FixedDecoding
from anaphor.models.embedder import TokenEmbedder
from anaphor.registry import TASKS, has_shelf
from anaphor.tasks.classify import ClassifyRunSpec
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.tasks.translate import TranslationRunSpec
from anaphor.training.build import build_experiment, build_step

# What brings a value, or a shape that depends on values, to the host.
READS = {
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::item",
    "aten::_unique2",
}


class NoReads(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        assert function.name().split(".")[0] not in READS, f"{function.name()} waits for the device"
        return function(*arguments, **(keywords or {}))


TEXT = LanguageRunSpec(data="grammar", width=16, batch_size=4, bptt=8, dropout=0.1, dtype="float32", device="cpu")
PAIRS = TranslationRunSpec(data="reverse", width=16, batch_size=4, dropout=0.1, label_smoothing=0.1, device="cpu")
LABELS = ClassifyRunSpec(data="negation", max_examples=32, width=16, batch_size=4, dropout=0.1, device="cpu")
RUNS = {
    "lstm": dataclasses.replace(TEXT, model="lstm", weight_drop=0.2, dropout_kind="locked", word_dropout=0.1),
    "qrnn": dataclasses.replace(TEXT, model="qrnn", weight_drop=0.2, dropout_kind="locked", kernel_size=3),
    "transformer": dataclasses.replace(TEXT, model="transformer", carry=False),
    "memory": dataclasses.replace(TEXT, model="transformer-xl", memory=12),
    "window": dataclasses.replace(TEXT, model="transformer", window=5, carry=True, kv_heads=2, softcap=3.0),
    "llama": dataclasses.replace(
        TEXT, model="transformer", position="rotary", qk_norm="rmsnorm", norm_kind="rmsnorm", activation="swiglu"
    ),
    "linear": dataclasses.replace(TEXT, model="linear"),
    "delta": dataclasses.replace(TEXT, model="delta", num_householder=2),
    "gated-delta": dataclasses.replace(TEXT, model="gated-delta", channel_decay=True, layers=1),
    "mamba2": dataclasses.replace(TEXT, model="mamba2", data_dependent_rope=True),
    "rwkv7": dataclasses.replace(TEXT, model="rwkv7", short_conv=4),
    "xlstm": dataclasses.replace(TEXT, model="mlstm", mixers=("mlstm", "slstm"), layers=2),
    "griffin": dataclasses.replace(TEXT, model="rg-lru", mixers=("rg-lru", "min-lstm"), layers=2),
    "luong": dataclasses.replace(PAIRS, model="luong", layers=2),
    "gru": dataclasses.replace(PAIRS, model="gru-attention"),
    "translator": dataclasses.replace(PAIRS, model="transformer-translation", layers=2, feedforward=32),
    "mixed": dataclasses.replace(PAIRS, model="mixed", heads=2),
    "state": dataclasses.replace(PAIRS, model="luong", condition="state"),
    "classifier": dataclasses.replace(LABELS, model="transformer", heads=2),
    "lstm classifier": dataclasses.replace(LABELS, model="bidirectional-lstm"),
    "mpnet": dataclasses.replace(
        LABELS, model="bert-tiny", heads=2, position="relative-buckets", absolute_positions=True
    ),
}
if has_shelf("extras"):
    RUNS["rdrop"] = TASKS["translate"].run_spec(**vars(RUNS["mixed"]), rdrop=5.0)


@pytest.mark.parametrize("name", [*RUNS, "padded", "padded qrnn", "padded window"])
def test_the_loss_and_its_gradient_read_no_value(name, monkeypatch, tmp_path):
    # As on a GPU: tokens and lengths are on the device, so they are not checked, and nothing is packed.
    monkeypatch.setattr(base, "check_lengths", lambda lengths, rows, count: None)
    monkeypatch.setattr(TokenEmbedder, "check_tokens", lambda self, tokens: None)
    monkeypatch.setattr(TokenEmbedder, "check_positions", lambda self, span, fresh: None)
    monkeypatch.setattr(Recurrent, "_run_packed", Recurrent._run_through_padding)
    monkeypatch.setattr(matrix_state, "can_be_divided", lambda g, least: False)
    experiment = build_experiment(RUNS[name] if name in RUNS else padded_run(tmp_path, name))
    experiment.model.train()
    batch, carry = experiment.batches(0)[0], experiment.initial_carry()
    with NoReads():
        loss, _ = experiment.loss(batch, carry)
        (loss.objective / batch.denominator).backward()
        assert batch.count > 0
    assert torch.isfinite(loss.total)
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in experiment.model.parameters())
    with NoReads(), pytest.raises(AssertionError, match="waits for the device"):
        loss.total.item()


def test_clipping_and_the_report_of_a_step_read_no_value(monkeypatch):
    experiment = build_experiment(dataclasses.replace(TEXT, model="lstm", optimizer="sgd", lr=1.0, clip=0.01))
    monkeypatch.setattr(TokenEmbedder, "check_tokens", lambda self, tokens: None)
    monkeypatch.setattr(TokenEmbedder, "check_positions", lambda self, span, fresh: None)
    experiment.model.train()
    step, batch, carry = build_step(experiment), experiment.batches(0)[0], experiment.initial_carry()
    with NoReads():
        (values, _), _ = step.run([batch], carry)
    assert values[1:].norm() > 0.01


@pytest.mark.parametrize("kind", [Decoding, partial(FixedDecoding, steps=8)])
@pytest.mark.parametrize("name", ["lstm", "qrnn", "transformer", "llama", "mamba2", "rwkv7", "xlstm", "griffin"])
def test_a_greedy_step_of_decoding_reads_no_value(name, kind, monkeypatch):
    """Whether its logits are finite is known on the host when its tokens are."""
    monkeypatch.setattr(TokenEmbedder, "check_tokens", lambda self, tokens: None)
    monkeypatch.setattr(TokenEmbedder, "check_positions", lambda self, span, fresh: None)
    assert_greedy_steps_read_nothing(RUNS[name], kind)


@pytest.mark.parametrize("name", ["window", "memory"])
def test_a_step_with_slots_that_are_taken_again_reads_no_value(name, monkeypatch):
    """Without them, rows of different lengths are trimmed by what is found in their slots."""
    monkeypatch.setattr(TokenEmbedder, "check_tokens", lambda self, tokens: None)
    monkeypatch.setattr(TokenEmbedder, "check_positions", lambda self, span, fresh: None)
    assert_greedy_steps_read_nothing(RUNS[name], partial(FixedDecoding, steps=8))


def assert_greedy_steps_read_nothing(run, kind):
    model = build_experiment(run).model.eval()
    with torch.inference_mode():
        decoding = kind(model, prefill_padded(model, [[1, 2], [3]])[1])
        with NoReads():
            tokens, maxima = decoding.greedy(decoding.greedy(torch.tensor([1, 2]))[0])
        assert tokens.shape == maxima.shape == (2,)
        assert maxima.isfinite().all()


def padded_run(folder, name):
    model = {"padded qrnn": "qrnn", "padded window": "transformer"}.get(name, "lstm")
    window = {"window": 5} if model == "transformer" else {}
    dialogues = [f"A: {'well ' * size}said.\nB: thanks." for size in range(1, 25)]
    (folder / "dialogues.txt").write_text("\n\n".join(dialogues), encoding="utf-8")
    return dataclasses.replace(
        TEXT, data=str(folder / "dialogues.txt"), batching="padded", model=model, layers=2, **window
    )
