"""Writing with a model: greedy, sampling, beam."""

import itertools
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anaphor.beam_search import beam_search
from anaphor.cuda_graphs import allows_capture
from anaphor.errors import ConfigError, Diverged
from anaphor.evaluation import prefill_padded
from anaphor.generate import Sampler, build_decoding, generate, generate_rows
from anaphor.imported_files import import_file
from anaphor.inspect import recorded
from anaphor.mixers.base import count_bytes, map_state, tensors_of
from anaphor.models import build
from anaphor.models.decoding import WARM_UP, CUDAGraphDecoding, Decoding, FixedDecoding, can_capture

FAMILIES = ["lstm", "qrnn", "transformer", "transformer-xl", "linear", "hybrid", "gpt-nano"]


def model_of(name, vocabulary=5):
    heads = {"heads": 2} if name not in ("lstm", "qrnn") else {}
    return build(name, vocabulary=vocabulary, width=8, layers=2, init_scheme="uniform", **heads).eval()


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_is_the_most_likely_token_of_a_full_forward(name):
    model, text = model_of(name), [0, 3]
    for token in generate(model, text, 12, Sampler(temperature=0)):
        with torch.no_grad():
            logits, _ = model(torch.tensor([text]))
        assert token == logits[0, -1].argmax().item()
        text = [*text, token]
    assert len(text) == 14


def test_the_same_seed_writes_the_same_text_and_leaves_the_global_draws_alone():
    model = model_of("lstm")
    before = torch.get_rng_state()
    texts = [list(generate(model, [0], 40, Sampler(), seed=seed)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert torch.equal(torch.get_rng_state(), before)


def test_sampling_follows_the_probabilities():
    model = model_of("lstm")
    with torch.no_grad():
        probabilities = torch.softmax(model(torch.tensor([[0]]))[0][0, -1], -1)
    drawn = torch.tensor([next(generate(model, [0], 1, Sampler(), seed=seed)) for seed in range(600)])
    shares = torch.bincount(drawn, minlength=5) / 600
    torch.testing.assert_close(shares, probabilities, rtol=0, atol=4 * 0.5 / 600**0.5)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8, unique=True), st.integers(1, 8))
def test_top_k_keeps_the_k_most_likely(logits, k):
    kept = Sampler(top_k=k).filter_logits(torch.tensor([logits])).isfinite()[0]
    best = sorted(range(len(logits)), key=lambda i: -logits[i])[:k]
    assert set(kept.nonzero().flatten().tolist()) == set(best)


@given(st.lists(st.integers(0, 2), min_size=2, max_size=8), st.integers(1, 8))
def test_top_k_keeps_no_more_than_k_where_scores_are_equal(logits, k):
    values = torch.tensor([logits], dtype=torch.float64)
    kept = Sampler(top_k=k).filter_logits(values).isfinite()
    assert kept.sum() == min(k, len(logits))
    assert values[kept].min() >= (values[~kept].max() if (~kept).any() else 0)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8, unique=True), st.floats(0.01, 1))
def test_top_p_keeps_the_fewest_that_reach_the_probability(logits, p):
    values = torch.tensor(logits)
    kept = Sampler(top_p=p).filter_logits(values[None]).isfinite()[0]
    probabilities = torch.softmax(values, -1)
    assert probabilities[kept].sum() >= p - 1e-9
    if kept.sum() > 1:
        assert probabilities[kept].sum() - probabilities[kept].min() < p + 1e-9
    assert probabilities[kept].min() >= (probabilities[~kept].max() if (~kept).any() else 0)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_beam_as_wide_as_all_texts_finds_the_best_one(name):
    model = model_of(name, vocabulary=3)
    found = beam_search(model, [0], 3, width=27)
    scores = {}
    for text in itertools.product(range(3), repeat=3):
        row = torch.tensor([[0, *text]])
        with torch.no_grad():
            odds = torch.log_softmax(model(row[:, :-1])[0], -1)
        scores[text] = odds[0].gather(-1, row[0, 1:, None]).sum().item()
    best = sorted(scores.items(), key=lambda item: -item[1])
    assert [tuple(one.tokens) for one in found] == [text for text, _ in best]
    assert [one.log_probability for one in found] == pytest.approx([score for _, score in best])


