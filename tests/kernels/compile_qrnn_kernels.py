"""Compile the kernels of a QRNN for a Hopper where there is none, and tell their shared memory and asynchronous copies.

A process of its own: in that of the tests Triton interprets.
"""

import json
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from anaphor.kernels import qrnn

HOPPER = GPUTarget("cuda", 90, 32)
WIDE = ("cell", "last", "grad_last", "grad_cell")  # single precision always


def compiled(kernel, dtype, absent=()):
    constants = {"WIDTH": 1536, "CHANNELS": qrnn.CHANNELS, "STAGES": qrnn.STAGES} | dict.fromkeys(absent)
    kinds = dict.fromkeys(kernel.arg_names, f"*{dtype}") | {"steps": "i32"}
    kinds |= {name: "*fp32" for name in WIDE if name in kinds} | dict.fromkeys(constants, "constexpr")
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    pointers = [place for place, name in enumerate(kernel.arg_names) if kinds[name].startswith("*")]
    aligned = {(place,): [["tt.divisibility", 16]] for place in pointers}
    done = triton.compile(ASTSource(kernel, kinds, places, aligned), target=HOPPER, options={"num_warps": 1})
    return {"shared": done.metadata.shared, "asynchronous": done.asm["ptx"].count("cp.async.ca.shared")}


if __name__ == "__main__":
    variants = {
        "training": (qrnn._forward,),
        "evaluation": (qrnn._forward, ("cells",)),
        "backward": (qrnn._backward,),
    }
    found = {
        f"{name} {dtype}": compiled(kernel, dtype, *absent)
        for name, (kernel, *absent) in variants.items()
        for dtype in ("fp32", "bf16")
    }
    json.dump(found, sys.stdout)
