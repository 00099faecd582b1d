"""Batches of a text in parallel rows, the loss of dialogues, and BLEU: functions of the courses' scripts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from anaphor.course.reference import Case, Mistake, Outputs, Reference, Weights
from anaphor.course.references.attention import random_values, same

Sentence = list[str]


@dataclass(frozen=True)
class BatchifyRules:
    """Steps of cutting a text into parallel columns."""

    length: Callable[[int, int], int] = field(default=lambda tokens, rows: tokens // rows)
    """Tokens of a column."""
    arrange: Callable[[Tensor, int, int], Tensor] = field(default=lambda data, rows, n: data.view(rows, n).T)
    """From rows · n tokens to [n, rows]."""
    start: Callable[[int], int] = field(default=lambda rest: 0)
    """How many tokens are left out before the first one."""


def compute_batchify(w: Weights, inputs: Mapping[str, Any], rules: BatchifyRules) -> Outputs:
    data, rows = inputs["data"], inputs["bsz"]
    length = rules.length(len(data), rows)
    start = rules.start(len(data) - length * rows)
    return {"columns": rules.arrange(data[start : start + length * rows], rows, length)}


def batchify_cases(sizes: Mapping[str, int]) -> list[Case]:
    return [
        Case("of 26 tokens in 4 columns", {"data": torch.arange(26) + 3, "bsz": 4}, "where tokens are left over"),
        Case("of 15 tokens in 3 columns", {"data": torch.arange(15).flip(0), "bsz": 3}, "where none is left over"),
        Case("of 5 tokens in 1 column", {"data": torch.arange(5), "bsz": 1}, "for one column"),
    ]


def draw_tokens(tokens: Tensor, generator: Generator) -> Tensor:
    """As many tokens, none of them twice."""
    return torch.randperm(10 * tokens.numel(), generator=generator)[: tokens.numel()].view(tokens.shape)


def vary_batchify(inputs: Mapping[str, Any], generator: Generator) -> dict[str, Any]:
    return {**inputs, "data": draw_tokens(inputs["data"], generator)}


BATCHIFY = Reference(
    name="batchify",
    call="batchify(data, bsz) -> columns [T, B]: each column is a stretch of the text, the rest is left out",
    outputs=("columns",),
    arguments=("data", "bsz"),
    sizes={},
    cases=batchify_cases,
    vary=vary_batchify,
    compute=compute_batchify,
    designs=(BatchifyRules(),),
    mistakes=(
        Mistake("batch-and-time-swapped", "the text runs along the rows, [B, T]; each column is a stretch of "
                "it, [T, B]",
                {"arrange": lambda data, rows, n: data.view(rows, n)}),
        Mistake("reshaped-without-transpose", "the text is reshaped to [T, B] directly, so that a column has "
                "every B-th "
                "token; view it as [B, T] and transpose", {"arrange": lambda data, rows, n: data.view(n, rows)}),
        Mistake("reshaped-to-rows", "the text is dealt out to the rows token by token, as [B, T]; each column "
                "is a stretch",
                {"arrange": lambda data, rows, n: data.view(n, rows).T}),
        Mistake("one-token-lost", "the last token of each column is missing",
                {"length": lambda tokens, rows: (tokens - 1) // rows}),
        Mistake("rest-cut-from-the-start", "the tokens that are left over are cut from the start; cut them from "
                "the end",
                {"start": same}),
        Mistake("columns-reversed", "the columns come in reversed order",
                {"arrange": lambda data, rows, n: data.view(rows, n).flip(0).T}),
        Mistake("text-reversed", "the text runs backwards in each column",
                {"arrange": lambda data, rows, n: data.view(rows, n).T.flip(0)}),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class SegmentRules:
    """Steps of taking a segment and its targets."""

    length: Callable[[int, int, int], int] = field(default=lambda bptt, rows, i: min(bptt, rows - 1 - i))
    """Time steps of the segment that begins at i."""
    shift: int = 1
    """How many steps later the targets are."""
    shape: Callable[[Tensor], Tensor] = field(default=lambda target: target.reshape(-1))
    begin: Callable[[int, int], int] = field(default=lambda i, bptt: i)
    order: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = field(default=lambda data, target: (data, target))


def compute_segment(w: Weights, inputs: Mapping[str, Any], rules: SegmentRules) -> Outputs:
    source, begin = inputs["source"], rules.begin(inputs["i"], inputs["bptt"])
    length = rules.length(inputs["bptt"], len(source), begin)
    data = source[begin : begin + length]
    target = rules.shape(source[begin + rules.shift : begin + rules.shift + length])
    data, target = rules.order(data, target)
    return {"data": data, "targets": target}


def segment_cases(sizes: Mapping[str, int]) -> list[Case]:
    source = torch.arange(33).view(3, 11).T.contiguous()
    return [
        Case("at the start", {"source": source, "i": 0, "bptt": 4}, "of the first segment"),
        Case("in the middle", {"source": source, "i": 4, "bptt": 4}, "of a segment in the middle"),
        Case("at the end", {"source": source, "i": 8, "bptt": 4}, "of a last segment, which is shorter"),
    ]


def vary_segment(inputs: Mapping[str, Any], generator: Generator) -> dict[str, Any]:
    return {**inputs, "source": draw_tokens(inputs["source"], generator)}


GET_BATCH = Reference(
    name="get_batch",
    call="get_batch(source, i, bptt) -> data [T, B], targets [T · B] or [T, B]: the tokens that follow",
    outputs=("data", "targets"),
    arguments=("source", "i", "bptt"),
    sizes={},
    cases=segment_cases,
    vary=vary_segment,
    compute=compute_segment,
    designs=(SegmentRules(), SegmentRules(shape=same)),
    mistakes=(
        Mistake("targets-not-shifted", "the targets are the inputs; they are one step later", {"shift": 0}),
        Mistake("targets-shifted-twice", "the targets are two steps later; they are one step later", {"shift": 2}),
        Mistake("last-step-without-target", "a last, shorter segment has an input more than it has targets: its "
                "length is "
                "min(bptt, len(source) - 1 - i)", {"length": lambda bptt, rows, i: min(bptt, rows - i)}),
        Mistake("one-step-lost", "the segment is one step too short",
                {"length": lambda bptt, rows, i: min(bptt, rows - 1 - i) - 1}),
        Mistake("one-step-too-many", "the segment is one step longer than bptt",
                {"length": lambda bptt, rows, i: min(bptt + 1, rows - 1 - i)}),
        Mistake("last-segment-one-step-lost", "a last, shorter segment lacks a step: its length is "
                "min(bptt, len(source) - 1 - i)", {"length": lambda bptt, rows, i: min(bptt, rows - 2 - i)}),
        Mistake("index-counts-segments", "i is taken for the number of a segment; it is the time step where one begins",
                {"begin": lambda i, bptt: i * bptt}),
        Mistake("targets-by-column", "the targets are flattened column by column; flatten [T, B] row by row, as "
                "the logits "
                "are", {"shape": lambda target: target.T.reshape(-1)}),
        Mistake("targets-first", "the targets are returned first; return data, targets",
                {"order": lambda data, target: (target, data)}),
        Mistake("batch-first", "the segment is [B, T]; return [T, B]",
                {"order": lambda data, target: (data.T, target)}),
    ),
)  # fmt: skip


def mean_over_real(losses: Tensor, mask: Tensor) -> Tensor:
    return (losses * mask).sum() / mask.sum()


def next_tokens(logits: Tensor, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What is predicted, what follows, and where that is no padding."""
    return logits[:, :-1], ids[:, 1:], mask[:, 1:]


