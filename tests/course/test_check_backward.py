"""Gradients by hand: right functions pass in every style, planted mistakes are caught and named."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anaphor.course.catalog import find_reference
from course.students import check_source, names_of, plant

RIGHT = {
    "linear_backward": """
def linear_backward(grad_y, x, W, b=None):
    dx = grad_y @ W
    dW = grad_y.T @ x
    db = grad_y.sum(dim=0)
    return dx, dW, db
""",
    "relu_backward": """
def relu_backward(dout, x):
    return dout * (x > 0)
""",
    "tanh_backward": """
def tanh_backward(dout, x):
    y = torch.tanh(x)
    return dout * (1 - y ** 2)
""",
    "cross_entropy_backward": """
def cross_entropy_backward(logits, targets, mask=None):
    if mask is None:
        mask = torch.ones_like(targets)
    p = torch.softmax(logits, dim=-1)
    p[torch.arange(len(p)), targets] -= 1
    return p * mask[:, None] / mask.sum()
""",
    "layer_norm_backward": """
def layer_norm_backward(grad_y, x, gamma, beta, eps=1e-5):
    mean = x.mean(-1, keepdim=True)
    std = torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + eps)
    x_hat = (x - mean) / std
    dgamma = (grad_y * x_hat).sum(0)
    dbeta = grad_y.sum(0)
    g = grad_y * gamma
    dx = (g - g.mean(-1, keepdim=True) - x_hat * (g * x_hat).mean(-1, keepdim=True)) / std
    return dx, dgamma, dbeta
""",
    "attention_backward": """
def attention_backward(grad_y, q, k, v, mask=None):
    scale = 1 / math.sqrt(q.shape[-1])
    scores = q @ k.transpose(-1, -2) * scale
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -torch.inf)
    P = torch.softmax(scores, dim=-1)
    dv = P.transpose(-1, -2) @ grad_y
    dP = grad_y @ v.transpose(-1, -2)
    dS = P * (dP - (dP * P).sum(-1, keepdim=True))
    dq = dS @ k * scale
    dk = dS.transpose(-1, -2) @ q * scale
    return dq, dk, dv
""",
    "network_backward": """
def network_backward(x, W, b1, u, b2):
    z1 = W @ x
    z2 = z1 + b1
    z3 = torch.relu(z2)
    dz2 = u * (z2 > 0)
    dx = W.T @ dz2
    dW = torch.outer(dz2, x)
    db1 = dz2
    du = z3
    db2 = torch.ones_like(b2)
    return dx, dW, db1, du, db2
