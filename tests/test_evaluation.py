"""Models that are only looked at: nothing is dropped meanwhile, afterwards they are as they were, long texts fit."""

import pytest
import torch

from anaphor import evaluation
from anaphor.beam_search import beam_search
from anaphor.data.batches import Batch, EvaluationStream
from anaphor.data.tokenizer import Word
from anaphor.errors import ConfigError
from anaphor.evaluation import (
    chunk_slices,
    eval_mode,
    losses_by_batch,
    prefill,
    score_batches,
    score_sentences,
    score_text,
)
from anaphor.generate import Sampler, generate
from anaphor.inspect import attention_maps, look_at, unit_maps
from anaphor.models import build
from stand_ins import ReplayedGraphs

TOKENIZER = Word.train("a b c d")
ROW = torch.tensor([[0, 1, 2, 3, 1]])
BATCH = Batch(ROW, ROW)
USES = {
    "score_sentences": lambda model: list(score_sentences(model, TOKENIZER, ["a b", "c"])),
    "score_text": lambda model: score_text(model, TOKENIZER, "a b"),
    "look_at": lambda model: look_at(model, TOKENIZER, "a b"),
    "losses_by_batch": lambda model: list(losses_by_batch(model, [BATCH], carry=False)),
    "generate": lambda model: list(generate(model, [0, 1], 3, Sampler())),
    "beam_search": lambda model: beam_search(model, [0, 1], 3, width=2),
    "attention_maps": lambda model: attention_maps(model, ROW),
    "unit_maps": lambda model: unit_maps(model, ROW),
}


def model_of(name="hybrid", **options):
    return build(name, vocabulary=len(TOKENIZER), width=8, heads=2, dropout=0.5, **options)


def modes(model):
    return {name: module.training for name, module in model.named_modules()}


def partly_frozen():
    """A model in training, one layer of which its owner keeps from dropping anything."""
    model = model_of(layers=2, mixers=("lstm", "attention"))
    model.layers[0].eval()
    return model


def test_scores_do_not_round_single_precision():
    kernels = (torch.backends.cudnn.rnn, torch.backends.cudnn.conv)
    before = [kernel.fp32_precision for kernel in kernels]
    try:
        for kernel in kernels:
            kernel.fp32_precision = "tf32"
        with eval_mode(model_of()):
            assert [kernel.fp32_precision for kernel in kernels] == ["ieee", "ieee"]
        assert [kernel.fp32_precision for kernel in kernels] == ["tf32", "tf32"]
    finally:
        for kernel, precision in zip(kernels, before, strict=True):
            kernel.fp32_precision = precision


@pytest.mark.parametrize("use", USES)
def test_whoever_looks_at_a_model_leaves_it_as_it_was(use):
    model = partly_frozen()
    before = modes(model)
    USES[use](model)
    assert modes(model) == before