@dataclass(frozen=True)
class LossRules:
    """Steps of the loss of a language model."""

    align: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] = next_tokens
    average: Callable[[Tensor, Tensor], Tensor] = mean_over_real
    prepare: Callable[[Tensor], Tensor] = same
    mask: Callable[[Tensor], Tensor] = same


def compute_loss(w: Weights, inputs: Mapping[str, Any], rules: LossRules) -> Outputs:
    logits, ids, mask = rules.align(inputs["logits"], inputs["input_ids"], rules.mask(inputs["input_mask"]))
    losses = F.cross_entropy(rules.prepare(logits).flatten(0, 1), ids.flatten(), reduction="none").view(ids.shape)
    return {"loss": rules.average(losses, mask.to(losses.dtype))}


def loss_cases(sizes: Mapping[str, int]) -> list[Case]:
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(2, 11, (5, 7), generator=generator)
    full = torch.ones(5, 7, dtype=torch.long)
    mask = (torch.arange(7) < torch.tensor([7, 4, 2, 5, 6])[:, None]).long()
    padded = ids.masked_fill(mask == 0, 1)
    return [
        Case("without padding", {"logits": random_values(5, 7, 11), "input_ids": ids, "input_mask": full},
             "without padding"),
        Case("with padding", {"logits": random_values(5, 7, 11, seed=1), "input_ids": padded, "input_mask": mask},
             "with padding"),
    ]  # fmt: skip


