"""The promises on a GPU, whose kernels are others: packed cuDNN, flash and memory-efficient attention."""

import pytest
import torch

from anaphor.inspect import recorded
from anaphor.mixers import AttentionSpec, Span, contract
from anaphor.mixers.attention.position import POSITIONS
from anaphor.models import PRESETS, build
from contracts.cases import VIEWS, table

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
SPECS = table()


@pytest.fixture(autouse=True)
def _on_the_gpu():
    with torch.device("cuda"):
        yield


@pytest.mark.parametrize("name", SPECS)
def test_the_promises_hold_on_a_gpu(name):
    mixer = SPECS[name].build().eval()
    x, more, order = torch.randn(4, 9, 8), torch.randn(4, 5, 8), torch.tensor([3, 0, 0, 2])
    contract.padding_leaves_no_trace(mixer, x, more, torch.tensor([9, 4, 1, 0]))
    contract.rows_can_be_reordered(mixer, x, more, order)
    if mixer.streams:
        contract.chunks_equal_whole(mixer, x, [1, 4, 5])
        contract.old_state_survives(mixer, x, more)
        mixer.train()  # cuDNN's recurrences have no backward in evaluation mode
        contract.gradient_crosses_the_seam(mixer, x, more)


@pytest.mark.parametrize("view", [*VIEWS, "everything"])
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_fused_and_explicit_attention_agree_on_a_gpu(position, view, dtype):
    mixer = AttentionSpec(width=64, heads=2, position=position, **VIEWS.get(view, {"mask": view})).build().to(dtype)
    x = torch.randn(3, 40, 64, dtype=dtype, requires_grad=True)
    span = Span.whole(x, torch.tensor([40, 17, 1]))
    fused, _ = mixer(x, mixer.initial_state(x), span)
    with recorded(mixer, "weights"):
        explicit, _ = mixer(x, mixer.initial_state(x), span)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {"rtol": 2e-3, "atol": 2e-3}
    torch.testing.assert_close(fused, explicit, **tolerance)
    (gradient,) = torch.autograd.grad(fused.square().sum(), x)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", [name for name in PRESETS if not name.startswith(("gpt2", "gopher", "openai"))])
def test_models_run_and_stream_in_mixed_precision(name):
    model = build(name, vocabulary=50, width=48, layers=3).to(torch.float32)
    tokens = torch.randint(0, 50, (4, 30))
    with torch.autocast("cuda", torch.bfloat16):
        whole, _ = model(tokens)
        first, state = model(tokens[:, :17])
        second, _ = model(tokens[:, 17:], state)
        whole.float().logsumexp(-1).mean().backward()
    torch.testing.assert_close(torch.cat((first, second), 1), whole, rtol=3e-2, atol=3e-2)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
