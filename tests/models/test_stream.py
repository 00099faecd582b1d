"""A carried stream of 20,000 tokens, and of 100,000 in slow tests, keeps memory constant."""

import gc

import pytest
import torch

from anaphor.mixers import count_bytes, detach
from anaphor.mixers.base import tensors_of
from anaphor.models import build

PIECE = 200


def live_bytes() -> int:
    """Bytes of every tensor that is alive, storages counted once and whole."""
    gc.collect()
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in gc.get_objects()
        if type(tensor) in (torch.Tensor, torch.nn.Parameter)
    }
    return sum(storages.values())


SOON = [("transformer-xl", True, 12_000), ("linear", False, 12_000)]
LATE = [(name, grad, 100_000) for name in ("transformer-xl", "linear", "lstm") for grad in (False, True)]


@pytest.mark.parametrize(
    ("name", "grad", "tokens"), [*SOON, *(pytest.param(*one, marks=pytest.mark.slow) for one in LATE)]
)
def test_a_long_stream_keeps_memory_constant(name, grad, tokens):
    model = build(name, vocabulary=16, width=16, layers=1, **({"memory": 64} if name == "transformer-xl" else {}))
    model = model.to(torch.float32)
    state, levels, largest = model.initial_state(1), [], 0.0
    for piece in torch.randint(0, 16, (1, tokens)).split(PIECE, dim=1):
        with torch.set_grad_enabled(grad):
            logits, state = model(piece, detach(state))
            if grad:
                logits.mean().backward()
                model.zero_grad()
        if int(state.past_length) % 4_000 == 0:
            largest = max(largest, logits.abs().max().item())
            del logits
            levels.append(live_bytes())
    assert int(state.past_length) == tokens
    assert max(levels[1:]) <= levels[0] * 1.01, f"live bytes grew: {levels}"
    assert 0 < largest < float("inf")


@pytest.mark.parametrize("grad", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("name", ["transformer-xl", "hybrid", "transformer"])
def test_a_state_holds_little_more_than_it_says(name, grad):
    """Views into the tensors of a long call would keep all of them alive."""
    options = {} if name == "transformer" else {"memory": 16}
    model = build(name, vocabulary=16, width=64, layers=2, **options)
    with torch.set_grad_enabled(grad):
        _, state = model(torch.randint(0, 16, (1, 1000)))
    state = detach(state)
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors_of(state)}
    assert sum(held.values()) <= 4 * count_bytes(state)


def test_ragged_streams_stay_bounded_too():
    """Rows of different lengths share slots: at most `memory` for each row."""
    rows, memory = 5, 4
    model = build("transformer-xl", vocabulary=16, width=16, layers=1, memory=memory).eval()
    state = model.initial_state(rows)
    slots = []
    with torch.no_grad():
        for _ in range(300):
            lengths = torch.randint(0, 4, (rows,))
            _, state = model(torch.randint(0, 16, (rows, 3)), state, lengths)
            slots.append(state.layers[0].keys_values.data.shape[3])
    assert max(slots) <= rows * memory
    assert max(slots[150:]) <= max(slots[:150])


def test_an_unbounded_memory_says_that_it_grows():
    assert build("transformer", vocabulary=16).state_grows
    assert not build("transformer-xl", vocabulary=16).state_grows


def test_token_by_token_the_buffer_behind_the_state_stays_bounded():
    """Appending in place must not keep the past alive: the storage is at most a few times the memory."""
    model = build("transformer-xl", vocabulary=16, width=16, layers=1, memory=20).eval()
    state = model.initial_state(2)
    with torch.no_grad():
        for _ in range(500):
            _, state = model(torch.randint(0, 16, (2, 1)), state)
    keys = state.layers[0].keys_values.data
    assert keys.shape[3] == 20
    assert keys.untyped_storage().nbytes() <= 3 * keys.numel() * keys.element_size()
