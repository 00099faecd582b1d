"""Beam search: right searches pass in every style, planted mistakes are caught and named, the reference is ours."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anaphor.beam_search import Beam, search_rows
from anaphor.course.catalog import find_reference
from anaphor.course.references.beam_search import END, START, StepFunction
from anaphor.errors import ConfigError
from course.students import check_source, names_of, plant

RIGHT = """
def beam_search(log_probs, start, end, beam_width, max_length, length_penalty=1.0):
    beams = [([start], 0.0)]
    finished = []
    for _ in range(max_length):
        candidates = []
        for tokens, total in beams:
            scores = log_probs(tokens)
            for token in range(len(scores)):
                candidates.append((tokens + [token], total + scores[token].item()))
        candidates.sort(key=lambda c: c[1], reverse=True)
        beams = []
        for tokens, total in candidates[:beam_width]:
            if tokens[-1] == end:
                finished.append((tokens, total))
            else:
                beams.append((tokens, total))
        if not beams:
            break
    finished += beams
    finished = [(tokens, total / (len(tokens) - 1) ** length_penalty) for tokens, total in finished]
    return max(finished, key=lambda c: c[1])
"""
STYLES = [
    """
def beam_search(log_probs, start, end, width, max_len):
    beams = [((start,), 0.0, False)]
    while not all(done for _, _, done in beams) and max(len(tokens) for tokens, _, _ in beams) < max_len:
        new = []
        for tokens, score, done in beams:
            if done:
                new.append((tokens, score, True))
                continue
            values, ids = log_probs(torch.tensor(tokens)).topk(width)
            new += [((*tokens, i), score + v, i == end) for v, i in zip(values.tolist(), ids.tolist())]
        beams = sorted(new, key=lambda b: b[1] / (len(b[0]) - 1), reverse=True)[:width]
    return list(beams[0][0])
""",
    """
