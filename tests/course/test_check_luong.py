"""Scores and vector of a decoder's attention: right ones pass in every style, planted mistakes are caught and named."""

import pytest

from course.students import check_source, names_of, plant

SCORE = "def score(Q, K, W):\n    return torch.bmm(Q @ W, K.transpose(1, 2))\n"
VECTOR = "def attentional_vector(c, h, W):\n    return torch.tanh(torch.cat((c, h), dim=-1) @ W.T)\n"
SOURCES = {"score": SCORE, "attentional_vector": VECTOR}
REFERENCES = {"score": "bilinear_score", "attentional_vector": "attentional_vector"}
STYLES = [
    ("score", SCORE),
    ("score", "def score(Q, K, W):\n    return torch.einsum('lid,de,lje->lij', Q, W, K)\n"),
    ("score", "def score(queries, keys, W):\n    return F.linear(queries, W.t()).matmul(keys.permute(0, 2, 1))\n"),
    ("score", "def score(Q, K, W):\n    B, n, d = Q.shape\n    q = Q.reshape(B * n, d).mm(W).view(B, n, d)\n"
     "    return (q[:, :, None] * K[:, None]).sum(-1)\n"),
    ("score", "def score(Q, K, W):\n    return (K @ W.T @ Q.mT).mT\n"),
    ("score", "class score(nn.Module):\n    def forward(self, Q, K, W):\n        return Q @ (K @ W.T).mT\n"),
    ("attentional_vector", VECTOR),
    ("attentional_vector", "def attentional_vector(c, h, W):\n    d = c.shape[-1]\n"
     "    return torch.tanh(c @ W[:, :d].T + h @ W[:, d:].T)\n"),
    ("attentional_vector", "def attentional_vector(context, query, W):\n"
     "    return F.linear(torch.cat([context, query], 2), W).tanh()\n"),
    ("attentional_vector", "def attentional_vector(c, h, W):\n"
     "    return 2 * torch.sigmoid(2 * torch.einsum('btk,dk->btd', torch.cat((c, h), -1), W)) - 1\n"),
]  # fmt: skip
MISTAKES = [
    ("score", "Q @ W", "Q @ W.T", "matrix-transposed"),
    ("score", "Q @ W", "Q", "matrix-missing"),
    ("score", "K.transpose(1, 2))", "K.transpose(1, 2)) / Q.shape[-1] ** 0.5", "scaled-by-root"),
    ("score", "K.transpose(1, 2))", "K.transpose(1, 2)).transpose(1, 2)", "queries-and-keys-swapped"),
    ("score", "K.transpose(1, 2))", "K.transpose(1, 2)).softmax(-1)", "softmax-in-scores"),
    ("score", "K.transpose(1, 2))", "K.transpose(1, 2)).tanh()", "tanh-of-scores"),
    ("score", "K.transpose(1, 2)", "K.reshape(len(K), K.shape[2], K.shape[1])", "keys-viewed-not-transposed"),
    ("score", "K.transpose(1, 2)", "K[:1].transpose(1, 2).expand(len(K), -1, -1)", "rows-mixed"),
    ("score", "torch.bmm(", "3 * torch.bmm(", "unknown"),
    ("score", "Q @ W", "Q.detach() @ W", "gradient"),
    ("attentional_vector", "(c, h)", "(h, c)", "query-first"),
    ("attentional_vector", "torch.tanh", "", "tanh-missing"),
    ("attentional_vector", "torch.tanh", "torch.sigmoid", "sigmoid-for-tanh"),
    ("attentional_vector", "torch.tanh", "torch.relu", "relu-for-tanh"),
    ("attentional_vector", "(c, h)", "(c, 0 * h)", "context-alone"),
    ("attentional_vector", "(c, h)", "(0 * c, h)", "query-alone"),
    ("attentional_vector", "torch.cat((c, h), dim=-1)", "torch.stack((c, h), -1).flatten(-2)",
     "context-and-query-interleaved"),
    ("attentional_vector", "W.T", "W.reshape(W.shape[1], W.shape[0])", "matrix-reshaped"),
    ("attentional_vector", "W.T)", "W.T) + h", "query-added"),
    ("attentional_vector", "W.T)", "W.T).detach()", "no-gradient"),
    ("attentional_vector", "dim=-1", "dim=1", "raises"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "source"), STYLES)
def test_right_ones_pass_in_every_style(name, source, tmp_path):
    report = check_source(tmp_path, source, name, REFERENCES[name])
    assert report.passed, report.mistakes


@pytest.mark.parametrize(("name", "old", "new", "mistake"), MISTAKES)
def test_planted_mistakes_are_caught_and_named(name, old, new, mistake, tmp_path):
    report = check_source(tmp_path, plant(SOURCES[name], old, new), name, REFERENCES[name])
    assert not report.passed
    assert names_of(report) == {mistake}
