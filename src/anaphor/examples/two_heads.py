"""Self-attention with two heads and two tokens, written out so that every query, key and value has a node of its own.

    anaphor trace two_heads.py::layer --level names --out drawn

There is no layer norm, and no scaling of the scores; each head adds its queries to what attention finds. The name
`q1_2` in the graph is the query of token 1 in head 2.
"""

from typing import Any

import torch
from torch import Tensor


def head(x1: Tensor, x2: Tensor, Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    q1 = Q @ x1
    q2 = Q @ x2
    k1 = K @ x1
    k2 = K @ x2
    v1 = V @ x1
    v2 = V @ x2
    alpha1 = torch.stack([k1 * q1, k2 * q1])  # the scores of both tokens for token 1
    alpha2 = torch.stack([k1 * q2, k2 * q2])
    beta1 = torch.softmax(alpha1, dim=-1)
    beta2 = torch.softmax(alpha2, dim=-1)
    a1 = beta1 @ torch.stack([v1, v2])
    a2 = beta2 @ torch.stack([v1, v2])
    h1 = a1 + q1
    h2 = a2 + q2
    return h1, h2


def layer(  # noqa: PLR0913 (each is a node of the graph)
    x1: Any = (1, 2),
    x2: Any = (-1, 3),
    Q1: Any = (1, 0),
    K1: Any = (1, 0),
    V1: Any = (1, 0),
    Q2: Any = (0, 1),
    K2: Any = (0, 1),
    V2: Any = (0, 1),
    W: Any = ((1, 0), (0, 1)),
) -> tuple[Tensor, Tensor]:
    h1_1, h2_1 = head(x1, x2, Q1, K1, V1)
    h1_2, h2_2 = head(x1, x2, Q2, K2, V2)
    z1 = W @ torch.stack([h1_1, h1_2])
    z2 = W @ torch.stack([h2_1, h2_2])
    return z1, z2
