"""A program of a model gives what the model gives, state included; so does its ONNX file."""

from importlib.util import find_spec

import pytest
import torch
from torch import nn

import anaphor
from anaphor.errors import ConfigError
from anaphor.imported_files import import_file
from anaphor.interchange.programs import cummax, solve_triangular, tensors_of_inputs
from anaphor.models import build_image_classifier

pytestmark = pytest.mark.needs("interchange")
MODELS = ["gru", "lstm", "transformer", "linear", "hybrid", "leaky", "gated-delta"]
MORE = ["rnn-tanh", "qrnn", "transformer-xl", "gopher-44m", "rwkv7", "mlstm", "rg-lru", "my-gated-delta"]
MORE += ["retention", "gla", "delta", "mamba2", "slstm", "min-gru", "min-lstm"]
ALL = [*MODELS, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)]
NO_ONNX = find_spec("onnx") is None or find_spec("onnxscript") is None or find_spec("onnxruntime") is None


@pytest.fixture(autouse=True)
def _single_precision(single_precision):
    import_file("leaky_mixer.py")
    import_file("my_gated_delta.py")


def inputs_of(name, past):
    torch.manual_seed(0)
    model = anaphor.build(name, vocabulary=50, width=16, layers=2).eval()
    tokens = torch.randint(50, (2, 6))
    return model, tokens, model(torch.randint(50, (2, past)))[1] if past else model.initial_state(2)


def assert_equal(found, expected, tolerance):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.as_tensor(one), other.detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ALL)
def test_a_program_gives_the_logits_and_the_state_of_the_model(name):
    model, tokens, state = inputs_of(name, 4)
    program = anaphor.export_program(model, tokens, state).module()
    other = torch.randint(50, tokens.shape)  # not what it was made with
    assert_equal(tensors_of_inputs(program(other, state)), tensors_of_inputs(model(other, state)), 1e-5)


def test_a_program_of_a_state_of_fixed_size_continues_from_its_own_state():
    model, tokens, _ = inputs_of("lstm", 0)
    program = anaphor.export_program(model, tokens).module()
    state, expected = model.initial_state(2), None
    for _ in range(3):
        logits, state = program(tokens, state)
        wanted, expected = model(tokens, expected)
    assert_equal(tensors_of_inputs(logits, state), tensors_of_inputs(wanted, expected), 1e-5)


def test_other_models_have_programs_too():
    model = build_image_classifier(
        "vit-nano", classes=3, image_size=8, patch_size=4, width=16, layers=1, heads=2
    ).eval()
    images = torch.randn(2, 3, 8, 8)
    program = anaphor.export_program(model, images).module()
    assert_equal(tensors_of_inputs(program(images)), tensors_of_inputs(model(images)), 1e-5)


def test_inputs_that_the_model_refuses_are_told_as_it_tells_them():
    model, tokens, _ = inputs_of("lstm", 0)
    with pytest.raises(ConfigError, match="rows"):
        anaphor.export_program(model, tokens, model.initial_state(3))


class Exponential(nn.Module):
    def forward(self, x):
        return torch.linalg.matrix_exp(x)


def test_operations_that_onnx_lacks_have_forms_that_agree_with_them():
    torch.manual_seed(0)
    for size in (1, 2, 7, 32):
        system = torch.randn(2, 3, size, size).tril(-1) / 4
        right = torch.randn(2, 3, size, 5)
        wanted = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
        assert_equal([solve_triangular(system, right, upper=False, unitriangular=True)], [wanted], 1e-5)
        values = torch.randint(5, (2, size, 3)).float()  # with equal ones
        for dim in (0, 1, -1):
            assert_equal(cummax(values, dim), values.cummax(dim), 0)
    assert solve_triangular(system, right, upper=True) is NotImplemented


@pytest.mark.skipif(not NO_ONNX, reason="onnx is installed")
def test_without_onnx_its_extra_is_named(tmp_path):
    model, tokens, _ = inputs_of("lstm", 0)
    with pytest.raises(ConfigError, match=r"anaphor\[onnx\]"):
        anaphor.export_onnx(model, tmp_path / "lstm.onnx", tokens)


@pytest.mark.skipif(NO_ONNX, reason="needs onnx, onnxscript and onnxruntime: pip install anaphor[onnx] onnxruntime")
@pytest.mark.parametrize("past", [0, 4])
@pytest.mark.parametrize("name", ALL)
def test_an_onnx_file_gives_the_same(name, past, tmp_path):
    import onnxruntime

    model, tokens, state = inputs_of(name, past)
    file = anaphor.export_onnx(model, tmp_path / "model.onnx", tokens, state)
    session = onnxruntime.InferenceSession(str(file))
    other = torch.randint(50, tokens.shape)
    given = [tensor.detach().numpy() for tensor in tensors_of_inputs(other, state)]
    named = dict(zip([one.name for one in session.get_inputs()], given, strict=True))
    assert_equal(session.run(None, named), tensors_of_inputs(model(other, state)), 1e-5)


@pytest.mark.skipif(NO_ONNX, reason="needs onnx and onnxscript: pip install anaphor[onnx]")
def test_an_operation_that_onnx_lacks_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be exported to ONNX: aten.linalg_matrix_exp"):
        anaphor.export_onnx(Exponential(), tmp_path / "model.onnx", torch.eye(3))
