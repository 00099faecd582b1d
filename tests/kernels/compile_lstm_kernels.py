"""Compile the kernels of the LSTM's steps for a Hopper where there is none, and tell the shared memory they need.

A process of its own: in that of the tests Triton interprets.
"""

import json
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from anaphor.kernels import lstm

HOPPER = GPUTarget("cuda", 90, 32)
SIZES = {"WIDTH": lstm.WIDE, "TERMS": lstm.WIDE, "ROWS": 32, "UNITS": lstm.UNITS}
FEW_ROWS = {"WIDTH": lstm.MAX_WIDTH, "TERMS": lstm.MAX_WIDTH, "ROWS": 16, "UNITS": lstm.UNITS // 2}
MORE_ROWS = {**FEW_ROWS, "UNITS": lstm.UNITS}
NUMBERS = ("step", "first", "count", "rows", "steps")
SINGLE = ("cells", "grad_cell")  # single precision always

FORWARD, STEP = {"launch_cooperative_grid": True}, {"launch_pdl": True}
BOTH = ("fp32", "bf16")
VARIANTS = {  # kernel, sizes, how it is launched, and in which types
    "forward": (lstm._forward, SIZES, {"num_warps": 8, **FORWARD}, BOTH),
    "step forward": (lstm._forward, SIZES, {"num_warps": 8, **STEP}, BOTH),
    "step backward": (lstm._backward, SIZES, {"num_warps": 4, **STEP}, BOTH),
    "wide forward": (lstm._forward, FEW_ROWS, {"num_warps": 4, **FORWARD}, BOTH),
    "wide step backward": (lstm._backward, FEW_ROWS, {"num_warps": 2, **STEP}, BOTH),
    "wide forward of more rows": (lstm._forward, MORE_ROWS, {"num_warps": 8, **FORWARD}, BOTH[1:]),
    "wide step backward of more rows": (lstm._backward, MORE_ROWS, {"num_warps": 2, **STEP}, BOTH[1:]),
}


def needed(kernel, sizes, options, dtype):
    constants = {"PRECISION": "tf32", "EARLY": "launch_pdl" in options, **sizes}
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    known = {**dict.fromkeys(NUMBERS, "i32"), **dict.fromkeys(SINGLE, "*fp32"), "counters": "*i32"}
    kinds = {name: known.get(name, f"*{dtype}") for name in kernel.arg_names} | dict.fromkeys(constants, "constexpr")
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    return triton.compile(ASTSource(kernel, kinds, places), target=HOPPER, options=options).metadata.shared


if __name__ == "__main__":
    found = {
        f"{name} {dtype}": needed(kernel, sizes, options, dtype)
        for name, (kernel, sizes, options, dtypes) in VARIANTS.items()
        for dtype in dtypes
    }
    json.dump(found, sys.stdout)
