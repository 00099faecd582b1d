"""Specs of models: without torch, what is used and what is not, and the same model from the values that were used."""

import ast
import inspect
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from anaphor.errors import ConfigError
from anaphor.mixers import Span
from anaphor.models import (
    PRESETS,
    SEQ2SEQ_PRESETS,
    BackboneSpec,
    LanguageModelSpec,
    Seq2SeqSpec,
    preset,
    seq2seq_preset,
)
from anaphor.registry import register_preset

OPTIONS = {
    "as it is": {},
    "dropout": {"dropout": 0.2, "dropout_kind": "locked"},
    "no feedforward": {"feedforward": 0},
    "embedding": {"embedding": 16, "input_dropout": 0.1},
}
LM_OPTIONS = OPTIONS | {
    "by layer": {"layers": 2, "layer_widths": (24, 48), "layer_dropouts": (0, 0.1), "layer_residuals": (True, True)},
    "other mixers": {"mixers": ("gru", "linear", "attention"), "heads": 2},
    "kernel sizes": {"mixers": ("qrnn", "lstm"), "layer_kernel_sizes": (3, 1)},
    "relative": {"mixers": ("lstm", "attention"), "position": "relative"},
    "rotary": {"mixers": ("lstm", "attention"), "position": "rotary", "window": 4, "memory": 9},
    "not causal": {"mixers": ("bidirectional-lstm", "bidirectional-linear"), "causal": False},
}
SEQ2SEQ_OPTIONS = OPTIONS | {
    "without source": {"condition": "none"},
    "deep": {"layers": 2, "encoder_layers": 3},
    "no input feeding": {"input_feeding": False, "residual": True},
    "kernel size": {"encoder": ("qrnn",), "kernel_size": 3},
    "relative": {"encoder": ("attention",), "decoder": ("attention",), "residual": True, "position": "relative"},
    "learned": {"encoder": ("attention",), "decoder": ("attention",), "residual": True, "position": "learned"},
}
SIZES = {"source_vocabulary": 7, "vocabulary": 9}


def parameters(spec):
    torch.manual_seed(0)
    return [(name, weight.shape, weight.sum().item()) for name, weight in spec.build().named_parameters()]


def check_resolved(spec, again):
    before = torch.get_rng_state()
    values = spec.used_settings()
    assert torch.equal(torch.get_rng_state(), before), "no random numbers are drawn"
    assert not [name for name, value in values.items() if value is None or value == ()]
    same = type(spec)(**values)
    assert [(block.mixer, block.cross) for block in same.blocks()] == [
        (block.mixer, block.cross) for block in spec.blocks()
    ]
    assert same.used_settings() == values
    assert parameters(same) == parameters(spec)
    assert again(values).used_settings() == values, "over the preset, too"
    assert not spec.unused_options(values)


@pytest.mark.parametrize("case", LM_OPTIONS)
@pytest.mark.parametrize("name", [name for name in PRESETS if not name.startswith(("gpt2", "gopher", "openai"))])
def test_the_values_that_were_used_build_the_same_language_model(name, case):
    options = {"width": 24, **LM_OPTIONS[case]}
    if "layer_widths" not in options and "mixers" not in options:
        options["layers"] = 2 if name != "hybrid" else 3
    spec = preset(name, vocabulary=9, **options)
    check_resolved(spec, lambda values: preset(name, **values))


@pytest.mark.parametrize("case", SEQ2SEQ_OPTIONS)
@pytest.mark.parametrize("name", SEQ2SEQ_PRESETS)
def test_the_values_that_were_used_build_the_same_encoder_decoder(name, case):
    if case == "no input feeding" and name in ("transformer-translation", "mixed"):
        pytest.skip("attention has none")
    spec = seq2seq_preset(name, **SIZES, width=24, **SEQ2SEQ_OPTIONS[case])
    check_resolved(spec, lambda values: seq2seq_preset(name, **values))


def test_a_backbones_values_are_complete_too():
    spec = BackboneSpec(width=12, mixers=("gru", "attention"), layer_widths=(8, 4), heads=2, causal=False)
    check_resolved(spec, lambda values: BackboneSpec(**values))
    assert spec.build()(torch.zeros(1, 3, 12))[0].shape == (1, 3, 4)


def test_settings_without_effect_are_left_out():
    lstm = preset("lstm", vocabulary=9).used_settings()
    assert (
        lstm.keys() & {"heads", "score", "memory", "max_positions", "activation", "dropout_kind", "layer_widths"}
        == set()
    )
    assert (lstm["layers"], lstm["embedding"], lstm["input_dropout"], lstm["weight_drop"]) == (2, 256, 0.0, 0.0)
    gpt = preset("gpt-nano", vocabulary=9, dropout=0.1).used_settings()
    assert (gpt["heads"], gpt["feedforward"], gpt["max_positions"], gpt["mask"]) == (3, 192, 1024, "causal")
    assert "weight_drop" not in gpt
    unread = seq2seq_preset("luong", **SIZES, condition="none").used_settings()
    assert unread.keys() & {"encoder", "encoder_layers", "input_feeding"} == set()


