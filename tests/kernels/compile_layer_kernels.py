"""Compile the kernels of layers and losses for a Hopper where there is none, and tell what their registers spill.

A process of its own: in that of the tests Triton interprets.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from anaphor.kernels import layer_norm, linear, losses, updates

HOPPER = GPUTarget("cuda", 90, 32)
ASSEMBLER = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
LOGITS = {"IGNORE": -100, "SMOOTHING": 0.1, "WIDTH": 33280, "VOCABULARY": 33278}
NORM = {"WIDTH": 256, "COLUMNS": 256, "ROWS": 8}
NORMED = {"means": "*fp32", "scales": "*fp32", "rows": "i32", "eps": "fp32"}
# Kernel, constants, and the types of all arguments that are no pointers to numbers of the given type.
VARIANTS = {
    "norm": (layer_norm._forward, {**NORM, "ADDS": False}, NORMED, 4),
    "norm of a sum": (layer_norm._forward, {**NORM, "ADDS": True}, NORMED | {"x": "*fp32", "total": "*fp32"}, 4),
    "norm backward": (
        layer_norm._backward, NORM,
        dict.fromkeys(("means", "scales", "sums"), "*fp32") | dict.fromkeys(("rows", "tiles", "programs"), "i32"), 4,
    ),
    "sum": (
        linear._sum_rows, {"WIDTH": 256, "ROWS": linear.SUM_TILE // 16, "COLUMNS": 16},
        {"sums": "*fp32", "rows": "i32", "parts": "i32"}, 4,
    ),
    "subtract": (
        updates._subtract, {"BLOCK": updates.UPDATE_BLOCK},
        {"weights": ("*fp32",) * 16, "gradients": ("*fp32",) * 16, "sizes": ("i32",) * 16, "rate": "*fp32"}, 8,
    ),
    "loss": (
        losses._losses_and_gradient, {**LOGITS, "BLOCK": losses.LOSS_BLOCK}, {"targets": "*i64", "losses": "*fp32"}, 16,
    ),
    "pair": (
        losses._pair_losses_and_gradient, {**LOGITS, "BLOCK": losses.PAIR_BLOCK},
        {"targets": "*i64", "losses": "*fp32", "divergences": "*fp32", "rows": "i32", "weight": "fp32"}, 8,
    ),
}  # fmt: skip


def spilled(kernel, constants, others, warps, dtype):
    """Bytes of registers that one thread writes to memory."""
    kinds = dict.fromkeys(kernel.arg_names, f"*{dtype}") | others | dict.fromkeys(constants, "constexpr")
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    compiled = triton.compile(ASTSource(kernel, kinds, places), target=HOPPER, options={"num_warps": warps})
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(compiled.asm["ptx"])
        command = [ASSEMBLER, "-v", "--gpu-name=sm_90a", source, "-o", Path(folder, "kernel.cubin")]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return sum(map(int, re.findall(r"(\d+) bytes spill stores", told)))


if __name__ == "__main__":
    found = {f"{name} {dtype}": spilled(*made, dtype) for name, made in VARIANTS.items() for dtype in ("fp32", "bf16")}
    json.dump(found, sys.stdout)