def beam_search(model, prompt, eos, num_beams, max_new_tokens, alpha=1.0):
    import heapq
    hyps, live = [], [(0.0, list(prompt))]
    for _ in range(max_new_tokens):
        rows = torch.tensor([tokens for _, tokens in live])
        scores = model(rows)[:, -1].log_softmax(-1) + torch.tensor([s for s, _ in live])[:, None]
        best, index = scores.flatten().topk(min(2 * num_beams, scores.numel()))
        nxt = []
        for value, at in zip(best.tolist(), index.tolist()):
            tokens = live[at // scores.shape[1]][1] + [at % scores.shape[1]]
            if tokens[-1] == eos:
                hyps.append((value / len(tokens[1:]) ** alpha, tokens))
            elif len(nxt) < num_beams:
                nxt.append((value, tokens))
        live = nxt
        if len(hyps) >= num_beams:
            break
    hyps += [(s / (len(t) - 1) ** alpha, t) for s, t in live]
    return [(tokens[1:], score) for score, tokens in sorted(hyps, reverse=True)]
""",
    """
class Hypothesis:
    def __init__(self, tokens, log_prob):
        self.tokens, self.log_prob = tokens, log_prob

def beam_search(step, bos, eos, k, max_length):
    seqs = torch.full((k, 1), bos)
    totals = torch.tensor([0.0] + [-math.inf] * (k - 1), dtype=torch.float64)
    done = []
    for t in range(max_length):
        logp = totals[:, None] + step(seqs)
        totals, flat = logp.flatten().topk(k)
        seqs = torch.cat((seqs[flat // logp.shape[1]], (flat % logp.shape[1])[:, None]), 1)
        for row in range(k):
            if seqs[row, -1] == eos and totals[row] > -math.inf:
                h = Hypothesis(seqs[row, 1:].tolist(), totals[row].item())
                h.score = h.log_prob / len(h.tokens)
                done.append(h)
                totals[row] = -math.inf
        if torch.isinf(totals).all():
            break
    for row in range(k):
        if totals[row] > -math.inf:
            h = Hypothesis(seqs[row, 1:].tolist(), totals[row].item())
            h.score = h.log_prob / len(h.tokens)
            done.append(h)
    return max(done, key=lambda h: h.score)
""",
    plant(plant(RIGHT, "return max(finished, key=lambda c: c[1])", "return max(finished, key=lambda c: c[1])[0][1:]"),
          "(len(tokens) - 1)", "len(tokens)"),
]  # fmt: skip
MISTAKES = [
    (" / (len(tokens) - 1) ** length_penalty", "", "length-not-normalized"),
    ("total / (len", "total * (len", "multiplied-by-length"),
    ("if tokens[-1] == end", "if False", "end-token-ignored"),
    ("                finished.append((tokens, total))\n            else:\n                beams",
     "                finished.append((tokens, total))\n            if True:\n                beams",
     "finished-extended"),
    ("total + scores[token].item()", "(total or 1) * scores[token].item()", "log-probabilities-multiplied"),
    ("total + scores[token].item()", "scores[token].item()", "scores-not-accumulated"),
    ("total + scores[token].item()", "total + scores[token].exp().item()", "probabilities-added"),
    ("in beams:\n            scores", "in beams[:1]:\n            scores", "first-beam-only"),
    ("range(len(scores))", "[int(scores.argmax())] if len(beams) > 1 else range(len(scores))", "beams-do-not-branch"),
    ("key=lambda c: c[1], reverse=True", "key=lambda c: c[1]", "worst-kept"),
    ("candidates[:beam_width]", "candidates[:beam_width + 1]", "one-hypothesis-too-many"),
    ("candidates[:beam_width]", "candidates[:1]", "greedy"),
    ("total + scores[token].item()", "total + (0 if token == end else scores[token].item())",
     {"end-not-scored"}),
    ("        if not beams:", "        if finished:", {"unknown"}),
    ("    finished += beams\n", "    if not finished: return [], 0.0\n", "cut-hypotheses-lost"),
    ("[([start], 0.0)]", "[([start], 0.0)] * beam_width", "greedy"),
    ("scores = log_probs(tokens)", "scores = log_probs(tokens[:-1] or tokens)", "unknown"),
]  # fmt: skip


@pytest.mark.parametrize("source", [RIGHT, *STYLES])
def test_a_right_search_passes(source, tmp_path):
    report = check_source(tmp_path, source, "beam_search")
    assert report.passed, report.mistakes


@pytest.mark.parametrize(("old", "new", "mistake"), MISTAKES)
def test_a_mistake_in_a_search_is_named(old, new, mistake, tmp_path):
    expected = mistake if isinstance(mistake, set) else {mistake}
    assert names_of(check_source(tmp_path, plant(RIGHT, old, new), "beam_search")) == expected


def test_another_signature_is_one_line(tmp_path):
    with pytest.raises(
        ConfigError, match="beam_search\\(model, text\\) has other arguments than expected: beam_search"
    ):
        check_source(tmp_path, "def beam_search(model, text):\n    pass\n", "beam_search")


def test_the_reference_is_our_beam_search():
    reference = find_reference("beam_search")
    for case in reference.cases({}):
        inputs = case.inputs
        model = StepFunction(inputs["table"])

        def step(tokens, state, model=model):
            state = torch.cat((state, tokens[:, None]), dim=1)
            return model(state), state

        beam = Beam(width=inputs["beam_width"], max_length=inputs["max_length"] - 1, end=END,
                    length_penalty=inputs["length_penalty"])  # fmt: skip
        found = search_rows(step, torch.tensor([START]), torch.empty(1, 0, dtype=torch.long), beam)[0][0]
        expected = reference.compute({}, inputs, reference.designs[0])
        if found.finished:
            assert found.tokens == expected["tokens"]
            assert found.score == pytest.approx(expected["score"])


KEEPS = {
    "drop": "done += [b for b in best[:k] if b[1][-1] == eos]; live = [b for b in best[:k] if b[1][-1] != eos]",
    "refill": "done += [b for b in best[:k] if b[1][-1] == eos]; live = [b for b in best if b[1][-1] != eos][:k]",
    "narrow": "k = width - len(done); done += [b for b in best[:k] if b[1][-1] == eos]; "
              "live = [b for b in best[:k] if b[1][-1] != eos]",
}  # fmt: skip
CALLS = ["f(tokens)", "f(torch.tensor(tokens))", "f(torch.tensor([tokens]))[0]"]
GROWS = [
    "best += [(total + one.item(), tokens + [i]) for i, one in enumerate(scores)]",
    "best += [(total + v, tokens + [i]) for v, i in zip(*(x.tolist() for x in scores.topk(min(k + 1, len(scores)))))]",
    "for i in range(len(scores)): best.append((total + float(scores[i]), [*tokens, i]))",
]
SORTS = ["best.sort(reverse=True)", "best = sorted(best, key=lambda b: -b[0])"]
LENGTHS = ["len(b[1]) - 1", "len(b[1])", "max(len(b[1]) - 1 - (b[1][-1] == eos), 1)"]
ENDS = ["done or live", "done + live"]
RETURNS = ["best[1]", "best[1][1:]", "(best[1], best[0] / ({length}))", "[(best[1], best[0] / ({length}))]",
           "{{'tokens': best[1], 'score': best[0] / ({length})}}", "torch.tensor(best[1])"]  # fmt: skip


def write_search(draw):
    pick = lambda kind: draw(st.sampled_from(kind))  # noqa: E731
    length = pick(LENGTHS)
    return f"""
def beam_search(f, bos, eos, width, max_len):
    live, done, k = [(0.0, [bos])], [], width
    for _ in range(max_len):
        best = []
        for total, tokens in live:
            scores = {pick(CALLS)}
            {pick(GROWS)}
        {pick(SORTS)}
        {pick([*KEEPS.values()])}
        if not live{pick([" or len(done) >= width", ""])}:
            break
    best = max({pick(ENDS)}, key=lambda b: b[0] / ({length}))
    b = best
    return {pick(RETURNS).format(length=length)}
"""


@pytest.mark.slow
@given(st.composite(write_search)())
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_right_search_is_refused(tmp_path, source):
    report = check_source(tmp_path, source, "beam_search")
    assert report.passed, (source, report.mistakes)
