"""Sheet 002, problem 4: a language model of dialogues, from the transformer of `transformer.py`."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformer import Transformer


class DialogueGPT(nn.Module):
    """002.4c: embeddings, learned positions, a causal transformer and a linear head.

    Returns logits [B, T, vocab_size] and the weights [B, num_layers, num_heads, T, T].
    """

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
        """input_ids [B, T]. No token may see a later one."""
        length = input_ids.shape[1]
        positions = torch.arange(length, device=input_ids.device)
        x = self.token_embedding(input_ids) + self.position_embedding(positions)
        causal = torch.ones(length, length, device=input_ids.device).tril()
        x, A = self.transformer(x, causal)
        return self.head(x), A

    @torch.no_grad()
    def generate(self, prefix: Tensor, num_tokens: int) -> Tensor:
        """Given: the prefix [B, T] and `num_tokens` more, the most likely one at each step."""
        for _ in range(num_tokens):
            logits, _ = self(prefix)
            prefix = torch.cat((prefix, logits[:, -1:].argmax(-1)), dim=1)
        return prefix


class DialogueLoss(nn.Module):
    """002.4d: mean cross entropy of the next token."""

    def forward(self, logits: Tensor, input_ids: Tensor, input_mask: Tensor) -> Tensor:
        """logits [B, T, V], input_ids [B, T]; input_mask [B, T] is 0 in padding. A number."""
        targets = input_ids[:, 1:].masked_fill(input_mask[:, 1:] == 0, -100)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten(), ignore_index=-100)