LOSS_MISTAKES = (
    Mistake("targets-not-shifted", "the logits are compared with the token at their own place; compare with the "
            "next one",
            {"align": lambda logits, ids, mask: (logits, ids, mask)}),
    Mistake("shifted-the-wrong-way", "the logits are compared with the token before; compare with the next one",
            {"align": lambda logits, ids, mask: (logits[:, 1:], ids[:, :-1], mask[:, :-1])}),
    Mistake("logits-not-shifted", "the first logits are left out instead of the last: logits[:, :-1] predict "
            "ids[:, 1:]",
            {"align": lambda logits, ids, mask: (logits[:, 1:], ids[:, 1:], mask[:, 1:])}),
    Mistake("mask-not-shifted", "the mask is that of the inputs; it belongs to the targets, mask[:, 1:]",
            {"align": lambda logits, ids, mask: (logits[:, :-1], ids[:, 1:], mask[:, :-1])}),
    Mistake("padding-counted", "targets that are padding count, too; leave them out", {"mask": torch.ones_like}),
    Mistake("averaged-over-padding", "the sum over real targets is divided by the number of all; divide by that of the "
            "real ones", {"average": lambda losses, mask: (losses * mask).mean()}),
    Mistake("mean-of-rows", "the mean of each row is averaged, so that tokens of short rows count more; average "
            "over all "
            "tokens", {"average": lambda losses, mask: ((losses * mask).sum(1) / mask.sum(1)).mean()}),
    Mistake("summed", "the losses are summed; average them", {"average": lambda losses, mask: (losses * mask).sum()}),
    Mistake("divided-by-rows", "the sum is divided by the number of rows; divide by that of the targets",
            {"average": lambda losses, mask: (losses * mask).sum() / len(losses)}),
    Mistake("divided-by-inputs", "the sum is divided by the number of real inputs, the first tokens included; "
            "divide by that "
            "of the targets", {"average": lambda losses, mask: (losses * mask).sum() / (mask.sum() + len(losses))}),
    Mistake("mask-inverted", "only padding counts: the mask is 1 for real tokens", {"mask": lambda mask: 1 - mask}),
    Mistake("softmax-before-loss", "the logits go through a softmax first; cross entropy does that itself",
            {"prepare": lambda logits: torch.softmax(logits, -1)}),
    Mistake("negative", "the loss has the wrong sign", {"average": lambda losses, mask: -mean_over_real(losses, mask)}),
    Mistake("loss-detached", "no gradient flows back from the loss",
            {"average": lambda losses, mask: mean_over_real(losses, mask).detach()}),
)  # fmt: skip


