"""Training of an image classifier against a vision transformer of the same shape in a plain loop with a DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from anaphor.data.images import ImageMetadata, ImageSplit
from anaphor.models import ImageModelSpec
from anaphor.tasks.images import ImageRunSpec
from anaphor.tasks.images.experiment import ImageExperiment
from anaphor.training.build import build_step
from anaphor.training.device import autocast_of
from benchmarks.our_loop import OurLoop, no_dataset
from benchmarks.packages import declare_torchvision_operators
from benchmarks.timing import Finding, estimate_ratio, mean_seconds, run_steps, time_alternately

MIN_RATIO = {"cpu": 1.2, "cuda": 2.5}
STEPS = {"cpu": 2, "cuda": 50}
"""Updates that are timed together."""
PADDING = 4
IMAGES, SIZE, CLASSES = 2048, 32, 10
SETTINGS: dict[str, dict[str, Any]] = {
    "cpu": {"model": "vit-nano", "batch_size": 64, "activation": "gelu", "position": "learned"},
    "cuda": {"model": "vit-small", "layers": 8, "batch_size": 512},
}
WORKERS = {"cpu": 0, "cuda": 8}
"""Processes that load images; on a CPU they would take the cores of the model."""


class PlainViT(nn.Module):
    """Convolution, class token, `nn.TransformerEncoder` with pre-norm, linear layer."""

    def __init__(self, spec: ImageModelSpec) -> None:
        super().__init__()
        width = spec.width
        self.patches = nn.Conv2d(3, width, spec.patch, stride=spec.patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, spec.grid**2 + 1, width))
        layer = nn.TransformerEncoderLayer(
            width, spec.heads or 4, 4 * width, 0.0, spec.activation, layer_norm_eps=1e-6, batch_first=True,
            norm_first=True,
        )  # fmt: skip
        norm = nn.LayerNorm(width, eps=1e-6)
        self.encoder = nn.TransformerEncoder(layer, len(spec.mixers_by_layer), norm, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).mT
        x = torch.cat((self.token.expand(len(x), -1, -1), x), dim=1) + self.position
        logits: Tensor = self.head(self.encoder(x)[:, 0])
        return logits


def timm_vit(spec: ImageModelSpec) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    model: nn.Module = VisionTransformer(
        img_size=SIZE, patch_size=spec.patch, embed_dim=spec.width, depth=len(spec.mixers_by_layer),
        num_heads=spec.heads or 4, num_classes=CLASSES,
    )  # fmt: skip
    return model


def peers() -> dict[str, Callable[[ImageModelSpec], nn.Module]]:
    """Models of the same shape, by name; timm's where it can be imported."""
    found: dict[str, Callable[[ImageModelSpec], nn.Module]] = {"nn.TransformerEncoder": PlainViT}
    declare_torchvision_operators()
    try:
        import timm  # noqa: F401
    except (ImportError, RuntimeError):  # also where the torchvision that it needs is built for another torch
        return found
    return {"timm's ViT": timm_vit, **found}


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Images one by one with random crop and flip, as tutorials load them."""

    def __init__(self, split: ImageSplit, metadata: ImageMetadata) -> None:
        self.split = split
        self.mean, self.std = (torch.tensor(values).view(-1, 1, 1) for values in (metadata.mean, metadata.std))

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        image = F.pad(self.split.images[number], (PADDING,) * 4)
        top, left = torch.randint(0, 2 * PADDING + 1, (2,)).tolist()
        image = image[:, top : top + SIZE, left : left + SIZE]
        image = image.flip(-1) if torch.rand(()) < 0.5 else image
        return (image / 255 - self.mean) / self.std, self.split.labels[number]


@dataclass
class PlainLoop:
    """The training loop of a tutorial: load, forward, backward, clip, update, read the loss."""

    model: nn.Module
    loader: DataLoader[tuple[Tensor, Tensor]]
    device: torch.device
    autocast: Callable[[], Any]

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.05)
        self.batches = self._forever()

    def _forever(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from self.loader

    def step(self) -> float:
        images, labels = (part.to(self.device, non_blocking=True) for part in next(self.batches))
        with self.autocast():
            loss = F.cross_entropy(self.model(images), labels)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()


def build_loops(peer: str, device: torch.device) -> tuple[OurLoop, PlainLoop, ImageRunSpec]:
    """Our loop and the plain one with models of the same shape and precision, on the same random images."""
    spec = ImageRunSpec(**SETTINGS[device.type], crop_padding=PADDING, flip=True)
    names = tuple(map(str, range(CLASSES)))
    pixels = torch.randint(0, 256, (IMAGES, 3, SIZE, SIZE), dtype=torch.uint8)
    split = ImageSplit(pixels, torch.randint(0, CLASSES, (IMAGES,)), names, digest="")
    metadata = ImageMetadata.of(split)
    shape = spec.model_spec(CLASSES, SIZE)
    experiment = ImageExperiment(spec, shape.build().to(device).train(), metadata, no_dataset, device=device)
    on_device = split.to(device)
    experiment.split = lambda name: on_device  # type: ignore[assignment]
    batches = [batch for batch in experiment.batches(0) if batch.count == spec.batch_size]
    loader = DataLoader(
        Augmented(split, metadata), spec.batch_size, shuffle=True, drop_last=True, num_workers=WORKERS[device.type],
        pin_memory=device.type == "cuda", persistent_workers=WORKERS[device.type] > 0,
    )  # fmt: skip
    theirs = PlainLoop(peers()[peer](shape).to(device).train(), loader, device, autocast_of("auto", device))
    return OurLoop(build_step(experiment), cycle(batches)), theirs, spec


def count_ticks(pairs: int, device: torch.device) -> int:
    return len(peers()) * pairs


def measure(pairs: int, device: torch.device, tick: Callable[[str], None]) -> list[Finding]:
    """One finding for each peer."""
    torch.manual_seed(0)
    return [_compare(peer, device, pairs, tick) for peer in peers()]


def _compare(peer: str, device: torch.device, pairs: int, tick: Callable[[str], None]) -> Finding:
    ours, theirs, spec = build_loops(peer, device)
    count, minimum = STEPS[device.type], MIN_RATIO[device.type]
    first, second = (partial(run_steps, step, count, device.type == "cuda") for step in (ours.step, theirs.step))
    times = time_alternately(first, second, pairs, partial(tick, spec.model))
    ratio = estimate_ratio(times)
    shape = spec.model_spec(CLASSES, SIZE)
    speeds = [spec.batch_size * count / seconds for seconds in mean_seconds(times)]
    where, dtype = ("a GPU", "bfloat16") if device.type == "cuda" else ("CPU", "float32")
    return ratio.to_finding(
        f"{spec.model}: training with random crop and flip, images/s on {where}, {dtype}",
        f"{peer} of the same shape in a plain loop with a DataLoader",
        promise=f"at least {minimum} ×",
        kept=ratio.value >= minimum,
        detail=(
            f"{speeds[0]:,.0f} against {speeds[1]:,.0f} images/s; {spec.batch_size} images of {SIZE} pixels, patches "
            f"of {shape.patch}, width {shape.width}, {len(shape.mixers_by_layer)} layers"
        ),
    )
