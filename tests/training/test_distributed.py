"""Several processes that train one run together have the losses of one."""

import os
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import anaphor
from anaphor.data.batches import Batch
from anaphor.data.image_batches import ImageBatch
from anaphor.errors import ConfigError
from anaphor.metrics.result import Metric, Result
from anaphor.models.presets import PRESETS
from anaphor.registry import TASKS
from anaphor.row_draws import RowShare, draw_rows, random_rows, repeated_rows
from anaphor.training.device import choose_device
from anaphor.training.distributed import Ranks, count_rows, take_rows
from anaphor.training.experiment import Experiment, Loss
from anaphor.training.launch import Launch, read_launch
from anaphor.training.spec import RunSpec
from anaphor.training.task import TaskDefinition
from training.ranks import on_ranks, train

SENTENCES = "the cat sat on the mat\na dog sat on a log and it was warm\n"
SMALL = {"width": 16, "dropout": 0.2, "eval_every": 4, "steps": 4}
LM = {**SMALL, "batch_size": 7, "bptt": 9, "accumulate": 2, "average": "ema"}
"""Seven rows: ranks have different numbers of them."""
QUICK = {
    "lm: weight drop, locked dropout": (
        "lm",
        {
            **LM,
            "model": "lstm",
            "weight_drop": 0.3,
            "dropout_kind": "locked",
            "word_dropout": 0.1,
            "carry": True,
            "activation_reg": 2.0,
            "temporal_activation_reg": 1.0,
        },
    ),
    "lm: memory": ("lm", {**LM, "model": "hybrid", "heads": 2, "memory": 12, "random_offset": True}),
    "lm: padded": ("lm", {**LM, "model": "gru", "batching": "padded", "bptt": None}),
    "translate: R-Drop, input feeding": (
        "translate",
        {
            **SMALL,
            "data": "pairs",
            "model": "luong",
            "layers": 2,
            "batch_size": 7,
            "rdrop": 1.0,
            "label_smoothing": 0.1,
        },
    ),
    "own task": (
        "toy",
        {"eval_every": 4, "steps": 8, "accumulate": 2, "optimizer": "sgd", "lr": 0.001, "weight_decay": 0.0},
    ),
}
LONG = {"width": 16, "dropout": 0.2, "eval_every": 25, "steps": 50, "batch_size": 7, "average": "ema", "accumulate": 2}
SLOW = {
    **{
        f"lm: {name}": ("lm", {**LONG, "bptt": 9, "model": name, **({"heads": 2} if "attention" in mixers else {})})
        for name, mixers in ((name, settings["mixers"]) for name, settings in PRESETS.items())
        if not name.startswith(("gpt", "openai", "gopher", "dialogue"))
    },
    # One process whose first matrix is changed by 1e-15 differs by 3e-7 after 50 steps with the usual learning rate.
    "lm: rwkv7": ("lm", {**LONG, "bptt": 9, "model": "rwkv7", "lr": 3e-5}),
    "lm: gpt": ("lm", {**LONG, "bptt": 9, "model": "gpt-nano", "heads": 2}),
    "translate: luong": ("translate", {**LONG, "data": "pairs", "model": "luong", "layers": 2, "rdrop": 1.0}),
    "translate: BLEU": ("translate", {**LONG, "data": "pairs", "model": "mixed", "heads": 2, "select": "bleu"}),
    "images: mixup, cutmix, drop path": (
        "images",
        {
            **LONG, "model": "vit-nano", "heads": 2, "layers": 2, "max_examples": 40, "mixup": 0.2, "cutmix": 1.0,
            "drop_path": 0.2, "crop_padding": 4, "flip": True, "random_ops": 1, "magnitude": 0.5,
        },
    ),
    "classify: lstm": ("classify", {**LONG, "model": "lstm", "max_examples": 40, "class_weights": "balanced"}),
    "own task": (
        "toy",
        {"eval_every": 25, "steps": 50, "accumulate": 2, "optimizer": "sgd", "lr": 0.001, "weight_decay": 0.0},
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ToySpec(RunSpec):
    """Train a model that adds up."""

    data: str = "toy"
    model: str = "toy"


@dataclass(frozen=True)
class ToyBatch:
    x: Tensor
    y: Tensor
    names: list[str]

    @property
    def count(self) -> int:
        return len(self.x)

    denominator = count


class ToyModel(nn.Module):
    """Torch's own layers, with their own dropout; one has no gradient in half of the batches."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8, sparse=True)
        self.layers = nn.GRU(8, 8, num_layers=2, dropout=0.3, batch_first=True)
        self.attention = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.sometimes = nn.Linear(8, 8)
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.layers(self.embed(x))
        y = self.attention(y)
        if x.sum() % 2:
            y = y + self.sometimes(y)
        return self.head(y[:, -1]).squeeze(-1)


class Toy(Experiment):
    def __init__(self, spec, saved=None, data_path=None):
        self.spec, self.saved, self.device = spec, saved or {}, choose_device("cpu")
        self.model = ToyModel()  # without a seed: every rank draws other weights, and those of the first one are taken
        self.x = torch.arange(30 * 4).view(30, 4) * 7 % 10

    def batches(self, epoch):
        rows = self.x.roll(epoch, 0).split(5)
        return [ToyBatch(x, x.sum(1).to(torch.get_default_dtype()), [str(row) for row in x]) for x in rows]

    def loss(self, batch, carry):
        assert len(batch.names) == len(batch.x)
        return Loss((self.model(batch.x) - batch.y).square().sum(), correct=(batch.y > 10).sum()), None

    def evaluate(self, split):
        self.model.eval()
        with torch.inference_mode():
            loss = float((self.model(self.x) - self.x.sum(1)).square().mean())
        return Result({"loss": loss}, {})

    def fingerprint(self):
        return {"data": {"train": "1", "valid": "2"}}


def register_toy() -> None:
    if "toy" not in TASKS:
        task = TaskDefinition(
            name="toy", spec=ToySpec, metrics=(Metric("loss", "min", "loss"),), unit="rows", build=Toy
        )
        anaphor.register_task(task)


def train_cases(cases, folder, rank=0, **more):
    register_toy()
    found = {}
    for name, (task, settings) in cases.items():
        torch.manual_seed(rank if task == "toy" else 0)
        data = {"data": str(folder / "text")} if task == "lm" else {}
        if settings.get("data") == "pairs":
            data = {"data": str(folder / "pairs"), "source": "aa", "target": "bb"}
        given = {key: value for key, value in {**settings, **data, **more}.items() if value is not None}
        out = folder / f"runs-{os.environ.get('WORLD_SIZE', 1)}" / name.replace(":", "").replace(" ", "-")
        run = train(task, out, **given)
        found[name] = {"losses": run["losses"], "valid": run["valid"], "result": run["result"]["valid"]["loss"]}
    return found


@pytest.fixture
def data(tmp_path):
    """A folder with a small text, and with pairs of sentences."""
    for name in ("text", "pairs"):
        (tmp_path / name).mkdir()
    lines = [f"{first} {second} sat" for first in ("a dog", "the cat") for second in ("slowly", "on the mat", "in")]
    for split in ("train", "valid"):
        (tmp_path / "text" / f"{split}.txt").write_text((SENTENCES + "\n") * 8)
        (tmp_path / "pairs" / f"{split}.aa").write_text("\n".join(lines * 3) + "\n")
        (tmp_path / "pairs" / f"{split}.bb").write_text("\n".join(line[::-1] for line in lines * 3) + "\n")
    return tmp_path


def check_equal(one, several):
    for name, run in one.items():
        for kind, value in run.items():
            assert several[name][kind] == pytest.approx(value, rel=1e-9), (name, kind)


@pytest.mark.needs("extras")
def test_two_ranks_have_the_losses_of_one(data):
    one = train_cases(QUICK, data)
    first, second = on_ranks(2, partial(train_cases, QUICK, data), data / "two")
    assert first == second
    check_equal(one, first)


@pytest.mark.slow
@pytest.mark.needs("extras")
@pytest.mark.parametrize("name", SLOW)
def test_one_two_and_four_ranks_have_the_same_losses(data, name):
    """Fifty steps of every recurrent, attention and hybrid preset with its state carried, and of all tasks."""
    case = {name: SLOW[name]}
    (one,) = on_ranks(1, partial(train_cases, case, data), data / "one")
    assert len(one[name]["losses"]) == 50
    for count in (2, 4):
        first, *others = on_ranks(count, partial(train_cases, case, data), data / f"on-{count}")
        assert all(other == first for other in others)
        check_equal(one, first)


def test_fewer_rows_than_ranks(data):
    padded = {**QUICK["lm: padded"][1], "batch_size": 3}
    cases = {"stream": ("lm", {**LM, "model": "lstm", "batch_size": 2}), "padded": ("lm", padded)}
    found = on_ranks(4, partial(train_cases, cases, data), data / "four")
    check_equal(train_cases(cases, data), found[0])


# ---- random numbers by row


DRAWS = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout, time first": lambda x: F.dropout(x.transpose(0, 1), 0.3).transpose(0, 1),
    "dropout, rows flattened": lambda x: F.dropout(x.flatten(0, 1), 0.3).unflatten(0, (-1, x.shape[1])),
    "attention": lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], dropout_p=0.4),
    "a factor for each row": lambda x: x * torch.rand(len(x), 1, 1),
    "noise": lambda x: x + torch.randn_like(x),
    "probabilities": lambda x: torch.bernoulli(x.sigmoid()),
    "gumbel": F.gumbel_softmax,
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.3, training=True),
    "dropout of channels": lambda x: F.dropout1d(x, 0.5),
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("is_time_first", [False, True])
def test_draws_of_some_rows_are_those_of_the_whole_batch(name, is_time_first):
    x = torch.randn(5, 6, 8).transpose(0, 1) if is_time_first else torch.randn(6, 5, 8)
    torch.manual_seed(1)
    whole, after = DRAWS[name](x), torch.get_rng_state()
    for share in (RowShare(0, 3, 6), RowShare(3, 6, 6), RowShare(4, 5, 6)):
        torch.manual_seed(1)
        with draw_rows(share):
            part = DRAWS[name](x[share.start : share.stop])
        assert torch.equal(part, whole[share.start : share.stop])
        assert torch.equal(torch.get_rng_state(), after)


def test_draws_without_rows_are_the_same_for_all():
    """Weights may have as many rows as there are in the batch."""
    weight = torch.ones(3, 4)
    torch.manual_seed(1)
    whole = F.dropout(weight, 0.5)
    torch.manual_seed(1)
    with draw_rows(RowShare(3, 6, 6)), random_rows(None):
        assert torch.equal(F.dropout(weight, 0.5), whole)


def test_draws_of_repeated_rows():
    x = torch.ones(12, 4)
    torch.manual_seed(1)
    whole = F.dropout(x, 0.5)
    torch.manual_seed(1)
    with draw_rows(RowShare(2, 4, 6)), repeated_rows(2):
        assert torch.equal(F.dropout(x[:4], 0.5), torch.cat((whole[2:4], whole[8:10])))


# ---- rows of a batch


def test_rows_of_a_batch():
    tokens = torch.arange(12).view(4, 3)
    batch = Batch(tokens, tokens, torch.tensor([3, 2, 1, 3]), indices=(7, 5, 6, 4))
    assert count_rows(batch) == 4
    part = take_rows(batch, RowShare(1, 3, 4))
    assert part.input_ids.tolist() == [[3, 4, 5], [6, 7, 8]]
    assert (part.indices, part.count) == ((5, 6), 3)


def test_rows_of_images_know_the_one_before():
    """It is the one with which the first row is mixed."""
    batch = ImageBatch(torch.tensor([5, 3, 8, 1]), torch.tensor(0))
    assert take_rows(batch, RowShare(0, 2, 4)).before.tolist() == [1]
    assert take_rows(batch, RowShare(2, 4, 4)).before.tolist() == [3]


def test_rows_of_a_batch_of_ones_own():
    batch = ToyBatch(torch.arange(8).view(4, 2), torch.arange(4), ["a", "b", "c", "d"])
    part = take_rows(batch, RowShare(2, 4, 4))
    assert (part.x.tolist(), part.y.tolist(), part.names) == ([[4, 5], [6, 7]], [2, 3], ["c", "d"])


def test_a_batch_without_rows_is_refused():
    class Other:
        count = denominator = 1

    with pytest.raises(ConfigError, match="Other has no tensors"):
        count_rows(Other())


@pytest.mark.parametrize(("total", "count"), [(7, 4), (8, 2), (2, 4), (1, 3)])
def test_every_row_counts_once(total, count):
    ranks = Ranks()
    ranks.count = count
    shares = [ranks.share(total, rank) for rank in range(count)]
    assert [row for one in shares if one.counts for row in range(one.start, one.stop)] == list(range(total))
    assert all(len(one) and one.stop <= total for one in shares)
    sizes = [len(one) for one in shares if one.counts]
    assert max(sizes) - min(sizes) <= 1


def test_a_process_that_torchrun_did_not_start_is_alone(monkeypatch):
    assert read_launch() == Launch()
    for name, value in {"RANK": 2, "WORLD_SIZE": 4, "LOCAL_RANK": 1, "MASTER_ADDR": "a", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    assert read_launch() == Launch(2, 4, 1)
