"""What can be said of a stack of layers, whatever model it belongs to: a language model, an encoder and decoder."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StackOptions:
    """Word vectors, layers and output. What only some layers understand is None unless it is given."""

    vocabulary: int
    """How many different tokens there are."""
    layers: int | None = None
    """How many layers there are; None means as many as are named."""
    width: int = 256
    """Size of a token vector between the layers."""
    embedding: int | None = None
    """Size of a word vector; None means the width of the first layer."""
    head_bias: bool = False
    """Whether the output adds a constant for each token of the vocabulary."""
    norm: str = "before"
    """Where the norm of a layer stands: before, after or none; before also puts one behind the last layer."""
    residual: bool = True
    """Whether a layer's input is added to its output."""
    feedforward: int | None = None
    """Hidden width of each layer's feed-forward network; None means four times the layer's width, 0 means none."""
    activation: str = "gelu"
    """Nonlinearity of the feed-forward network: relu, gelu or gelu-tanh."""
    dropout: float = 0.0
    """Share of values set to zero in training: in and after every layer, and of the word vectors."""
    input_dropout: float | None = None
    """Share of the word vectors' values set to zero in training; None means the same as `dropout`."""
    output_dropout: float = 0.0
    """Share of what the head reads set to zero in training, beside the last layer's dropout."""
    word_dropout: float = 0.0
    """Share of the words that are left out in training, each wherever it stands in a batch; one learned vector stands
    for all of them."""
    dropout_kind: str = "each"
    """What dropout sets to zero: each value by itself, or the same features for all tokens of a row (locked)."""
    init_scheme: str = "normal"
    """How the first weights are drawn: normal or uniform."""
    position: str = "none"
    """How a token's place gets in: none, learned, sinusoidal, sinusoidal-unpaired, rotary, alibi or relative."""
    max_positions: int = 1024
    """How many positions a learned table covers."""
    weight_drop: float | None = None
    """Share of a recurrent layer's weights from its last hidden state that are set to zero in training."""
    heads: int | None = None
    """Parallel heads of an attention layer; must divide its width."""
    head_width: int | None = None
    """Size of a query, key and value in one head; None means its share of the width."""
    bias: bool | None = None
    """Whether the projections of an attention layer add a constant."""
    score: str | None = None
    """How a key answers a query: scaled-dot, dot, bilinear, additive or cosine."""
    normalize: str | None = None
    """From scores to weights: softmax, sigmoid or sparsemax."""
    merge: str | None = None
    """How heads become one vector: concatenate, shuffle, shift, reweight or reweight-matrix."""
    combine: str | None = None
    """What a head hands on: what it found (context), or that plus its query (query)."""
    feature_map: str | None = None
    """What makes queries and keys of linear attention positive: elu, relu or softmax."""


OF_SOME_LAYERS = frozenset(
    {"weight_drop", "heads", "head_width", "bias", "score", "normalize", "merge", "combine", "feature_map"}
)
"""What not every layer understands: it goes to those that do."""
OF_ALL_LAYERS = frozenset(
    {"width", "embedding", "norm", "residual", "feedforward", "activation", "dropout", "input_dropout", "word_dropout",
     "dropout_kind", "init_scheme", "max_positions"}
)  # fmt: skip
"""What means the same for every stack. The rest belongs to the output, or depends on what the layers are."""
