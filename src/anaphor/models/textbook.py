"""A transformer as a course defines it, class by class, built from our parts, and what stands around it for images and
for dialogues; the attention of a recurrent decoder.

In the transformer every `forward(x, attn_mask)` returns the output and the attention matrices A. `attn_mask` is 1 where
a token attends and 0 where it does not, [T, T] or [B, T, T]; None means everywhere. x is [B, T, D] or [T, D].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.config import check_at_least
from anaphor.errors import ConfigError
from anaphor.mixers.attention.mask import everything, matrix_mask
from anaphor.mixers.attention.score import ScaledDot, softmax
from anaphor.mixers.spec import Sizes
from anaphor.models.backbone import FeedForward
from anaphor.models.cross_entropy import IGNORE_INDEX
from anaphor.models.image_spec import check_divides


class AttentionHead(nn.Module):
    """One head: A = softmax(Q Kᵀ / √d_k), out = A V. Returns [B, T, n_hidden] and A [B, T, T]."""

    def __init__(self, dim: int, n_hidden: int) -> None:
        super().__init__()
        check_at_least(1, n_hidden=n_hidden)
        self.query = nn.Linear(dim, n_hidden)
        self.key = nn.Linear(dim, n_hidden)
        self.value = nn.Linear(dim, n_hidden)
        self.score = ScaledDot(Sizes(dim, 1, n_hidden, max_positions=0))

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        q, k, v = self.query(x), self.key(x), self.value(x)
        A = softmax(self.score(q, k), _allowed_pairs(x, attn_mask))
        return A @ v, A


class MultiHeadedAttention(nn.Module):
    """Heads, concatenated and projected back. Returns [B, T, dim] and A [B, H, T, T]."""

    def __init__(self, dim: int, n_hidden: int, num_heads: int) -> None:
        """Every head has queries, keys and values of size `n_hidden`, so W_O maps num_heads · n_hidden to dim."""
        super().__init__()
        check_at_least(1, num_heads=num_heads)
        self.heads = nn.ModuleList(AttentionHead(dim, n_hidden) for _ in range(num_heads))
        self.out = nn.Linear(num_heads * n_hidden, dim)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        outputs, maps = zip(*(head(x, attn_mask) for head in self.heads), strict=True)
        return self.out(torch.cat(outputs, dim=-1)), torch.stack(maps, dim=-3)


class FFN(nn.Module):
    """Norm, then two linear maps with a GELU between them. [B, T, dim] -> [B, T, dim]"""

    def __init__(self, dim: int, n_hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.feedforward = FeedForward(dim, n_hidden, "gelu", dropout=0.0)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.feedforward(self.norm(x))
        return y


class AttentionResidual(nn.Module):
    """Attention, then the feed-forward network, each with a residual. Returns [B, T, dim] and A [B, H, T, T]."""

    def __init__(self, dim: int, attn_dim: int, mlp_dim: int, num_heads: int) -> None:
        super().__init__()
        self.attention = MultiHeadedAttention(dim, attn_dim, num_heads)
        self.ffn = FFN(dim, mlp_dim)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y, A = self.attention(x, attn_mask)
        x = x + y
        return x + self.ffn(x), A


class Transformer(nn.Module):
    """AttentionResidual layers in sequence. Returns [B, T, dim] and A [B, layers, H, T, T]."""

    def __init__(self, dim: int, attn_dim: int, mlp_dim: int, num_heads: int, num_layers: int) -> None:
        super().__init__()
        check_at_least(1, num_layers=num_layers)
        self.layers = nn.ModuleList(AttentionResidual(dim, attn_dim, mlp_dim, num_heads) for _ in range(num_layers))

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        maps = []
        for layer in self.layers:
            x, A = layer(x, attn_mask)
            maps.append(A)
        return x, torch.stack(maps, dim=-4)


class PatchEmbed(nn.Module):
    """Image to a sequence of patches, each by the same linear map: a convolution whose stride is the size of a patch.
    [B, in_chans, img_size, img_size] -> [B, num_patches, embed_dim], row by row"""

    def __init__(self, img_size: int, patch_size: int, in_chans: int, embed_dim: int) -> None:
        super().__init__()
        check_divides(patch_size, img_size)
        self.img_size, self.num_patches = img_size, (img_size // patch_size) ** 2
        self.proj = nn.Conv2d(in_chans, embed_dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, x: Tensor) -> Tensor:
        expected = [self.proj.in_channels, self.img_size, self.img_size]
        if x.ndim != 4 or list(x.shape[1:]) != expected:
            raise ConfigError(f"the images must be {['B', *expected]}, but they are {list(x.shape)}")
        patches: Tensor = self.proj(x)  # [B, embed_dim, rows, columns]
        return patches.flatten(2).mT


class DialogueGPT(nn.Module):
    """A language model of dialogues: embeddings, learned positions, a causal transformer and a linear head."""

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        attn_dim: int,
        mlp_dim: int,
        num_heads: int,
        num_layers: int,
        max_seq_len: int = 1024,
    ) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, dim)
        self.position_embedding = nn.Embedding(max_seq_len, dim)
        self.transformer = Transformer(dim, attn_dim, mlp_dim, num_heads, num_layers)
        self.head = nn.Linear(dim, vocab_size)

    def forward(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B, T, vocab_size] and A [B, layers, H, T, T] of token ids [B, T].

        No token sees a later one, so padding on the right needs no mask here; `DialogueLoss` leaves it out.
        """
        length, most = input_ids.shape[-1], self.position_embedding.num_embeddings
        if length > most:
            raise ConfigError(f"{length} tokens are more than the {most} learned positions of the model")
        steps = torch.arange(length, device=input_ids.device)
        x = self.token_embedding(input_ids) + self.position_embedding(steps)
        causal_mask = torch.ones(length, length, device=x.device).tril()
        x, A = self.transformer(x, causal_mask)
        return self.head(x), A

    @torch.no_grad()
    def generate(self, prefix: Tensor, num_tokens: int) -> Tensor:
        """The prefix [B, T] and `num_tokens` more, the most likely one at each step. Every step reads all tokens."""
        for _ in range(num_tokens):
            logits, _ = self(prefix)
            prefix = torch.cat((prefix, logits[:, -1:].argmax(-1)), dim=1)
        return prefix