def test_a_beam_of_one_is_greedy():
    model = model_of("hybrid")
    assert beam_search(model, [1], 10, width=1)[0].tokens == list(generate(model, [1], 10, Sampler(temperature=0)))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"temperature": -1.0}, "temperature=-1.0"), ({"top_k": 0}, "top_k=0"), ({"top_p": 0.0}, "top_p=0.0")],
)
def test_choices_that_cannot_be_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Sampler(**options)


@pytest.mark.parametrize("more", [{}, {"top_k": 3}, {"top_p": 0.9}])
def test_the_lower_the_temperature_the_more_it_is_greedy(more):
    logits = torch.tensor([[0.1, 2.0, -1.0, 1.9], [5.0, -800.0, 4.9, 0.0]])
    chosen = Sampler(temperature=1e-320, **more)(logits, [torch.Generator().manual_seed(0), torch.Generator()])
    assert chosen.tolist() == logits.argmax(-1).tolist()


def test_a_prompt_has_a_token():
    with pytest.raises(ConfigError, match="at least one token"):
        next(generate(model_of("lstm"), [], 1, Sampler()))


PROMPTS = [[0, 3], [1], [2, 2, 4, 1, 0, 3, 3], [0, 3]]


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("name", FAMILIES)
def test_prompts_of_unequal_length_give_the_tokens_of_each_alone(name, temperature):
    model, sampler = model_of(name).double(), Sampler(temperature=temperature)
    together = list(generate_rows(model, PROMPTS, 20, sampler, seed=5))
    for row, prompt in enumerate(PROMPTS):
        assert [step[row] for step in together] == list(generate(model, prompt, 20, sampler, seed=5 + row))


def test_prompts_that_are_processed_in_chunks_give_the_tokens_of_each_alone(monkeypatch):
    model, sampler = model_of("hybrid").double(), Sampler(temperature=0)
    alone = [list(generate(model, prompt, 5, sampler)) for prompt in PROMPTS]
    monkeypatch.setattr("anaphor.evaluation.PAIRS_PER_CHUNK", 1)
    monkeypatch.setattr("anaphor.evaluation.MIN_CHUNK", 2)
    assert list(map(list, zip(*generate_rows(model, PROMPTS, 5, sampler), strict=True))) == alone


def test_a_prompt_that_is_repeated_is_processed_once(monkeypatch):
    model, shapes = model_of("gpt-nano"), []
    original = model.compute_hidden_states
    monkeypatch.setattr(
        model,
        "compute_hidden_states",
        lambda tokens, *more: shapes.append(tokens.shape) or original(tokens, *more),
    )
    rows = list(generate_rows(model, [[0, 3, 1]] * 4, 2, Sampler()))
    assert [len(row) for row in rows] == [4, 4]
    assert shapes == [(1, 3), (4, 1)]


def test_no_prompts_give_no_rows():
    assert list(generate_rows(model_of("lstm"), [], 3, Sampler())) == []


def test_sampling_draws_as_torch_does():
    probabilities = torch.rand(3, 7, dtype=torch.float64)
    drawn = Sampler()(probabilities.log(), [torch.Generator().manual_seed(seed) for seed in range(3)])
    expected = [
        torch.multinomial(torch.softmax(row.log(), -1), 1, generator=torch.Generator().manual_seed(seed)).item()
        for seed, row in enumerate(probabilities)
    ]
    assert drawn.tolist() == expected


def test_between_two_tokens_the_model_has_its_own_mode():
    model = model_of("gpt-nano").train()
    model.layers[0].eval()
    before = [module.training for module in model.modules()]
    for _ in generate(model, [0], 3, Sampler()):
        assert [module.training for module in model.modules()] == before


