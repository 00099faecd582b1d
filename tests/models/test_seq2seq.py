"""Conditional language models: one state for everything, three conditions, ties, and what is refused."""

from copy import deepcopy

import pytest
import torch

from anaphor.errors import ConfigError
from anaphor.inspect import recorded
from anaphor.mixers import count_bytes, select_rows
from anaphor.mixers.base import tensors_of
from anaphor.models import (
    SEQ2SEQ_PRESETS,
    BilinearAttention,
    Seq2SeqSpec,
    build_seq2seq,
    seq2seq_preset,
)

TIGHT = {"rtol": 1e-9, "atol": 1e-10}
SIZES = {"source_vocabulary": 17, "vocabulary": 13}
MODELS = {
    **{name: {"name": name} for name in SEQ2SEQ_PRESETS},
    "deep-luong": {"name": "luong", "layers": 2},
    "bidirectional-luong": {"name": "luong", "layers": 2, "encoder": ("bidirectional-lstm",)},
    "luong-state": {"name": "luong", "layers": 2, "condition": "state"},
    "gru-state": {"name": "gru-attention", "condition": "state"},
    "luong-none": {"name": "luong", "condition": "none"},
    "transformer-none": {"name": "transformer-translation", "condition": "none"},
    "norm-after": {"name": "transformer-translation", "norm": "after", "position": "learned"},
    "rotary": {"name": "transformer-translation", "position": "rotary"},
    "no-feeding": {"name": "transformer-translation", "decoder": ("lstm",), "input_feeding": False},
    "attention-to-lstm": {"name": "transformer-translation", "decoder": ("lstm",)},
    "hybrid-state": {"name": "transformer-translation", "decoder": ("lstm", "attention"), "condition": "state"},
    "hybrid": {"name": "transformer-translation", "decoder": ("gru", "attention"), "encoder": ("linear",)},
    "narrow-words": {"name": "luong", "embedding": 10},
    "qrnn-to-lstm": {"name": "luong", "encoder": ("qrnn",), "kernel_size": 3},
    "qrnn-state": {"name": "luong", "encoder": ("qrnn",), "condition": "state"},
    "qrnn": {"name": "luong", "encoder": ("qrnn",), "decoder": ("qrnn",), "residual": True, "kernel_size": 3},
}
each_model = pytest.mark.parametrize("case", MODELS)


def small(case, **overrides):
    name, options = MODELS[case]["name"], {key: value for key, value in MODELS[case].items() if key != "name"}
    depth = {} if "layers" in options or "layers" in overrides else {"layers": 2}
    return build_seq2seq(name, **{**SIZES, "width": 24, **depth, **options, **overrides}).eval()


def pair(rows=3, source=6, target=7):
    return torch.randint(0, 17, (rows, source)), torch.randint(0, 13, (rows, target))


@each_model
def test_whole_chunks_and_single_tokens_are_one(case):
    model, (source, tokens) = small(case), pair()
    source_lengths = torch.tensor([6, 3, 1])
    whole, end = model.compute_hidden_states(tokens, model.encode(source, source_lengths))
    for sizes in ([3, 1, 3], [1] * 7):
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                state, outputs = model.encode(source, source_lengths), []
                for piece in tokens.split(sizes, dim=1):
                    x, state = model.compute_hidden_states(piece, state)
                    outputs.append(x)
            torch.testing.assert_close(torch.cat(outputs, 1), whole, **TIGHT)
            assert torch.equal(state.past_length, end.past_length)