class DialogueLoss(nn.Module):
    """Mean cross entropy of the next token: the first is not predicted, and from the last nothing is."""

    def forward(self, logits: Tensor, input_ids: Tensor, input_mask: Tensor) -> Tensor:
        """Loss of logits [B, T, V] for token ids [B, T]; `input_mask` [B, T] is 0 in padding."""
        targets = input_ids[:, 1:].long().masked_fill(input_mask[:, 1:] == 0, IGNORE_INDEX)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten(), ignore_index=IGNORE_INDEX)


class BilinearAttention(nn.Module):
    """Attention of a recurrent decoder (Luong et al., 2015): scores q W k and then Eq. (5), tanh(W [c; h])."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        check_at_least(1, dim=dim)
        self.linear_in = nn.Linear(dim, dim, bias=False)
        self.linear_out = nn.Linear(2 * dim, dim, bias=False)

    def score(self, Q: Tensor, K: Tensor) -> Tensor:
        """Score of each query and key. [B, T', d], [B, T, d] -> [B, T', T]"""
        return torch.bmm(self.linear_in(Q), K.transpose(1, 2))

    def forward(self, Q: Tensor, K: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """h̃ [B, T', d] and A [B, T', T] of queries h and a source K, of which the first `lengths` [B] are real."""
        valid = torch.arange(K.shape[1], device=K.device) < (K.shape[1] if lengths is None else lengths[:, None, None])
        A = softmax(self.score(Q, K), valid)
        c = torch.bmm(A, K)
        return torch.tanh(self.linear_out(torch.cat((c, Q), dim=-1))), A


def _allowed_pairs(x: Tensor, attn_mask: Tensor | None) -> Tensor:
    mask = everything() if attn_mask is None else matrix_mask(attn_mask)
    steps = torch.arange(x.shape[-2], device=x.device)
    allowed = mask(steps[:, None], steps[None, :])
    if allowed.ndim == 3 and (x.ndim != 3 or len(allowed) not in (1, len(x))):
        raise ConfigError(f"the mask is for {len(allowed)} rows, but x is {list(x.shape)}")
    return allowed
