"""Layer norm of few values on one thread is torch's."""

import pytest
import torch
from torch.nn import functional as F

from anaphor.mixers.layers import LayerNorm
from anaphor.training.device import thread_count


@pytest.mark.parametrize(("rows", "expected"), [(32, 1), (1000, 2)])
def test_a_norm_of_few_values_runs_on_one_thread_and_is_torchs_to_the_last_bit(rows, expected, monkeypatch):
    norm, x, threads = LayerNorm(64, 1e-5), torch.randn(rows, 1, 64, requires_grad=True), []
    torch.nn.init.normal_(norm.weight)
    normalize = F.layer_norm

    def watch(*inputs):
        threads.append(torch.get_num_threads())
        return normalize(*inputs)

    with thread_count(2):
        with monkeypatch.context() as patch:
            patch.setattr(F, "layer_norm", watch)
            y = norm(x)
        assert torch.get_num_threads() == 2
        with pytest.raises(RuntimeError, match="normalized_shape"):
            norm(x[..., 1:])
        assert torch.get_num_threads() == 2
        plain = normalize(x, (64,), norm.weight, norm.bias)
    assert threads == [expected]
    assert torch.equal(y, plain)
    assert torch.equal(*(torch.autograd.grad(each.square().sum(), x)[0] for each in (y, plain)))