CAPTURED = {
    "lstm": {},
    "qrnn": {},
    "transformer": {},
    "linear": {},
    "hybrid": {"memory": None},
    "gpt-nano": {},
    "rotary": {"position": "rotary"},
    "alibi": {"position": "alibi"},
    "window": {"window": 5},
    "one token": {"window": 1},
    "memory": {"memory": 6, "position": "rotary"},
    "transformer-xl": {"memory": 7},
    "short convolution": {"short_conv": 3},
    "hybrid of short convolutions": {"mixers": ["lstm", "attention"], "short_conv": 2, "window": 4},
    "parts": {"kv_heads": 1, "qk_norm": "rmsnorm", "softcap": 3.0, "normalize": "softmax-sink", "window": 9},
    "gated-delta": {"short_conv": 4},
    "leaky": {},
    "my-gated-delta": {},
}
OWN = {"leaky": "leaky_mixer.py", "my-gated-delta": "my_gated_delta.py"}


@pytest.mark.parametrize("name", CAPTURED)
def test_steps_with_a_state_of_fixed_size_give_the_logits_of_plain_ones(name, monkeypatch):
    monkeypatch.setattr("anaphor.models.decoding.BLOCK", 4)
    preset = name if name in FAMILIES or name in OWN or name == "gated-delta" else "transformer"
    if name in OWN:
        import_file(OWN[name])
    heads = {} if preset in ("lstm", "qrnn", *OWN) else {"heads": 2}
    model = build(preset, vocabulary=5, width=8, layers=2, **heads, **CAPTURED[name]).double().eval()
    assert can_capture(model)
    with torch.inference_mode():
        state = prefill_padded(model, PROMPTS)[1]
        plain, fixed = Decoding(model, state), FixedDecoding(model, state, 200)
        for tokens in torch.randint(5, (40, len(PROMPTS))):  # the memory is enlarged on the way
            torch.testing.assert_close(fixed(tokens), plain(tokens), rtol=1e-10, atol=1e-10)
        assert torch.equal(fixed.state.past_length, plain.state.past_length)
        chosen = expected = tokens
        for _ in range(20):
            (chosen, maxima), (expected, peaks) = fixed.greedy(chosen), plain.greedy(expected)
            assert chosen.tolist() == expected.tolist()
            torch.testing.assert_close(maxima, peaks, rtol=1e-10, atol=1e-10)
            assert chosen is fixed.tokens, "the input of the next step, in place"


@pytest.mark.parametrize("options", [{"window": 7}, {"memory": 6}], ids=["window", "memory"])
def test_generation_in_a_window_needs_constant_memory(options, monkeypatch):
    """Of a state that is trimmed, and of one at fixed addresses, where a new token takes the place of the oldest."""
    monkeypatch.setattr("anaphor.models.decoding.BLOCK", 4)
    model = build("transformer", vocabulary=5, width=8, layers=2, heads=2, kv_heads=1, **options).eval()
    with torch.inference_mode():
        state = prefill_padded(model, [[1, 2]])[1]
        plain, fixed = Decoding(model, state), FixedDecoding(model, state, 100)
        addresses = [tensor.data_ptr() for tensor in tensors_of(fixed.state)]
        for steps in range(60):
            for decoding in (plain, fixed):
                decoding(torch.tensor([steps % 5]))
        assert model.state_bytes(10**6) == count_bytes(plain.state) == 2 * 2 * 6 * 4 * 8 + 8
        assert [tensor.data_ptr() for tensor in tensors_of(fixed.state)] == addresses
        assert {len(layer.keys_values) for layer in fixed.state.layers} == {8}


class ReplayedDecoding(CUDAGraphDecoding):
    """Without a GPU: a replay runs the step again, and its logits are written to where those of the recording were."""

    def __init__(self, model, state, steps):
        self.recordings, self.replays = 0, 0
        super().__init__(model, state, steps)

    def setup(self):
        pass

    def warm_up(self):
        return FixedDecoding.step(self)

    def record(self):
        self.recordings += 1
        tensors = [*tensors_of(self.state), *(slots.positions.index for slots in self.slots.values()), self.tokens]
        before = [tensor.clone() for tensor in tensors]
        logits = FixedDecoding.step(self)
        for tensor, value in zip(tensors, before, strict=True):  # a recording does no work
            tensor.copy_(value)

        def replay():
            self.replays += 1
            logits.copy_(FixedDecoding.step(self))

        return replay, logits


