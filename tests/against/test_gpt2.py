"""A GPT-2 shaped model against `transformers`' GPT2 with the same weights."""

import pytest
import torch

from anaphor.models import preset

TIGHT = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture(scope="module")
def pair():
    transformers = pytest.importorskip("transformers", reason="`pip install transformers` for this oracle")
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=16, n_embd=12, n_layer=2, n_head=3, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    peer = transformers.GPT2LMHeadModel(config).double().eval()
    for parameter in peer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ours = preset("gpt2", vocabulary=50, width=12, layers=2, heads=3, max_positions=16).build().eval()
    copy(peer.transformer, ours)
    torch.set_default_dtype(torch.float32)
    return ours, peer


def copy(peer, ours) -> None:
    def fill(target, source):
        # transformers keeps GPT-2's linear maps transposed, as the original did
        target.weight.data.copy_(source.weight.T if type(source).__name__ == "Conv1D" else source.weight)
        if getattr(source, "bias", None) is not None:
            target.bias.data.copy_(source.bias)

    fill(ours.embed, peer.wte)
    fill(ours.embedder.position.table, peer.wpe)
    fill(ours.layers.norm, peer.ln_f)
    for block, other in zip(ours.layers, peer.h, strict=True):
        fill(block.mixer_sublayer.norm, other.ln_1)
        fill(block.mixer.project, other.attn.c_attn)
        fill(block.mixer.out, other.attn.c_proj)
        fill(block.feedforward_sublayer.norm, other.ln_2)
        fill(block.feedforward.up, other.mlp.c_fc)
        fill(block.feedforward.down, other.mlp.c_proj)


def test_logits_against_gpt2(pair):
    ours, peer = pair
    tokens = torch.randint(0, 50, (3, 16))
    torch.testing.assert_close(ours(tokens)[0], peer(tokens).logits, **TIGHT)


def test_gradients_against_gpt2(pair):
    ours, peer = pair
    tokens = torch.randint(0, 50, (2, 9))
    for model, logits in ((ours, ours(tokens)[0]), (peer, peer(tokens).logits)):
        model.zero_grad()
        logits.square().mean().backward()
    torch.testing.assert_close(ours.embed.weight.grad, peer.transformer.wte.weight.grad, **TIGHT)
    torch.testing.assert_close(
        ours.layers[0].mixer.project.weight.grad, peer.transformer.h[0].attn.c_attn.weight.grad.T, **TIGHT
    )


def test_cached_steps_against_gpt2(pair):
    ours, peer = pair
    tokens = torch.randint(0, 50, (2, 10))
    state, steps = None, []
    with torch.no_grad():
        for token in tokens.split(1, dim=1):
            logits, state = ours(token, state)
            steps.append(logits)
        torch.testing.assert_close(torch.cat(steps, 1), peer(tokens).logits, **TIGHT)


def test_parameter_count_is_gpt2s(pair):
    ours, peer = pair
    assert ours.count_parameters() == sum(parameter.numel() for parameter in peer.parameters())