@each_model
def test_a_pair_alone_is_a_pair_in_a_batch_of_64(case):
    model = small(case)
    source, tokens = pair(64, 9, 8)
    source_lengths, lengths = torch.randint(1, 10, (64,)), torch.randint(1, 9, (64,))
    together, state = model.compute_hidden_states(tokens, model.encode(source, source_lengths), lengths)
    following, _ = model.compute_hidden_states(tokens[:, :2], state)
    for row in (0, 13, 63):
        alone_source, alone_tokens = source[[row], : source_lengths[row]], tokens[[row], : lengths[row]]
        alone, alone_state = model.compute_hidden_states(alone_tokens, model.encode(alone_source))
        torch.testing.assert_close(together[row, : lengths[row]], alone[0], rtol=0, atol=1e-12)
        alone_future, _ = model.compute_hidden_states(tokens[[row], :2], alone_state)
        torch.testing.assert_close(following[row], alone_future[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", SEQ2SEQ_PRESETS)
def test_and_in_single_precision_it_is_so_to_a_millionth(name):
    model = small(name).float()
    source, tokens = pair(64, 9, 8)
    source_lengths = torch.randint(1, 10, (64,))
    together, _ = model.compute_hidden_states(tokens, model.encode(source, source_lengths))
    for row in (0, 13, 63):
        alone, _ = model.compute_hidden_states(tokens[[row]], model.encode(source[[row], : source_lengths[row]]))
        torch.testing.assert_close(together[row], alone[0], rtol=1e-6, atol=2e-6)


@each_model
def test_what_stands_in_the_padding_of_a_source_does_not_matter(case):
    model, (source, tokens) = small(case), pair()
    lengths = torch.tensor([6, 3, 0])
    changed = torch.where(torch.arange(6) < lengths[:, None], source, (source + 5) % 17)
    first, _ = model(tokens, model.encode(source, lengths))
    second, _ = model(tokens, model.encode(changed, lengths))
    assert torch.equal(first, second)
    assert first.isfinite().all()


@each_model
def test_rows_of_a_state_take_their_source_with_them(case):
    model, (source, tokens), order = small(case), pair(), torch.tensor([2, 2, 0, 1])
    _, state = model(tokens[:, :4], model.encode(source, torch.tensor([6, 3, 1])))
    expected = model(tokens[:, 4:], state)[0][order]
    torch.testing.assert_close(model(tokens[order, 4:], select_rows(state, order))[0], expected, **TIGHT)


@each_model
def test_no_token_sees_a_later_one_and_all_see_the_source(case):
    model, (source, tokens) = small(case), pair()
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 13
    logits, _ = model(tokens, model.encode(source))
    torch.testing.assert_close(model(changed, model.encode(source))[0][:, :5], logits[:, :5], **TIGHT)
    other_source = source.clone()
    other_source[:, 2] = (other_source[:, 2] + 1) % 17
    moved = (model(tokens, model.encode(other_source))[0] - logits).abs().amax((-1, -2))
    if MODELS[case].get("condition") == "none":
        assert not moved.any(), "the source is not read"
    else:
        assert (moved > 0).all()
    assert model.causal


@each_model
def test_every_weight_learns(case):
    model, (source, tokens) = small(case).train(), pair()
    logits, _ = model(tokens, model.encode(source, torch.tensor([6, 3, 1])), torch.tensor([7, 2, 4]))
    logits.logsumexp(-1).sum().backward()
    silent = {name for name, weight in model.named_parameters() if weight.grad is None}
    # Where a state is copied from a layer, what the encoder would have said beyond that is not asked for.
    unasked = {name for name in silent if name.startswith("encoder.layers.norm")}
    assert silent == (unasked if MODELS[case].get("condition") == "state" else set())
    assert all(weight.grad.isfinite().all() for weight in model.parameters() if weight.grad is not None)


@each_model
def test_state_bytes_are_those_of_a_real_state(case):
    model, (source, tokens) = small(case), pair(rows=1)
    _, state = model(tokens, model.encode(source))
    assert model.state_bytes(7, 6) == count_bytes(state)
    assert model.state_grows == (model.state_bytes(9, 6) > model.state_bytes(7, 6))


@each_model
def test_the_tensors_of_a_state_share_nothing(case):
    model, (source, tokens) = small(case), pair()
    for state in (model.encode(source), model(tokens, model.encode(source))[1]):
        spans = [(tensor.data_ptr(), tensor.nbytes) for tensor in tensors_of(state) if tensor.numel()]
        assert len({start for start, _ in spans}) == len(spans)


@pytest.mark.parametrize("tied", ["all", "target", "none"])
@pytest.mark.parametrize("name", SEQ2SEQ_PRESETS)
def test_word_vectors_are_tied_three_ways_and_exist_once(name, tied):
    model = build_seq2seq(name, source_vocabulary=13, vocabulary=13, width=24, tied=tied)
    matrices = {"all": 1, "target": 2, "none": 3}[tied]
    assert len({id(w) for w in (model.embed.weight, model.encoder.embed.weight, model.head.weight)}) == matrices
    held = [key for key, tensor in model.state_dict().items() if tensor.shape == (13, 24)]
    assert len(held) == matrices
    untied = build_seq2seq(name, source_vocabulary=13, vocabulary=13, width=24, tied="none")
    assert untied.count_parameters() - model.count_parameters() == (3 - matrices) * 13 * 24
    copied = deepcopy(model)
    assert len({id(w) for w in (copied.embed.weight, copied.encoder.embed.weight, copied.head.weight)}) == matrices


@pytest.mark.parametrize("name", SEQ2SEQ_PRESETS)
def test_a_model_made_without_memory_can_be_filled(name):
    full = build_seq2seq(name, source_vocabulary=13, vocabulary=13, width=24, tied="all").eval()
    with torch.device("meta"):
        empty = build_seq2seq(name, source_vocabulary=13, vocabulary=13, width=24, tied="all")
    empty = empty.to_empty(device="cpu").eval()
    empty.load_state_dict(full.state_dict())
    tokens = torch.randint(0, 13, (2, 5))
    assert torch.equal(empty(tokens, empty.encode(tokens))[0], full(tokens, full.encode(tokens))[0])


@pytest.mark.parametrize("condition", ["state", "attention"])
def test_a_decoder_starts_where_an_encoder_of_its_kind_stopped(condition):
    model, (source, _) = small("deep-luong", condition=condition), pair()
    lengths = torch.tensor([6, 3, 1])
    encoded, state = model.encoder(source, lengths), model.encode(source, lengths)
    assert not model.bridge.projections
    for height in range(2):
        own = state.layers[0] if condition == "attention" else state.layers[height]
        hidden = own.hidden[:, height] if condition == "attention" else own.hidden
        cell = own.cell[:, height] if condition == "attention" else own.cell
        assert torch.equal(hidden, encoded.layers[height].hidden)
        assert torch.equal(cell, encoded.layers[height].cell)


def test_otherwise_it_learns_where_to_start_from_the_two_ends():
    model, (source, _) = small("bidirectional-luong"), pair()
    assert sorted(model.bridge.projections) == ["0", "1"]
    lengths = torch.tensor([6, 3, 0])
    encoded = model.encoder(source, lengths)
    assert torch.equal(encoded.ends[1], torch.cat((encoded.hidden_states[1, 0], encoded.hidden_states[1, 2])))
    assert not encoded.ends[2].any()
    hidden, cell = model.bridge.projections["1"](encoded.ends).chunk(2, -1)
    (state,) = model.encode(source, lengths).layers
    assert torch.equal(state.hidden[:, 1], hidden.tanh())
    assert torch.equal(state.cell[:, 1], cell)
    short = small("luong", encoder=("lstm",), encoder_layers=1, layers=2)
    assert sorted(short.bridge.projections) == ["1"], "the encoder has no second layer"


def test_attention_maps_of_every_layer_can_be_recorded():
    source, tokens = pair()
    model = small("transformer-translation")
    with recorded(model, "decoder.*.cross.weights") as seen:
        model(tokens, model.encode(source))
    assert {name: tuple(weights.shape) for name, weights in seen.items()} == {
        f"decoder.layers.{height}.cross.weights": (3, 4, 7, 6) for height in range(2)
    }
    model = small("luong")
    with recorded(model, "*.weights") as seen:
        model(tokens, model.encode(source))
    assert tuple(seen["decoder.layers.0.mixer.weights"].shape) == (3, 7, 6)


def test_encoder_attention_looks_both_ways():
    model, (source, _) = small("transformer-translation"), pair()
    changed = source.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 17
    assert (model.encoder(source).hidden_states[:, 0] != model.encoder(changed).hidden_states[:, 0]).any()


def test_a_recurrent_side_counts_by_itself():
    model = small("mixed")
    assert model.encoder.spec.position == "none"
    assert model.decoder.spec.position == "sinusoidal"


def test_a_tiny_translator_learns_to_copy():
    """Perplexities of the three conditions stand in their order after a little training on random words to repeat."""
    losses = {}
    for condition in ("none", "state", "attention"):
        torch.manual_seed(0)
        model = build_seq2seq("luong", source_vocabulary=8, vocabulary=8, width=32, condition=condition).float()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(60):
            words = torch.randint(1, 8, (32, 5))
            tokens = torch.cat((torch.zeros(32, 1, dtype=torch.long), words[:, :-1]), 1)
            logits, _ = model(tokens, model.encode(words))
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), words.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses[condition] = loss.item()
    assert losses["none"] > losses["state"] > losses["attention"]


REFUSED = {
    "model": (lambda: build_seq2seq("long", **SIZES), "unknown model 'long'; did you mean 'luong'"),
    "field": (lambda: build_seq2seq("luong", **SIZES, widht=3), "no field 'widht'; did you mean 'width'"),
    "condition": (lambda: seq2seq_preset("luong", **SIZES, condition="atention"), "did you mean 'attention'"),
    "tie": (lambda: seq2seq_preset("luong", **SIZES, tied="al"), "unknown tie 'al'; did you mean 'all'"),
    "joint": (lambda: seq2seq_preset("luong", **SIZES, tied="all"), "tied='all' needs one vocabulary .*17 .*13"),
    "tied as before": (lambda: seq2seq_preset("luong", **SIZES, tied=True), "tied=True: it must be a string"),
    "state of attention": (
        lambda: seq2seq_preset("transformer-translation", **SIZES, condition="state"),
        "condition='state' sets the initial state of gru, lstm, rnn-identity, rnn-relu and rnn-tanh layers, and the "
        "decoder attention has none: use decoder=lstm, or condition='attention'$",
    ),
    "state of a qrnn": (
        lambda: seq2seq_preset("luong", **SIZES, decoder=("qrnn",), condition="state"),
        "the decoder qrnn has none: use decoder=lstm, or condition='attention' with residual=True$",
    ),
    "kernel size": (
        lambda: seq2seq_preset("luong", **SIZES, kernel_size=3),
        "kernel_size=3 is not used by the layers lstm; mixers with this option: qrnn",
    ),
    "kernel size of no encoder": (
        lambda: seq2seq_preset("luong", **SIZES, encoder=("qrnn",), condition="none", kernel_size=3),
        "kernel_size=3 is not used by the layers lstm",
    ),
    "large kernel": (
        lambda: seq2seq_preset("luong", **SIZES, encoder=("qrnn",), kernel_size=0),
        "kernel_size=0: it must be from 1 to",
    ),
    "feeding attention": (
        lambda: seq2seq_preset("transformer-translation", **SIZES, input_feeding=True),
        "a decoder of only lstm or only gru layers, not condition='attention' and attention",
    ),
    "feeding without looking": (
        lambda: seq2seq_preset("luong", **SIZES, input_feeding=True, condition="state"),
        "input_feeding=True needs condition='attention'",
    ),
    "nothing attends": (
        lambda: seq2seq_preset("luong", **SIZES, decoder=("rnn-tanh",)),
        "the decoder rnn-tanh puts cross-attention into every layer, for which residual=False does not work: use "
        "residual=True, or decoder=lstm or decoder=gru, which have input feeding instead",
    ),
    "a decoder that looks ahead": (
        lambda: seq2seq_preset("luong", **SIZES, decoder=("bidirectional-lstm",), residual=True),
        "mixer 'bidirectional-lstm' needs the whole sequence",
    ),
    "unused": (lambda: seq2seq_preset("luong", **SIZES, heads=4), "heads=4 is not used by the layers lstm"),
    "position": (lambda: seq2seq_preset("luong", **SIZES, position="learned"), "position='learned' is not used"),
    "unknown position": (lambda: seq2seq_preset("mixed", **SIZES, position="sinus"), "unknown position 'sinus'"),
    "heads": (lambda: seq2seq_preset("mixed", **SIZES, width=10, heads=3), "heads=3 does not divide width=10"),
    "string": (lambda: Seq2SeqSpec(**SIZES, encoder="lstm"), "encoder='lstm': it must be a list of strings"),
    "empty": (lambda: Seq2SeqSpec(**SIZES, decoder=()), "decoder is empty"),
    "mixer": (lambda: Seq2SeqSpec(**SIZES, encoder=("lstn",)), "unknown mixer 'lstn'; did you mean 'lstm'"),
    "vocabulary": (lambda: Seq2SeqSpec(source_vocabulary=0, vocabulary=3), "source_vocabulary=0"),
    "no encoder": (lambda: Seq2SeqSpec(**SIZES, encoder_layers=0), "encoder_layers=0: it must be at least 1"),
    "width": (lambda: Seq2SeqSpec(**SIZES, width=0), "width=0: it must be at least 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_together_is_refused_in_one_line(case):
    make, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@each_model
def test_a_conditional_model_does_not_begin_from_nothing(case):
    model, (_, tokens) = small(case), pair()
    if model.encoder is None:
        assert model(tokens)[0].shape == (3, 7, 13)
    else:
        with pytest.raises(ConfigError, match="starts from a source"):
            model(tokens)


def test_another_kind_of_state_is_refused():
    source, tokens = pair()
    state = small("transformer-none").encode(source)
    with pytest.raises(ConfigError, match="needs a state with a source"):
        small("transformer-translation")(tokens, state)


def test_a_decoder_that_feeds_hears_of_every_kind_of_dropout():
    spec = seq2seq_preset("luong", **SIZES, dropout=0.2, dropout_kind="locked", weight_drop=0.5)
    mixer = spec.decoder_spec().blocks()[0].mixer
    assert (mixer.dropout, mixer.dropout_kind, mixer.weight_drop) == (0.2, "locked", 0.5)
    alone = seq2seq_preset("luong", **SIZES, encoder=("attention",), heads=4, weight_drop=0.5)
    assert alone.accepts_option("weight_drop", 0.5)
    assert alone.decoder_spec().blocks()[0].mixer.weight_drop == 0.5


def test_wrong_sources_are_named():
    model = small("luong")
    with pytest.raises(ConfigError, match="token 17 is outside the vocabulary of 17"):
        model.encode(torch.tensor([[3, 17]]))
    with pytest.raises(ConfigError, match="a source needs at least one token"):
        model.encode(torch.zeros(2, 0, dtype=torch.long))
    with pytest.raises(ConfigError, match="a row of length 3 does not fit into 2 tokens"):
        model.encode(torch.tensor([[3, 1]]), torch.tensor([3]))


def test_learned_positions_of_a_source_end_and_say_so():
    model = small("norm-after", max_positions=4)
    assert (model.max_positions, model.max_source_positions) == (4, 4)
    with pytest.raises(ConfigError, match="5 tokens are more than the 4 learned positions"):
        model.encode(torch.zeros(1, 5, dtype=torch.long))
    padded = model.encode(torch.zeros(1, 6, dtype=torch.long), torch.tensor([4]))
    logits, _ = model(torch.zeros(1, 6, dtype=torch.long), padded, torch.tensor([4]))
    assert logits[:, :4].isfinite().all(), "padding stands nowhere"


def test_the_courses_score_and_output_by_hand():
    """Two queries, three keys, d = 2: L = Q W K with W = [[1, 2], [0, 1]], and tanh(W [c; h]) with W = [I | 2 I]."""
    attention = BilinearAttention(2)
    with torch.no_grad():
        attention.linear_in.weight.copy_(torch.tensor([[1.0, 0.0], [2.0, 1.0]]))  # a linear layer multiplies by Wᵀ
        attention.linear_out.weight.copy_(torch.cat((torch.eye(2), 2 * torch.eye(2)), 1))
    Q = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    K = torch.tensor([[[1.0, 1.0], [0.0, 2.0], [-1.0, 0.0]]])
    assert torch.equal(attention.score(Q, K), torch.tensor([[[3.0, 4.0, -1.0], [1.0, 2.0, 0.0]]]))
    out, A = attention(Q, K)
    expected = torch.tensor([[0.26762, 0.72747, 0.00490], [0.24473, 0.66524, 0.09003]])
    torch.testing.assert_close(A[0], expected, rtol=0, atol=1e-5)
    c = torch.tensor([[0.26272, 1.72256], [0.15470, 1.57521]])
    torch.testing.assert_close(out[0], torch.tanh(c + 2 * torch.eye(2)), rtol=0, atol=1e-5)


def test_the_courses_attention_does_not_look_at_padding():
    attention, Q, K = BilinearAttention(4), torch.randn(3, 2, 4), torch.randn(3, 5, 4)
    out, A = attention(Q, K, torch.tensor([5, 2, 0]))
    assert A.shape == (3, 2, 5)
    assert not A[1, :, 2:].any()
    assert not A[2].any()
    torch.testing.assert_close(out[1], attention(Q[1:2], K[1:2, :2])[0][0])


def test_the_courses_attention_is_that_of_the_decoder():
    """One step of the mixer, attended to by hand: nothing but the recurrent cell lies between the two."""
    from anaphor.mixers import InputFeedingSpec, Span

    mixer, attention = InputFeedingSpec(width=4).build(), BilinearAttention(4)
    x, source, lengths = torch.randn(3, 1, 4), torch.randn(3, 5, 4), torch.tensor([5, 2, 1])
    with torch.no_grad():
        attention.linear_in.weight.copy_(mixer.score.weight.T)
        attention.linear_out.weight.copy_(mixer.out.weight)
    y, state = mixer(x, mixer.initial_state(source, lengths), Span.whole(x))
    expected, _ = attention(state.hidden, source, lengths)
    torch.testing.assert_close(y, expected, **TIGHT)


@pytest.mark.parametrize(
    ("name", "options", "unheard"),
    [
        ("transformer-translation", {"encoder": ("lstm",), "decoder": ("lstm", "lstm")}, {"heads": None}),
        ("mixed", {"decoder": ("lstm", "lstm")}, {"position": "none"}),
    ],
)
def test_what_only_a_preset_says_is_dropped_where_other_layers_took_the_place_of_its_own(name, options, unheard):
    spec = seq2seq_preset(name, source_vocabulary=9, vocabulary=9, **options)
    assert {option: getattr(spec, option) for option in unheard} == unheard


def test_what_a_person_says_is_refused_all_the_same():
    with pytest.raises(ConfigError, match="heads=2 is not used by the layers lstm"):
        seq2seq_preset("luong", source_vocabulary=9, vocabulary=9, heads=2)
