"""The recurrences, computed in chunks.

On a CPU against the readable twin that goes token by token, at 1,024 tokens; also those whose state is a vector. On a
GPU at 8 × 2,048 tokens, 8 heads of 64, forward and backward, inputs in bfloat16 and all of a pass captured as one CUDA
graph: against flash attention of the same shape, and against `fla-core` where its kernels are installed and run.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from anaphor.mixers.recurrences.layer import CHUNKS
from anaphor.mixers.recurrences.matrix_state import Steps, chunkwise, initial_memory, recurrent
from anaphor.mixers.recurrences.rwkv7 import RWKV7, SLOWEST
from anaphor.mixers.recurrences.vector_layer import CHUNKS as VECTOR_CHUNKS
from anaphor.mixers.recurrences.vector_state import recurrent as recurrent_by_channel
from anaphor.mixers.recurrences.vector_state import scan
from benchmarks.timing import Finding, estimate_ratio, mean_seconds, run_steps, time_alternately

MIN_RATIO = 10.0
"""How much faster than its twin the parallel form must be on a CPU."""
SHAPES = {"cpu": ((1, 4, 1024, 32), (1, 4, 1024, 64)), "cuda": ((8, 8, 2048, 64),)}
"""Rows, heads, tokens, and the width of keys and values."""
STEPS = {"cpu": 1, "cuda": 20}
"""Passes that are timed together."""
KINDS = ("retention", "gla", "delta", "gated-delta", "gated-delta by channel", "mamba2", "rwkv7", "mlstm")
VECTORS = "min-gru, min-lstm, rg-lru"
"""They share one scan."""
CHANNELS = (128, 256)
"""Channels of a vector: as many as all heads of a memory have keys."""
FLA = {
    "retention": ("retention", "chunk_retention"),
    "gla": ("gla", "chunk_gla"),
    "delta": ("delta_rule", "chunk_delta_rule"),
    "gated-delta": ("gated_delta_rule", "chunk_gated_delta_rule"),
    "gated-delta by channel": ("kda", "chunk_kda"),
    "mamba2": ("simple_gla", "chunk_simple_gla"),
    "mlstm": ("simple_gla", "chunk_simple_gla"),
    "rwkv7": ("rwkv7", "chunk_rwkv7"),
}
"""Module of `fla.ops` and function that computes the same."""
Shape = tuple[int, int, int, int]
Pass = Callable[[], object]


def draw_inputs(kind: str, shape: Shape, device: torch.device) -> dict[str, Tensor]:
    """q, k, v, and what else the kind has, as a layer would give them: [B, H, T, ·]."""
    rows, heads, tokens, width = shape
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    def draw(size: int) -> Tensor:
        return torch.randn(rows, heads, tokens, size, device=device, dtype=torch.float32)

    inputs = {"q": F.normalize(draw(width), dim=-1), "k": F.normalize(draw(width), dim=-1), "v": draw(width)}
    if kind == "rwkv7":
        inputs["g"] = -SLOWEST * torch.sigmoid(draw(width))
    elif kind in ("gla", "gated-delta by channel"):
        inputs["g"] = F.logsigmoid(draw(width)) / 16
    elif kind != "delta":
        inputs["g"] = F.logsigmoid(draw(1)) / 16
    if "delta" in kind:
        inputs["beta"] = torch.sigmoid(draw(1))
    if kind == "rwkv7":
        inputs["rate"] = torch.sigmoid(draw(width))
    return {name: x.to(dtype).requires_grad_() for name, x in inputs.items()}


def to_steps(kind: str, inputs: Mapping[str, Tensor]) -> Steps:
    """The steps of a memory, in single precision, as the layers compute them."""
    given = {name: x.float() for name, x in inputs.items()}
    q, k, v, g = given["q"], given["k"], given["v"], given.get("g")
    if kind == "mlstm":  # its normalizer is a column for a value that is one
        return Steps(q, k, F.pad(v, (0, 1), value=1.0), g)
    if kind == "rwkv7":
        assert g is not None, "it decays"
        return Steps(q, k, v, g, b=-k * (-g).exp(), a=k * given["rate"])
    if "beta" in given:
        return Steps(q, given["beta"] * k, v, g, b=k)
    return Steps(q, k, v, g)


def chunked(kind: str, device: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """The parallel form as a layer calls it: the decays of RWKV-7 are bounded."""
    least = RWKV7.least_log_decay if kind == "rwkv7" else -math.inf
    return partial(chunkwise, chunk=CHUNKS[device], least=least)


def forward_backward(form: Callable[..., tuple[Tensor, Tensor]], kind: str, inputs: Mapping[str, Tensor]) -> None:
    """Outputs and all gradients."""
    steps = to_steps(kind, inputs)
    y, _ = form(steps, initial_memory(steps))
    back_propagate(y, inputs)


def back_propagate(y: Tensor, inputs: Mapping[str, Tensor]) -> None:
    """All gradients, from one of the outputs as a layer behind them would give it: that of a plain sum is one number
    for all outputs, with which some products are slow."""
    torch.autograd.grad(y, list(inputs.values()), torch.ones_like(y, memory_format=torch.contiguous_format))


def forward_backward_by_channel(form: Callable[..., Tensor], inputs: Mapping[str, Tensor]) -> None:
    """States and all gradients of a recurrence whose state is a vector."""
    decay, added = inputs["decay"], inputs["added"]
    back_propagate(form(decay, added, torch.zeros_like(added[:, 0])), inputs)


def stack_steps(decay: Tensor, added: Tensor, hidden: Tensor) -> Tensor:
    """The twin of `scan`."""
    return torch.stack(recurrent_by_channel(decay, added, hidden), dim=1)


def count_ticks(pairs: int, device: torch.device) -> int:
    vectors = len(CHANNELS) if device.type == "cpu" else 0
    return pairs * (len(KINDS) * len(SHAPES[device.type]) + vectors)


def measure(pairs: int, device: torch.device, tick: Callable[[str], None]) -> list[Finding]:
    """The ratios of each kind."""
    torch.manual_seed(0)
    measure_kind = measure_on_gpu if device.type == "cuda" else measure_on_cpu
    cases = [(kind, shape) for shape in SHAPES[device.type] for kind in KINDS]
    findings = [
        finding
        for kind, shape in cases
        for finding in measure_kind(describe(kind, shape), kind, draw_inputs(kind, shape, device), pairs,
                                    partial(tick, kind))
    ]  # fmt: skip
    if device.type == "cpu":
        findings += [measure_vectors(channels, pairs, partial(tick, VECTORS)) for channels in CHANNELS]
    return findings


def describe(kind: str, shape: Shape) -> str:
    rows, heads, tokens, width = shape
    return f"{kind}, {rows} × {tokens:,} tokens, {heads} heads of {width}, forward and backward"


def measure_on_cpu(
    what: str, kind: str, inputs: Mapping[str, Tensor], pairs: int, tick: Callable[[], None]
) -> Iterator[Finding]:
    """Against the twin."""
    chunks, twin = (partial(forward_backward, form, kind, inputs) for form in (chunked(kind, "cpu"), recurrent))
    yield compare_with_twin(what, chunks, twin, pairs, tick)


def measure_vectors(channels: int, pairs: int, tick: Callable[[], None]) -> Finding:
    """A state that is a vector, against the twin."""
    decay, added = torch.rand(1, 1024, channels), torch.randn(1, 1024, channels)
    inputs = {name: x.float().requires_grad_() for name, x in {"decay": decay, "added": added}.items()}
    forms = (partial(scan, chunk=VECTOR_CHUNKS["cpu"]), stack_steps)
    chunks, twin = (partial(forward_backward_by_channel, form, inputs) for form in forms)
    what = f"{VECTORS}, 1 × 1,024 tokens, {channels} channels, forward and backward"
    return compare_with_twin(what, chunks, twin, pairs, tick)


def compare_with_twin(what: str, chunks: Pass, twin: Pass, pairs: int, tick: Callable[[], None]) -> Finding:
    """How many times as fast the parallel form is."""
    times = time_alternately(chunks, twin, pairs, tick)
    ratio = estimate_ratio(times)
    ours, theirs = (1e3 * seconds for seconds in mean_seconds(times))
    return ratio.to_finding(
        what,
        "its twin, token by token",
        promise=f"at least {MIN_RATIO:g} ×",
        kept=ratio.value >= MIN_RATIO,
        detail=f"{ours:.1f} against {theirs:.1f} ms",
    )


def measure_on_gpu(
    what: str, kind: str, inputs: Mapping[str, Tensor], pairs: int, tick: Callable[[], None]
) -> Iterator[Finding]:
    """Against flash attention and against fla-core."""
    ours = capture(partial(forward_backward, chunked(kind, "cuda"), kind, inputs))
    peers: dict[str, Pass] = {"flash attention of the same shape": capture(partial(attention, inputs))}
    note = ""
    try:
        peers["fla-core"] = fla_pass(kind, inputs)
    except Exception as error:  # noqa: BLE001 (it is not installed, or its kernels refuse this GPU)
        note = f"; fla-core: {type(error).__name__}: {error!s:.100}"
    for name, peer in peers.items():
        first, second = (partial(run_steps, one, STEPS["cuda"], True) for one in (ours, peer))
        times = time_alternately(first, second, pairs, tick if name != "fla-core" else lambda: None)
        ratio = estimate_ratio(times)
        mine, other = (1e3 * seconds / STEPS["cuda"] for seconds in mean_seconds(times))
        yield ratio.to_finding(
            what,
            name,
            promise="not slower" if name == "fla-core" else "recorded",
            kept=ratio.value >= 1 if name == "fla-core" else True,
            detail=f"{mine:.2f} against {other:.2f} ms{note}",
        )


def attention(inputs: Mapping[str, Tensor]) -> None:
    """Causal softmax attention, forward and backward."""
    q, k, v = (inputs[name] for name in "qkv")
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    back_propagate(y, {"q": q, "k": k, "v": v})


def fla_pass(kind: str, inputs: Mapping[str, Tensor]) -> Pass:
    """A pass of fla-core's kernel, captured; raises where it does not run."""
    module, name = FLA[kind]
    function = getattr(importlib.import_module(f"fla.ops.{module}"), name)
    leaves = {key: x.detach().transpose(1, 2).contiguous().requires_grad_() for key, x in inputs.items()}

    def work() -> None:
        given = {key: x.squeeze(-1) if x.shape[-1] == 1 else x for key, x in leaves.items()}
        q, k, v = (given.pop(key) for key in "qkv")
        if kind == "rwkv7":
            y = function(r=q, w=given["g"], k=k, v=v, a=-k, b=k * given["rate"])[0]
        elif kind == "retention":
            y = function(q, k, v)[0]
        elif kind in ("mamba2", "mlstm"):
            y = function(q, k, v, g=given["g"])[0]
        elif kind == "gla":
            y = function(q, k, v, given["g"])[0]
        else:
            y = function(q, k, v, **given)[0]
        back_propagate(y, {key: x for key, x in leaves.items() if kind != "retention" or key != "g"})

    return capture(work)


def capture(work: Pass) -> Pass:
    """The work as one CUDA graph: otherwise Python would be timed."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay
