"""Compile the kernels of the LSTM's steps for a Hopper where there is none, and tell the shared memory they need.

A process of its own: in that of the tests Triton interprets.
"""

import json
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from anaphor.mixers.kernels import lstm

HOPPER = GPUTarget("cuda", 90, 32)
SIZES = {"WIDTH": lstm.MAX_WIDTH, "TERMS": lstm.MAX_WIDTH, "ROWS": 32, "UNITS": lstm.UNITS}
NUMBERS = ("step", "first", "count", "rows", "steps")
WIDE = ("cells", "grad_cell")  # single precision always


def needed(kernel, dtype):
    constants = {**SIZES, "PRECISION": "tf32", "EARLY": True}
    known = {**dict.fromkeys(NUMBERS, "i32"), **dict.fromkeys(WIDE, "*fp32"), "counters": "*i32"}
    kinds = {name: known.get(name, f"*{dtype}") for name in kernel.arg_names} | dict.fromkeys(constants, "constexpr")
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, kinds, places)
    return triton.compile(source, target=HOPPER, options={"num_warps": 4, "launch_pdl": True}).metadata.shared


if __name__ == "__main__":
    kernels = {"forward": lstm._forward, "backward": lstm._backward}
    found = {f"{name} {dtype}": needed(kernel, dtype) for name, kernel in kernels.items() for dtype in ("fp32", "bf16")}
    json.dump(found, sys.stdout)
