"""Kernels for a GPU are run by Triton's interpreter where there is none."""

import pytest
import torch

from anaphor.kernels import gpu
from anaphor.operations import KERNELS


@pytest.fixture
def gpu_kernels(monkeypatch):
    """Operations ask the kernels of a GPU, also on a CPU."""
    pytest.importorskip("triton", reason="Triton comes with torch where there is a GPU")
    if not torch.cuda.is_available():
        of_gpu = {f"{kernel.operation}.cpu": kernel for kernel in KERNELS.values() if kernel.device == "cuda"}
        monkeypatch.setattr(KERNELS, "_entries", KERNELS._entries | of_gpu)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
        gpu.compute_capability.cache_clear()
    yield
    gpu.compute_capability.cache_clear()


@pytest.fixture(autouse=True, scope="session")
def _interpreted_loops():
    """The interpreter of Triton 3.6 passes the bound of a loop to int() as an array, which NumPy 2.4 refuses."""
    interpreter = pytest.importorskip("triton.runtime.interpreter", reason="Triton comes with torch for a GPU")
    patch_tensor = interpreter._patch_lang_tensor

    def patch_tensor_and_index(tensor, scope):
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang_tensor", patch_tensor_and_index)
        yield
