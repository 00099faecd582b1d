"""Sixteen questions about language models, each with an answer in words and an experiment that shows it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.data.batches import Stream
from anaphor.data.tokenizer import Word
from anaphor.draw import Line, bands, figure_paths
from anaphor.labs.lab import CURVES, Check, Outcome, equal
from anaphor.labs.specs import ConceptsSpec
from anaphor.labs.unroll import train_power
from anaphor.mixers import Mixer, Span, mixer_spec
from anaphor.models import LanguageModel, build, build_seq2seq

TEXT = "the cat sat on the mat and the dog sat on the cat"
OTHER = "a crab walks sideways over wet stones and under dry ones while it rains"
VOCABULARY, TOKENS = 11, 7
LENGTHS = (2, 4, 8, 16, 32, 64)
ROUNDING = 1e-10


def small(name: str, seed: int, **options: object) -> LanguageModel:
    torch.manual_seed(seed)
    return build(name, vocabulary=VOCABULARY, width=16, layers=1, dropout=0.0, **options).double().eval()


def random_tokens(seed: int, rows: int = 1, tokens: int = TOKENS) -> Tensor:
    return torch.randint(0, VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def change_at(model: LanguageModel, seed: int, changed: int, output: int) -> float:
    """How much the output at one position changes when another token is replaced."""
    tokens = random_tokens(seed)
    other = tokens.clone()
    other[0, changed] = (other[0, changed] + 1) % VOCABULARY
    with torch.no_grad():
        return float((model(tokens)[0][0, output] - model(other)[0][0, output]).abs().max())


def text_labels_itself(seed: int) -> Check:
    ids = torch.tensor(Word.train(TEXT).encode(TEXT))
    batch = Stream(ids, rows=1, bptt=len(ids)).batch(0)
    follows = torch.equal(batch.targets[0], ids[1:]) and torch.equal(batch.input_ids[0], ids[:-1])
    return Check(f"targets made from {len(ids)} tokens, without labels", batch.count, f"= {len(ids) - 1}", follows)


def weights_make_the_model(seed: int) -> Check:
    first, second = small("lstm", seed), small("lstm", seed + 1)
    tokens = random_tokens(seed)
    with torch.no_grad():
        before = float((first(tokens)[0] - second(tokens)[0]).abs().max())
        second.load_state_dict(first.state_dict())
        after = float((first(tokens)[0] - second(tokens)[0]).abs().max())
    return Check("difference of outputs with other weights; 0 with the same", before, "> 0", before > 0 and not after)


def decoders_never_look_ahead(seed: int) -> Check:
    change = change_at(small("transformer", seed, heads=2, feedforward=32), seed, changed=TOKENS - 1, output=0)
    return equal("change of a decoder's first output with the last token", change, 0.0)


def encoders_look_both_ways(seed: int) -> Check:
    model = small("lstm", seed, mixers=("bidirectional-lstm",), causal=False)
    change = change_at(model, seed, changed=TOKENS - 1, output=0)
    return Check("change of an encoder's first output with the last token", change, "> 0", change > 0)


def one_state_for_any_length(seed: int) -> Check:
    model = small("lstm", seed)
    sizes = set()
    for tokens in (3, 30, 300):
        with torch.no_grad():
            _, state = model(random_tokens(seed, tokens=tokens))
        sizes.add(sum(tensor.numel() for tensor in state.layers[0]))
    return equal(f"sizes of the state ({max(sizes)} numbers) after 3, 30 and 300 tokens", len(sizes), 1)


def bias_has_three_sources(seed: int) -> Check:
    """Nine answers in ten are "he": fit them, fine-tune briefly on balanced data, and compare two losses."""
    he = torch.tensor([1.0] * 9 + [0.0])
    score = torch.zeros((), requires_grad=True)
    pretrained = _fit(score, he, 2000)
    tuned = _fit(score, torch.tensor([1.0, 0.0]), 3)
    skewed = torch.tensor([0.0, 0.0, 0.0, 0.0, 10.0])
    metric = float(skewed.mean() - skewed.median())  # the best constants for squared and absolute error
    biased = abs(pretrained - 0.9) < 0.01 and tuned > 0.6 and metric > 0
    return Check(f"P(he): {pretrained:.2f} as in the data; after 3 steps on balanced data", tuned, "> 0.6", biased)


def _fit(score: Tensor, answers: Tensor, steps: int) -> float:
    for _ in range(steps):
        (gradient,) = torch.autograd.grad(F.binary_cross_entropy_with_logits(score.expand_as(answers), answers), score)
        with torch.no_grad():
            score -= gradient
    return float(torch.sigmoid(score.detach()))


def ids_go_there_and_back(seed: int) -> Check:
    tokenizer = Word.train(TEXT)
    ids = tokenizer.encode_sentence(TEXT)
    return Check("ids of a sentence that decode to it", len(ids), "all", tokenizer.decode(ids).strip() == TEXT)


def three_dimensions(seed: int) -> Check:
    model = small("transformer", seed, heads=2, feedforward=32)
    with torch.no_grad():
        vectors, _ = model.compute_hidden_states(random_tokens(seed, rows=2))
    return equal("shape of the output for batch 2 and width 16", str(tuple(vectors.shape)), f"(2, {TOKENS}, 16)")


def probabilities_sum_to_one(seed: int) -> Check:
    """All texts of three tokens over a small vocabulary, after the same first token."""
    model = small("rnn-tanh", seed)
    texts = torch.tensor(list(itertools.product(range(VOCABULARY), repeat=3)))
    rows = torch.cat((torch.zeros(len(texts), 1, dtype=torch.long), texts), dim=1)
    with torch.no_grad():
        logits, _ = model(rows[:, :-1])
    chosen = F.log_softmax(logits, dim=-1).gather(-1, texts[..., None]).squeeze(-1)
    return _check_rounding(
        f"|1 − sum of the probabilities of {len(texts):,} texts|", abs(float(chosen.sum(1).exp().sum()) - 1)
    )


def explosion_ends_in_nan(seed: int) -> Check:
    unclipped, clipped = train_power(None), train_power(1.0)
    exploded = unclipped["w"] == "lost" and isinstance(clipped["w"], float) and math.isfinite(clipped["w"])
    return Check("updates until a weight is NaN; with clipping none is", unclipped["updates"], "few", exploded)


def later_days_do_not_matter(seed: int) -> Check:
    torch.manual_seed(seed)
    x = torch.randn(1, 42, 4, dtype=torch.float64)
    one, both = (
        float(_gradient(mixer_spec(name, width=4).build().double(), x, output=20)[21:].abs().max())
        for name in ("lstm", "bidirectional-lstm")
    )
    return Check("gradient of later days, one direction; both: not zero", one, "= 0", one == 0 and both > 0)


def _gradient(layer: Mixer, x: Tensor, output: int) -> Tensor:
    """Gradient of one output with respect to each input. [1, T, D] -> [T, D]"""
    x = x.clone().requires_grad_()
    y, _ = layer(x, layer.initial_state(x), Span.whole(x))
    (gradient,) = torch.autograd.grad(y[0, output].sum(), x)
    return gradient[0]


def only_targets_have_probabilities(seed: int) -> Check:
    torch.manual_seed(seed)
    model = build_seq2seq("luong", source_vocabulary=13, vocabulary=VOCABULARY, width=16, layers=1).eval()
    with torch.no_grad():
        state = model.encode(torch.randint(0, 13, (1, 5)))
        logits, _ = model(random_tokens(seed, tokens=4), state)
    heads = [module for module in model.modules() if isinstance(module, nn.Linear) and module.out_features == 13]
    shape = tuple(logits.shape)
    only_targets = shape == (1, 4, VOCABULARY) and not heads
    return Check(
        "shape of all logits, for 5 source and 4 target tokens", str(shape), f"(1, 4, {VOCABULARY})", only_targets
    )


def reach(seed: int) -> dict[str, list[float]]:
    """Gradient norm of the last output by the first token, divided by that by the last token, for growing lengths."""
    ratios: dict[str, list[float]] = {}
    for name, options in (("rnn-tanh", {}), ("attention", {"heads": 1, "bias": False})):
        torch.manual_seed(seed)
        layer = mixer_spec(name, width=16, **options).build().double()
        x = torch.randn(1, max(LENGTHS), 16, dtype=torch.float64)
        norms = [_gradient(layer, x[:, :length], output=length - 1).norm(dim=-1) for length in LENGTHS]
        ratios[name] = [float(norm[0] / norm[-1]) for norm in norms]
    return ratios


def attention_reaches_far(seed: int) -> Check:
    ratios = reach(seed)
    advantage = ratios["attention"][-1] / max(ratios["rnn-tanh"][-1], 1e-300)
    what = f"gradient of the first of {LENGTHS[-1]} tokens, attention / recurrence"
    return Check(what, advantage, "> 1e+06", advantage > 1e6)


def heads_share_a_body(seed: int) -> Check:
    model = small("lstm", seed)
    classify = nn.Linear(16, 2).double()
    with torch.no_grad():
        vectors, _ = model.compute_hidden_states(random_tokens(seed))
        words, labels = model.head(vectors), classify(vectors[:, -1])
    fits = words.shape[-1] == VOCABULARY and labels.shape[-1] == 2
    share = sum(weight.numel() for weight in classify.parameters()) / model.count_parameters()
    return Check(f"parameters of a head for 2 labels / all ({VOCABULARY} words)", share, "small", fits)


def padding_leaves_no_trace(seed: int) -> Check:
    model = small("transformer", seed, heads=2, feedforward=32)
    rows, lengths = random_tokens(seed, rows=3), torch.tensor([TOKENS, 4, 2])
    with torch.no_grad():
        together, _ = model(rows, lengths=lengths)
        alone = [model(rows[row : row + 1, :length])[0][0] for row, length in enumerate(lengths.tolist())]
    difference = max(float((together[row, : len(single)] - single).abs().max()) for row, single in enumerate(alone))
    return _check_rounding("rows of 7, 4 and 2 tokens: batched minus alone", difference)


def ids_mean_nothing_elsewhere(seed: int) -> Check:
    ours, theirs = Word.train(TEXT), Word.train(OTHER)
    read = theirs.decode([number % len(theirs) for number in ours.encode_sentence(TEXT)])
    same = sum(a == b for a, b in zip(TEXT.split(), read.split(), strict=False)) / len(TEXT.split())
    return Check(f"fraction of equal words: “{' '.join(read.split()[:4])} …”", same, "< 0.5", same < 0.5)


def _check_rounding(what: str, value: float) -> Check:
    return Check(what, value, f"< {ROUNDING:g}", value < ROUNDING)


@dataclass(frozen=True)
class Question:
    """A question, its answer, and an experiment that shows it."""

    question: str
    answer: str
    why: str
    experiment: Callable[[int], Check]
    """Runs with a seed."""


QUESTIONS: dict[int, Question] = {
    1: Question(
        "True or false: a language model is usually pretrained without labels written by people.",
        "True.",
        "The target of each token is the token after it, so the text labels itself.",
        text_labels_itself,
    ),
    2: Question(
        "What are model, architecture and weights?",
        "The architecture is a succession of functions, the weights are their parameters, the model is both.",
        "The same functions with other weights are another model, and with the same weights the same one.",
        weights_make_the_model,
    ),
    3: Question(
        "Which kind of model completes a prompt?",
        "A decoder.",
        "It predicts each token from those before it only, so what it has read stays valid while it writes on.",
        decoders_never_look_ahead,
    ),
    4: Question(
        "Which kind of model classifies a text?",
        "An encoder.",
        "The text is there as a whole, and every token may be read in the light of what follows it.",
        encoders_look_both_ways,
    ),
    5: Question(
        "For which tasks is a many-to-one recurrent network made: transcripts, sentiment, the speaker's gender?",
        "Sentiment and the speaker's gender: one label for a whole sequence. A transcript is a sequence itself.",
        "However long the input, the last state has one size, and one label is read off it.",
        one_state_for_any_length,
    ),
    6: Question(
        "Where can a model's bias come from: the pretrained model, the data, the metric?",
        "From all three.",
        "A fit repeats the shares of its data, a short fine-tuning keeps those of its start, and another loss has "
        "another best answer.",
        bias_has_three_sources,
    ),
    7: Question(
        "In which order do tokenizer and model work?",
        "Tokenizer, model, tokenizer again: text becomes ids, the model maps ids to predictions, ids become text.",
        "What the tokenizer takes apart it can put together.",
        ids_go_there_and_back,
    ),
    8: Question(
        "Which dimensions has the output of a decoder's layers?",
        "Three: batch, length of the sequence, hidden size.",
        "There is one vector for every token of every row.",
        three_dimensions,
    ),
    9: Question(
        "What does a recurrent language model estimate at step t?",
        "P(y_t | y_1 … y_(t-1)): the next token, given all before it.",
        "The product of these over t is the probability of a text, so over all texts of one length it sums to one.",
        probabilities_sum_to_one,
    ),
    10: Question(
        "Weights and activations of a recurrent network have become NaN. Why, most likely?",
        "Gradients exploded.",
        "A large update makes the next gradient larger still, until the numbers overflow; bounding the norm stops it.",
        explosion_ends_in_nan,
    ),
    11: Question(
        "A crab's mood depends on today's weather and on that of days past. One direction or both?",
        "One: the mood of day t depends on x_1 … x_t and on no later day.",
        "In one direction later inputs have no influence at all; in both they have, which here could only be noise.",
        later_days_do_not_matter,
    ),
    12: Question(
        "True or false: the encoder of a conditional language model models the probability of its input.",
        "False: only the target has a probability, given the source.",
        "The encoder ends in vectors; logits exist for the target's vocabulary alone.",
        only_targets_have_probabilities,
    ),
    13: Question(
        "Where do we expect attention to help most, against recurrence and fixed windows?",
        "On long inputs.",
        "The first token is one step away from the last in attention, and n − 1 steps away in a recurrence.",
        attention_reaches_far,
    ),
    14: Question(
        "What is a model head?",
        "A component on top, of one or a few layers, that turns the network's vectors into what a task needs.",
        "Two heads on the same vectors give a language model and a classifier.",
        heads_share_a_body,
    ),
    15: Question(
        "What must one know to batch sequences of different lengths?",
        "Truncating, padding and attention masking; the type of the tensors has nothing to do with it.",
        "With padding masked, every row gives what it gives alone.",
        padding_leaves_no_trace,
    ),
    16: Question(
        "A tokenizer from one checkpoint and a model from another: is something wrong?",
        "Yes: both must come from the same checkpoint.",
        "The same id stands for another token, so the model reads another text.",
        ids_mean_nothing_elsewhere,
    ),
}


def run(spec: ConceptsSpec) -> Outcome:
    selected = QUESTIONS if spec.question is None else {spec.question: QUESTIONS[spec.question]}
    checks = []
    for number, question in selected.items():
        check = question.experiment(spec.seed)
        checks.append(replace(check, what=f"{number}. {check.what}"))
    rows = {str(n): {"question": q.question, "answer": q.answer, "why": q.why} for n, q in selected.items()}
    curves: dict[str, Any] = {"reach": reach(spec.seed)} if 13 in selected else {}
    if spec.question is None:  # the table shows the answers only; JSON has the reasons too
        curves["answers"] = rows
        numbers: dict[str, Any] = {f"{number}. {row['question']}": row["answer"] for number, row in rows.items()}
    else:
        numbers = dict(rows[str(spec.question)])
    return Outcome("concepts", spec.claim, tuple(checks), {**numbers, CURVES: curves})


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """Question 13: the gradient of the first token as the sequence gets longer."""
    ratios = outcome.numbers[CURVES].get("reach")
    if ratios is None:
        return []
    lines = [Line(name, LENGTHS, values) for name, values in ratios.items()]
    paths = figure_paths(folder / "concepts-reach")
    label = "gradient norm, first token / last token"
    bands({"": lines}, paths, x_label="sequence length", y_label=label, log_x=True, log_y=True)
    return paths