@pytest.fixture
def replayed(monkeypatch):
    """Decodings that `generate_rows` made, with the tokens that were sent to the host and those that were read."""
    made, sent, read = [], [], []

    def build_replayed(model, state, steps):
        made.append(ReplayedDecoding(model, state, steps))
        return made[-1]

    def send(tokens, *maxima):
        sent.append(tokens.tolist())
        return partial(receive, *(tensor.clone() for tensor in (tokens, *maxima)))

    def receive(tokens, *maxima):
        read.append(tokens.tolist())
        return [read[-1], *(values.tolist() for values in maxima)]

    monkeypatch.setattr("anaphor.generate.build_decoding", build_replayed)
    monkeypatch.setattr("anaphor.generate.send_to_host", send)
    return made, sent, read


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("name", ["lstm", "gpt-nano", "hybrid"])
def test_replayed_steps_that_run_ahead_give_the_tokens_of_plain_ones(name, temperature, replayed, monkeypatch):
    monkeypatch.setattr("anaphor.models.decoding.BLOCK", 4)
    more = {} if name == "lstm" else {"heads": 2} | ({"memory": None} if name == "hybrid" else {})
    torch.manual_seed(0)
    model = build(name, vocabulary=40, width=8, layers=2, tied=False, **more).double().train()
    with torch.no_grad():
        model.embed.weight.mul_(50)  # or it would write one token again and again
        model.head.weight.mul_(0.1)
    sampler, tokens = Sampler(temperature=temperature), 80
    made, sent, read = replayed
    expected = list(generate_rows(model, PROMPTS, tokens, sampler, seed=5))
    assert len(set(map(tuple, expected))) > 1
    sent.clear(), read.clear()
    found, modes = [], [module.training for module in model.modules()]
    for new in generate_rows(model, PROMPTS, tokens, sampler, seed=5, cuda_graph=True):
        found.append(new)
        assert len(sent) - len(read) <= (1 if temperature == 0 else 0)
        assert [module.training for module in model.modules()] == modes
    assert found == expected == read == sent
    assert made[0].recordings == (1 if name == "lstm" else 3), "one for each size of the memory: 32, 64 and 128"
    assert made[0].replays + WARM_UP * made[0].recordings == tokens - 1


def test_a_greedy_step_notices_logits_that_are_not_finite():
    model = model_of("lstm")
    steps = generate_rows(model, PROMPTS, 40, Sampler(temperature=0))
    assert len([next(steps) for _ in range(3)]) == 3
    with torch.no_grad():
        model.head.weight[2].fill_(torch.nan)
    with pytest.raises(Diverged, match="the logits of the model are not finite"):
        next(steps)


def test_a_replayed_step_that_ran_ahead_notices_logits_that_are_not_finite(replayed):
    model = model_of("lstm")
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    expected = list(generate_rows(model, PROMPTS, 40, Sampler(temperature=0)))
    _, sent, read = replayed
    for is_stopped in (False, True):
        sent.clear(), read.clear()
        model.load_state_dict(weights)
        steps = generate_rows(model, PROMPTS, 40, Sampler(temperature=0), cuda_graph=True)
        found = [next(steps) for _ in range(10)]
        with torch.no_grad():
            model.head.weight[2].fill_(torch.nan)
        assert [*found, next(steps)] == expected[:11], "it was computed before"
        if is_stopped:
            steps.close()  # of the step that no one asked for nothing is said
        else:
            with pytest.raises(Diverged, match="the logits of the model are not finite"):
                next(steps)
        assert read == sent, "no step is left behind"


