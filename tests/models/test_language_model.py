"""Language models: state, ties, widths, sizes, and what is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anaphor.errors import ConfigError
from anaphor.mixers import Span, count_bytes, select_rows
from anaphor.models import PRESETS, LanguageModelSpec, backbone, build, preset, summarize
from anaphor.registry import RECURRENCES

SMALL = [name for name in PRESETS if not name.startswith(("gpt2", "gopher", "openai"))]
TIGHT = {"rtol": 1e-9, "atol": 1e-10}


def small(name, **overrides):
    return build(name, vocabulary=20, **{"width": 24, "layers": 3, **overrides}).eval()


@pytest.mark.parametrize("name", SMALL)
def test_pieces_with_carried_state_equal_the_whole(name):
    model = small(name)
    tokens = torch.randint(0, 20, (2, 11))
    whole, end = model(tokens)
    state, outputs = None, []
    for piece in tokens.split([4, 1, 6], dim=1):
        logits, state = model(piece, state)
        outputs.append(logits)
    torch.testing.assert_close(torch.cat(outputs, 1), whole, **TIGHT)
    assert torch.equal(state.past_length, end.past_length)


@pytest.mark.parametrize("name", SMALL)
def test_a_row_in_company_is_a_row_alone(name):
    model = small(name)
    tokens, lengths = torch.randint(0, 20, (3, 7)), torch.tensor([7, 3, 1])
    together, state = model(tokens, lengths=lengths)
    following, _ = model(tokens[:, :2], state)
    for row, length in enumerate(lengths.tolist()):
        alone, alone_state = model(tokens[row : row + 1, :length])
        torch.testing.assert_close(together[row, :length], alone[0], **TIGHT)
        torch.testing.assert_close(following[row], model(tokens[row : row + 1, :2], alone_state)[0][0], **TIGHT)


@pytest.mark.parametrize("name", SMALL)
def test_a_models_rows_can_be_reordered(name):
    model = small(name)
    tokens, order = torch.randint(0, 20, (3, 6)), torch.tensor([2, 2, 0])
    _, state = model(tokens[:, :4])
    expected = model(tokens[:, 4:], state)[0][order]
    torch.testing.assert_close(model(tokens[order, 4:], select_rows(state, order))[0], expected, **TIGHT)


@pytest.mark.parametrize("name", SMALL)
def test_no_token_sees_a_later_one(name):
    model = small(name)
    tokens = torch.randint(0, 20, (1, 8))
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 20
    torch.testing.assert_close(model(tokens)[0][:, :5], model(changed)[0][:, :5], **TIGHT)


@pytest.mark.parametrize("name", SMALL)
def test_state_bytes_are_those_of_a_real_state(name):
    model = small(name)
    tokens = torch.randint(0, 20, (1, 200))
    _, state = model(tokens)
    assert model.state_bytes(200) == count_bytes(state)
    assert model.state_grows == (model.state_bytes(400) > model.state_bytes(200))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("embedding", [None, 8, 40])
@pytest.mark.parametrize("name", ["lstm", "transformer", "hybrid"])
def test_widths_may_differ_everywhere(name, embedding, tied):
    model = small(name, embedding=embedding, tied=tied, layer_widths=(24, 16, 32))
    logits, _ = model(torch.randint(0, 20, (2, 5)))
    logits.sum().backward()
    assert logits.shape == (2, 5, 20)
    assert model.embed.weight.shape == (20, embedding or 24)
    assert (model.head.weight is model.embed.weight) == tied
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("dropouts", [(0.5, 0), (0, 0.5)])
def test_each_layer_may_leave_out_a_share_of_its_own(dropouts):
    model = small("hybrid", layers=2, mixers=("lstm", "attention"), layer_dropouts=dropouts).train()
    x = torch.randn(2, 5, 24)
    for block, share in zip(model.blocks, dropouts, strict=True):
        first, second = (block(x, block.initial_state(x), Span.whole(x))[0] for _ in range(2))
        assert torch.equal(first, second) == (share == 0)


def test_a_layer_may_be_added_to_a_stack_that_adds_nothing_else():
    plain = small("lstm", layers=2)
    model = small(
        "lstm",
        mixers=("lstm", "attention", "lstm"),
        layer_norms=("none", "before", "none"),
        layer_residuals=(False, True, False),
    )
    frames = [(block.spec.norm, block.spec.residual) for block in model.layers.blocks]
    assert frames == [("none", False), ("before", True), ("none", False)]
    same = {"embedder": model.embedder, "head": model.head, "layers.0": model.layers[0], "layers.1": model.layers[2]}
    for name, part in same.items():
        part.load_state_dict(plain.get_submodule(name).state_dict())
    tokens = torch.randint(0, 20, (2, 7))
    assert not torch.equal(model(tokens)[0], plain(tokens)[0])
    torch.nn.init.zeros_(model.layers[1].mixer.out.weight)
    torch.nn.init.zeros_(model.layers[1].mixer.out.bias)
    torch.testing.assert_close(model(tokens)[0], plain(tokens)[0], **TIGHT)


def test_tied_weights_count_once():
    tied, untied = small("lstm", tied=True, head_bias=False), small("lstm", tied=False, head_bias=False)
    assert untied.count_parameters() - tied.count_parameters() == 20 * 24


@pytest.mark.parametrize(
    ("name", "layers", "heads", "width"),
    [("gpt-nano", 3, 3, 48), ("gpt-micro", 4, 4, 128), ("gpt-mini", 6, 6, 192), ("gopher-44m", 8, 16, 512),
     ("openai-gpt", 12, 12, 768), ("gpt2", 12, 12, 768), ("gpt2-medium", 24, 16, 1024), ("gpt2-large", 36, 20, 1280),
     ("gpt2-xl", 48, 25, 1600)],
)  # fmt: skip
def test_gpt_presets_have_the_published_sizes(name, layers, heads, width):
    spec = preset(name, vocabulary=50_257)
    assert (len(spec.mixers_by_layer), spec.heads, spec.width) == (layers, heads, width)


def test_gpt2_has_its_published_parameter_count():
    assert summarize(preset("gpt2", vocabulary=50_257)).parameters == 124_439_808
    assert summarize(preset("gpt2-xl", vocabulary=50_257)).parameters == 1_557_611_200


def test_hybrid_is_a_recurrent_layer_below_attention():
    assert preset("hybrid", vocabulary=5, layers=4).mixers_by_layer == ("lstm", "attention", "attention", "attention")


def test_free_stacks_are_spelled_out():
    spec = LanguageModelSpec(vocabulary=20, mixers=("gru", "attention", "linear"), width=8, heads=2)
    assert [type(mixer).__name__ for mixer in spec.build().layers.mixers] == ["GRU", "Attention", "Linear"]
    again = preset("transformer", vocabulary=20, mixers=["lstm", "attention", "attention"], width=8)
    assert again.mixers_by_layer == ("lstm", "attention", "attention")


@settings(max_examples=40, deadline=None)
@given(
    mixers=st.lists(
        st.sampled_from(
            ["rnn-tanh", "rnn-relu", "rnn-identity", "gru", "lstm", "qrnn", "attention", "linear", *RECURRENCES]
        ),
        min_size=1,
        max_size=4,
    ),
    norm=st.sampled_from(["before", "after", "none"]),
    residual=st.booleans(),
    feedforward=st.sampled_from([None, 0, 12]),
    short_conv=st.sampled_from([0, 3]),
    cut=st.integers(0, 6),
    seed=st.integers(0, 100),
)
def test_any_stack_of_streaming_mixers_streams(mixers, norm, residual, feedforward, short_conv, cut, seed):
    torch.manual_seed(seed)
    around = {"norm": norm, "residual": residual, "feedforward": feedforward, "short_conv": short_conv}
    spec = LanguageModelSpec(vocabulary=7, mixers=tuple(mixers), width=8, **around)
    model, tokens = spec.build().eval(), torch.randint(0, 7, (2, 6))
    first, state = model(tokens[:, :cut])
    second, _ = model(tokens[:, cut:], state)
    torch.testing.assert_close(torch.cat((first, second), 1), model(tokens)[0], **TIGHT)


REFUSED = {
    "model": (lambda: build("trasformer", vocabulary=5), "unknown model 'trasformer'; did you mean 'transformer'"),
    "field": (lambda: build("lstm", vocabulary=5, widht=3), "no field 'widht'; did you mean 'width'"),
    "heads": (lambda: build("transformer", vocabulary=5, width=10, heads=3), "heads=3 does not divide width=10"),
    "unused": (lambda: build("lstm", vocabulary=5, memory=4), "memory=4 is not used by the layers lstm, lstm"),
    "position of an LSTM": (lambda: build("lstm", vocabulary=5, position="rotary"), "position='rotary' is not used"),
    "alibi without scores": (
        lambda: build("linear", vocabulary=5, position="alibi"),
        "with this option: attention",
    ),
    "svd": (
        lambda: LanguageModelSpec(vocabulary=5, mixers=("svd",), width=8),
        "mixer 'svd' .*needs the whole sequence",
    ),
    "pooled": (
        lambda: LanguageModelSpec(vocabulary=5, mixers=("pooled",), width=8),
        "it averages all tokens, later ones included",
    ),
    "bidirectional": (
        lambda: LanguageModelSpec(vocabulary=5, mixers=("bidirectional-lstm",), width=8),
        "mixer 'bidirectional-lstm' needs the whole sequence",
    ),
    "mask": (
        lambda: build("transformer", vocabulary=5, mask="everything"),
        "mask 'everything' lets a token attend to later ones",
    ),
    "merge": (lambda: build("transformer", vocabulary=5, merge="reweight-matrix"), "'reweight' does not"),
    "window alone": (
        lambda: build("transformer", vocabulary=5, mask="window(4)"),
        r"'causal & \(window\(4\)\)' does not",
    ),
    "string": (lambda: LanguageModelSpec(vocabulary=5, mixers="lstm"), "mixers='lstm': it must be a list of strings"),
    "embedding": (lambda: build("lstm", vocabulary=5, embedding=0), "embedding=0: it must be at least 1"),
    "vocabulary": (lambda: build("lstm", vocabulary=0), "vocabulary=0: it must be at least 1"),
    "layers": (
        lambda: LanguageModelSpec(vocabulary=5, mixers=("lstm", "gru"), layers=1),
        "layers=1 is less than the 2",
    ),
    "no mixers": (lambda: LanguageModelSpec(vocabulary=5, mixers=()), "mixers is empty"),
    "layer_widths": (lambda: build("lstm", vocabulary=5, layer_widths=(3,)), "layer_widths has 1 values for 2 layers"),
    "layer_norms": (
        lambda: build("lstm", vocabulary=5, layer_norms=("none", "befor")),
        "unknown norm 'befor'; did you mean",
    ),
    "layer_residuals": (
        lambda: build("lstm", vocabulary=5, layer_residuals=(True,)),
        "layer_residuals has 1 values for 2 layers",
    ),
    "layer_dropouts": (
        lambda: build("lstm", vocabulary=5, layer_dropouts=(0.1, 1.0)),
        "dropout=1.0 is not a dropout probability",
    ),
    "too many dropouts": (
        lambda: build("lstm", vocabulary=5, layer_dropouts=(0, 0, 0)),
        "layer_dropouts has 3 values for 2 layers",
    ),
    "norm": (lambda: build("lstm", vocabulary=5, norm="befor"), "unknown norm 'befor'; did you mean 'before'"),
    "activation": (lambda: build("gpt2", vocabulary=5, activation="gelo"), "unknown activation 'gelo'; did you mean"),
    "init_scheme": (
        lambda: build("lstm", vocabulary=5, init_scheme="norml"),
        "unknown init scheme 'norml'; did you mean",
    ),
    "memory below window": (lambda: build("transformer-xl", vocabulary=5, window=200), "memory=128 is too short"),
    "dropout": (lambda: build("lstm", vocabulary=5, dropout=1.0), "dropout=1.0 is not a dropout probability"),
    "width as text": (
        lambda: build("lstm", vocabulary=5, width="8"),
        "width='8': it must be a whole number",
    ),
    "width as float": (lambda: build("lstm", vocabulary=5, width=8.0), "width=8.0: it must be a whole number"),
    "no norm": (lambda: build("lstm", vocabulary=5, norm=None), "norm=None: it must be a string"),
    "feedforward": (lambda: build("gpt2", vocabulary=5, feedforward=-1), "feedforward=-1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_in_one_line(case):
    make, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["lstm", "transformer", "transformer-xl", "gpt-nano", "hybrid", "linear"])
@pytest.mark.parametrize(
    ("option", "values"),
    [("max_positions", (8, 9)), ("activation", ("relu", "gelu")), ("dropout_kind", ("each", "locked"))],
)
@pytest.mark.parametrize("more", [{}, {"feedforward": 0}, {"feedforward": 5}, {"dropout": 0.5}, {"input_dropout": 0.5}])
def test_a_model_says_which_options_it_reads(name, option, values, more):
    heads = {} if name == "lstm" else {"heads": 2}
    found = []
    for value in values:
        spec = preset(name, vocabulary=9, width=8, layers=2, **heads, **more, **{option: value})
        torch.manual_seed(0)
        model = spec.build().train()
        torch.manual_seed(1)
        y, _ = model(torch.arange(8).expand(2, -1))
        found.append((y, model.max_positions))
    alike = torch.equal(found[0][0], found[1][0]) and found[0][1] == found[1][1]
    assert (option in spec.unused_options([option])) == alike


@pytest.mark.parametrize("norm", ["before", "none"])
def test_the_norm_behind_the_stack_follows_the_norm_of_all_and_not_those_of_each(norm):
    model = build(
        "lstm", vocabulary=5, width=8, norm=norm, layer_norms=("none", "before") if norm == "none" else ("none",) * 2
    )
    assert isinstance(model.layers.norm, torch.nn.LayerNorm) == (norm == "before")


def test_learned_positions_end_and_say_so():
    model = small("gpt-nano", max_positions=8)
    tokens = torch.randint(0, 20, (2, 8))
    _, state = model(tokens)
    with pytest.raises(ConfigError, match="9 tokens are more than the 8 learned positions"):
        model(torch.randint(0, 20, (2, 9)))
    with pytest.raises(ConfigError, match="9 tokens are more than the 8 learned positions"):
        model(tokens[:, :1], state)


@pytest.mark.parametrize("carried", [False, True], ids=["fresh", "carried"])
def test_padding_does_not_use_up_learned_positions(carried):
    model, tokens = small("gpt-nano", max_positions=8).eval(), torch.randint(0, 20, (2, 16))
    before = model(tokens[:, :3])[1] if carried else None
    seen, rest = (3, tokens[:, 3:]) if carried else (0, tokens)
    padded, _ = model(rest, before, torch.tensor([8 - seen, 1]))
    exact, _ = model(rest[:, : 8 - seen], before, torch.tensor([8 - seen, 1]))
    torch.testing.assert_close(padded[0, : 8 - seen], exact[0])
    torch.testing.assert_close(padded[1, 0], exact[1, 0])
    with pytest.raises(ConfigError, match="9 tokens are more than the 8 learned positions"):
        model(rest, before, torch.tensor([1, 9 - seen]))


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.tensor([[0, 20]]), "token 20 is outside the vocabulary of 20"),
        (torch.tensor([[-1]]), "token -1 is outside"),
        (torch.tensor([[0.5]]), "must be int64 or int32, but they are torch.float"),
        (torch.tensor([1, 2]), r"must be a tensor \[rows, tokens\], but they are \[2\]"),
        ([[1, 2]], r"must be a tensor \[rows, tokens\], but they are list"),
    ],
)
def test_wrong_tokens_are_named(tokens, message):
    with pytest.raises(ConfigError, match=message):
        small("lstm")(tokens)


def test_a_state_of_other_rows_is_refused():
    model = small("lstm")
    _, state = model(torch.randint(0, 20, (2, 3)))
    with pytest.raises(ConfigError, match="state has 2 rows, but there are 3"):
        model(torch.randint(0, 20, (3, 1)), state)


@pytest.mark.parametrize("other", ["gru", "transformer", "lstm-of-one-layer", "lstm-of-another-width", "tuple"])
def test_another_models_state_is_refused(other):
    model, tokens = small("lstm"), torch.randint(0, 20, (2, 3))
    state = {
        "gru": lambda: small("gru"),
        "transformer": lambda: small("transformer"),
        "lstm-of-one-layer": lambda: small("lstm", layers=1),
        "lstm-of-another-width": lambda: small("lstm", width=16),
        "tuple": lambda: lambda tokens: (None, ()),
    }[other]()(tokens)[1]
    with pytest.raises(ConfigError, match="state"):
        model(tokens, state)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (torch.tensor([3, 4]), "a row of length 4 does not fit into 3 tokens"),
        (torch.tensor([-1, 2]), "a row of length -1 does not fit"),
        (torch.tensor([2]), r"one number for each of 2 rows, but it is \[1\]"),
        (torch.tensor([2.0, 3.0]), "must be whole numbers, but they are torch.float"),
        ([2, 3], r"must be a tensor .* but it is \[2, 3\]"),
    ],
)
def test_lengths_that_cannot_be_are_refused(lengths, message):
    with pytest.raises(ConfigError, match=message):
        small("lstm")(torch.randint(0, 20, (2, 3)), lengths=lengths)


def test_padding_does_not_run_out_of_positions():
    """Rows that have seen 8 and 2 of 10 positions go on by 1 and 5 tokens: both fit, whatever the padding."""
    model = small("gpt-nano", max_positions=10)
    _, state = model(torch.randint(0, 20, (2, 8)), lengths=torch.tensor([8, 2]))
    logits, state = model(torch.randint(0, 20, (2, 5)), state, torch.tensor([1, 5]))
    assert state.past_length.tolist() == [9, 7]
    assert logits.isfinite().all()


@pytest.mark.parametrize("name", SMALL)
def test_no_rows_are_no_problem(name):
    model = small(name)
    _, state = model(torch.randint(0, 20, (2, 3)))
    nobody = select_rows(state, torch.zeros(0, dtype=torch.long))
    logits, _ = model(torch.zeros(0, 2, dtype=torch.long), nobody, torch.zeros(0, dtype=torch.long))
    assert logits.shape == (0, 2, 20)


@pytest.mark.parametrize("name", SMALL)
def test_the_tensors_of_a_state_share_nothing(name):
    from anaphor.mixers.base import tensors_of

    model = small(name)
    for state in (model.initial_state(2), model(torch.randint(0, 20, (2, 3)))[1]):
        addresses = [tensor.data_ptr() for tensor in tensors_of(state) if tensor.numel()]
        assert len(addresses) == len(set(addresses))


def test_a_model_made_without_memory_can_be_filled():
    """Ties and positions survive a detour over the device that holds nothing."""
    for name, options in (("transformer", {"tied": True}), ("transformer", {"position": "alibi", "heads": 3})):
        full = small(name, **options)
        with torch.device("meta"):
            empty = small(name, **options)
        empty = empty.to_empty(device="cpu").eval()
        empty.load_state_dict(full.state_dict())
        assert empty.head.weight is empty.embed.weight
        tokens = torch.randint(0, 20, (2, 5))
        assert torch.equal(empty(tokens)[0], full(tokens)[0])


def test_copies_stay_tied():
    from copy import deepcopy

    model = deepcopy(small("transformer"))
    assert model.head.weight is model.embed.weight
    assert sum(name.endswith("embedding.weight") for name in model.state_dict()) == 1
    assert not any(name.startswith("head.own") for name in model.state_dict())


def test_word_vectors_have_the_size_of_what_positions_add():
    model = build("transformer", vocabulary=500, width=64)
    x = model.embedder.scale * model.embed.weight
    assert x.std().item() == pytest.approx(1, rel=0.05)
    assert build("gpt-nano", vocabulary=500).embedder.scale == 1


def test_options_of_heads_reach_the_layers():
    model = small("transformer", head_width=4, heads=2, combine="query", bias=False)
    mixer = model.layers.mixers[0]
    assert (mixer.spec.head_width, mixer.spec.combine, mixer.project.bias) == (4, "query", None)


def test_residual_branches_start_small_and_the_rest_as_gpt2():
    torch.manual_seed(0)
    model = build("gpt-mini", vocabulary=500)
    block = model.layers[0]
    assert block.mixer.project.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert block.feedforward.down.weight.std().item() == pytest.approx(0.02 / 12**0.5, rel=0.02)
    assert model.embed.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert not block.mixer.project.bias.any()


def test_recurrent_layers_start_as_the_framework_draws_them():
    model = build("lstm", vocabulary=50, width=64)
    weight = model.layers[0].mixer.kernel.weight_hh_l0
    assert weight.abs().max() <= 1 / 8
    assert weight.std().item() == pytest.approx(1 / 8 / 3**0.5, rel=0.05)
    assert model.embed.weight.abs().max() <= 0.1


def test_a_layer_that_sees_later_tokens_is_admitted_on_demand_only():
    with pytest.raises(ConfigError, match="causal=False allows it"):
        build("transformer", vocabulary=5, merge="reweight-matrix")
    assert not build("transformer", vocabulary=5, width=8, merge="reweight-matrix", causal=False).causal
    assert build("transformer", vocabulary=5, width=8, causal=False).causal, "what is admitted need not be there"


def test_a_presets_own_heads_count_when_its_width_is_changed():
    assert preset("gpt-nano", vocabulary=9, width=54).heads == 3


def test_what_only_a_preset_says_is_dropped_where_other_layers_took_the_place_of_its_own():
    spec = preset("transformer-xl", vocabulary=9, mixers=("lstm", "gru"))
    assert (spec.memory, spec.position, spec.layers) == (None, "none", None)
    with pytest.raises(ConfigError, match="memory=4 is not used by the layers lstm"):
        preset("transformer-xl", vocabulary=9, mixers=("lstm",), memory=4)


def test_a_feed_forward_network_with_transposed_products_gives_the_same(monkeypatch):
    monkeypatch.setattr(backbone, "TRANSPOSED_MIN_WIDTH", 8)
    network = backbone.FeedForward(8, 20, "gelu", 0.0).double().eval()
    x = torch.randn(16, 1, 8, dtype=torch.double)
    expected = network(x).detach()
    with torch.inference_mode():
        torch.testing.assert_close(network(x), expected, rtol=1e-12, atol=1e-12)
        assert network(x).is_contiguous()
        for rows in (x[:15], x.view(4, 4, 8)):
            torch.testing.assert_close(network(rows).flatten(), expected.flatten()[: rows.numel()])
        widths = []
        network.up.register_forward_hook(lambda module, inputs, output: widths.append(output.shape[-1]))
        torch.testing.assert_close(network(x), expected, rtol=1e-12, atol=1e-12)
    assert widths == [20], "a hook is called"
