"""Sheet 001, problem 3: the attention of a decoder (Luong et al., 2015)."""

import torch
from torch import Tensor


def score(Q: Tensor, K: Tensor, W: Tensor) -> Tensor:
    """001.3.5: the score of each query and key, Q[l, i] · W K[l, j]. [B, T', d], [B, T, d], [d, d] -> [B, T', T]"""
    return torch.bmm(Q @ W, K.transpose(1, 2))


def attentional_vector(c: Tensor, h: Tensor, W: Tensor) -> Tensor:
    """001.3.6: h̃ = tanh(W [c; h]). [B, T', d], [B, T', d], [d, 2d] -> [B, T', d]"""
    return torch.tanh(torch.cat((c, h), dim=-1) @ W.T)
