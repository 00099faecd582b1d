"""Optimizers: torch's own arithmetic, Muon, and a state that survives a file exactly."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from anaphor.errors import CheckpointError, ConfigError
from anaphor.models import build, build_seq2seq
from anaphor.registry import register_optimizer
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.training import checkpoint
from anaphor.training.build import build_experiment, build_step
from anaphor.training.muon import Muon, orthogonalize
from anaphor.training.optimizers import OPTIMIZERS, OptimizerSpec, Weights, build_optimizer

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
SETTINGS = {
    "sgd": OptimizerSpec(optimizer="sgd", lr=0.5, weight_decay=0.01, momentum=0.5),
    "adamw": OptimizerSpec(optimizer="adamw", lr=0.01, weight_decay=0.1),
    "adagrad": OptimizerSpec(optimizer="adagrad", lr=0.05, weight_decay=0.01),
    "muon": OptimizerSpec(optimizer="muon", lr=0.01, weight_decay=0.1),
}


def small(name="hybrid", **changes):
    torch.manual_seed(1)
    return build(name, vocabulary=11, width=8, layers=2, **changes).to(torch.float32)


def learn(model, optimizer, steps, first=0, spec=None):
    for step in range(first, first + steps):
        tokens = torch.randint(11, (3, 6), generator=torch.Generator().manual_seed(step))
        logits, _ = model(tokens[:, :-1])
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        if spec is not None:
            optimizer.set_lr(spec.peak_lr / (1 + step))
        optimizer.step()


def test_every_optimizer_is_tested():
    assert set(SETTINGS) == set(OPTIMIZERS)


@pytest.mark.parametrize("preset", ["lstm", "transformer"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_through_a_file_is_the_uninterrupted_run(name, preset, tmp_path):
    spec = SETTINGS.get(name) or OptimizerSpec(optimizer=name)
    model = small(preset)
    optimizer = build_optimizer(spec, model)
    learn(model, optimizer, 3, spec=spec)
    path = checkpoint.write(tmp_path, 3, {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, {})
    learn(model, optimizer, 3, first=3, spec=spec)

    stored = checkpoint.read(path)
    resumed = small(preset)
    for weight in resumed.parameters():
        nn.init.zeros_(weight)
    checkpoint.load_weights(resumed, stored.parts["model"])
    again = build_optimizer(spec, resumed)
    again.load_state_dict(stored.parts["optimizer"])
    learn(resumed, again, 3, first=3, spec=spec)

    for key, weight in model.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[key]), key
    assert optimizer.state_dict().keys() == again.state_dict().keys()
    for key, value in optimizer.state_dict().items():
        assert torch.equal(value, again.state_dict()[key]), key


def test_plain_sgd_against_the_line_of_the_example_script():
    model, plain = small(), small()
    optimizer = build_optimizer(OptimizerSpec(optimizer="sgd", lr=20.0), model)
    assert optimizer.state_dict() == {}
    tokens = torch.randint(11, (3, 6))
    for each in (model, plain):
        each(tokens)[0].square().mean().backward()
    optimizer.step()
    for weight in plain.parameters():
        weight.data.add_(weight.grad, alpha=-20.0)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


@pytest.mark.parametrize(("name", "kind"), [("adamw", torch.optim.AdamW), ("adagrad", torch.optim.Adagrad)])
def test_fused_kernels_against_the_plain_ones(name, kind):
    # In double precision, because a gradient that is all rounding still makes a whole step of Adam.
    model, plain = small().double(), small().double()
    options = {"betas": (0.9, 0.95)} if name == "adamw" else {}
    learn(model, build_optimizer(OptimizerSpec(optimizer=name, lr=0.01), model), 4)
    learn(plain, kind(plain.parameters(), lr=0.01, weight_decay=0.0, foreach=False, **options), 4)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_only_matrices_decay(name):
    model = small("transformer", tied=False, head_bias=True, position="learned")
    for weight in model.parameters():
        nn.init.ones_(weight)
        weight.grad = torch.zeros_like(weight)
    spec = OptimizerSpec(optimizer=name, lr=0.1, weight_decay=0.5)
    build_optimizer(spec, model).step()
    for key, weight in model.named_parameters():
        torch.testing.assert_close(weight, torch.full_like(weight, 0.95 if weight.ndim > 1 else 1.0), msg=key)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_constants_of_heads_do_not_decay(name):
    """The sharpness of a cosine and the two constants of relative positions have axes of length one to fit in."""
    model = small("transformer", score="cosine", position="relative", heads=2)
    with torch.no_grad():
        for weight in model.parameters():
            nn.init.ones_(weight)
            weight.grad = torch.zeros_like(weight)
    build_optimizer(OptimizerSpec(optimizer=name, lr=0.1, weight_decay=0.5), model).step()
    constants = ("score.logit_scale", "position.content_bias", "position.distance_bias")
    found = [weight for key, weight in model.named_parameters() if key.endswith(constants)]
    assert len(found) == 6
    assert all(weight.eq(1).all() for weight in found)
    bilinear = small("transformer", score="bilinear", heads=2)
    assert any(weight.ndim == 3 for weight in Weights.of(bilinear).hidden), "a matrix for each head is one"


@pytest.mark.parametrize("preset", ["lstm", "transformer", "transformer-xl"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_model_of_width_one_learns(name, preset):
    torch.manual_seed(1)
    heads = {} if preset == "lstm" else {"heads": 1, "score": "bilinear", "norm": "none"}
    model = build(preset, vocabulary=11, width=1, layers=1, **heads)
    with torch.no_grad():  # at first they are so small that steps of most of them would be rounded away
        for weight in model.parameters():
            weight.mul_(20)
    before = {key: weight.detach().clone() for key, weight in model.named_parameters()}
    learn(model, build_optimizer(SETTINGS[name], model), 2)
    for key, weight in model.named_parameters():
        assert weight.isfinite().all()
        assert key.endswith("bias") or not torch.equal(weight, before[key]), key
    matrices = {id(weight) for weight in Weights.of(model).hidden}
    assert all(id(weight) in matrices for key, weight in model.layers.named_parameters() if weight.ndim == 2)


@pytest.mark.parametrize("tied", [True, False])
def test_muon_takes_the_matrices_inside_and_adamw_the_rest(tied):
    model = small("hybrid", tied=tied)
    optimizer = build_optimizer(SETTINGS["muon"], model)
    learn(model, optimizer, 1)
    fields = {}
    for name in optimizer.state_dict():
        weight, field = name.split("/")
        fields.setdefault(weight, set()).add(field)
    assert fields.keys() == dict(model.named_parameters()).keys()
    for name, weight in model.named_parameters():
        inside = name.startswith("layers.") and weight.ndim == 2
        assert fields[name] == ({"momentum_buffer"} if inside else {"step", "exp_avg", "exp_avg_sq"}), name


def test_muon_leaves_the_output_of_a_translation_model_alone():
    model = build_seq2seq("luong", source_vocabulary=7, vocabulary=11, width=8, tied="none")
    (head,) = Weights.of(model).head
    assert head is model.head.own


def test_every_weight_is_learned_once():
    model = small("transformer", position="learned")
    model.layers.norm.weight.requires_grad_(False)
    weights = [weight for kind in Weights.of(model) for weight in kind]
    learned = [weight for weight in model.parameters() if weight.requires_grad]
    assert sorted(map(id, weights)) == sorted(map(id, learned))


def orthogonalized_by_svd(matrix, steps):
    """The slow twin: what the matrix products do to each singular value, done to each singular value."""
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    s = s / s.norm()
    a, b, c = COEFFICIENTS
    for _ in range(steps):
        s = a * s + b * s**3 + c * s**5
    return u @ torch.diag(s) @ v


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 1000))
def test_orthogonalize_against_the_singular_values(rows, columns, seed):
    matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(
        orthogonalize(matrix[None], COEFFICIENTS, 5, 1e-7)[0], orthogonalized_by_svd(matrix, 5), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("shape", [(32, 32), (16, 64), (64, 16)])
def test_a_step_of_muon_is_nearly_orthogonal(shape):
    weight = nn.Parameter(torch.zeros(shape, dtype=torch.float32))
    weight.grad = torch.randn(shape, dtype=torch.float32)
    Muon([weight], lr=1.0, weight_decay=0.0, adjust_lr_fn="match_rms_adamw").step()
    singular = torch.linalg.svdvals(weight.detach()) / (0.2 * max(shape) ** 0.5)
    assert singular.min() > 0.6
    assert singular.max() < 1.3


@pytest.mark.parametrize("rule", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("shape", [(8, 20), (20, 8)])
def test_muon_against_torch(shape, rule):
    """Theirs computes in bf16, which has three digits."""
    ours, theirs = (nn.Parameter(torch.ones(shape, dtype=torch.float32)) for _ in range(2))
    options = {"lr": 0.1, "weight_decay": 0.1, "momentum": 0.9, "adjust_lr_fn": rule}
    kernels = Muon([ours], **options), torch.optim.Muon([theirs], **options)
    for _ in range(3):
        gradient = torch.randn(shape, dtype=torch.float32)
        for weight, kernel in zip((ours, theirs), kernels, strict=True):
            weight.grad = gradient.clone()
            kernel.step()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0.02)


@pytest.mark.parametrize("name", ["sgd", "adamw", "muon"])
def test_a_learning_rate_on_the_device_is_the_same_learning_rate(name):
    spec, model, captured = SETTINGS[name], small().double(), small().double()
    spec = replace(spec, layer_lr=(1, 0.3))
    learn(model, build_optimizer(spec, model), 3, spec=spec)
    optimizer = build_optimizer(spec, captured, captured=True)
    assert optimizer.captured
    assert all(isinstance(group["lr"], torch.Tensor) for group in optimizer.param_groups)
    learn(captured, optimizer, 3, spec=spec)
    for ours, theirs in zip(model.parameters(), captured.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_adagrad_says_that_it_cannot_be_captured():
    assert not build_optimizer(SETTINGS["adagrad"], small(), captured=True).captured


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_layer_with_a_learning_rate_of_its_own_steps_as_if_all_had_it(name):
    def stepped(spec):
        model = small("transformer")
        optimizer = build_optimizer(spec, model)
        learn(model, optimizer, 1, spec=spec)
        return dict(model.named_parameters()), optimizer

    spec = SETTINGS[name]
    full, _ = stepped(spec)
    quarter, _ = stepped(replace(spec, lr=spec.peak_lr / 4))
    mixed, optimizer = stepped(replace(spec, layer_lr=(1, 0.25)))
    for key, weight in mixed.items():
        alone = quarter if key.startswith("layers.1.") else full
        torch.testing.assert_close(weight, alone[key], rtol=0, atol=0, msg=key)
    assert optimizer.lr == spec.peak_lr
    assert {group["lr"] for group in optimizer.param_groups} == {spec.peak_lr, spec.peak_lr / 4}


def test_a_rate_of_zero_leaves_a_layer_as_it_was():
    model, before = small("transformer"), small("transformer").state_dict()
    spec = replace(SETTINGS["adamw"], layer_lr=[0, 1])
    learn(model, build_optimizer(spec, model), 2, spec=spec)
    same = {name for name, weight in model.state_dict().items() if torch.equal(weight, before[name])}
    assert same == {name for name in before if name.startswith("layers.0.")}


def test_layer_lr_of_a_translation_model_has_the_encoder_first():
    model = build_seq2seq("transformer-translation", source_vocabulary=7, vocabulary=11, width=8, heads=2, layers=2)
    groups = build_optimizer(OptimizerSpec(layer_lr=(1, 2, 3, 4)), model).param_groups
    factors = {weight: group["factor"] for group in groups for weight in group["params"]}
    layers = [*model.encoder.layers, *model.decoder.layers]
    assert [{factors[weight] for weight in layer.parameters()} for layer in layers] == [{1}, {2}, {3}, {4}]


def test_layer_lr_needs_one_factor_for_each_layer():
    with pytest.raises(ConfigError, match="3 layer_lr are given for 2 layers"):
        build_optimizer(OptimizerSpec(layer_lr=(1, 1, 0.5)), small())


def test_the_learning_rate_is_the_usual_one_unless_given():
    for name, rule in OPTIMIZERS.items():
        groups = build_optimizer(OptimizerSpec(optimizer=name), small()).param_groups
        assert {group["lr"] for group in groups} == {rule.lr}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"optimizer": "adam"}, "did you mean 'adamw'"),
        ({"optimizer": "sgd", "betas": (0.9, 0.9)}, r"betas.* is not used by sgd; it belongs to adamw, muon"),
        ({"optimizer": "adamw", "momentum": 0.9}, r"momentum=0.9 is not used by adamw; it belongs to muon, sgd"),
        ({"lr": 0.0}, "lr=0.0"),
        ({"lr": float("nan")}, "lr=nan"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"betas": (0.9,)}, "give two, of the first and the second moment"),
        ({"optimizer": "muon", "momentum": 1.0}, "momentum=1.0"),
        ({"layer_lr": (1, -0.5)}, r"layer_lr=\(1, -0.5\): factors of the learning rate must be 0 or more"),
        ({"layer_lr": (float("nan"),)}, "layer_lr=.*and finite"),
    ],
)
def test_settings_that_cannot_work_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        OptimizerSpec(**fields)


def test_a_model_without_weights_is_refused():
    with pytest.raises(ConfigError, match="Identity has no parameters to train"):
        build_optimizer(OptimizerSpec(), nn.Identity())


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda state: state.pop("embedder.embedding.weight/exp_avg"), "missing: embedder.embedding.weight/exp_avg"),
        (lambda state: state.update({"foo/exp_avg": torch.zeros(1)}), "unexpected: foo/exp_avg"),
        (
            lambda state: state.update({"embedder.embedding.weight/exp_avg": torch.zeros(3, 8)}),
            "embedder.embedding.weight/exp_avg is 3 × 8 but should be 11 × 8",
        ),
        (
            lambda state: state.update({"embedder.embedding.weight/exp_avg": torch.zeros(11, 8, dtype=torch.long)}),
            "embedder.embedding.weight/exp_avg holds int64 but should hold float32",
        ),
    ],
)
def test_a_state_of_other_weights_is_refused_and_changes_nothing(spoil, message):
    model = small()
    optimizer = build_optimizer(OptimizerSpec(), model)
    learn(model, optimizer, 1)
    state = dict(optimizer.state_dict())
    spoil(state)
    with pytest.raises(CheckpointError, match=message):
        optimizer.load_state_dict(state)
    assert "embedder.embedding.weight/exp_avg" in optimizer.state_dict()


class Own(torch.optim.Optimizer):
    """A user's optimizer, whose state is a number and a tensor more precise than the weights."""

    def __init__(self, params):
        super().__init__(params, {"lr": 1e-3})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                mean = state.setdefault("mean", torch.zeros_like(weight, dtype=torch.float64))
                mean.lerp_(weight.grad.double(), 0.1)
                state["factor"] = state.get("factor", 1.0) * (2 / 3)
                weight.sub_((group["lr"] * state["factor"] * mean).to(weight.dtype))


