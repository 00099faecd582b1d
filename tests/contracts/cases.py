"""Which mixers and which combinations of parts the promises are tested on."""

from collections.abc import Callable, Iterable, Iterator
from itertools import product

from anaphor.mixers import MIXERS, AttentionSpec, MixerSpec, mixer_spec
from anaphor.mixers.attention.heads import MERGES
from anaphor.mixers.attention.position import POSITIONS
from anaphor.mixers.attention.score import NORMALIZERS, SCORES
from anaphor.mixers.linear import FEATURE_MAPS

WIDTH = 8

# What a token may see, and how much of the past is kept.
VIEWS = {
    "causal": {},
    "window": {"window": 3},
    "memory": {"memory": 4},
    "sinks": {"mask": "causal & (window(3) | prefix(2))"},
    "hidden": {"mask": "causal & hidden(0, 3)"},
    "window-and-memory": {"window": 3, "memory": 5},
}


def table() -> dict[str, MixerSpec]:
    """Every mixer of the table, and the ways to build it that are not parts of attention."""
    specs = {name: mixer_spec(name, width=WIDTH) for name in MIXERS}
    specs |= {f"{name}-wider": mixer_spec(name, width=WIDTH, width_out=12) for name in MIXERS}
    specs |= {
        f"linear-{name}": mixer_spec("linear", width=WIDTH, heads=2, feature_map=name, chunk=3) for name in FEATURE_MAPS
    }
    specs |= {
        "delta-product": mixer_spec("delta", width=WIDTH, heads=2, num_householder=3, allow_neg_eigval=True, chunk=4),
        "gated-delta-by-channel": mixer_spec("gated-delta", width=WIDTH, heads=2, channel_decay=True, short_conv=3),
        "mamba2-rotated": mixer_spec("mamba2", width=WIDTH, heads=2, d_state=6, data_dependent_rope=True, short_conv=4),
        "gla-in-chunks": mixer_spec("gla", width=WIDTH, heads=1, chunk=8, short_conv=2),
        "mlstm-narrow-keys": mixer_spec("mlstm", width=WIDTH, heads=2, qk_dim_factor=0.5, expand_v=2.0, short_conv=3),
        "rg-lru-wide": mixer_spec("rg-lru", width=WIDTH, heads=3, lru_width=12, short_conv=4, chunk=2),
    }
    specs |= {
        f"{name}-grouped": mixer_spec(name, width=WIDTH, heads=4, kv_heads=2, qk_norm="rmsnorm", rank=3)
        for name in ("low-rank", "svd")
    }
    specs |= {
        f"attention-{name}": AttentionSpec(width=WIDTH, **{"heads": 2, **options})
        for name, options in {
            "query": {"combine": "query"},
            "narrow-heads": {"head_width": 2},
            "no-bias": {"bias": False},
            "no-bias-of-the-output": {"out_bias": False},
            "multi-query": {"kv_heads": 1},
            "grouped": {"heads": 4, "kv_heads": 2, "head_width": 6, "window": 4},
            "softcap": {"softcap": 2.0, "kv_heads": 1, "position": "alibi"},
            "softcap-bilinear": {"softcap": 0.5, "score": "bilinear", "window": 4},
            "softcap-whole": {"softcap": 2.0, "mask": "band(1, 2)"},
            "sink": {"normalize": "softmax-sink"},
            "sink-window": {"normalize": "softmax-sink", "window": 3, "kv_heads": 1, "position": "rotary"},
            "sink-softcap": {"normalize": "softmax-sink", "softcap": 2.0, "memory": 4, "qk_norm": "rmsnorm"},
            "sink-whole": {"normalize": "softmax-sink", "mask": "everything & hidden(1)"},
            "rotary-window": {"position": "rotary", "window": 4},
            "relative-window": {"position": "relative", "window": 4},
            "band": {"mask": "band(3, 0)"},
            "qk-rmsnorm": {"qk_norm": "rmsnorm", "kv_heads": 1, "position": "rotary"},
            "qk-layernorm": {"qk_norm": "layernorm", "memory": 3},
            "rotary-part": {"head_width": 8, "position": "rotary", "partial_rotary_factor": 0.25, "rope_theta": 100.0},
            "rotary-linear": {"position": "rotary", "rope_scaling": "linear(4)", "memory": 4},
            "rotary-ntk": {"position": "rotary", "rope_scaling": "ntk(3)"},
            "rotary-yarn": {"position": "rotary", "rope_scaling": "yarn(4, 8)", "window": 3},
            "rotary-llama3": {"position": "rotary", "rope_scaling": "llama3(8, 16)"},
            "grouped-rotary": {"heads": 4, "kv_heads": 2, "position": "rotary", "memory": 5},
            "grouped-relative": {"heads": 4, "kv_heads": 2, "position": "relative"},
            "grouped-alibi": {"kv_heads": 1, "position": "alibi", "score": "cosine"},
            "grouped-additive": {"kv_heads": 1, "score": "additive", "normalize": "sparsemax"},
            "grouped-whole": {"kv_heads": 1, "mask": "everything"},
            "shuffle": {"merge": "shuffle", "merge_evaluation": "concatenate"},
        }.items()
    }
    return specs


def every_three(*parts: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """A sixth of the product of five parts, in which each choice of any three of them occurs.

    The places of the choices add up to a multiple of six; whatever three parts are chosen, the other two together have
    the six sums that may be wanted. Three places may be left to four parts in the same way.
    """
    lists = [list(part) for part in parts]
    for places in product(*(range(len(choices)) for choices in lists)):
        if sum(places) % (6 if len(lists) == 5 else 3) == 0:
            yield tuple(choices[place] for choices, place in zip(lists, places, strict=True))


def combinations(choose: Callable[..., Iterable[tuple[str, ...]]] = product) -> dict[str, MixerSpec]:
    """Every score with every normalizer, position, merge and view: all that attention allows while it streams."""
    merges = [name for name, merge in MERGES.items() if merge.is_causal]
    return {
        "-".join(parts): AttentionSpec(
            width=WIDTH,
            heads=2,
            score=parts[0],
            normalize=parts[1],
            position=parts[2],
            merge=parts[3],
            max_positions=64,
            **VIEWS[parts[4]],
        )
        for parts in choose(SCORES, NORMALIZERS, POSITIONS, merges, VIEWS)
    }


def whole_sequence_combinations(choose: Callable[..., Iterable[tuple[str, ...]]] = product) -> dict[str, MixerSpec]:
    """Attention that sees later tokens, by its mask or by its merge: it does not stream."""
    masks = ("everything", "band(1, 2)", "causal | prefix(3)", "everything & hidden(1)")
    by_mask = {
        "-".join(parts): AttentionSpec(
            width=WIDTH, heads=2, score=parts[0], normalize=parts[1], position=parts[2], mask=parts[3]
        )
        for parts in choose(SCORES, NORMALIZERS, POSITIONS, masks)
    }
    by_merge = {
        f"reweight-matrix-{name}": AttentionSpec(width=WIDTH, heads=2, merge="reweight-matrix", normalize=name)
        for name in NORMALIZERS
    }
    return by_mask | by_merge
