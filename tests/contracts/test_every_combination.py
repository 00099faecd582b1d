"""The promises for every combination of the parts of attention, and for random shapes, cuts and lengths."""

import contextlib
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anaphor.mixers import AttentionSpec, contract
from anaphor.mixers.recurrences.layer import RecurrenceSpec
from contracts.cases import combinations, every_three, table, whole_sequence_combinations

COMBINATIONS = combinations(every_three)
WHOLE = whole_sequence_combinations(every_three)


def assert_five_promises(spec):
    mixer = spec.build().eval()
    # Small steps: cosine's sharpness and the unscaled dot make weights so sharp that nothing would be compared.
    x, more = 0.5 * torch.randn(3, 6, 8), 0.5 * torch.randn(3, 3, 8)
    contract.chunks_equal_whole(mixer, x, [1, 4])
    contract.padding_leaves_no_trace(mixer, x, more, torch.tensor([6, 2, 0]))
    contract.rows_can_be_reordered(mixer, x, more, torch.tensor([2, 0, 0]))
    contract.gradient_crosses_the_seam(mixer, x, more)
    contract.old_state_survives(mixer, x, more)


def assert_promises_of_a_whole_sequence(spec):
    assert not spec.streams
    mixer = spec.build().eval()
    x, more = torch.randn(3, 6, 8), torch.randn(3, 3, 8)
    contract.padding_leaves_no_trace(mixer, x, more, torch.tensor([6, 2, 0]))
    contract.rows_can_be_reordered(mixer, x, more, torch.tensor([2, 0, 0]))


@pytest.mark.parametrize("name", COMBINATIONS)
def test_the_five_promises(name):
    assert_five_promises(COMBINATIONS[name])


@pytest.mark.parametrize("name", WHOLE)
def test_whole_sequence_attention_keeps_padding_and_rows(name):
    assert_promises_of_a_whole_sequence(WHOLE[name])


def test_any_three_parts_meet_in_a_combination():
    """What is chosen for each run of the tests: `slow` ones take all of them."""
    whole, chosen = combinations(), [(s.score, s.normalize, s.position, s.merge, s.mask, s.window, s.memory)
                                     for s in COMBINATIONS.values()]  # fmt: skip
    everything = [(s.score, s.normalize, s.position, s.merge, s.mask, s.window, s.memory) for s in whole.values()]
    assert len(chosen) * 5 < len(everything)
    # A view is a mask, a window and a memory together.
    parts = [lambda c: c[0], lambda c: c[1], lambda c: c[2], lambda c: c[3], lambda c: c[4:]]
    for three in itertools.combinations(parts, 3):
        assert {tuple(part(c) for part in three) for c in chosen} == {
            tuple(part(c) for part in three) for c in everything
        }


@pytest.mark.slow
def test_the_promises_of_every_combination():
    for name, spec in combinations().items():
        with about(name):
            assert_five_promises(spec)
    for name, spec in whole_sequence_combinations().items():
        with about(name):
            assert_promises_of_a_whole_sequence(spec)


@contextlib.contextmanager
def about(name):
    try:
        yield
    except Exception as error:
        error.add_note(f"combination: {name}")
        raise


TABLE = {name: spec for name, spec in table().items() if spec.streams and not name.endswith("wider")}
ATTENTION = {name: spec for name, spec in COMBINATIONS.items() if "-reweight-" in name or "-concatenate-" in name}


RECURRENCE_SETTINGS = {
    "chunk": [None, 1, 2, 8],
    "short_conv": [0, 3],
    "expand_v": [1.0, 2.0],
    "num_householder": [1, 2, 3],
    "allow_neg_eigval": [False, True],
    "channel_decay": [False, True],
    "d_state": [4, 6],
    "data_dependent_rope": [False, True],
}


@st.composite
def mixers(draw):
    """A streaming mixer of a random width: one of the table, or attention from random parts."""
    heads = draw(st.integers(1, 3))
    width = heads * 2 * draw(st.integers(1, 3))
    if draw(st.booleans()):
        spec = TABLE[draw(st.sampled_from(sorted(TABLE)))]
        fields = {"width": width, "width_out": draw(st.sampled_from([None, 5 * heads]))}
        if isinstance(spec, RecurrenceSpec):
            known = [name for name in RECURRENCE_SETTINGS if hasattr(spec, name)]
            fields |= {name: draw(st.sampled_from(RECURRENCE_SETTINGS[name])) for name in known}
    else:
        spec = ATTENTION[draw(st.sampled_from(sorted(ATTENTION)))]
        fields = {"width": width}
    if hasattr(spec, "heads"):
        fields["heads"] = heads
        if getattr(spec, "kv_heads", None):
            fields["kv_heads"] = draw(
                st.sampled_from([divisor for divisor in range(1, heads) if heads % divisor == 0] or [1])
            )
    if isinstance(spec, AttentionSpec) and spec.head_width is None and math.isinf(spec.combined_mask.reach):
        fields["memory"] = draw(st.sampled_from([None, 1, 3, 20]))
    from dataclasses import replace

    torch.manual_seed(draw(st.integers(0, 1000)))
    return replace(spec, **fields).build().eval()


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(data=st.data(), mixer=mixers(), rows=st.integers(1, 3), tokens=st.integers(1, 9))
def test_promises_hold_for_random_shapes_cuts_and_lengths(data, mixer, rows, tokens):
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    x, more = 0.5 * torch.randn(rows, tokens, mixer.width_in), 0.5 * torch.randn(rows, 3, mixer.width_in)
    cuts = data.draw(st.lists(st.integers(0, tokens), max_size=4))
    lengths = torch.tensor(data.draw(st.lists(st.integers(0, tokens), min_size=rows, max_size=rows)))
    order = torch.tensor(data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=4)))
    contract.chunks_equal_whole(mixer, x, cuts)
    contract.padding_leaves_no_trace(mixer, x, more, lengths)
    contract.rows_can_be_reordered(mixer, x, more, order)
    contract.old_state_survives(mixer, x, more)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), mixer=mixers())
def test_ragged_streams_equal_each_row_alone(data, mixer):
    """Chunk after chunk with different lengths in every row, some of them empty: padding lies between real tokens of
    memory, and still every row is what it would be alone."""
    rows, count, size = 3, 4, 3
    lengths = torch.tensor(
        data.draw(
            st.lists(st.lists(st.integers(0, size), min_size=rows, max_size=rows), min_size=count, max_size=count)
        )
    )
    chunks = 0.5 * torch.randn(count, rows, size, mixer.width_in)
    state, past_length, outputs = (
        mixer.initial_state(chunks[0]),
        torch.zeros(rows, dtype=torch.long),
        [[] for _ in range(rows)],
    )
    for chunk, length in zip(chunks, lengths, strict=True):
        y, state = contract.run(mixer, chunk, state, past_length, length)
        past_length = past_length + length
        for row in range(rows):
            outputs[row].append(y[row, : length[row]])
    for row in range(rows):
        text = torch.cat([chunks[i, row, : lengths[i, row]] for i in range(count)])[None]
        alone, _ = contract.run(mixer, text)
        contract.assert_close(
            torch.cat(outputs[row])[None], alone, f"{{where}} of row {row} with lengths {lengths[:, row].tolist()}"
        )