def test_the_state_of_a_users_optimizer_survives_a_file_exactly(tmp_path):
    register_optimizer("own", Own)
    torch.set_default_dtype(torch.float32)
    test_a_run_through_a_file_is_the_uninterrupted_run("own", "lstm", tmp_path)
    model = small()
    optimizer = build_optimizer(OptimizerSpec(optimizer="own"), model)
    learn(model, optimizer, 2)
    again = build_optimizer(OptimizerSpec(optimizer="own"), model)
    again.load_state_dict(optimizer.state_dict())
    (weight, state), *_ = again.parts[0].state.items()
    assert state["factor"] == 1.0 * (2 / 3) * (2 / 3)
    assert state["mean"].dtype is torch.float64
    assert torch.equal(state["mean"], optimizer.parts[0].state[weight]["mean"])


def test_state_that_cannot_be_saved_is_refused():
    class Odd(Own):
        def step(self):
            super().step()
            for state in self.state.values():
                state["history"] = []

    register_optimizer("odd", Odd)
    model = small()
    optimizer = build_optimizer(OptimizerSpec(optimizer="odd"), model)
    learn(model, optimizer, 1)
    with pytest.raises(ConfigError, match="Odd keeps a list as 'history', which cannot be saved"):
        optimizer.state_dict()


