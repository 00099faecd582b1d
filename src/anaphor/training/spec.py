"""All that makes a training run, in one flat page of names and numbers. Imports no torch: `--help` must be quick."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from anaphor.config import check_types, look_up
from anaphor.errors import ConfigError

BATCHINGS = {"stream": "one text in rows, segment after segment", "padded": "separate examples"}
PROTOCOLS = {"complete": "every token once", "example": "as the well-known example script"}
DTYPES = {"auto": "bfloat16 on a GPU, else float32", "float32": "single precision", "bfloat16": "half precision"}
DEVICES = {"auto": "a GPU where there is one, else the CPU", "cpu": "the CPU", "cuda": "a GPU"}
LARGEST_SEED = 2**63 - 1
AVERAGES = {"none": "no average", "ema": "an average that forgets", "tail": "the mean of the last part"}


def check_seed(seed: int) -> None:
    """Refuse a seed that the random generators cannot take."""
    if not 0 <= seed <= LARGEST_SEED:
        raise ConfigError(f"seed={seed}: it must be from 0 to {LARGEST_SEED}")


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What every training run has, whatever is trained: a budget, an optimizer, a seed, a place."""

    task: ClassVar[str]
    """What `train` calls it."""

    data: str
    """A named data set, or files."""
    model: str
    """A model by name."""
    batch_size: int = 20
    """Rows of a batch."""
    epochs: float | None = None
    """How often the training text is read; None means 3, unless steps or minutes are given."""
    steps: int | None = None
    """How many updates are made."""
    minutes: float | None = None
    """How long training takes; it shapes the schedule, too."""
    optimizer: str = "adamw"
    """Rule by which weights follow their gradients: sgd, adamw, adagrad or muon."""
    lr: float | None = None
    """Learning rate at its highest; None means the optimizer's usual one."""
    weight_decay: float = 0.0
    """How strongly matrices are pulled to zero."""
    betas: tuple[float, ...] = ()
    """How slowly the averages of gradients and of their squares move, of adamw and of muon's share of it; none given
    means 0.9 and 0.95."""
    momentum: float | None = None
    """Share of the last direction that is kept; None means 0 for sgd and 0.95 for muon."""
    layer_lr: tuple[float, ...] = ()
    """What each layer's learning rate is multiplied by, where they differ, from the first to the last; an encoder's
    layers come before a decoder's. Word vectors and the output keep the full rate."""
    schedule: str = "cosine"
    """How the learning rate moves: constant, linear, cosine or plateau."""
    warmup: float = 0.0
    """Share of the budget in which the learning rate rises from zero."""
    min_lr_ratio: float | None = None
    """What a linear or cosine schedule ends at, as a share of the highest learning rate; None means 0."""
    plateau_factor: float | None = None
    """What a plateau divides the learning rate by; None means 4."""
    clip: float = 1.0
    """Largest norm that all gradients together may have; 0 means no bound."""
    accumulate: int = 1
    """Batches whose gradients are added up before an update."""
    average: str = "none"
    """Which average of the weights is scored and kept: none, ema or tail."""
    patience: int | None = None
    """Stop after so many validations without a better one."""
    eval_every: int | None = None
    """Steps between validations; None means once an epoch."""
    seed: int = 0
    """Decides every random draw."""
    device: str = "auto"
    """Where it runs: auto, cpu or cuda."""
    dtype: str = "auto"
    """Number type of the computation: auto, float32 or bfloat16."""
    cuda_graph: bool = True
    """Whether a GPU records a step once and replays it; the same numbers, sooner."""

    def __post_init__(self) -> None:
        self.as_list("betas", "numbers", int, float)
        self.as_list("layer_lr", "numbers", int, float)
        check_types(self)
        look_up(DEVICES, self.device, "device")
        look_up(DTYPES, self.dtype, "number type")
        look_up(AVERAGES, self.average, "average")
        for name in ("batch_size", "accumulate", "steps", "patience", "eval_every"):
            self.at_least_one(name)
        for name in ("epochs", "minutes"):
            given = getattr(self, name)
            if given is not None and not 0 < given < float("inf"):
                raise ConfigError(f"{name}={given}: it must be above 0")
        if sum(given is not None for given in (self.epochs, self.steps, self.minutes)) > 1:
            raise ConfigError(f"epochs={self.epochs}, steps={self.steps}, minutes={self.minutes}: give one budget")
        if not 0 <= self.clip < float("inf"):
            raise ConfigError(f"clip={self.clip}: it must be 0 or more, and finite")
        check_seed(self.seed)

    def as_list(self, name: str, what: str, *kinds: type) -> None:
        """A list is welcome; a bare word is refused, for it would be taken apart."""
        given = getattr(self, name)
        listed = isinstance(given, Sequence) and not isinstance(given, str)
        # To Python a truth is a number, too.
        if not listed or not all(isinstance(one, kinds) and isinstance(one, bool) == (bool in kinds) for one in given):
            raise ConfigError(f"{name}={given!r}: it must be a list of {what}")
        object.__setattr__(self, name, tuple(given))

    def at_least_one(self, name: str) -> None:
        given = getattr(self, name)
        if given is not None and given < 1:
            raise ConfigError(f"{name}={given}: it must be at least 1")


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """What may be said of a model, whatever it is for. None keeps what the model's name stands for."""

    more_options: ClassVar[tuple[str, ...]] = ()
    """What one kind of model knows besides."""

    width: int | None = None
    """Size of a token vector between the layers."""
    layers: int | None = None
    """How many layers there are."""
    heads: int | None = None
    """Parallel heads of an attention layer."""
    feedforward: int | None = None
    """Hidden width of each layer's feed-forward network; 0 means none."""
    embedding: int | None = None
    """Size of a word vector."""
    dropout: float | None = None
    """Share of values set to zero in training."""
    input_dropout: float | None = None
    """Share of the word vectors' values set to zero in training."""
    output_dropout: float | None = None
    """Share of what the head reads set to zero in training."""
    word_dropout: float | None = None
    """Share of the words that are left out in training."""
    dropout_kind: str | None = None
    """What dropout sets to zero: each value by itself, or the same features for a whole segment (locked)."""
    weight_drop: float | None = None
    """Share of a recurrent layer's weights from its last hidden state that are set to zero in training."""
    norm: str | None = None
    """Where the norm of a layer stands: before, after or none; before also puts one behind the last layer."""
    residual: bool | None = None
    """Whether a layer's input is added to its output."""
    activation: str | None = None
    """Nonlinearity of the feed-forward network: relu, gelu or gelu-tanh."""
    init_scheme: str | None = None
    """How the first weights are drawn: normal or uniform."""
    head_bias: bool | None = None
    """Whether the output adds a constant for each token of the vocabulary."""
    position: str | None = None
    """How a token's place gets in: none, learned, sinusoidal, sinusoidal-unpaired, rotary, alibi or relative."""
    max_positions: int | None = None
    """How many positions a learned table covers."""
    score: str | None = None
    """How a key of attention answers a query: scaled-dot, dot, bilinear, additive or cosine."""
    normalize: str | None = None
    """From scores to weights: softmax, sigmoid or sparsemax."""
    combine: str | None = None
    """What a head hands on: what it found (context), or that plus its query (query)."""
    merge: str | None = None
    """How heads become one vector: concatenate, shuffle, shift or reweight."""

    def model_options(self) -> dict[str, Any]:
        """What was said of the model, as overrides of its preset."""
        names = [field.name for field in fields(ModelOptions)]
        said = {name: getattr(self, name) for name in (*names, *self.more_options)}
        return {name: value for name, value in said.items() if value is not None and value != ()}