@pytest.mark.parametrize(
    ("spec", "names", "reasons"),
    [
        (
            preset("lstm", vocabulary=9),
            ["max_positions"],
            {"max_positions": "applies to --position learned only, not to position='none'"},
        ),
        (
            preset("lstm", vocabulary=9),
            ["activation", "width"],
            {"activation": "applies to the feed-forward network only"},
        ),
        (preset("gpt-nano", vocabulary=9), ["dropout_kind"], {"dropout_kind": "has no effect without dropout"}),
        (preset("gpt-nano", vocabulary=9, dropout=0.1), ["dropout_kind", "max_positions", "activation"], {}),
        (
            seq2seq_preset("transformer-translation", **SIZES),
            ["max_positions"],
            {"max_positions": "applies to --position learned only, not to position='sinusoidal'"},
        ),
        (
            seq2seq_preset("luong", **SIZES, condition="none"),
            ["encoder", "layers"],
            {"encoder": "applies to an encoder"},
        ),
        (seq2seq_preset("mixed", **SIZES, position="learned"), ["max_positions", "activation"], {}),
    ],
)
def test_what_nothing_depends_on_is_named_with_the_reason(spec, names, reasons):
    found = spec.unused_options(names)
    assert found.keys() == reasons.keys()
    assert all(found[name].startswith(reason) for name, reason in reasons.items())


def test_specs_and_presets_need_no_torch():
    code = (
        "import sys, anaphor.models.spec, anaphor.models.seq2seq_spec, anaphor.models.presets, anaphor.models; "
        "from anaphor.models import LanguageModelSpec, Seq2SeqSpec, PRESETS; list(PRESETS); "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "options",
    [
        {"mask": "everything", "causal": False},
        {"mask": "everything", "causal": False, "position": "rotary"},
        {"mixers": ("bidirectional-gru", "attention"), "mask": "everything", "causal": False, "norm": "after"},
        {"mixers": ("lstm", "attention")},
    ],
)
def test_a_backbone_takes_vectors_with_or_without_padding(options):
    backbone = BackboneSpec(width=8, layers=2, heads=2, **options).build().eval()
    x, lengths = torch.randn(3, 5, 8), torch.tensor([5, 3, 1])
    y, _ = backbone(x)
    assert y.shape == (3, 5, 8)
    assert backbone.causal == options.get("causal", True)
    assert backbone.device.type == "cpu"
    padded, _ = backbone(x, span=Span.whole(x, lengths))
    for row, length in enumerate(lengths.tolist()):
        alone, _ = backbone(x[row : row + 1, :length])
        torch.testing.assert_close(padded[row, :length], alone[0])
    changed = x.clone()
    changed[:, -1] = torch.randn(3, 8)
    moved = (backbone(changed)[0] - y)[:, 0].abs().max()
    assert (moved > 0) == (not backbone.causal), "only a bidirectional one sees the last token from the first"
    y.sum().backward()
    assert all(weight.grad is not None for weight in backbone.parameters())


def test_a_causal_backbone_goes_on_from_its_state():
    backbone = BackboneSpec(width=8, mixers=("lstm", "attention"), heads=2).build().eval()
    x = torch.randn(2, 6, 8)
    first, state = backbone(x[:, :4])
    second, _ = backbone(x[:, 4:], state, Span.after(torch.full((2,), 4), 2))
    torch.testing.assert_close(torch.cat((first, second), 1), backbone(x)[0])


def test_a_backbone_adds_no_positions():
    with pytest.raises(ConfigError, match="position='learned' is added to the input vectors"):
        BackboneSpec(width=8, position="learned")
    with pytest.raises(ConfigError, match="of 1 layers, but there are 2"):
        BackboneSpec(width=8, layers=2, heads=2).build()(torch.zeros(1, 2, 8), ((),))


@pytest.mark.parametrize("kind", [LanguageModelSpec, Seq2SeqSpec, BackboneSpec])
def test_every_option_has_a_help_text_of_one_line(kind):
    documented = {}
    for base in kind.__mro__[:-1]:
        tree = ast.parse(Path(inspect.getfile(base)).read_text())
        body = next(
            node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == base.__name__
        )
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                documented.setdefault(field.target.id, text.value.value)
    for name in kind.__dataclass_fields__:
        assert "\n" not in documented[name], name


def test_a_preset_of_ones_own_is_a_model_like_any_other(monkeypatch):
    for table in (PRESETS, SEQ2SEQ_PRESETS):
        monkeypatch.setattr(table, "_entries", dict(table._entries))
    register_preset("lm", "test-tiny", {"mixers": ("gru",), "width": 8})
    register_preset("translate", "test-tiny-pair", {"encoder": ("gru",), "decoder": ("gru",), "width": 8})
    spec = preset("test-tiny", vocabulary=9, layers=2)
    assert (spec.mixers_by_layer, spec.width) == (("gru", "gru"), 8)
    assert seq2seq_preset("test-tiny-pair", **SIZES, decoder=("gru", "gru")).layers == 2
    with pytest.raises(ConfigError, match="model name 'lstm' is already registered"):
        register_preset("lm", "lstm", {})