@pytest.mark.parametrize("name", ["sgd", "adamw", "adagrad", "muon"])
def test_a_step_is_that_of_torch(name):
    """Ours leaves out what torch wraps around it for its compiler."""

    def trained(step):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
        optimizer = build_optimizer(OptimizerSpec(optimizer=name, lr=0.1), model)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(5, 4)).square().sum().backward()
            step(optimizer)
        return torch.nn.utils.parameters_to_vector(model.parameters())

    ours = trained(lambda optimizer: optimizer.step())
    assert torch.equal(ours, trained(lambda optimizer: [part.step() for part in optimizer.parts]))
    assert not torch.equal(ours, trained(lambda optimizer: None))


@pytest.mark.parametrize("name", ["sgd", "adamw", "adagrad", "muon"])
def test_step_hooks_of_torch_are_called(name):
    model, called = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)), []
    optimizer = build_optimizer(OptimizerSpec(optimizer=name, lr=0.1), model)
    (first, *_) = optimizer.parts
    first.register_step_pre_hook(lambda part, args, kwargs: called.append(("before", part)))
    first.register_step_post_hook(lambda part, args, kwargs: called.append(("after", part)))
    model(torch.randn(5, 4)).square().sum().backward()
    optimizer.step()
    assert called == [("before", first), ("after", first)]