@dataclass(frozen=True, kw_only=True)
class LanguageRunSpec(ModelOptions, RunSpec):
    """Train a language model. What is None is left to the model, the data or the optimizer."""

    task = "lm"
    more_options = ("mixers", "layer_widths", "layer_norms", "layer_residuals", "layer_dropouts", "tied", "causal",
                    "memory", "window", "mask", "head_width", "bias", "feature_map", "merge_evaluation")  # fmt: skip

    data: str = "python-reference"
    """A named data set, a folder with train, valid and test, or one text file."""
    model: str = "lstm"
    """A model by name; `anaphor models` lists them."""
    tokenizer: str = "word"
    """How text becomes tokens: word, treebank, character, byte or bpe."""
    vocabulary: int | None = None
    """How many different tokens to keep, for tokenizers that are told."""
    batching: str = "stream"
    """How text becomes batches: stream or padded."""
    max_examples: int | None = None
    """Train on so many examples only, to overfit on purpose."""
    mixers: tuple[str, ...] = ()
    """The layers spelled out, from first to last, in place of the model's own."""
    layer_widths: tuple[int, ...] = ()
    """Size of each layer's output, where they differ, in place of the width."""
    layer_norms: tuple[str, ...] = ()
    """Where each layer's norm stands, in place of the norm; that behind the last layer follows the norm alone."""
    layer_residuals: tuple[bool, ...] = ()
    """Whether each layer's input is added to its output, where they differ, in place of the residual."""
    layer_dropouts: tuple[float, ...] = ()
    """Share set to zero in and after each layer, where they differ; the word vectors still follow the dropout."""
    tied: bool | None = None
    """Whether the output uses the word vectors again."""
    causal: bool = True
    """Whether layers that see later tokens are refused; admitted, nothing is called a perplexity."""
    memory: int | None = None
    """How many past tokens a carried state of attention keeps."""
    window: int | None = None
    """How many tokens a token may see, itself included."""
    mask: str | None = None
    """Who may see whom in attention: causal, window(n), hidden(i, …) and their like, joined by & and |."""
    head_width: int | None = None
    """Size of a query, key and value in one head of attention; None means its share of the width."""
    bias: bool | None = None
    """Whether the projections of attention add a constant."""
    feature_map: str | None = None
    """What makes queries and keys of linear attention positive: elu, relu or softmax."""
    merge_evaluation: str | None = None
    """What the merge of heads does when the model is scored: same or concatenate."""
    activation_reg: float = 0.0
    """What the squares of what the head reads cost in training, on average."""
    temporal_activation_reg: float = 0.0
    """What the squares of its changes from token to token cost in training, on average."""
    bptt: int = 35
    """Tokens of a segment, through which gradient flows."""
    carry: bool | None = None
    """Whether state is carried from one segment to the next; None means wherever the model can."""
    random_offset: bool = False
    """Whether the rows are cut elsewhere in every epoch, so that every transition is learnt."""
    protocol: str = "complete"
    """How a split is scored: complete (every token once) or example (as the well-known example script)."""
    eval_batch_size: int = 10
    """Rows that are scored side by side."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.as_list("mixers", "names", str)
        self.as_list("layer_widths", "whole numbers", int)
        self.as_list("layer_norms", "names", str)
        self.as_list("layer_residuals", "True and False", bool)
        self.as_list("layer_dropouts", "numbers", int, float)
        look_up(BATCHINGS, self.batching, "batching")
        look_up(PROTOCOLS, self.protocol, "protocol")
        for name in ("bptt", "eval_batch_size", "max_examples"):
            self.at_least_one(name)


CHOICES = {"perplexity": "the lowest validation loss", "bleu": "the highest BLEU of greedy translations"}


@dataclass(frozen=True, kw_only=True)
class TranslationRunSpec(ModelOptions, RunSpec):
    """Train a translation model. What is None is left to the model, the data or the optimizer."""

    task = "translate"
    more_options = ("encoder", "decoder", "condition", "input_feeding", "encoder_layers", "tied")

    data: str = "echo"
    """Named sentence pairs, a folder with a file for each split and language, or two aligned files, `ONE,OTHER`."""
    source: str | None = None
    """The language to translate from."""
    target: str | None = None
    """The language to translate to."""
    tokenizer: str = "word"
    """How text becomes tokens: word, treebank, character, byte or bpe."""
    vocabulary: int | None = None
    """How many different tokens to keep, for tokenizers that are told."""
    joint: bool = False
    """Whether both languages have one tokenizer."""
    max_examples: int | None = None
    """Train on so many pairs only, to overfit on purpose."""
    max_length: int | None = None
    """Leave out training pairs with more tokens on either side."""
    model: str = "luong"
    """A model by name: luong, gru-attention, transformer-translation or mixed."""
    encoder: tuple[str, ...] = ()
    """The encoder's layers spelled out, from first to last, in place of the model's own."""
    decoder: tuple[str, ...] = ()
    """The decoder's layers, likewise."""
    condition: str | None = None
    """What the decoder knows of the source: none, state or attention."""
    input_feeding: bool | None = None
    """Whether a recurrent decoder reads what attention found with the next token."""
    layers: int | None = None
    """How many layers the decoder has, and the encoder too unless it is told otherwise."""
    encoder_layers: int | None = None
    """How many layers the encoder has."""
    tied: str | None = None
    """Which word vectors are one matrix: all (source, target and output), target (and output) or none."""
    batch_size: int = 32
    """Pairs of a batch."""
    batch_tokens: int | None = None
    """As many pairs as fit into so many tokens of the longer side, padding counted, in place of batch_size."""
    pad_to: int = 1
    """Lengths are padded to a multiple of this, so that there are few shapes."""
    label_smoothing: float = 0.0
    """Share of every target's probability that is given to all tokens alike in training."""
    rdrop: float = 0.0
    """What it costs in training that two readings with different dropout differ; every batch is then read twice."""
    select: str = "perplexity"
    """What the best model is chosen by while it trains: perplexity or bleu."""
    beam: int = 5
    """Width of the beam with which the finished model's BLEU is measured."""
    length_penalty: float = 1.0
    """Power of the length by which its log-probabilities are divided there."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.as_list("encoder", "names", str)
        self.as_list("decoder", "names", str)
        look_up(CHOICES, self.select, "choice of the best")
        for name in ("batch_tokens", "pad_to", "max_examples", "max_length", "beam", "encoder_layers"):
            self.at_least_one(name)
        if self.condition == "none" and (self.encoder or self.encoder_layers is not None):
            raise ConfigError("condition='none' leaves the source unread: an encoder means nothing to it")
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"label_smoothing={self.label_smoothing}: it must be at least 0 and below 1")
        if not 0 <= self.length_penalty <= 10:
            raise ConfigError(f"length_penalty={self.length_penalty}: it must be from 0 to 10")
