"""The references by name, with what they are. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from anaphor.config import look_up
from anaphor.registry import import_object

if TYPE_CHECKING:
    from anaphor.course.reference import Reference


@dataclass(frozen=True)
class Entry:
    """A line of the list of references."""

    call: str
    """How the student's own is made and called, and what it returns."""
    reference: str
    """Where it is: "module:attribute"."""
    other_names: tuple[str, ...] = ()
    """Names that courses have for it."""


_FOLDER = "anaphor.course.references"
CATALOG: dict[str, Entry] = {
    "AttentionHead": Entry(
        "(dim, n_hidden); forward(x, attn_mask=None) -> out [B, T, n_hidden], A [B, T, T]",
        f"{_FOLDER}.attention:ATTENTION_HEAD",
        ("SelfAttention", "SingleHeadAttention", "Head"),
    ),
    "MultiHeadAttention": Entry(
        "(dim, n_hidden, num_heads) or (dim, num_heads); forward(x, attn_mask=None) -> out [B, T, dim], A [B, H, T, T]",
        f"{_FOLDER}.attention:MULTI_HEAD_ATTENTION",
        ("MultiHeadedAttention", "MultiHeadSelfAttention", "MHA"),
    ),
    "TransformerBlock": Entry(
        "(dim, attn_dim, mlp_dim, num_heads) or (dim, num_heads); forward(x, attn_mask=None) -> out [B, T, dim], "
        "A [B, H, T, T]",
        f"{_FOLDER}.transformer:TRANSFORMER_BLOCK",
        ("AttentionResidual", "Block", "EncoderLayer", "TransformerLayer"),
    ),
    "Transformer": Entry(
        "(dim, attn_dim, mlp_dim, num_heads, num_layers); forward(x, attn_mask=None) -> out [B, T, dim], "
        "A [B, layers, H, T, T]",
        f"{_FOLDER}.transformer:TRANSFORMER",
    ),
    "PatchEmbed": Entry(
        "(img_size, patch_size, in_chans, embed_dim); forward(x [B, C, H, W]) -> out [B, N, embed_dim]",
        f"{_FOLDER}.images:PATCH_EMBED",
        ("PatchEmbedding",),
    ),
    "ViT": Entry(
        "(img_size, patch_size, in_chans, dim, attn_dim, mlp_dim, num_heads, num_layers, num_classes); "
        "forward(x [B, C, H, W]) -> logits [B, num_classes], A [B, layers, H, N + 1, N + 1]",
        f"{_FOLDER}.vision_transformer:VIT",
        ("VisionTransformer",),
    ),
    "RNNCell": Entry(
        "(input_size, hidden_size); forward(x [B, input_size], h [B, hidden_size]) -> h",
        f"{_FOLDER}.recurrent:RNN_CELL",
        ("RecurrentCell", "ElmanCell", "VanillaRNNCell"),
    ),
    "LSTMCell": Entry(
        "(input_size, hidden_size); forward(x [B, input_size], (h, c)) -> h, c [B, hidden_size]",
        f"{_FOLDER}.recurrent:LSTM_CELL",
    ),
    "Hybrid": Entry(
        "(input_size, hidden_size, num_heads) or (dim, num_heads); forward(x [B, T, input_size], state=None) -> "
        "y [B, T, hidden_size], state",
        f"{_FOLDER}.hybrid:HYBRID",
        ("HybridLayer", "LSTMAttention", "RecurrentAttention"),
    ),
    "PositionalEncoding": Entry(
        "(dim, max_seq_len) or (dim); forward(x [B, T, dim]) -> x + sines and cosines [B, T, dim]",
        f"{_FOLDER}.positions:SINUSOIDAL",
        ("SinusoidalPositionalEncoding", "SinusoidalEncoding", "SineCosineEncoding", "SinusoidalPositions"),
    ),
    "LearnedPositionalEncoding": Entry(
        "(max_seq_len, dim); forward(x [B, T, dim]) -> x + learned embeddings [B, T, dim]",
        f"{_FOLDER}.positions:LEARNED",
        ("LearnedPositions", "LearnedEncoding", "PositionalEmbedding", "PositionEmbedding"),
    ),
    "apply_rotary": Entry(
        "function (x [B, H, T, K]) -> x [B, H, T, K], rotated by the positions",
        f"{_FOLDER}.positions:ROTARY",
        ("rotary", "rope", "apply_rope", "rotary_embedding"),
    ),
    "alibi_bias": Entry(
        "function (num_heads, length) -> bias [H, T, T], added to the scores",
        f"{_FOLDER}.positions:ALIBI",
        ("alibi", "build_alibi", "get_alibi"),
    ),
    "shuffle": Entry(
        "function (heads [B, H, T, K]) -> [B, T, H · K], the heads in an order drawn at each call",
        f"{_FOLDER}.merges:SHUFFLE",
        ("merge_shuffle", "shuffle_heads"),
    ),
    "shift": Entry(
        "function (heads [B, H, T, K]) -> [B, T, H · K], the heads 2, …, H, 1",
        f"{_FOLDER}.merges:SHIFT",
        ("merge_shift", "shift_heads"),
    ),
    "reweight": Entry(
        "function (heads [B, H, T, K]) -> [B, T, H · K], each head times its norm",
        f"{_FOLDER}.merges:REWEIGHT",
        ("merge_reweight", "reweight_heads"),
    ),
    "DialogueGPT": Entry(
        "(vocab_size, dim, attn_dim, mlp_dim, num_heads, num_layers, max_seq_len); "
        "forward(input_ids) -> logits [B, T, vocab_size], A [B, layers, H, T, T]",
        f"{_FOLDER}.transformer:DIALOGUE_GPT",
        ("GPT",),
    ),
    "DialogueLoss": Entry(
        "(); forward(logits [B, T, V], input_ids [B, T], input_mask [B, T]) -> loss; or a function of these",
        f"{_FOLDER}.streams:DIALOGUE_LOSS",
    ),
    "batchify": Entry("function (data, bsz) -> columns [T, B]", f"{_FOLDER}.streams:BATCHIFY"),
    "get_batch": Entry(
        "function (source, i, bptt) -> data [T, B], targets [T · B] or [T, B]", f"{_FOLDER}.streams:GET_BATCH"
    ),
    "bilinear_score": Entry(
        "function (Q [B, T', d], K [B, T, d], W [d, d]) -> scores [B, T', T], Q[l, i] · W K[l, j]",
        f"{_FOLDER}.luong:BILINEAR_SCORE",
    ),
    "attentional_vector": Entry(
        "function (c [B, T', d], h [B, T', d], W [d, 2d]) -> tanh(W [c; h]) [B, T', d]",
        f"{_FOLDER}.luong:ATTENTIONAL_VECTOR",
    ),
    "Tokenizer": Entry(
        "() with train(text), encode(text) -> ids that begin with <start>, decode(ids) -> text; words and punctuation",
        f"{_FOLDER}.tokenizer:TOKENIZER",
        ("MyTokenizer", "WordTokenizer"),
    ),
    "beam_search": Entry(
        "function (log_probs, start, end, beam_width, max_length, length_penalty=1) -> tokens, or (tokens, score)",
        f"{_FOLDER}.beam_search:BEAM_SEARCH",
        ("beam_decode", "beam"),
    ),
    "bleu": Entry(
        "function (references, hypotheses) -> score from 0 to 1 or 100; a list of references for each hypothesis",
        f"{_FOLDER}.streams:BLEU",
        ("compute_bleu", "corpus_bleu"),
    ),
    "InputFeedingDecoder": Entry(
        "(input_size, hidden_size); forward(x [B, T, input_size], source [B, S, hidden_size], source_mask=None, "
        "state=None) -> out [B, T, hidden_size], A [B, T, S], state",
        f"{_FOLDER}.input_feeding:INPUT_FEEDING",
        ("LuongDecoder", "AttentionDecoder"),
    ),
    "SGD": Entry(
        "(params, lr, momentum, weight_decay=0); step(); or a function (params, grads, state, lr, momentum)",
        f"{_FOLDER}.optimizers:SGD",
        ("Momentum", "SGDMomentum", "sgd_momentum"),
    ),
    "Adam": Entry(
        "(params, lr, betas, eps, weight_decay=0); step(); or a function (params, grads, state, lr, …)",
        f"{_FOLDER}.optimizers:ADAM",
        ("adam",),
    ),
    "AdamW": Entry(
        "(params, lr, betas, eps, weight_decay); step(); or a function (params, grads, state, lr, weight_decay, …)",
        f"{_FOLDER}.optimizers:ADAMW",
        ("adamw",),
    ),
    "Adagrad": Entry(
        "(params, lr, eps, weight_decay=0); step(); or a function (params, grads, state, lr, …)",
        f"{_FOLDER}.optimizers:ADAGRAD",
        ("adagrad", "AdaGrad"),
    ),
    "RMSprop": Entry(
        "(params, lr, alpha, eps, weight_decay=0); step(); or a function (params, grads, state, lr, …)",
        f"{_FOLDER}.optimizers:RMSPROP",
        ("rmsprop", "RMSProp"),
    ),
    "linear_backward": Entry(
        "function (grad_y [N, out], x [N, in], W [out, in], b [out]) -> dx, dW, db of y = x Wᵀ + b",
        f"{_FOLDER}.backward:LINEAR",
        ("affine_backward",),
    ),
    "relu_backward": Entry("function (grad_y, x) -> dx", f"{_FOLDER}.backward:RELU"),
    "tanh_backward": Entry("function (grad_y, x) -> dx", f"{_FOLDER}.backward:TANH"),
    "cross_entropy_backward": Entry(
        "function (logits [N, V], targets [N], mask=None) -> dlogits of the mean of softmax and cross entropy",
        f"{_FOLDER}.backward:CROSS_ENTROPY",
        ("softmax_cross_entropy_backward", "softmax_loss_backward"),
    ),
    "layer_norm_backward": Entry(
        "function (grad_y [N, D], x [N, D], gamma [D], beta [D], eps=1e-5) -> dx, dgamma, dbeta",
        f"{_FOLDER}.backward:LAYER_NORM",
        ("layernorm_backward",),
    ),
    "attention_backward": Entry(
        "function (grad_y [B, T, K], q [B, T, K], k [B, S, K], v [B, S, K], mask=None) -> dq, dk, dv",
        f"{_FOLDER}.backward:ATTENTION_BACKWARD",
    ),
    "network_backward": Entry(
        "function (x [D], W [H, D], b1 [H], u [H], b2) -> dx, dW, db1, du, db2 of u · ReLU(W x + b1) + b2",
        f"{_FOLDER}.backward:NETWORK",
    ),
}


def has_reference(name: str) -> bool:
    """Whether there is a reference of that name, or of another name that courses have for it."""
    return name in CATALOG or any(name in entry.other_names for entry in CATALOG.values())


def find_reference(name: str) -> Reference:
    """The reference of that name, or of another name that courses have for it."""
    others = {other: known for known, entry in CATALOG.items() for other in entry.other_names}
    reference: Reference = import_object(look_up(CATALOG, others.get(name, name), "reference").reference)
    return reference