def test_step_hooks_of_all_optimizers_are_called():
    model, called = torch.nn.Linear(4, 8), []
    optimizer = build_optimizer(OptimizerSpec(optimizer="adamw"), model)
    for register in (register_optimizer_step_pre_hook, register_optimizer_step_post_hook):
        handle = register(lambda part, args, kwargs: called.append(part))
        optimizer.step()
        handle.remove()
    assert called == [*optimizer.parts, *optimizer.parts]


@pytest.mark.parametrize("clip", [0.001, 1000.0])
def test_gradients_are_clipped_as_torch_clips_them(clip):
    spec = LanguageRunSpec(
        data="grammar", width=16, optimizer="sgd", lr=0.5, clip=clip, batch_size=4, bptt=8, device="cpu"
    )
    experiment = build_experiment(spec)
    step, carry, batches = build_step(experiment), experiment.initial_carry(), experiment.batches(0)
    step([batches[0]], carry)
    model = experiment.model
    before = [weight.detach().clone() for weight in model.parameters()]
    report, _ = step([batches[1]], carry)
    clipped = [weight.grad.clone() for weight in model.parameters()]
    for weight, old, gradient in zip(model.parameters(), before, clipped, strict=True):
        torch.testing.assert_close(weight.detach(), old - 0.5 * gradient)
        weight.data = old
    model.zero_grad()
    loss, _ = experiment.loss(batches[1], carry)
    (loss.objective / batches[1].denominator).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    assert report.read().norm == pytest.approx(float(norm), rel=1e-5)
    assert (norm > clip) == (clip < 1)
    for gradient, weight in zip(clipped, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, weight.grad)


@pytest.mark.parametrize("clip", [0.0, 0.25])
def test_a_users_embeddings_with_sparse_gradients_learn_what_dense_ones_do(clip):
    spec = LanguageRunSpec(
        data="grammar", width=16, tied=False, optimizer="sgd", lr=20.0, clip=clip, batch_size=4, bptt=8, device="cpu"
    )

    def learned(sparse):
        torch.manual_seed(0)
        experiment = build_experiment(spec)
        experiment.model.train().embedder.embedding.sparse = sparse
        step, carry, batches = build_step(experiment), experiment.initial_carry(), experiment.batches(0)
        for batch in batches[:3]:
            report, carry = step([batch], carry)
        assert experiment.model.embedder.embedding.weight.grad.is_sparse == sparse
        return report.values, torch.nn.utils.parameters_to_vector(experiment.model.parameters())

    for found, expected in zip(learned(True), learned(False), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
