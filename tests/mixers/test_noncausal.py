"""Non-causal attention without padding: the fused kernel gets no mask, and nothing is copied or kept."""

import pytest
import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from anaphor import build_seq2seq
from anaphor.inspect import recorded
from anaphor.mixers import AttentionSpec, CrossAttentionSpec, Span


@pytest.fixture
def sdpa_calls(monkeypatch):
    """Keyword arguments of every call of the fused kernel."""
    calls, kernel = [], F.scaled_dot_product_attention

    def spy(*tensors, **options):
        assert len(tensors) == 3, "a mask by position would go unnoticed"
        calls.append(options)
        return kernel(*tensors, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    return calls


def assert_unmasked(calls):
    assert len(calls) == 1, "one call of the fused kernel"
    assert calls[0].get("attn_mask") is None
    assert not calls[0].get("is_causal", False)


def run_fused_and_explicit(mixer, x, state, span, calls):
    fused, after = mixer(x, state, span)
    assert_unmasked(calls)
    with recorded(mixer, "weights"):
        explicit, _ = mixer(x, state, span)
    assert len(calls) == 1, "a recorded tap takes the explicit path"
    torch.testing.assert_close(fused, explicit)
    return after


@pytest.mark.parametrize("options", [
    {"mask": "everything"},
    {"mask": "everything", "position": "rotary"},
    {"mask": "everything", "score": "bilinear"},
    {"mask": "causal | everything"},
    {"mask": "band(9, 9)"},
    {"mask": "window(10)"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("grad", [True, False])
def test_unpadded_self_attention_passes_no_mask(options, grad, sdpa_calls):
    mixer, x = AttentionSpec(width=16, heads=2, **options).build().double().eval(), torch.randn(3, 10, 16).double()
    with torch.set_grad_enabled(grad):
        assert run_fused_and_explicit(mixer, x, mixer.initial_state(x), Span.whole(x), sdpa_calls) == ()


@pytest.mark.parametrize("lengths", [None, torch.tensor([7, 4, 0])], ids=["all tokens", "padded queries"])
def test_cross_attention_to_an_unpadded_source_passes_no_mask(lengths, sdpa_calls):
    mixer = CrossAttentionSpec(width=16, heads=2).build().double().eval()
    x, source = torch.randn(3, 7, 16).double(), torch.randn(3, 5, 16).double()
    run_fused_and_explicit(mixer, x, mixer.initial_state(source), Span.whole(x, lengths), sdpa_calls)


@pytest.mark.parametrize("mask", ["band(2, 2)", "everything & hidden(0)", "causal | prefix(3)"])
def test_a_mask_that_hides_something_reaches_the_kernel(mask, sdpa_calls):
    mixer, x = AttentionSpec(width=16, heads=2, mask=mask).build(), torch.randn(3, 10, 16)
    mixer(x, (), Span.whole(x))
    assert sdpa_calls[0]["attn_mask"] is not None


def test_a_bias_of_positions_is_all_that_reaches_the_kernel(sdpa_calls):
    mixer = AttentionSpec(width=16, heads=2, mask="everything", position="alibi").build().double()
    x = torch.randn(3, 10, 16).double()
    fused, _ = mixer(x, (), Span.whole(x))
    assert sdpa_calls[0]["attn_mask"].isfinite().all()
    with recorded(mixer, "weights"):
        explicit, _ = mixer(x, (), Span.whole(x))
    torch.testing.assert_close(fused, explicit)


def test_the_kernel_reads_keys_and_values_where_the_projection_wrote_them(monkeypatch):
    mixer, x = AttentionSpec(width=16, heads=2, mask="everything").build(), torch.randn(3, 10, 16)
    projected, given = [], []
    mixer.project.register_forward_hook(lambda module, inputs, output: projected.append(output))
    kernel = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda *qkv, **options: given.extend(qkv) or kernel(*qkv, **options)
    )
    with torch.no_grad():
        mixer(x, (), Span.whole(x))
    assert {tensor.untyped_storage().data_ptr() for tensor in given} == {projected[0].untyped_storage().data_ptr()}


def allocated_bytes(function):
    """Sum of all allocations on the CPU while the function runs, buffers inside of kernels and temporaries included;
    memory that is freed and allocated again counts again."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        function()
    events = profiler.profiler.kineto_results.events()
    return sum(max(event.nbytes(), 0) for event in events if event.name() == "[memory]")


def activation_bytes(module, function):
    """Storage that autograd keeps for the backward pass of the same call, each storage once, without parameters."""
    storages = {}

    def pack(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function()
    parameters = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    return sum(tensor.untyped_storage().nbytes() for key, tensor in storages.items() if key not in parameters)


def test_an_encoder_in_inference_allocates_at_most_twice_its_activations():
    """1,024 tokens of width 32: one mask of all pairs, or a copy of all keys, would be seen in the sum."""
    sizes = {"source_vocabulary": 50, "vocabulary": 50, "width": 32, "layers": 2, "heads": 4}
    model = build_seq2seq("transformer-translation", **sizes).eval()
    tokens = torch.randint(0, 50, (2, 1024))
    activations = activation_bytes(model.encoder, lambda: model.encoder(tokens))
    with torch.inference_mode():
        allocated = allocated_bytes(lambda: model.encoder(tokens))
        padded = allocated_bytes(lambda: model.encoder(tokens, torch.tensor([1024, 700])))
        with recorded(model, "encoder*weights"):
            explicit = allocated_bytes(lambda: model.encoder(tokens))
    assert allocated <= 2 * activations
    assert padded <= 3 * activations, "padding is a mask of keys, not of pairs"
    assert explicit > 3 * activations, "the count sees a matrix of all pairs"
