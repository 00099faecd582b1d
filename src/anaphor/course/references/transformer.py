"""Blocks of attention and feed-forward networks, their stack, and a language model of dialogues.

Three places for the norm are right, and three activations: a student's own is compared with each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, permutations
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from anaphor.course.reference import Case, DoesNotFit, Mistake, Outputs, Reference, Sizes, Weights
from anaphor.course.references.attention import (
    ATTENTION_MISTAKES,
    HEAD_MISTAKES,
    MultiHead,
    as_bool,
    attention_shapes,
    head_sizes,
    ignored,
    multi_head,
    same,
    sequence_cases,
)
from anaphor.course.weights import Weight, as_matrix, read_attention, split_layers, stem_of

Step = Callable[[Tensor], Tensor]
Attended = tuple[Tensor, Tensor]


def norm(w: Weights, name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])


def norm_over_tokens(w: Weights, name: str, x: Tensor) -> Tensor:
    centered = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
    return centered * w[f"{name}.weight"] + w[f"{name}.bias"]


def no_norm(w: Weights, name: str, x: Tensor) -> Tensor:
    return x


def one_norm(w: Weights, name: str, x: Tensor) -> Tensor:
    """The norm of the feed-forward network in both places."""
    return norm(w, "norm2", x)


def feed_forward(w: Weights, x: Tensor, activation: Step) -> Tensor:
    return activation(x @ w["w1"].T + w["b1"]) @ w["w2"].T + w["b2"]


def activation_last(w: Weights, x: Tensor, activation: Step) -> Tensor:
    return activation((x @ w["w1"].T + w["b1"]) @ w["w2"].T + w["b2"])


def activation_twice(w: Weights, x: Tensor, activation: Step) -> Tensor:
    return activation(feed_forward(w, x, activation))


def no_feed_forward(w: Weights, x: Tensor, activation: Step) -> Tensor:
    return x


def add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def replace_by(x: Tensor, y: Tensor) -> Tensor:
    return y


def add_detached(x: Tensor, y: Tensor) -> Tensor:
    return x.detach() + y


@dataclass(frozen=True)
class BlockRules:
    """Steps of a block."""

    arrange: Callable[[Weights, Tensor, Tensor | None, BlockRules], Attended]
    activation: Step
    attention: MultiHead = field(default_factory=MultiHead)
    norm: Callable[[Weights, str, Tensor], Tensor] = norm
    feed_forward: Callable[[Weights, Tensor, Step], Tensor] = feed_forward
    after_attention: Callable[[Tensor, Tensor], Tensor] = add
    after_feed_forward: Callable[[Tensor, Tensor], Tensor] = add
    start_of_second: Callable[[Tensor, Tensor], Tensor] = field(default=lambda x, y: y)
    """What the second residual connection starts from: the input of the block, or what follows attention."""
    mask: Callable[[Tensor | None], Tensor | None] = same


def _inner(w: Weights, x: Tensor, rules: BlockRules) -> Tensor:
    return rules.feed_forward(w, x, rules.activation)


def norm_first(w: Weights, x: Tensor, mask: Tensor | None, rules: BlockRules) -> Attended:
    """x + attention(norm(x)), then x + feed_forward(norm(x))"""
    y, A = multi_head(w, rules.norm(w, "norm1", x), mask, rules.attention)
    h = rules.after_attention(x, y)
    return rules.after_feed_forward(rules.start_of_second(x, h), _inner(w, rules.norm(w, "norm2", h), rules)), A


def norm_last(w: Weights, x: Tensor, mask: Tensor | None, rules: BlockRules) -> Attended:
    """norm(x + attention(x)), then norm(x + feed_forward(x))"""
    y, A = multi_head(w, x, mask, rules.attention)
    h = rules.norm(w, "norm1", rules.after_attention(x, y))
    out = rules.after_feed_forward(rules.start_of_second(x, h), _inner(w, h, rules))
    return rules.norm(w, "norm2", out), A


def norm_inside(w: Weights, x: Tensor, mask: Tensor | None, rules: BlockRules) -> Attended:
    """x + attention(x), then x + feed_forward(norm(x))"""
    if "norm1.weight" in w:
        raise DoesNotFit
    y, A = multi_head(w, x, mask, rules.attention)
    h = rules.after_attention(x, y)
    return rules.after_feed_forward(rules.start_of_second(x, h), _inner(w, rules.norm(w, "norm2", h), rules)), A


def norm_before_and_inside_residual(w: Weights, x: Tensor, mask: Tensor | None, rules: BlockRules) -> Attended:
    """A mistake: the residual connections start after the norms."""
    x = rules.norm(w, "norm1", x)
    y, A = multi_head(w, x, mask, rules.attention)
    h = rules.norm(w, "norm2", x + y)
    return h + _inner(w, h, rules), A


def feed_forward_first(w: Weights, x: Tensor, mask: Tensor | None, rules: BlockRules) -> Attended:
    """A mistake: the order of the two."""
    h = x + _inner(w, rules.norm(w, "norm2", x), rules)
    y, A = multi_head(w, rules.norm(w, "norm1", h) if "norm1.weight" in w else h, mask, rules.attention)
    return h + y, A


def side_by_side(w: Weights, x: Tensor, mask: Tensor | None, rules: BlockRules) -> Attended:
    """A mistake in these courses: both read the input of the block."""
    y, A = multi_head(w, rules.norm(w, "norm1", x) if "norm1.weight" in w else x, mask, rules.attention)
    return x + y + _inner(w, rules.norm(w, "norm2", x), rules), A


ACTIVATIONS: tuple[Step, ...] = (F.gelu, F.relu, partial(F.gelu, approximate="tanh"))
BLOCK_DESIGNS = tuple(
    BlockRules(arrange, activation) for activation in ACTIVATIONS for arrange in (norm_first, norm_inside, norm_last)
)


def block(w: Weights, x: Tensor, mask: Tensor | None, rules: BlockRules) -> Attended:
    return rules.arrange(w, x, rules.mask(mask), rules)


BLOCK_MISTAKES = (
    Mistake("no-residual-after-attention", "the input is not added to the output of attention",
            {"after_attention": replace_by}),
    Mistake("no-residual-after-feed-forward", "the input is not added to the output of the feed-forward network",
            {"after_feed_forward": replace_by}),
    Mistake("no-residual", "nothing is added to the output of attention and of the feed-forward network",
            {"after_attention": replace_by, "after_feed_forward": replace_by}),
    Mistake("second-residual-from-input", "the second residual connection starts from the input of the block; it "
            "starts from what follows attention", {"start_of_second": lambda x, h: x}),
    Mistake("residual-from-norm", "the residual connections start after the norms; they start before them",
            {"arrange": norm_before_and_inside_residual}),
    Mistake("no-norm", "the norms are not applied", {"norm": no_norm}),
    Mistake("norm-over-tokens", "the norm runs over the tokens; it runs over the features of each token",
            {"norm": norm_over_tokens}),
    Mistake("one-norm-for-both", "attention and the feed-forward network share one norm; each has its own",
            {"norm": one_norm}),
    Mistake("no-activation", "the feed-forward network has no activation between its layers", {"activation": same}),
    Mistake("activation-last", "the activation of the feed-forward network comes last; it stands between the layers",
            {"feed_forward": activation_last}),
    Mistake("activation-twice", "the feed-forward network has an activation after its last layer, too",
            {"feed_forward": activation_twice}),
    Mistake("no-feed-forward", "the feed-forward network is not applied", {"feed_forward": no_feed_forward,
            "after_feed_forward": lambda x, y: x}),
    Mistake("feed-forward-first", "the feed-forward network comes before attention; it comes after it",
            {"arrange": feed_forward_first}),
    Mistake("side-by-side", "the feed-forward network reads the input of the block; it reads what follows attention",
            {"arrange": side_by_side}),
    Mistake("mask-not-passed-on", "the mask does not reach attention", {"mask": ignored}),
    Mistake("residual-detached", "no gradient flows through the residual connection",
            {"after_attention": add_detached}),
)  # fmt: skip

INSIDE_A_BLOCK = (
    *BLOCK_MISTAKES,
    *(one.inside("attention") for one in HEAD_MISTAKES),
    *(one.inside("attention", "attend") for one in ATTENTION_MISTAKES),
)


def is_feed_forward(weight: Weight, sizes: Sizes) -> bool:
    """Whether a matrix is of the feed-forward network, by its shape: no matrix of attention has its inner width."""
    dim, every = sizes["dim"], sizes["num_heads"] * sizes["attn_dim"]
    others = {dim, every, 2 * every, 3 * every, sizes["attn_dim"], 2 * sizes["attn_dim"], 3 * sizes["attn_dim"]}
    shape = weight.value.shape
    return len(shape) == 2 and dim in shape and not {*shape} <= others


def read_block(given: Sequence[Weight], sizes: Sizes) -> Iterator[Weights]:
    """Every way to read weights as those of a block."""
    dim = sizes["dim"]
    norms = [weight for weight in given if weight.is_norm]
    matrices = [weight for weight in given if is_feed_forward(weight, sizes)]
    if len(matrices) != 2:
        return
    stems = [weight.name.rpartition(".")[0] for weight in matrices]
    inner = next(size for size in matrices[0].value.shape if size != dim)
    biases = [
        weight
        for weight in given
        if weight.value.ndim == 1 and not weight.is_norm and weight.is_bias
        and (weight.name.rpartition(".")[0] in stems if stems[0] else len(weight.value) == inner)
    ]  # fmt: skip
    like = matrices[0].value
    own: Weights = {"b1": like.new_zeros(inner), "b2": like.new_zeros(dim)}
    for bias in biases:
        own["b1" if len(bias.value) == inner else "b2"] = bias.value
    first, second = as_matrix(matrices[0], inner, dim), as_matrix(matrices[1], dim, inner)
    if not first or not second:
        return
    own |= {"w1": first[0], "w2": second[0]}
    inside = {id(weight) for weight in (*norms, *matrices, *biases)}
    rest = [weight for weight in given if id(weight) not in inside]
    heads, size = sizes["num_heads"], sizes["attn_dim"]
    for norm_weights in read_norms(norms, dim, like):
        for has_output in (True, False):
            for attention in read_attention(rest, heads, size, dim, has_output=has_output):
                yield own | norm_weights | attention


def read_norms(norms: Sequence[Weight], dim: int, like: Tensor) -> Iterator[Weights]:
    """The norms of a block in both orders; those without weights scale by one."""
    shifts = {stem_of(weight.name): weight.value for weight in norms if weight.is_bias}
    scales = [weight for weight in norms if not weight.is_bias]
    pairs = [(one.value, shifts.get(stem_of(one.name), like.new_zeros(dim))) for one in scales]
    if not pairs:
        pairs = [(like.new_ones(dim), like.new_zeros(dim))] * 2
    if len(pairs) == 1:
        yield {"norm2.weight": pairs[0][0], "norm2.bias": pairs[0][1]}
    elif len(pairs) == 2:
        for one, other in permutations(pairs):
            yield {"norm1.weight": one[0], "norm1.bias": one[1], "norm2.weight": other[0], "norm2.bias": other[1]}


def block_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    dim, inner = sizes["dim"], sizes.get("mlp_dim", 4 * sizes["dim"])
    shapes = attention_shapes(sizes["num_heads"], sizes["attn_dim"], dim)
    shapes |= {"norm1.weight": (dim,), "norm1.bias": (dim,), "norm2.weight": (dim,), "norm2.bias": (dim,)}
    return shapes | {"w1": (inner, dim), "b1": (inner,), "w2": (dim, inner), "b2": (dim,)}


def block_sizes(sizes: Sizes) -> Sizes:
    """With the width of a head, which is dim / num_heads where the constructor takes none."""
    if "attn_dim" in sizes:
        return {**sizes}
    size = head_sizes({"dim": sizes["dim"], "num_heads": sizes["num_heads"]})["n_hidden"]
    return {**sizes, "attn_dim": size}


def compute_block(w: Weights, inputs: Mapping[str, Any], rules: BlockRules) -> Outputs:
    out, A = block(w, inputs["x"], inputs["attn_mask"], rules)
    return {"out": out, "A": A}


BLOCK_SIZES = {"dim": 12, "attn_dim": 2, "mlp_dim": 14, "num_heads": 4}
TRANSFORMER_BLOCK = Reference(
    name="TransformerBlock",
    call="TransformerBlock(dim, attn_dim, mlp_dim, num_heads), forward(x, attn_mask=None) -> out [B, T, dim], "
    "A [B, H, T, T]",
    outputs=("out", "A"),
    arguments=("x", "attn_mask"),
    optional=("attn_mask",),
    sizes=BLOCK_SIZES,
    constructors=(
        ("dim", "attn_dim", "mlp_dim", "num_heads"),
        ("dim", "num_heads"),
        ("dim", "num_heads", "mlp_dim"),
        ("dim", "attn_dim", "num_heads"),
    ),
    derived=block_sizes,
    cases=lambda sizes: sequence_cases(sizes["dim"]),
    read=read_block,
    shapes=block_shapes,
    compute=compute_block,
    designs=BLOCK_DESIGNS,
    mistakes=INSIDE_A_BLOCK,
    pairs=600,
    tried=48,
    forms={"a mask of bool": as_bool},
    time_first=("x", "out"),
)


def layer_of(w: Weights, number: int) -> Weights:
    prefix = f"{number}."
    found = {name.removeprefix(prefix): value for name, value in w.items() if name.startswith(prefix)}
    if not found:
        raise DoesNotFit
    return found


def count_layers(w: Weights) -> int:
    """Of weights as `load_reference` got them."""
    return 1 + max(int(name.partition(".")[0]) for name in w if name[0].isdigit())


def in_order(count: int) -> list[int]:
    return [*range(count)]


@dataclass(frozen=True)
class StackRules:
    """Steps around the blocks."""

    block: BlockRules
    order: Callable[[int], list[int]] = in_order
    """Which layer is applied when."""
    masks: Callable[[Tensor | None, int], Tensor | None] = field(default=lambda mask, number: mask)
    inputs: Callable[[Tensor, Tensor], Tensor] = field(default=lambda x, h: h)
    """What a layer reads: the output of the layer before."""
    maps: Callable[[list[Tensor]], Tensor] = field(default=lambda maps: torch.stack(maps, dim=1))
    final: Callable[[Weights, str, Tensor], Tensor] = norm


def stack(w: Weights, x: Tensor, mask: Tensor | None, rules: StackRules) -> Attended:
    """Blocks in sequence, with a last norm where there is one."""
    count = int(w["layers"]) if "layers" in w else count_layers(w)
    maps, h = [], x
    for place, number in enumerate(rules.order(count)):
        h, A = block(layer_of(w, number), rules.inputs(x, h), rules.masks(mask, place), rules.block)
        maps.append(A)
    return rules.final(w, "final", h) if "final.weight" in w else h, rules.maps(maps)


STACK_DESIGNS = tuple(StackRules(rules) for rules in BLOCK_DESIGNS)
STACK_MISTAKES = (
    Mistake("one-layer-repeated", "all layers are one and the same, with the same weights; make one for each",
            {"order": lambda count: [0] * count}),
    Mistake("last-layer-left-out", "the last layer is not applied", {"order": lambda count: [*range(count - 1)]}),
    Mistake("first-layer-left-out", "the first layer is not applied", {"order": lambda count: [*range(1, count)]}),
    Mistake("layers-reversed", "the layers are applied from last to first", {"order": lambda n: [*range(n)][::-1]}),
    Mistake("layers-read-the-input", "every layer reads the input; it reads the output of the layer before",
            {"inputs": lambda x, h: x}),
    Mistake("mask-for-first-layer-only", "only the first layer gets the mask; pass it to all of them",
            {"masks": lambda mask, place: mask if place == 0 else None}),
    Mistake("map-of-last-layer", "A is that of the last layer alone; return [B, layers, H, T, T]",
            {"maps": lambda maps: maps[-1]}),
    Mistake("map-of-first-layer", "A is that of the first layer alone; return [B, layers, H, T, T]",
            {"maps": lambda maps: maps[0]}),
    Mistake("layers-before-batch", "A is [layers, B, H, T, T]; return [B, layers, H, T, T]",
            {"maps": torch.stack}),
    Mistake("final-norm-left-out", "the last norm has weights and is not applied", {"final": no_norm}),
)  # fmt: skip
INSIDE_A_STACK = (*STACK_MISTAKES, *(one.inside("block") for one in INSIDE_A_BLOCK))


def read_stack(given: Sequence[Weight], sizes: Sizes) -> Iterator[Weights]:
    """Every way to read weights as those of a stack of blocks; one block that is repeated is one layer."""
    layers = sizes["num_layers"]
    split = split_layers(given, layers)
    groups, rest = ([list(given)], []) if split is None else split
    base: Weights = {"layers": torch.tensor(layers)}
    scales = [weight for weight in rest if weight.is_norm]
    if len(scales) != len(rest) or len(rest) > 2:
        return
    if scales:
        shift = scales[1].value if len(scales) == 2 else scales[0].value.new_zeros(sizes["dim"])
        base |= {"final.weight": scales[0].value, "final.bias": shift}
    readings = zip(*(read_block(group, sizes) for group in groups), strict=False)
    for reading in islice(readings, 32):
        found = dict(base)
        for number, block_weights in enumerate(reading):
            found |= {f"{number}.{name}": value for name, value in block_weights.items()}
        yield found


def stack_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    shapes = block_shapes(sizes)
    return {f"{number}.{name}": shape for number in range(sizes["num_layers"]) for name, shape in shapes.items()}


def compute_stack(w: Weights, inputs: Mapping[str, Any], rules: StackRules) -> Outputs:
    out, A = stack(w, inputs["x"], inputs["attn_mask"], rules)
    return {"out": out, "A": A}


STACK_FORMS = (
    ("dim", "attn_dim", "mlp_dim", "num_heads", "num_layers"),
    ("dim", "num_heads", "num_layers"),
    ("dim", "num_heads", "mlp_dim", "num_layers"),
)
TRANSFORMER = Reference(
    name="Transformer",
    call="Transformer(dim, attn_dim, mlp_dim, num_heads, num_layers), forward(x, attn_mask=None) -> out [B, T, dim], "
    "A [B, layers, H, T, T]",
    outputs=("out", "A"),
    arguments=("x", "attn_mask"),
    optional=("attn_mask",),
    sizes={**BLOCK_SIZES, "num_layers": 3},
    constructors=STACK_FORMS,
    derived=block_sizes,
    cases=lambda sizes: sequence_cases(sizes["dim"]),
    read=read_stack,
    shapes=stack_shapes,
    compute=compute_stack,
    designs=STACK_DESIGNS,
    mistakes=INSIDE_A_STACK,
    pairs=200,
    tried=24,
    forms={"a mask of bool": as_bool},
    time_first=("x", "out"),
)


def causal(tokens: int) -> Tensor:
    return torch.ones(tokens, tokens).tril()


@dataclass(frozen=True)
class DialogueRules:
    """Steps of a language model around its blocks."""

    stack: StackRules
    mask: Callable[[int], Tensor | None] = causal
    steps: Callable[[Tensor], Tensor] = field(default=lambda ids: torch.arange(ids.shape[1], device=ids.device))
    join: Callable[[Tensor, Tensor], Tensor] = add
    logits: Callable[[Weights, Tensor], Tensor] = field(default=lambda w, h: h @ w["head"].T + w["head.bias"])


def compute_dialogue(w: Weights, inputs: Mapping[str, Any], rules: DialogueRules) -> Outputs:
    ids = inputs["input_ids"]
    x = rules.join(w["token"][ids], w["position"][rules.steps(ids)])
    h, A = stack(w, x, rules.mask(ids.shape[1]), rules.stack)
    return {"logits": rules.logits(w, h), "A": A}


DIALOGUE_MISTAKES = (
    Mistake("no-causal-mask", "a token sees later ones: pass a causal mask", {"mask": lambda n: None}),
    Mistake("mask-for-the-wrong-side", "a token sees itself and later ones: the mask is 1 on and below the diagonal "
            "(torch.tril)", {"mask": lambda n: torch.ones(n, n).triu()}),
    Mistake("mask-one-too-far", "a token sees the next one, which it is to predict: torch.tril(…, 0)",
            {"mask": lambda n: torch.ones(n, n).tril(1)}),
    Mistake("mask-without-itself", "a token does not see itself; it sees itself and those before it",
            {"mask": lambda n: (torch.ones(n, n).tril(-1) + torch.eye(1, n).T @ torch.eye(1, n))}),
    Mistake("positions-left-out", "the embeddings of positions are not added", {"join": lambda x, p: x}),
    Mistake("tokens-left-out", "the embeddings of tokens are not added", {"join": lambda x, p: p.expand_as(x)}),
    Mistake("positions-multiplied", "the embeddings of positions are multiplied; add them",
            {"join": lambda x, p: x * p}),
    Mistake("positions-from-one", "positions are counted from 1; the first token has position 0",
            {"steps": lambda ids: torch.arange(1, ids.shape[1] + 1)}),
    Mistake("positions-by-token", "positions are looked up by token ids; use torch.arange(T)",
            {"steps": lambda ids: ids.clamp(max=19)}),
    Mistake("positions-reversed", "positions are counted from the end; the first token has position 0",
            {"steps": lambda ids: torch.arange(ids.shape[1]).flip(0)}),
    Mistake("position-of-first-for-all", "all tokens have the embedding of position 0",
            {"steps": lambda ids: torch.zeros(ids.shape[1], dtype=torch.long)}),
    Mistake("returns-probabilities", "the output has gone through a softmax; return logits, which the loss expects",
            {"logits": lambda w, h: torch.softmax(h @ w["head"].T + w["head.bias"], -1)}),
    Mistake("returns-log-probabilities", "the output has gone through a log-softmax; return logits",
            {"logits": lambda w, h: torch.log_softmax(h @ w["head"].T + w["head.bias"], -1)}),
    Mistake("head-left-out", "the output has the width of the model; apply the head, which makes logits of it",
            {"logits": lambda w, h: h}),
)  # fmt: skip


def read_dialogue(given: Sequence[Weight], sizes: Sizes) -> Iterator[Weights]:
    """Embeddings and the head by their shapes; the rest is a stack."""
    dim, words, most = sizes["dim"], sizes["vocab_size"], sizes["max_seq_len"]
    tables = [one for one in given if one.value.ndim == 2 and {*one.value.shape} == {words, dim}]
    places = [one for one in given if one.value.numel() == most * dim and one.value.shape[-1] == dim]
    biases = [one for one in given if tuple(one.value.shape) == (words,)]
    if not 1 <= len(tables) <= 2 or len(places) != 1:
        return
    inside = {id(one) for one in (*tables, *places, *biases)}
    rest = [one for one in given if id(one) not in inside]
    tables = sorted(tables, key=lambda one: one.is_linear)
    token, head = tables[0], tables[-1]
    bias = biases[0].value if biases else token.value.new_zeros(words)
    outer = {
        "token": as_matrix(token, words, dim)[0],
        "head": as_matrix(head, words, dim)[0],
        "head.bias": bias,
        "position": places[0].value.reshape(most, dim),
    }
    for reading in read_stack(rest, sizes):
        yield reading | outer


def dialogue_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    dim, words = sizes["dim"], sizes["vocab_size"]
    outer: dict[str, tuple[int, ...]] = {"token": (words, dim), "position": (sizes["max_seq_len"], dim)}
    return stack_shapes(sizes) | outer | {"head": (words, dim), "head.bias": (words,)}


def dialogue_cases(sizes: Sizes) -> list[Case]:
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(sizes["vocab_size"], (5, 7), generator=generator)
    return [
        Case("of token ids", {"input_ids": ids}, "with causality"),
        Case("of other sizes", {"input_ids": ids[:2, 2:6].flip(0)}, "for another batch size and length"),
    ]


DIALOGUE_GPT = Reference(
    name="DialogueGPT",
    call="DialogueGPT(vocab_size, dim, attn_dim, mlp_dim, num_heads, num_layers, max_seq_len), "
    "forward(input_ids) -> logits [B, T, vocab_size], A [B, layers, H, T, T]",
    outputs=("logits", "A"),
    arguments=("input_ids",),
    sizes={"vocab_size": 23, **BLOCK_SIZES, "num_layers": 3, "max_seq_len": 20},
    constructors=tuple(("vocab_size", *form, "max_seq_len") for form in STACK_FORMS),
    derived=block_sizes,
    cases=dialogue_cases,
    read=read_dialogue,
    shapes=dialogue_shapes,
    compute=compute_dialogue,
    designs=tuple(DialogueRules(rules) for rules in STACK_DESIGNS),
    mistakes=(*DIALOGUE_MISTAKES, *(one.inside("stack") for one in INSIDE_A_STACK)),
    pairs=200,
    tried=24,
)