def test_a_caller_that_stops_leaves_no_step_behind(replayed):
    model = model_of("gpt-nano")
    made, sent, read = replayed
    steps = generate_rows(model, PROMPTS, 40, Sampler(temperature=0), cuda_graph=True)
    first = [next(steps) for _ in range(10)]
    assert (len(sent), len(read)) == (11, 10), "one step ahead"
    steps.close()
    assert read == sent
    assert made[0].replays == len(sent) - 1 - WARM_UP
    assert first == list(generate_rows(model, PROMPTS, 10, Sampler(temperature=0)))


def test_no_step_is_beyond_the_last_position(replayed):
    model = build("gpt-nano", vocabulary=5, width=8, layers=1, heads=2, max_positions=20).eval()
    steps = generate_rows(model, [[0, 3, 1]], 18, Sampler(temperature=0), cuda_graph=True)
    assert len(list(steps)) == 18, "the last token is not an input: it needs no position"


def test_256_tokens_after_a_prompt_of_16_need_one_recording(replayed):
    model = model_of("lstm")
    transformer = build("transformer", vocabulary=5, width=8, layers=1, heads=2).eval()
    for each in (model, transformer):
        assert len(list(generate_rows(each, [[1] * 16], 256, Sampler(temperature=0), cuda_graph=True))) == 256
    assert [decoding.recordings for decoding in replayed[0]] == [1, 1]


def test_layers_share_positions_and_give_the_logits_of_layers_that_do_not():
    model = build("transformer", vocabulary=5, width=8, layers=3, heads=2).double().eval()
    with torch.inference_mode():
        state = prefill_padded(model, PROMPTS)[1]
        shared, separate = Decoding(model, state), Decoding(model, map_state(torch.clone, state))
        for tokens in torch.randint(5, (5, len(PROMPTS))):
            torch.testing.assert_close(shared(tokens), separate(tokens), rtol=0, atol=0)
    assert len({id(cache.positions) for cache in shared.state.layers}) == 1
    assert len({id(cache.positions) for cache in separate.state.layers}) == 3


def test_what_cannot_be_captured_is_not():
    model = model_of("gpt-nano")
    with recorded(model, "layers.0.mixer.weights"):
        assert not can_capture(model), "a replay calls no hooks"
    assert can_capture(model)
    import_file("leaky_mixer.py")
    model = build("transformer", vocabulary=5, width=8, mixers=["attention", "leaky"], heads=2).eval()
    assert can_capture(model)
    model.layers.mixers[1].can_be_captured = False
    assert not can_capture(model), "a mixer of one's own says so"
    assert not allows_capture(model)
    assert type(build_decoding(model, model.initial_state(1), 100)) is Decoding, "on a CPU there are no graphs"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a GPU")
@pytest.mark.parametrize("name", CAPTURED)
def test_captured_steps_give_the_logits_of_plain_ones(name, monkeypatch):
    monkeypatch.setattr("anaphor.models.decoding.BLOCK", 8)
    preset = name if name in FAMILIES else "transformer"
    heads = {} if preset in ("lstm", "qrnn") else {"heads": 2}
    model = build(preset, vocabulary=5, width=16, layers=2, **heads, **CAPTURED[name]).cuda().eval()
    with torch.inference_mode():
        state = prefill_padded(model, PROMPTS)[1]
        plain, captured = Decoding(model, state), build_decoding(model, state, 200)
        assert isinstance(captured, CUDAGraphDecoding)
        for tokens in torch.randint(5, (80, len(PROMPTS)), device="cuda"):
            torch.testing.assert_close(captured(tokens), plain(tokens), rtol=1e-4, atol=1e-4)
    assert captured.replay is not None
    monkeypatch.setattr("anaphor.models.decoding.BLOCK", 4)  # attention's memory is enlarged after 25 tokens
    greedy = list(generate_rows(model, PROMPTS, 30, Sampler(temperature=0), cuda_graph=True))
    model.cpu()
    assert greedy == list(generate_rows(model, PROMPTS, 30, Sampler(temperature=0)))