def mask_as_bool(name: str, value: Any) -> Any:
    return value.bool() if name == "input_mask" else value


def mask_as_float(name: str, value: Any) -> Any:
    return value.float() if name == "input_mask" else value


DIALOGUE_LOSS = Reference(
    name="DialogueLoss",
    call="DialogueLoss(), forward(logits [B, T, V], input_ids [B, T], input_mask [B, T]) -> loss; or a function",
    outputs=("loss",),
    arguments=("logits", "input_ids", "input_mask"),
    sizes={},
    cases=loss_cases,
    compute=compute_loss,
    designs=(LossRules(),),
    mistakes=LOSS_MISTAKES,
    forms={"a mask of bool": mask_as_bool, "a mask of float": mask_as_float},
)


def ngrams(tokens: Sentence, n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[at : at + n]) for at in range(len(tokens) - n + 1))


def clip_by_best(counts: list[int]) -> int:
    return max(counts)


def closest(lengths: list[int], length: int) -> int:
    return min(lengths, key=lambda one: (abs(one - length), one))


def penalty(length: int, wanted: int) -> float:
    return math.exp(min(0.0, 1 - wanted / length))


def geometric(precisions: list[float]) -> float:
    return math.prod(precisions) ** (1 / len(precisions))


@dataclass(frozen=True)
class BleuRules:
    """Steps of BLEU."""

    allowed: Callable[[list[int]], float] = clip_by_best
    """How often an n-gram may match, from its counts in the references."""
    orders: tuple[int, ...] = (1, 2, 3, 4)
    reference_length: Callable[[list[int], int], int] = closest
    penalty: Callable[[int, int], float] = penalty
    average: Callable[[list[float]], float] = geometric
    is_corpus: bool = True
    factor: float = 1.0


def compute_bleu(w: Weights, inputs: Mapping[str, Any], rules: BleuRules) -> Outputs:
    pairs = list(zip(inputs["references"], inputs["hypotheses"], strict=True))
    groups = [pairs] if rules.is_corpus else [[pair] for pair in pairs]
    scores = [_bleu_of(group, rules) for group in groups]
    return {"score": rules.factor * sum(scores) / len(scores)}


def _bleu_of(pairs: list[tuple[list[Sentence], Sentence]], rules: BleuRules) -> float:
    precisions = []
    for n in rules.orders:
        matched = possible = 0.0
        for references, hypothesis in pairs:
            counts = ngrams(hypothesis, n)
            others = [ngrams(reference, n) for reference in references]
            matched += sum(min(count, rules.allowed([one[gram] for one in others])) for gram, count in counts.items())
            possible += max(1, counts.total())
        precisions.append(matched / possible)
    length = sum(len(hypothesis) for _, hypothesis in pairs)
    wanted = sum(rules.reference_length([*map(len, references)], len(hypothesis)) for references, hypothesis in pairs)
    return rules.penalty(length, wanted) * rules.average(precisions)


def bleu_cases(sizes: Mapping[str, int]) -> list[Case]:
    texts = [
        (["the cat sat on the mat with a red hat", "a cat was sitting on the mat"], "the cat sat on the mat mat mat"),
        (["there is a small dog in the large house by the sea today", "a small dog lives in the house"],
         "there is a small dog in the house"),
        (["one two three four five six seven", "one two three four five six seven eight nine ten"],
         "one two three four five five five six"),
        (["of all that is in the sea a large ship is what we see most of in summer", "a large ship"],
         "in the sea a large ship is what we see now"),
    ]  # fmt: skip
    references = [[text.split() for text in several] for several, _ in texts]
    hypotheses = [text.split() for _, text in texts]
    short = [" ".join(one[:-3]).split() for one in hypotheses]
    return [
        Case("of long hypotheses", {"references": [one[-1:] for one in references], "hypotheses": hypotheses},
             "of one reference each"),
        Case("with several references", {"references": references, "hypotheses": hypotheses}, "of several references"),
        Case("of short hypotheses", {"references": references, "hypotheses": short}, "of short hypotheses"),
    ]  # fmt: skip


