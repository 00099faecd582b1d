"""Search: greedy, beam and exhaustive agree where they must, for many rows at once."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anaphor.beam_search import Beam, ensemble, make_step, search_rows
from anaphor.errors import ConfigError
from anaphor.models import build

END = 0


def chain(seed, words=3, order_matters=True):
    """A random source whose next word depends on the last one and on how many there were: state [N] counts."""
    odds = torch.randn(6, words, words, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2

    def step(tokens, state):
        (count,) = state
        place = count.clamp(max=5) if order_matters else torch.zeros_like(count)
        return torch.log_softmax(odds[place, tokens], -1), (count + 1,)

    return step


def start(rows):
    return torch.arange(rows) % 3, (torch.zeros(rows, dtype=torch.long),)


def every_text(step, first, longest, words=3):
    """Log-probability of every text that ends within so many words."""
    found = {}
    for size in range(longest + 1):
        for text in itertools.product(range(1, words), repeat=size):
            tokens, state, total = torch.tensor([first]), (torch.zeros(1, dtype=torch.long),), 0.0
            for word in (*text, END):
                odds, state = step(tokens, state)
                total += float(odds[0, word])
                tokens = torch.tensor([word])
            found[text] = total
    return found


@given(seed=st.integers(0, 10**6), longest=st.integers(1, 4), penalty=st.sampled_from([0.0, 0.6, 1.0]))
def test_a_beam_as_wide_as_all_texts_equals_exhaustive_search(seed, longest, penalty):
    step = chain(seed)
    beam = Beam(width=2 ** (longest + 1), max_length=longest, end=END, length_penalty=penalty)
    first, state = start(3)
    for row, found in enumerate(search_rows(step, first, state, beam)):
        truth = every_text(step, int(first[row]), longest)
        ranked = sorted(truth, key=lambda text: -truth[text] / (len(text) + 1) ** penalty)
        assert all(one.finished for one in found if len(one.tokens) < longest)
        assert tuple(found[0].tokens) == ranked[0]
        assert found[0].log_probability == pytest.approx(truth[ranked[0]])
        assert len(found) == len(truth)
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


@given(seed=st.integers(0, 10**6), longest=st.integers(1, 3), penalty=st.sampled_from([0.0, 0.6, 1.0]))
def test_a_text_of_maximum_length_is_ranked_with_its_end(seed, longest, penalty):
    """A beam that holds all texts of maximum length finds the best of them, whatever ended before."""
    beam = Beam(width=2**longest, max_length=longest, end=END, length_penalty=penalty)
    first, state = start(3)
    for row, found in enumerate(search_rows(chain(seed), first, state, beam)):
        truth = every_text(chain(seed), int(first[row]), longest)
        scores = [beam.score(value, len(text) + 1) for text, value in truth.items() if len(text) == longest]
        assert found[0].score >= max(scores) - 1e-9
        assert len(found) <= beam.width


def test_the_best_texts_of_a_beam_are_kept_in_whichever_order_they_end():
    odds = torch.tensor(
        [[[0.15, 0.5, 0.35]] * 3, [[0.0, 0.6, 0.4], [0.0, 0.6, 0.4], [0.0, 1.0, 0.0]], [[0.9, 0.1, 0.0]] * 3]
    ).log()  # of END, 1 and 2, by length and last token

    def step(tokens, state):
        (count,) = state
        return odds[count.clamp(max=2), tokens], (count + 1,)

    first, state = start(1)
    (found,) = search_rows(step, first, state, Beam(width=3, max_length=4, end=END))
    assert [one.tokens for one in found] == [[2, 1], [1, 1], [1, 2]], "all of them are better than the empty text"


@given(seed=st.integers(0, 10**6), longest=st.lists(st.integers(1, 6), min_size=1, max_size=5), width=st.integers(1, 3))
def test_each_row_has_a_bound_of_its_own_and_does_not_depend_on_its_neighbours(seed, longest, width):
    step, (first, state) = chain(seed), start(len(longest))
    together = search_rows(step, first, state, Beam(width=width, max_length=None, end=END), longest)
    for row, most in enumerate(longest):
        alone, own = first[row : row + 1], (torch.zeros(1, dtype=torch.long),)
        (found,) = search_rows(step, alone, own, Beam(width=width, max_length=most, end=END))
        assert [one.tokens for one in together[row]] == [one.tokens for one in found]
        assert [one.score for one in together[row]] == pytest.approx([one.score for one in found])


def test_an_end_that_only_came_because_nothing_else_fitted_is_no_end():
    odds = torch.tensor([[0.1, 0.2, 0.7]]).log()
    (((cut),),) = search_rows(lambda tokens, state: (odds, state), torch.tensor([1]), (), Beam(max_length=3, end=END))
    assert (cut.tokens, cut.finished) == ([2, 2, 2], False)
    odds = torch.tensor([[0.7, 0.2, 0.1]]).log()
    (((whole),),) = search_rows(lambda tokens, state: (odds, state), torch.tensor([1]), (), Beam(max_length=3, end=END))
    assert (whole.tokens, whole.finished) == ([], True)


def test_a_search_must_know_how_long_texts_may_be():
    with pytest.raises(ConfigError, match="beam search needs a maximum length"):
        search_rows(chain(0), *start(1), Beam(max_length=None, end=END))


@given(seed=st.integers(0, 10**6), rows=st.integers(1, 5))
def test_a_beam_of_one_is_greedy(seed, rows):
    step = chain(seed)
    first, state = start(rows)
    for row, (found,) in enumerate(search_rows(step, first, state, Beam(max_length=8, end=END))):
        tokens, own, text, total = first[row : row + 1], (torch.zeros(1, dtype=torch.long),), [], 0.0
        while len(text) < 8:
            odds, own = step(tokens, own)
            total += float(odds.max())
            if int(odds.argmax()) == END:
                break
            tokens = odds.argmax(-1)
            text.append(int(tokens))
        else:
            odds, own = step(tokens, own)
            total += float(odds[0, END])
        assert found.tokens == text
        assert found.log_probability == pytest.approx(total)


@given(seed=st.integers(0, 10**6), width=st.integers(2, 6), penalty=st.sampled_from([0.0, 1.0]))
def test_a_wider_beam_is_never_worse_than_greedy(seed, width, penalty):
    step = chain(seed)
    first, state = start(4)
    greedy = search_rows(step, first, state, Beam(max_length=6, end=END, length_penalty=penalty))
    wide = search_rows(step, first, state, Beam(width=width, max_length=6, end=END, length_penalty=penalty))
    for (one,), others in zip(greedy, wide, strict=True):
        assert others[0].score >= one.score
        assert len({tuple(other.tokens) for other in others}) == len(others) <= width


@given(seed=st.integers(0, 10**6), width=st.integers(1, 4))
def test_rows_do_not_know_of_each_other(seed, width):
    step = chain(seed)
    first, state = start(4)
    beam = Beam(width=width, max_length=5, end=END)
    together_found = search_rows(step, first, state, beam)
    for row in range(4):
        (alone,) = search_rows(step, first[row : row + 1], (state[0][:1],), beam)
        assert [one.tokens for one in alone] == [one.tokens for one in together_found[row]]
        assert [one.score for one in alone] == pytest.approx([one.score for one in together_found[row]])


def test_the_host_reads_no_oftener_where_more_rows_end(monkeypatch):
    """On a GPU every read waits until all is computed that was asked for."""
    reads = []
    for name in ("tolist", "__float__", "__int__", "__bool__"):
        read = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda self, read=read: reads.append(1) or read(self))
    counts = []
    for rows in (3, 60):
        reads.clear()
        first, state = start(rows)
        found = search_rows(chain(1), first, state, Beam(width=4, max_length=3, end=END))
        assert sum(map(len, found)) >= 3 * rows
        counts.append(len(reads))
    assert counts[0] == counts[1]


def test_a_text_that_does_not_end_is_cut_and_says_so():
    """Here the end is impossible."""
    odds = torch.log(torch.tensor([0.0, 0.9, 0.1], dtype=torch.float64))

    def step(tokens, state):
        return odds.expand(len(tokens), -1), state

    (found,) = search_rows(step, torch.tensor([1]), (torch.zeros(1),), Beam(width=2, max_length=4, end=END))
    assert found[0].tokens == [1, 1, 1, 1]
    assert not found[0].finished
    assert found[0].log_probability == pytest.approx(4 * math.log(0.9))


def test_the_penalty_decides_between_short_and_long():
    """Ending at once has a lower mean than going on, and a higher sum."""
    table = torch.tensor([[0.3, 0.7], [0.4, 0.6]], dtype=torch.float64).log()

    def step(tokens, state):
        (count,) = state
        odds = table[0].expand(len(tokens), -1).clone()
        odds[count == 3] = torch.tensor([1.0, 1e-9], dtype=torch.float64).log()
        return odds, (count + 1,)

    state = (torch.zeros(1, dtype=torch.long),)
    short = search_rows(step, torch.tensor([1]), state, Beam(width=4, max_length=3, end=END))[0][0]
    long = search_rows(step, torch.tensor([1]), state, Beam(width=4, max_length=3, end=END, length_penalty=1.0))[0][0]
    assert len(long.tokens) == 3
    assert len(short.tokens) in (0, 3)
    assert long.score == pytest.approx(long.log_probability / 4)


def test_models_together_have_the_mean_of_their_probabilities():
    models = [build("lstm", vocabulary=7, width=8, layers=1).eval() for _ in range(3)]
    steps = [make_step(model) for model in models]
    tokens = torch.tensor([1, 2])
    states = tuple(model.initial_state(2) for model in models)
    odds, after = ensemble(steps)(tokens, states)
    truth = torch.stack([step(tokens, state)[0].exp() for step, state in zip(steps, states, strict=True)]).mean(0)
    assert torch.allclose(odds.exp(), truth)
    assert len(after) == 3
    (found,) = search_rows(
        ensemble(steps), tokens[:1], tuple(model.initial_state(1) for model in models), Beam(max_length=3)
    )
    assert len(found[0].tokens) == 3


def test_one_model_alone_is_taken_at_its_word():
    """Nothing is computed anew for every word of the vocabulary, which took longer than the model itself."""
    odds = torch.randn(2, 7).log_softmax(-1)
    told, after = ensemble([lambda tokens, state: (odds, state + 1)])(torch.tensor([1, 2]), (4,))
    assert told is odds
    assert after == (5,)


@pytest.mark.parametrize("name", ["lstm", "transformer", "linear", "hybrid"])
def test_every_family_is_searched_in_batches_as_alone(name):
    heads = {} if name == "lstm" else {"heads": 2}
    model = build(name, vocabulary=6, width=8, layers=2, init_scheme="uniform", **heads).eval()
    first = torch.tensor([1, 2, 3])
    beam = Beam(width=3, max_length=5, end=END, length_penalty=1.0)
    found = search_rows(make_step(model), first, model.initial_state(3), beam)
    for row in range(3):
        (alone,) = search_rows(make_step(model), first[row : row + 1], model.initial_state(1), beam)
        assert [one.tokens for one in alone] == [one.tokens for one in found[row]]
        assert [one.score for one in alone] == pytest.approx([one.score for one in found[row]], abs=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"width": 0}, "beam=0"), ({"max_length": 0}, "max_length=0"), ({"length_penalty": -1.0}, "length_penalty=-1.0"),
     ({"length_penalty": float("nan")}, "length_penalty=nan"), ({"length_penalty": 1000.0}, "from 0 to 10")],
)  # fmt: skip
def test_impossible_beams_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Beam(**options)


@given(
    seed=st.integers(0, 10**6),
    longest=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    width=st.integers(1, 4),
    end=st.sampled_from([None, END]),
)
def test_each_row_is_as_long_as_it_may_be_whatever_stands_beside_it(seed, longest, width, end):
    step, (first, state) = chain(seed), start(len(longest))
    beam = Beam(width=width, max_length=None, end=end)
    found = search_rows(step, first, state, beam, longest)
    if end is None:
        assert [{len(one.tokens) for one in row} for row in found] == [{limit} for limit in longest]
        assert not any(one.finished for row in found for one in row)
    assert [len(row) for row in found] == [len(row) for row in found if row], "none is empty"
    for row, limit in enumerate(longest):
        (alone,) = search_rows(step, first[[row]], (state[0][[row]],), beam, [limit])
        assert [one.tokens for one in found[row]] == [one.tokens for one in alone]
        assert [one.score for one in found[row]] == pytest.approx([one.score for one in alone])


def test_nothing_is_read_behind_the_last_token_where_no_token_ends_a_text():
    asked = []

    def step(tokens, state):
        asked.append(tokens.tolist())
        return torch.log_softmax(torch.eye(3, dtype=torch.float64)[(tokens + 1) % 3], -1), state

    found = search_rows(step, torch.tensor([0, 0]), (), Beam(width=1, max_length=None), [1, 3])
    assert [[one.tokens for one in row] for row in found] == [[[1]], [[1, 2, 0]]]
    assert len(asked) == 3


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("end", [None, END])
def test_no_rows_have_no_texts(width, end):
    first, state = start(0)
    assert search_rows(chain(0), first, state, Beam(width=width, max_length=5, end=end)) == []
    assert search_rows(chain(0), first, state, Beam(width=width, max_length=None, end=end), []) == []