@pytest.mark.parametrize("use", USES)
def test_an_error_leaves_it_as_it_was_too(use, monkeypatch):
    model = partly_frozen()
    before, seen = modes(model), []

    def broken(self, *inputs):
        seen.append(any(modes(model).values()))
        raise RuntimeError("out of memory")

    monkeypatch.setattr(type(model.layers[1]), "forward", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        USES[use](model)
    assert seen == [False], "nothing is in training while it runs"
    assert modes(model) == before


def test_a_model_is_as_it_was_while_a_text_waits_for_its_next_token():
    model = partly_frozen()
    before = modes(model)
    for _ in generate(model, [0], 3, Sampler()):
        assert modes(model) == before
        assert not torch.is_inference_mode_enabled()
    for _ in score_sentences(model, TOKENIZER, ["a", "b"]):
        assert modes(model) == before


def test_two_texts_may_be_written_at_once():
    model = model_of().train()
    alone = list(generate(model, [0], 9, Sampler(temperature=0)))
    first, second = (generate(model, [0], count, Sampler(temperature=0)) for count in (2, 9))
    begun = [next(first), next(second), next(first)]
    assert next(first, None) is None
    assert [begun[1], *second] == alone, "dropout did not come back when the other text was over"


def test_several_models_are_evaluated_at_once():
    models = [model_of().train(), model_of().eval()]
    with eval_mode(*models):
        assert not any(model.training for model in models)
    assert [model.training for model in models] == [True, False]


def test_cuts_follow_each_other_and_hold_as_few_pairs_as_allowed(monkeypatch):
    monkeypatch.setattr(evaluation, "MIN_CHUNK", 2)
    monkeypatch.setattr(evaluation, "PAIRS_PER_CHUNK", 2 * 7 * 3)
    assert list(chunk_slices(2, 7)) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert list(chunk_slices(200, 3)) == [slice(0, 2), slice(2, 3)]
    assert list(chunk_slices(1, 6)) == [slice(0, 6)]
    assert list(chunk_slices(1, 0)) == [slice(0, 0)], "no tokens are one piece, too"
    assert list(chunk_slices(0, 3)) == [slice(0, 3)]


FAMILIES = {
    "transformer": {},
    "transformer-xl": {"memory": 3},
    "linear": {},
    "hybrid": {},
    "gpt-nano": {"max_positions": 40},
}


def in_pieces(model, monkeypatch, widths):
    """Room for three tokens at once, and a note of how many there were."""
    original = model.compute_hidden_states

    def watched(ids, *others):
        widths.append(ids.shape[1])
        return original(ids, *others)

    monkeypatch.setattr(model, "compute_hidden_states", watched)
    monkeypatch.setattr(evaluation, "PAIRS_PER_CHUNK", 1)
    monkeypatch.setattr(evaluation, "MIN_CHUNK", 3)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_long_prompt_is_read_in_pieces_and_nobody_notices(name, monkeypatch):
    model, prompt = model_of(name, **FAMILIES[name]).double(), [0, *([1, 2, 3, 1] * 5)]
    written = list(generate(model, prompt, 6, Sampler(), seed=3))
    found = beam_search(model, prompt, 6, width=2)
    in_pieces(model, monkeypatch, widths := [])
    assert list(generate(model, prompt, 6, Sampler(), seed=3)) == written
    again = beam_search(model, prompt, 6, width=2)
    assert max(widths) == 3
    assert [one.tokens for one in again] == [one.tokens for one in found]
    assert [one.score for one in again] == pytest.approx([one.score for one in found])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_long_sentence_is_scored_in_pieces_and_nobody_notices(name, monkeypatch):
    model, text = model_of(name, **FAMILIES[name]).double(), "a b c a " * 5
    expected = score_text(model, TOKENIZER, text)
    in_pieces(model, monkeypatch, widths := [])
    found = score_text(model, TOKENIZER, text)
    assert widths == [3] * 6 + [2]
    assert found.losses == pytest.approx(expected.losses)
    assert found.tokens == expected.tokens


def test_what_is_longer_than_the_positions_is_refused_by_its_whole_length(monkeypatch):
    model = model_of("gpt-nano", max_positions=8)
    in_pieces(model, monkeypatch, [])
    with pytest.raises(ConfigError, match="9 tokens are more than the 8 learned positions"):
        score_text(model, TOKENIZER, "a b c " * 3)


def test_reading_gives_what_stands_behind_the_last_token():
    model = model_of().eval()
    x, state = prefill(model, ROW, None)
    whole, _ = model.compute_hidden_states(ROW)
    assert torch.equal(x, whole[:, -1])
    assert state.past_length.tolist() == [5]


STREAMED = {"lstm": {}, "transformer-xl": {"memory": 4, "heads": 2}, "transformer": {"heads": 2}}


def streamed_model(name):
    return build(name, vocabulary=len(TOKENIZER), width=8, dropout=0.5, **STREAMED[name])


def stream_of(device="cpu"):
    tokens = torch.randint(len(TOKENIZER), (401,), generator=torch.Generator().manual_seed(0))
    return EvaluationStream(tokens.to(device), 0, 2, 4)


@pytest.mark.parametrize("carry", [True, False])
@pytest.mark.parametrize("name", STREAMED)
@pytest.mark.parametrize(("at_once", "replays"), [(1, 46), (3, 12)])
def test_replayed_batches_have_the_losses_of_plain_ones(name, carry, at_once, replays):
    """Tokens and state are copied to fixed addresses, and what is given out is not overwritten."""
    model, batches = streamed_model(name), stream_of()
    graphs = ReplayedGraphs(model)
    plain = [losses for _, losses in score_batches(model, batches, carry, None, at_once)]
    found = [losses for _, losses in score_batches(model, batches, carry, graphs, at_once)]
    assert len(plain) == len(found) == 51
    assert all(torch.equal(*pair) for pair in zip(plain, found, strict=True))
    grows = name == "transformer" and carry  # every segment has another shape
    assert graphs.replays == (0 if grows else pytest.approx(replays, abs=2))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a GPU")
@pytest.mark.parametrize("name", STREAMED)
def test_on_a_gpu_captured_batches_have_the_losses_of_plain_ones(name, monkeypatch):
    monkeypatch.setattr(evaluation, "MIN_CAPTURED", 1)
    monkeypatch.setattr(evaluation, "TOKENS_AT_ONCE", 16)  # two batches: all at once would be one call, and no graph
    model, batches = (
        streamed_model(name).cuda(),
        stream_of("cuda"),
    )
    plain, captured = (
        torch.cat([losses.flatten() for _, losses in losses_by_batch(model, batches, carry=True, cuda_graph=yes)])
        for yes in (False, True)
    )
    torch.testing.assert_close(captured, plain)