def vary_sentences(inputs: Mapping[str, Any], generator: Generator) -> dict[str, Any]:
    """The sentences in another order, each once to three times, so that the score is another one."""
    count = len(inputs["hypotheses"])
    times = torch.randint(1, 4, (count,), generator=generator).tolist()
    order = [number for number in torch.randperm(count, generator=generator).tolist() for _ in range(times[number])]
    return {name: [inputs[name][number] for number in order] for name in ("references", "hypotheses")}


BLEU = Reference(
    name="bleu",
    call="bleu(references, hypotheses) -> score from 0 to 1 or 100; references is a list of lists of token lists, "
    "one list for each hypothesis",
    outputs=("score",),
    arguments=("references", "hypotheses"),
    sizes={},
    cases=bleu_cases,
    vary=vary_sentences,
    compute=compute_bleu,
    designs=(BleuRules(), BleuRules(factor=100.0)),
    mistakes=(
        Mistake("no-brevity-penalty", "the brevity penalty is missing: short hypotheses score too high",
                {"penalty": lambda length, wanted: 1.0}),
        Mistake("brevity-penalty-inverted", "the brevity penalty has the ratio upside down: it is exp(1 - R/H)",
                {"penalty": lambda length, wanted: math.exp(min(0.0, 1 - length / wanted))}),
        Mistake("brevity-penalty-not-limited", "the brevity penalty rewards long hypotheses: it is at most 1",
                {"penalty": lambda length, wanted: math.exp(1 - wanted / length)}),
        Mistake("brevity-penalty-as-ratio", "the brevity penalty is the ratio of lengths; it is exp(1 - R/H)",
                {"penalty": lambda length, wanted: min(1.0, length / wanted)}),
        Mistake("counts-not-clipped", "matches are not clipped: an n-gram matches at most as often as a "
                "reference has it",
                {"allowed": lambda counts: math.inf if max(counts) else 0}),
        Mistake("clipped-at-one", "each n-gram matches once at most; it matches as often as a reference has it",
                {"allowed": lambda counts: min(1, max(counts))}),
        Mistake("clipped-by-the-sum", "matches are clipped by the sum over the references; clip by the largest count",
                {"allowed": sum}),
        Mistake("first-reference-only", "only the first reference counts for matches; take the one with the "
                "largest count",
                {"allowed": lambda counts: counts[0]}),
        Mistake("clipped-by-the-smallest", "matches are clipped by the smallest count of the references; take "
                "the largest",
                {"allowed": min}),
        Mistake("shortest-reference", "the length is compared with the shortest reference; take the one closest "
                "in length",
                {"reference_length": lambda lengths, length: min(lengths)}),
        Mistake("longest-reference", "the length is compared with the longest reference; take the one closest "
                "in length",
                {"reference_length": lambda lengths, length: max(lengths)}),
        Mistake("length-of-first-reference", "the length is compared with the first reference; take the one "
                "closest in length",
                {"reference_length": lambda lengths, length: lengths[0]}),
        Mistake("mean-of-sentences", "scores of sentences are averaged; add up the counts of all sentences first",
                {"is_corpus": False}),
        Mistake("arithmetic-mean", "the precisions are averaged; take their geometric mean",
                {"average": lambda precisions: sum(precisions) / len(precisions)}),
        Mistake("product-without-root", "the precisions are multiplied without the fourth root",
                {"average": math.prod}),
        Mistake("three-orders", "n-grams up to 3 count; count those up to 4", {"orders": (1, 2, 3)}),
        Mistake("unigrams-only", "only single tokens count; count n-grams up to 4", {"orders": (1,)}),
    ),
)  # fmt: skip
