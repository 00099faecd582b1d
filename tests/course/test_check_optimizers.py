"""Optimizers: right ones pass in every style, planted mistakes are caught and named, the references are torch's."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anaphor.course.catalog import find_reference
from anaphor.course.check import check
from anaphor.course.student import Subject
from anaphor.errors import ConfigError
from course.students import check_source, names_of, plant

RIGHT = {
    "SGD": """
class SGD(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.0, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = p.grad + group["weight_decay"] * p
                state = self.state[p]
                if "b" not in state:
                    state["b"] = torch.clone(g)
                else:
                    state["b"] = momentum * state["b"] + g
                p -= lr * state["b"]
""",
    "Adam": """
class Adam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, (beta1, beta2), eps, wd = group["lr"], group["betas"], group["eps"], group["weight_decay"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = p.grad + wd * p
                state = self.state[p]
                if not state:
                    state["t"], state["m"], state["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                state["t"] += 1
                state["m"] = beta1 * state["m"] + (1 - beta1) * g
                state["v"] = beta2 * state["v"] + (1 - beta2) * g ** 2
                m_hat = state["m"] / (1 - beta1 ** state["t"])
                v_hat = state["v"] / (1 - beta2 ** state["t"])
                p -= lr * m_hat / (v_hat.sqrt() + eps)
""",
    "Adagrad": """
class Adagrad:
    def __init__(self, params, lr=1e-2, eps=1e-10, weight_decay=0.0):
        self.params = list(params)
        self.lr, self.eps, self.weight_decay = lr, eps, weight_decay
        self.sums = [torch.zeros_like(p) for p in self.params]

    def step(self):
        with torch.no_grad():
            for p, s in zip(self.params, self.sums):
                if p.grad is None:
                    continue
                g = p.grad + self.weight_decay * p
                s += g ** 2
                p -= self.lr * g / (s.sqrt() + self.eps)
""",
    "RMSprop": """
class RMSprop:
    def __init__(self, params, lr=1e-2, alpha=0.99, eps=1e-8, weight_decay=0.0):
        self.params = list(params)
        self.lr, self.alpha, self.eps, self.weight_decay = lr, alpha, eps, weight_decay
        self.v = {p: torch.zeros_like(p) for p in self.params}

    def step(self):
        for p in self.params:
            if p.grad is None:
                continue
            g = p.grad + self.weight_decay * p.data
            self.v[p] = self.alpha * self.v[p] + (1 - self.alpha) * g.square()
            p.data.addcdiv_(g, self.v[p].sqrt() + self.eps, value=-self.lr)
""",
}
RIGHT["AdamW"] = plant(plant(RIGHT["Adam"], "class Adam", "class AdamW"), "g = p.grad + wd * p",
                       "g = p.grad\n                p *= 1 - lr * wd")  # fmt: skip
FUNCTIONS = [
    ("SGD", "def SGD(params, grads, state, lr, momentum=0.9):\n    for i, (p, g) in enumerate(zip(params, grads)):\n"
     "        state[i] = momentum * state.get(i, 0) + g\n        p -= lr * state[i]\n"),
    ("SGD", "def SGD(w, dw, v, lr, mu):\n    v = mu * v - lr * dw\n    return w + v, v\n"),
    ("SGD", "def SGD(w, dw, config=None):\n    v = config.get('velocity', torch.zeros_like(w))\n"
     "    v = config['momentum'] * v - config['learning_rate'] * dw\n    config['velocity'] = v\n"
     "    return w + v, config\n"),
    ("SGD", "class SGD:\n    def __init__(self, parameters, learning_rate, beta):\n"
     "        self.ps, self.lr, self.beta = list(parameters), learning_rate, beta\n"
     "        self.v = [0.0 for _ in self.ps]\n"
     "    @torch.no_grad()\n    def step(self):\n        for i, p in enumerate(self.ps):\n"
     "            if p.grad is not None:\n                self.v[i] = self.beta * self.v[i] + p.grad\n"
     "                p.sub_(self.lr * self.v[i])\n"),
    ("SGD", "class SGD(torch.optim.SGD):\n    pass\n"),
    ("Adam", "def Adam(param, grad, m, v, t, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):\n"
     "    m = beta1 * m + (1 - beta1) * grad\n    v = beta2 * v + (1 - beta2) * grad * grad\n"
     "    rate = lr * math.sqrt(1 - beta2 ** t) / (1 - beta1 ** t)\n"
     "    return param - rate * m / (v.sqrt() + eps), m, v\n"),
    ("Adam", "def Adam(params, grads, state, lr):\n    t = state['t'] = state.get('t', 0) + 1\n    new = []\n"
     "    for i, (p, g) in enumerate(zip(params, grads)):\n        m, v = state.get(i, (0, 0))\n"
     "        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g ** 2\n        state[i] = m, v\n"
     "        new.append(p - lr * (m / (1 - 0.9 ** t)) / ((v / (1 - 0.999 ** t)) ** 0.5 + 1e-8))\n"
     "    return new, state\n"),
    ("Adam", "class Adam:\n    def __init__(self, params, lr):\n"
     "        self.params, self.lr, self.t = list(params), lr, 0\n"
     "        self.m = [torch.zeros_like(p) for p in self.params]\n"
     "        self.v = [torch.zeros_like(p) for p in self.params]\n"
     "    def step(self):\n        self.t += 1\n        for p, m, v in zip(self.params, self.m, self.v):\n"
     "            if p.grad is None:\n                continue\n            m.mul_(0.9).add_(p.grad, alpha=0.1)\n"
     "            v.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)\n"
     "            p.data -= self.lr * m / (1 - 0.9 ** self.t) / ((v / (1 - 0.999 ** self.t)).sqrt() + 1e-8)\n"),
    ("AdamW", "class AdamW(torch.optim.AdamW):\n    pass\n"),
    ("AdamW", "def AdamW(p, g, state, lr, weight_decay, betas=(0.9, 0.999), eps=1e-8):\n"
     "    t = state['t'] = state.get('t', 0) + 1\n    m = state['m'] = torch.lerp(g, state.get('m', 0 * g), betas[0])\n"
     "    v = state['v'] = torch.lerp(g * g, state.get('v', 0 * g), betas[1])\n"
     "    update = m / (1 - betas[0] ** t) / ((v / (1 - betas[1] ** t)).sqrt() + eps)\n"
     "    return p - lr * (update + weight_decay * p)\n"),
    ("Adagrad", "def Adagrad(w, dw, config):\n    h = config['h'] = config.get('h', 0) + dw ** 2\n"
     "    return w - config['learning_rate'] * dw / (h.sqrt() + config.get('epsilon', 1e-10)), config\n"),
    ("Adagrad", "class Adagrad(torch.optim.Adagrad):\n    pass\n"),
    ("RMSprop", "class RMSprop(torch.optim.RMSprop):\n    pass\n"),
    ("RMSprop", "def RMSprop(x, dx, cache, lr, decay_rate=0.99, eps=1e-8):\n"
     "    cache['v'] = decay_rate * cache.get('v', 0) + (1 - decay_rate) * dx ** 2\n"
     "    x -= lr * dx / (torch.sqrt(cache['v']) + eps)\n"),
]  # fmt: skip
MISTAKES = [
    ("SGD", "p -= lr", "p += lr", "gradient-ascent"),
    ("SGD", "p -= lr", "p = p - lr", "parameters-never-change"),
    ("SGD", 'if "b" not in state', "if True", "momentum-without-effect"),
    ("SGD", "torch.clone(g)", "torch.zeros_like(g)", "first-step-wrong"),
    ("SGD", "torch.clone(g)", "(1 - momentum) * g", "unknown"),
    ("SGD", '* state["b"] + g', '* state["b"] + (1 - momentum) * g', "gradient-damped"),
    ("SGD", '* state["b"]\n', '* (g + momentum * state["b"])\n', "nesterov"),
    ("SGD", "p -= lr * ", "p -= lr * lr * ", "rate-twice"),
    ("SGD", "p -= lr * ", "p -= ", "rate-missing"),
    ("SGD", "momentum * state", "state", "momentum-added"),
    ("SGD", "+ g\n", "- g\n", "unknown"),
    ("SGD", ' + group["weight_decay"] * p', "", "weight-decay-ignored"),
    ("SGD", 'p.grad + group["weight_decay"] * p\n', 'p.grad\n                p *= 1 - lr * group["weight_decay"]\n',
     "weight-decay-decoupled"),
    ("SGD", "self.state[p]", "self.state[0]", "state-shared"),
    ("SGD", 'lr, momentum = group["lr"]', 'lr, momentum = self.defaults["lr"]', "groups-ignored"),
    ("SGD", "if p.grad is None", "if False", "raises"),
    ("SGD", "@torch.no_grad()", "", "raises"),
    ("Adam", "/ (1 - beta1 ** state[\"t\"])", "", "no-bias-correction-of-m"),
    ("Adam", "/ (1 - beta2 ** state[\"t\"])", "", "no-bias-correction-of-v"),
    ("Adam", "m_hat / (v_hat", 'state["m"] / (state["v"]', "no-bias-correction"),
    ("Adam", ' ** state["t"]', "", "bias-correction-without-power"),
    ("Adam", '["t"] += 1', '["t"] += 0', "first-step-wrong"),
    ("Adam", '["t"], state["m"], state["v"] = 0', '["t"], state["m"], state["v"] = 1', "step-count-ahead"),
    ("Adam", "(v_hat.sqrt() + eps)", "(v_hat + eps).sqrt()", "epsilon-inside-root"),
    ("Adam", "(v_hat.sqrt() + eps)", "v_hat.sqrt()", "epsilon-missing"),
    ("Adam", "v_hat.sqrt()", "v_hat", "root-missing"),
    ("Adam", "(beta1, beta2)", "(beta2, beta1)", "betas-swapped"),
    ("Adam", "* g ** 2", "* g", "square-missing"),
    ("Adam", "lr * m_hat", "lr * g", "gradient-for-mean"),
    ("Adam", "if not state", "if True", {"state-not-kept"}),
    ("Adam", " + wd * p", "", "weight-decay-ignored"),
    ("Adam", "g = p.grad + wd * p", "g = p.grad\n                p *= 1 - lr * wd", "weight-decay-decoupled"),
    ("Adam", "p -= lr", "p += lr", "gradient-ascent"),
    ("Adam", "(1 - beta1) * g", "g", "gradient-not-damped"),
    ("Adam", "lr * m_hat", "2 * lr * m_hat", "unknown"),
    ("AdamW", "p *= 1 - lr * wd", "g = g + wd * p", "weight-decay-coupled"),
    ("AdamW", "p *= 1 - lr * wd", "p *= 1 - wd", "weight-decay-without-rate"),
    ("AdamW", "p *= 1 - lr * wd", "p *= 1 + lr * wd", "weight-decay-sign"),
    ("AdamW", "p *= 1 - lr * wd", "pass", "weight-decay-ignored"),
    ("AdamW", "v_hat.sqrt() + eps)", "v_hat.sqrt() + eps)\n                p *= 1 - lr * wd", "unknown"),
    ("AdamW", "m_hat / (v_hat", 'state["m"] / (state["v"]', "no-bias-correction"),
    ("AdamW", "(v_hat.sqrt() + eps)", "(v_hat + eps).sqrt()", "epsilon-inside-root"),
    ("AdamW", "self.state[p]", "self.state[0]", "state-shared"),
    ("Adagrad", "(s.sqrt() + self.eps)", "(s + self.eps).sqrt()", "epsilon-inside-root"),
    ("Adagrad", "(s.sqrt() + self.eps)", "s.sqrt()", "epsilon-missing"),
    ("Adagrad", "s.sqrt()", "s", "root-missing"),
    ("Adagrad", "s += g ** 2", "s += g", "square-missing"),
    ("Adagrad", "s += g ** 2", "s += g.abs()", "absolute-for-square"),
    ("Adagrad", "s += g ** 2", "s += (g ** 2).sum()", "one-number-for-all"),
    ("Adagrad", "s += g ** 2", "s.mul_(0.9).add_(0.1 * g ** 2)", "running-mean"),
    ("Adagrad", "zeros_like", "ones_like", "starts-at-one"),
    ("Adagrad", "p -= self.lr * g", "p += self.lr * g", "gradient-ascent"),
    ("Adagrad", " + self.weight_decay * p", "", "weight-decay-ignored"),
    ("Adagrad", "list(params)", "params", "parameters-never-change"),
    ("Adagrad", "s += g ** 2", "s = s + g ** 2", "state-not-kept"),
    ("Adagrad", "self.lr * g", "self.lr * g * 3", "unknown"),
    ("RMSprop", "(1 - self.alpha) * g.square()", "g.square()", "square-not-damped"),
    ("RMSprop", "self.alpha * self.v[p] + (1 - self.alpha)", "(1 - self.alpha) * self.v[p] + self.alpha",
     "alpha-swapped"),
    ("RMSprop", "self.alpha * self.v[p] + (1 - self.alpha) *", "self.v[p] +", "squares-summed"),
    ("RMSprop", "self.v[p].sqrt() + self.eps", "(self.v[p] + self.eps).sqrt()", "epsilon-inside-root"),
    ("RMSprop", "self.v[p].sqrt()", "self.v[p]", "root-missing"),
    ("RMSprop", "value=-self", "value=self", "gradient-ascent"),
    ("RMSprop", "self.v[p] = ", "v = ", {"old-squares", "state-not-kept"}),
    ("RMSprop", "zeros_like", "ones_like", "starts-at-one"),
    ("RMSprop", " + self.weight_decay * p.data", "", "weight-decay-ignored"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "source"), [*RIGHT.items(), *FUNCTIONS])
def test_a_right_optimizer_passes(name, source, tmp_path):
    report = check_source(tmp_path, source, name)
    assert report.passed, report.mistakes
    assert any("parameters" in one for one in report.checked)


@pytest.mark.parametrize(("name", "old", "new", "mistake"), MISTAKES)
def test_a_mistake_in_an_optimizer_is_named(name, old, new, mistake, tmp_path):
    expected = mistake if isinstance(mistake, set) else {mistake}
    assert names_of(check_source(tmp_path, plant(RIGHT[name], old, new), name)) == expected


@pytest.mark.parametrize("name", RIGHT)
def test_the_reference_is_the_optimizer_of_torch(name, tmp_path):
    report = check(find_reference(name), Subject(tmp_path, name, getattr(torch.optim, name)))
    assert report.passed, report.mistakes
    assert {"parameters where a gradient is None", "parameters with two parameter groups"} < {*report.checked}


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("SGD", "class SGD:\n    def __init__(self, params, lr):\n        pass\n"),
        ("AdamW", "def AdamW(params, grads, state, lr):\n    pass\n"),
        ("Adam", "def Adam(model, loss):\n    pass\n"),
        ("Adagrad", "class Adagrad:\n    def __init__(self, params, lr, closure):\n        pass\n"),
    ],
)
def test_another_signature_of_an_optimizer_is_one_line(name, source, tmp_path):
    with pytest.raises(ConfigError, match=f"has other arguments than expected: {name}\\(params, lr"):
        check_source(tmp_path, source, name)


ROOTS = ["{}.sqrt()", "torch.sqrt({})", "{} ** 0.5", "{}.pow(0.5)"]
SQUARES = ["g * g", "g ** 2", "g.square()", "torch.pow(g, 2)"]
MEANS = ["{b} * {m} + (1 - {b}) * {g}", "{m} + (1 - {b}) * ({g} - {m})", "torch.lerp({g}, {m}, {b})",
         "{m}.mul_({b}).add_({g}, alpha=1 - {b})"]  # fmt: skip
STEPS = ["p.data -= lr * {}", "p.data.sub_({}, alpha=lr)", "p.data = p.data - lr * {}", "p.data.add_(-lr * ({}))",
         "p.data.copy_(p.data - lr * ({}))"]  # fmt: skip
BUFFERS = ["mu * b + g", "b.mul(mu).add(g)", "torch.add(g, b, alpha=mu)"]
DECAYS = ["p.grad + wd * p.data", "p.grad.add(p.data, alpha=wd)", "(p.grad if wd == 0 else p.grad + p.data * wd)"]


def write_optimizers(draw):
    """Five right optimizers in styles of their own."""
    pick = lambda kind: draw(st.sampled_from(kind))  # noqa: E731
    base = draw(st.booleans())
    step, root, square = pick(STEPS), pick(ROOTS), pick(SQUARES)
    mean = lambda m, b, g: pick(MEANS).format(m=m, b=b, g=g)  # noqa: E731
    adam = (
        f"s['t'] = s.get('t', 0) + 1\ns.setdefault('m', torch.zeros_like(p)); s.setdefault('v', torch.zeros_like(p))\n"
        f"s['m'] = {mean('s[chr(109)]', 'beta1', 'g')}\ns['v'] = {mean('s[chr(118)]', 'beta2', f'({square})')}\n"
        f"c = (s['v'] / (1 - beta2 ** s['t']))\n"
        f"{step.format('(s[chr(109)] / (1 - beta1 ** s[chr(116)]) / (' + root.format('c') + ' + eps))')}\n"
    )
    decay = f"g = {pick(DECAYS)}\n"
    shrink = pick(["p.data *= 1 - lr * wd\n", "p.data -= lr * wd * p.data\n"])
    bodies = {
        "SGD": decay + f"b = s.get('b')\nb = g.clone() if b is None else {pick(BUFFERS)}\n"
        f"s['b'] = b\n{step.format('b')}\n",
        "Adam": decay + adam,
        "AdamW": pick([shrink + "g = p.grad\n", "g = p.grad\n" + shrink]) + adam,
        "Adagrad": decay + f"s['v'] = s.get('v', 0) + {square}\nc = s['v']\n"
        + step.format("(g / (" + root.format("c") + " + eps))") + "\n",
        "RMSprop": decay + "s.setdefault('v', torch.zeros_like(p))\n"
        + f"s['v'] = {mean('s[chr(118)]', 'alpha', f'({square})')}\nc = s['v']\n"
        + step.format("(g / (" + root.format("c") + " + eps))") + "\n",
    }  # fmt: skip
    arguments = {"SGD": "mu", "Adam": "betas=(0.9, 0.999), eps=1e-8", "AdamW": "betas=(0.9, 0.999), eps=1e-8",
                 "Adagrad": "eps=1e-10", "RMSprop": "alpha=0.99, eps=1e-8"}  # fmt: skip
    return {name: write_class(name, arguments[name], body, base) for name, body in bodies.items()}


def write_class(name, arguments, body, is_torch):
    names = [one.split("=")[0].strip() for one in arguments.replace("(0.9, 0.999)", "0").split(",")] + ["wd"]
    lines = body.replace("\n", "\n" + " " * 16).rstrip()
    if is_torch:
        head = "torch.optim.Optimizer"
        begin = f"super().__init__(params, dict(lr=lr, {', '.join(f'{one}={one}' for one in names)}))"
        groups, read = "self.param_groups", "group['{}']"
    else:
        head, groups, read = "object", "[{'params': self.params}]", "self.{}"
        begin = f"self.params, self.state, self.lr, {', '.join('self.' + one for one in names)} = "
        begin += f"list(params), {{}}, lr, {', '.join(names)}"
    given = "; ".join(f"{one} = {read.format(one)}" for one in ("lr", *names))
    betas = "beta1, beta2 = betas" if "betas" in names else "pass"
    return f"""
class {name}({head}):
    def __init__(self, params, lr, {arguments}, wd=0.0):
        {begin}

    def step(self):
        for group in {groups}:
            {given}
            {betas}
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state.setdefault(p, {{}})
                {lines}
"""


@pytest.mark.slow
@given(st.composite(write_optimizers)())
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_right_optimizer_is_refused(tmp_path, sources):
    for name, source in sources.items():
        report = check_source(tmp_path, source, name)
        assert report.passed, (source, report.mistakes)