""",
}
STYLES = [
    ("linear_backward", "def linear_backward(dout, cache):\n    x, w, b = cache\n"
     "    return dout @ w, torch.einsum('no,ni->oi', dout, x), dout.sum(0)\n"),
    ("linear_backward", "def linear_backward(x, weight, grad_output):\n    n = len(x)\n"
     "    dW = sum(torch.outer(grad_output[i], x[i]) for i in range(n))\n"
     "    return {'dx': torch.stack([weight.T @ grad_output[i] for i in range(n)]), 'dW': dW,\n"
     "            'db': torch.ones(n).to(x) @ grad_output}\n"),
    ("linear_backward", "class linear_backward(torch.autograd.Function):\n    @staticmethod\n"
     "    def forward(ctx, x, W, b):\n        ctx.save_for_backward(x, W)\n        return x @ W.T + b\n"
     "    @staticmethod\n    def backward(ctx, g):\n        x, W = ctx.saved_tensors\n"
     "        return g @ W, g.T @ x, g.sum(0)\n"),
    ("relu_backward", "def relu_backward(dy, out):\n    return torch.where(out > 0, dy, 0)\n"),
    ("relu_backward", "def relu_backward(grad, x):\n    dx = grad.clone()\n    dx[x <= 0] = 0\n    return dx\n"),
    ("relu_backward", "def relu_backward(grad, cache):\n    return (grad * (cache[0] > 0),)\n"),
    ("tanh_backward", "def tanh_backward(grad, y):\n    return (1 - y) * (1 + y) * grad\n"),
    ("tanh_backward", "def tanh_backward(dy, x):\n    return dy / torch.cosh(x) ** 2\n"),
    ("tanh_backward", "import numpy as np\ndef tanh_backward(dy, x):\n"
     "    y = np.tanh(x.astype(np.float64))\n    return dy * (1 - np.square(y))\n"),
    ("cross_entropy_backward", "def cross_entropy_backward(logits, y):\n"
     "    one_hot = F.one_hot(y, logits.shape[1])\n"
     "    e = (logits - logits.max(1, keepdim=True).values).exp()\n"
     "    return (e / e.sum(1, keepdim=True) - one_hot) / len(y)\n"),
    ("cross_entropy_backward", "import numpy as np\ndef cross_entropy_backward(logits, y):\n"
     "    z = np.asarray(logits)\n    p = np.exp(z - z.max(1, keepdims=True))\n    p /= p.sum(1, keepdims=True)\n"
     "    p[np.arange(len(y)), y] -= 1\n    return p / len(p)\n"),
    ("cross_entropy_backward", "class cross_entropy_backward(torch.autograd.Function):\n    @staticmethod\n"
     "    def forward(ctx, logits, targets):\n        ctx.save_for_backward(logits.softmax(-1), targets)\n"
     "        return F.cross_entropy(logits, targets)\n"
     "    @staticmethod\n    def backward(ctx, g):\n        p, targets = ctx.saved_tensors\n"
     "        return g * (p - F.one_hot(targets, p.shape[-1])) / len(p), None\n"),
    ("layer_norm_backward", "def layer_norm_backward(dy, x, weight):\n    D = x.shape[1]\n"
     "    c = x - x.mean(1, keepdim=True)\n    var = (c * c).mean(1, keepdim=True)\n    r = (var + 1e-5).rsqrt()\n"
     "    g = dy * weight\n    dvar = -0.5 * (g * c).sum(1, keepdim=True) * r ** 3\n"
     "    dmean = -(g * r).sum(1, keepdim=True)\n    dx = g * r + 2 / D * c * dvar + dmean / D\n"
     "    return dx, (dy * c * r).sum(0), dy.sum(0)\n"),
    ("attention_backward", "def attention_backward(dout, q, k, v):\n    P = (q @ k.T / q.shape[1] ** 0.5).softmax(-1)\n"
     "    dP = dout @ v.T\n"
     "    dS = torch.stack([(torch.diag(p) - torch.outer(p, p)) @ d for p, d in zip(P, dP)]) / q.shape[1] ** 0.5\n"
     "    return dS @ k, dS.T @ q, P.T @ dout\n"),
    ("attention_backward", "def attention_backward(q, k, v, grad_out, attn_mask):\n    s = q.shape[-1] ** -0.5\n"
     "    S = torch.einsum('btd,bsd->bts', q, k) * s\n"
     "    S = S if attn_mask is None else torch.where(attn_mask.bool(), S, -1e9)\n    P = S.softmax(-1)\n"
     "    dP = torch.einsum('btd,bsd->bts', grad_out, v)\n    D = torch.einsum('bts,bts->bt', dP, P)\n"
     "    dS = P * (dP - D[..., None]) * s\n    return {'dq': dS @ k, 'dk': dS.mT @ q, 'dv': P.mT @ grad_out}\n"),
    ("network_backward", "def network_backward(x, W, b1, u, b2):\n    z2 = W @ x + b1\n    d = (z2 > 0).to(u) * u\n"
     "    return torch.tensor(1.0), torch.relu(z2), d, d[:, None] * x, d @ W\n"),
    ("network_backward", "def network_backward(x, W, b1, u, b2):\n    z2 = W.mv(x) + b1\n"
     "    on = torch.heaviside(z2, 0 * z2)\n"
     "    return dict(x=W.T @ (on * u), W=torch.outer(on * u, x), b1=on * u, u=on * z2, b2=1.0)\n"),
]  # fmt: skip
MISTAKES = [
    ("linear_backward", "grad_y @ W", "grad_y @ W.T", {"dx-with-the-transpose", "raises"}),
    ("linear_backward", "grad_y.T @ x", "x.T @ grad_y", "dw-transposed"),
    ("linear_backward", "grad_y.T @ x", "grad_y.T @ x / len(x)", "dw-averaged"),
    ("linear_backward", "sum(dim=0)", "mean(dim=0)", "db-averaged"),
    ("linear_backward", "sum(dim=0)", "sum(dim=1)", "db-summed-over-features"),
    ("linear_backward", "grad_y.sum(dim=0)", "grad_y", "db-not-summed"),
    ("linear_backward", "grad_y.sum(dim=0)", "torch.full((grad_y.shape[1],), len(x))", "db-of-one"),
    ("linear_backward", "return dx", "return -dx, -dW, -db\n    return dx", "negative"),
    ("linear_backward", "grad_y.T @ x", "torch.ones_like(grad_y).T @ x", "dw-without-grad"),
    ("linear_backward", "grad_y @ W", "grad_y @ W / len(x)", "dx-averaged"),
    ("linear_backward", "grad_y @ W", "grad_y @ W * 2", "unknown"),
    ("linear_backward", "dx, dW, db", "dx, dW", "raises"),
    ("relu_backward", "x > 0", "x < 0", "mask-inverted"),
    ("relu_backward", "dout * (x > 0)", "dout * x", "input-for-derivative"),
    ("relu_backward", "dout * (x > 0)", "(x > 0).to(x)", "grad-ignored"),
    ("relu_backward", "dout * (x > 0)", "dout", "grad-passed-through"),
    ("relu_backward", "dout * (x > 0)", "dout.relu()", "relu-of-the-gradient"),
    ("relu_backward", "dout * (x > 0)", "dout * x.relu()", "output-for-derivative"),
    ("relu_backward", "dout * (x > 0)", "x.relu()", "returns-the-output"),
    ("relu_backward", "dout * (x > 0)", "(dout * (x > 0)).sum(0)", "summed-over-the-batch"),
    ("relu_backward", "dout * (x > 0)", "dout * (x > 0) / len(x)", "averaged"),
    ("relu_backward", "dout * (x > 0)", "torch.where(x > 0, dout, 0.01 * dout)", "leaky"),
    ("relu_backward", "dout * (x > 0)", "dout * x.sign()", "sign-for-step"),
    ("relu_backward", "(x > 0)", "(x > 0.5)", "unknown"),
    ("tanh_backward", "y ** 2", "x ** 2", "input-squared"),
    ("tanh_backward", "y ** 2", "y", "not-squared"),
    ("tanh_backward", "(1 - y ** 2)", "y * (1 - y)", "that-of-the-sigmoid"),
    ("tanh_backward", "1 - y", "1 + y", "plus-for-minus"),
    ("tanh_backward", "dout * (1", "(1", "grad-ignored"),
    ("tanh_backward", "dout * (1", "dout + (1", "grad-added"),
    ("tanh_backward", "dout * (1", "-dout * (1", "negative"),
    ("tanh_backward", "(1 - y ** 2)", "y ** 2", "one-missing"),
    ("tanh_backward", "(1 - y ** 2)", "y", "output-for-derivative"),
    ("tanh_backward", "(1 - y ** 2)", "(1 - y ** 4)", "unknown"),
    ("cross_entropy_backward", " / mask.sum()", "", "not-divided-by-n"),
    ("cross_entropy_backward", "mask.sum()", "len(mask)", "divided-by-padding"),
    ("cross_entropy_backward", "* mask[:, None] ", "", "mask-not-applied"),
    ("cross_entropy_backward", "    if mask is None:\n        mask", "    mask", "mask-not-applied"),
    ("cross_entropy_backward", "mask.sum()", "mask.sum() / p.shape[1]", "divided-by-classes"),
    ("cross_entropy_backward", "p[torch.arange(len(p)), targets] -= 1", "", "one-hot-not-subtracted"),
    ("cross_entropy_backward", "-= 1", "+= 1", "one-hot-added"),
    ("cross_entropy_backward", "return p", "return -p", "negative"),
    ("cross_entropy_backward", "dim=-1", "dim=0", "softmax-over-the-batch"),
    ("cross_entropy_backward", "torch.softmax(logits, dim=-1)", "logits.clone()", "softmax-missing"),
    ("cross_entropy_backward", "torch.softmax(logits, dim=-1)", "logits", {"softmax-missing", "changes-its-input"}),
    ("cross_entropy_backward", "torch.softmax(logits, dim=-1)", "logits.exp() / logits.exp().sum(1, keepdim=True)",
     "softmax-overflows"),
    ("cross_entropy_backward", "torch.softmax(logits, dim=-1)", "logits.sigmoid()", "sigmoid"),
    ("cross_entropy_backward", "targets] -= 1", "targets - 1] -= 1", "unknown"),
    ("layer_norm_backward", "- g.mean(-1, keepdim=True) ", "", "mean-taken-as-constant"),
    ("layer_norm_backward", " - x_hat * (g * x_hat).mean(-1, keepdim=True)", "", "variance-taken-as-constant"),
    ("layer_norm_backward", " - g.mean(-1, keepdim=True) - x_hat * (g * x_hat).mean(-1, keepdim=True)", "",
     "statistics-taken-as-constants"),
    ("layer_norm_backward", "g = grad_y * gamma", "g = grad_y", "gamma-missing-in-dx"),
    ("layer_norm_backward", "unbiased=False", "unbiased=True", "unbiased-variance"),
    ("layer_norm_backward", "keepdim=True)) / std", "keepdim=True)) / std ** 2", "divided-by-the-variance"),
    ("layer_norm_backward", "keepdim=True)) / std", "keepdim=True))", "not-divided-by-std"),
    ("layer_norm_backward", "(grad_y * x_hat).sum(0)", "(grad_y * x).sum(0)", "dgamma-of-x"),
    ("layer_norm_backward", "(grad_y * x_hat).sum(0)", "grad_y * x_hat", "dgamma-not-summed"),
    ("layer_norm_backward", "dbeta = grad_y.sum(0)", "dbeta = grad_y.mean(0)", "dbeta-averaged"),
    ("layer_norm_backward", ".sum(0)", ".sum(1)", "summed-over-features"),
    ("layer_norm_backward", "(g * x_hat).mean(-1", "(g * x_hat).mean(0", "unknown"),
    ("attention_backward", "@ q * scale", "@ q", "scale-missing-in-dk"),
    ("attention_backward", "@ k * scale", "@ k", "scale-missing-in-dq"),
    ("attention_backward", " - (dP * P).sum(-1, keepdim=True)", "", "softmax-row-sum-missing"),
    ("attention_backward", "(dP - (dP * P).sum(-1, keepdim=True))", "(1 - P) * dP", "softmax-elementwise"),
    ("attention_backward", "P * (dP - (dP * P).sum(-1, keepdim=True))", "dP", "softmax-skipped"),
    ("attention_backward", "P.transpose(-1, -2) @ grad_y", "P @ grad_y", {"dv-not-transposed", "raises"}),
    ("attention_backward", "dS.transpose(-1, -2) @ q", "dS @ q", {"dk-not-transposed", "raises"}),
    ("attention_backward", "P.transpose(-1, -2) @ grad_y", "scores.transpose(-1, -2) @ grad_y", "dv-from-scores"),
    ("attention_backward", "scores = scores.masked_fill(mask == 0, -torch.inf)", "pass", "mask-not-applied"),
    ("attention_backward", "mask == 0", "mask == 1", "mask-inverted"),
    ("attention_backward", "-torch.inf", "0", "mask-as-zero"),
    ("attention_backward", "k.transpose(-1, -2) * scale", "k.transpose(-1, -2)", "forward-not-scaled"),
    ("attention_backward", "scale = 1", "scale = 2", "unknown"),
    ("network_backward", " * (z2 > 0)", "", "relu-missing"),
    ("network_backward", "z2 > 0", "z2 < 0", "relu-inverted"),
    ("network_backward", "z2 > 0", "z1 > 0", "relu-before-the-bias"),
    ("network_backward", "u * (z2 > 0)", "(z2 > 0).to(u)", "u-missing"),
    ("network_backward", "W.T @ dz2", "W @ dz2", {"W-not-transposed", "raises"}),
    ("network_backward", "outer(dz2, x)", "outer(x, dz2)", "dw-transposed"),
    ("network_backward", "db1 = dz2", "db1 = u", "db1-is-u"),
    ("network_backward", "du = z3", "du = z2", "du-before-the-relu"),
    ("network_backward", "du = z3", "du = (z2 > 0).to(u)", "du-is-the-mask"),
    ("network_backward", "ones_like(b2)", "zeros_like(b2)", "db2-is-zero"),
    ("network_backward", "torch.ones_like(b2)", "b2", "db2-is-the-bias"),
    ("network_backward", "du = z3", "du = 2 * z3", "unknown"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "source"), [*RIGHT.items(), *STYLES])
def test_a_right_gradient_passes(name, source, tmp_path):
    report = check_source(tmp_path, source, name)
    assert report.passed, report.mistakes
    assert len(report.checked) > 2


@pytest.mark.parametrize(("name", "old", "new", "mistake"), MISTAKES)
def test_a_mistake_in_a_gradient_is_named(name, old, new, mistake, tmp_path):
    expected = mistake if isinstance(mistake, set) else {mistake}
    assert names_of(check_source(tmp_path, plant(RIGHT[name], old, new), name)) == expected


def mean_cross_entropy(logits, targets, mask):
    kept = slice(None) if mask is None else mask == 1
    return torch.nn.functional.cross_entropy(logits[kept], targets[kept])


FORWARD = {
    "linear_backward": lambda grad_y, x, w, b: (x @ w.T + b, (x, w, b)),
    "relu_backward": lambda grad_y, x: (torch.relu(x), (x,)),
    "tanh_backward": lambda grad_y, x: (torch.tanh(x), (x,)),
    "cross_entropy_backward": lambda logits, targets, mask: (mean_cross_entropy(logits, targets, mask), (logits,)),
    "layer_norm_backward": lambda grad_y, x, gamma, beta, eps: (
        torch.nn.functional.layer_norm(x, gamma.shape, gamma, beta, eps),
        (x, gamma, beta),
    ),
    "attention_backward": lambda grad_y, q, k, v, mask: (
        torch.nn.functional.scaled_dot_product_attention(q, k, v, None if mask is None else mask == 1),
        (q, k, v),
    ),
    "network_backward": lambda x, w, b1, u, b2: (u @ torch.relu(w @ x + b1) + b2, (x, w, b1, u, b2)),
}


@pytest.mark.parametrize("name", FORWARD)
def test_the_reference_is_the_gradient_of_autograd(name):
    reference = find_reference(name)
    for case in reference.cases({}):
        inputs = {
            key: value.requires_grad_() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
            for key, value in case.inputs.items()
        }
        y, leaves = FORWARD[name](**inputs)
        expected = torch.autograd.grad(y, leaves, inputs.get("grad_y"))
        found = reference.compute({}, inputs, reference.designs[0])
        for wanted, own in zip(expected, found.values(), strict=True):
            torch.testing.assert_close(own, wanted)


def test_a_gradient_by_autograd_is_not_derived_by_hand(tmp_path):
    source = "def tanh_backward(dout, x):\n    x = x.detach().requires_grad_()\n    with torch.enable_grad():\n"
    source += "        torch.tanh(x).backward(dout)\n    return x.grad\n"
    (finding,) = check_source(tmp_path, source, "tanh_backward").mistakes
    assert (finding.name, "derive the gradient by hand" in finding.text) == ("raises", True)
    leaf = torch.ones(2, requires_grad=True)
    leaf.sum().backward()  # autograd is on again
    assert leaf.grad is not None


def test_a_tensor_made_on_the_cpu_is_found_in_a_gradient(tmp_path):
    source = plant(RIGHT["linear_backward"], "grad_y.sum(dim=0)", "(torch.ones(len(x), 1) * grad_y).sum(0)")
    assert names_of(check_source(tmp_path, source, "linear_backward")) == {"makes-cpu-tensors"}


SLOPES = [
    "(x > 0)",
    "(x > 0).to(g)",
    "torch.heaviside(x, torch.zeros_like(x))",
    "(x.sign() + 1) / 2",
    "(x.relu() != 0)",
]
TANH_SLOPES = ["(1 - y * y)", "(1 - y) * (1 + y)", "(1 - y.square())", "1 / torch.cosh(x) ** 2",
               "4 / (x.exp() + (-x).exp()) ** 2"]  # fmt: skip
PRODUCTS = ["g * {}", "{} * g", "torch.mul(g, {})", "sum([g * {}])"]
DX = ["g @ w", "torch.einsum('no,oi->ni', g, w)", "(w.T @ g.T).T", "F.linear(g, w.T)"]
DW = ["g.T @ x", "torch.einsum('no,ni->oi', g, x)", "(x.T @ g).T", "(g[:, :, None] * x[:, None]).sum(0)"]
DB = ["g.sum(0)", "g.sum(dim=0)", "sum(g)", "torch.einsum('no->o', g)", "g.T.sum(1)"]
PS = ["z.softmax(-1)", "(z - z.logsumexp(-1, keepdim=True)).exp()", "z.log_softmax(1).exp()"]
HOTS = ["p - F.one_hot(t, z.shape[1])", "p - torch.eye(z.shape[1]).to(z)[t]",
        "p.scatter_add(1, t[:, None], -torch.ones_like(p[:, :1]))"]  # fmt: skip
FACTORS = ["m[:, None] / m.sum()", "torch.where(m > 0, 1 / m.sum(), 0)[:, None]"]
SOFTMAXES = ["P * (dP - (P * dP).sum(-1, keepdim=True))", "P * dP - P * (P * dP).sum(-1)[..., None]",
             "P * (dP - (P * dP) @ torch.ones_like(P).mT[..., :1])",
             "torch.einsum('btj,btjs->bts', dP, torch.diag_embed(P) - P[..., None] * P[..., None, :])"]  # fmt: skip
SCALES = ["/ math.sqrt(q.shape[-1])", "* q.size(-1) ** -0.5", "/ q.shape[-1] ** 0.5"]
HIDES = ["S.masked_fill(m == 0, -torch.inf)", "torch.where(m == 1, S, -1e9)", "S + m.to(S).log()"]
NORMS = ["(x - x.mean(1, keepdim=True)) / s", "F.layer_norm(x, x.shape[1:], eps=1e-5)"]
STDS = ["(x.var(1, keepdim=True, correction=0) + 1e-5).sqrt()",
        "((x * x).mean(1, keepdim=True) - x.mean(1, keepdim=True) ** 2 + 1e-5) ** 0.5"]  # fmt: skip
DXS = ["(h - h.mean(1, keepdim=True) - n * (h * n).mean(1, keepdim=True)) / s",
       "(D * h - h.sum(1, keepdim=True) - n * (h * n).sum(1, keepdim=True)) / D / s"]  # fmt: skip
OUTER = [
    "torch.outer(d, x)",
    "d[:, None] * x[None]",
    "torch.einsum('h,d->hd', d, x)",
    "d.unsqueeze(1) @ x.unsqueeze(0)",
]
LAST = ["torch.ones_like(b2)", "torch.tensor(1.0)", "1.0", "torch.ones(())"]


def write_gradients(draw):
    """Seven right functions, each in a style of its own."""
    product = draw(st.sampled_from(PRODUCTS))
    return {
        "relu_backward": f"def relu_backward(g, x):\n    return {product.format(draw(st.sampled_from(SLOPES)))}\n",
        "tanh_backward": "def tanh_backward(g, x):\n    y = torch.tanh(x)\n"
        f"    return {product.format('(' + draw(st.sampled_from(TANH_SLOPES)) + ')')}\n",
        "linear_backward": "def linear_backward(g, x, w):\n"
        f"    return {', '.join(draw(st.sampled_from(kind)) for kind in (DX, DW, DB))}\n",
        "cross_entropy_backward": "def cross_entropy_backward(z, t, m=None):\n"
        "    m = torch.ones_like(t) if m is None else m\n"
        f"    p = {draw(st.sampled_from(PS))}\n    p = {draw(st.sampled_from(HOTS))}\n"
        f"    return p * {draw(st.sampled_from(FACTORS))}\n",
        "layer_norm_backward": "def layer_norm_backward(g, x, gamma, beta):\n    D = x.shape[1]\n"
        f"    s = {draw(st.sampled_from(STDS))}\n    n = {draw(st.sampled_from(NORMS))}\n    h = g * gamma\n"
        f"    return {draw(st.sampled_from(DXS))}, (g * n).sum(0), g.sum(0)\n",
        "attention_backward": "def attention_backward(g, q, k, v, m=None):\n"
        f"    S = q @ k.mT {draw(st.sampled_from(SCALES))}\n    if m is not None:\n"
        f"        S = {draw(st.sampled_from(HIDES))}\n    P = S.softmax(-1)\n    dP = g @ v.mT\n"
        f"    dS = ({draw(st.sampled_from(SOFTMAXES))}) {draw(st.sampled_from(SCALES))}\n"
        "    return dS @ k, dS.mT @ q, P.mT @ g\n",
        "network_backward": "def network_backward(x, W, b1, u, b2):\n    z = W @ x + b1\n"
        f"    d = u * (z > 0)\n    return d @ W, {draw(st.sampled_from(OUTER))}, d, z.relu(), "
        f"{draw(st.sampled_from(LAST))}\n",
    }


@pytest.mark.slow
@given(st.composite(write_gradients)())
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_right_gradient_is_refused(tmp_path, sources):
    for name, source in sources.items():
        report = check_source(tmp_path, source, name)
        assert report.passed, (source, report.mistakes)
