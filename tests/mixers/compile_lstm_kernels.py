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


VARIANTS = {  # kernel, and how it is launched
    "forward": (lstm._forward, {"num_warps": 8, "launch_cooperative_grid": True}),
    "step forward": (lstm._forward, {"num_warps": 8, "launch_pdl": True}),
    "step backward": (lstm._backward, {"num_warps": 4, "launch_pdl": True}),
}


def needed(kernel, options, dtype):
    constants = {**SIZES, "PRECISION": "tf32", "EARLY": "launch_pdl" in options}
    known = {**dict.fromkeys(NUMBERS, "i32"), **dict.fromkeys(WIDE, "*fp32"), "counters": "*i32"}
    kinds = {name: known.get(name, f"*{dtype}") for name in kernel.arg_names} | dict.fromkeys(constants, "constexpr")
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    return triton.compile(ASTSource(kernel, kinds, places), target=HOPPER, options=options).metadata.shared


if __name__ == "__main__":
    found = {f"{name} {dtype}": needed(*made, dtype) for name, made in VARIANTS.items() for dtype in ("fp32", "bf16")}
    json.dump(found, sys.stdout)
