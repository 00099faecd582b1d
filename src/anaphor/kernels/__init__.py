"""Kernels: what is written by hand for speed. `register` has the table of all of them.

Each computes an operation of the core faster than its readable code, which is found where the operation is declared:
`@operation` stands above it. `anaphor.operations` decides at every call which of the two runs. Without this folder it
is the readable code.
"""

from importlib.util import find_spec

from anaphor.operations import register_kernel

# Operation, when its kernel applies, and the kernel: functions of modules in this folder.
ON_A_CPU = [
    ("layer_norm", "one_thread:is_small", "one_thread:layer_norm"),
    ("cross_entropy", "chunked_losses:applies", "chunked_losses:cross_entropy"),
    ("smoothed_cross_entropy", "chunked_losses:applies", "chunked_losses:smoothed_cross_entropy"),
    ("run_input_feeding", "input_feeding:applies", "input_feeding:run_input_feeding"),
]
ON_A_GPU = [
    ("run_input_feeding", "input_feeding:applies", "input_feeding:run_input_feeding"),
]
WITHOUT_TRITON = [
    ("cross_entropy", "chunked_losses:applies", "chunked_losses:cross_entropy"),
    ("smoothed_cross_entropy", "chunked_losses:applies", "chunked_losses:smoothed_cross_entropy"),
]
WITH_TRITON = [
    ("layer_norm", "layer_norm:applies", "layer_norm:layer_norm"),
    ("linear", "linear:applies", "linear:linear"),
    ("run_lstm", "lstm:applies", "lstm:run_lstm"),
    ("scan_qrnn", "qrnn:applies", "qrnn:scan_qrnn"),
    ("cross_entropy", "chunked_losses:applies", "losses:cross_entropy"),
    ("smoothed_cross_entropy", "chunked_losses:applies", "losses:smoothed_cross_entropy"),
    ("rdrop_loss", "losses:is_pair_possible", "losses:rdrop_loss"),
    ("update", "updates:applies", "updates:update"),
]


def register() -> None:
    """Add the kernels of this shelf: the registry calls it when names are first needed."""
    _register(ON_A_CPU, "cpu")
    _register(ON_A_GPU, "cuda")
    # It comes with torch where there is a GPU, but not on every system.
    _register(WITH_TRITON if find_spec("triton") is not None else WITHOUT_TRITON, "cuda")


def _register(table: list[tuple[str, str, str]], device: str) -> None:
    for operation, applies, function in table:
        register_kernel(operation, device, f"{__name__}.{applies}", f"{__name__}.{function}")
