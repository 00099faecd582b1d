"""Draw the two figures of `docs/architecture.md`: the core with its shelves, and the life of a batch.

`python docs/figures/architecture.py` writes them beside this file. Tests compare the names with the source.
"""

from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

HERE = Path(__file__).parent
BLUE, ORANGE, GRAY, INK = "#dbe7f6", "#fde6cf", "#f0f0f0", "#222222"

CORE = [
    ("the command and its Python twin", ["cli", "api"]),
    ("data, model, loss and scores of one kind of problem", ["tasks"]),
    ("how a run is trained", ["training"]),
    ("scores, text, a look inside", ["evaluation", "generate", "beam_search", "inspect"]),
    ("what goes in, what is counted", ["data", "metrics"]),
    ("embedder, backbone, head", ["models", "cuda_graphs"]),
    ("layers: (x, state, span) → (y, state)", ["mixers"]),
    ("places to look, table of kernels, figures", ["taps", "operations", "draw"]),
    ("settings, names, flags, files, errors", ["config", "flags", "registry", "files", "errors"]),
]
"""Rows of the core, the highest first: each may import what is below it."""
SHELVES = [
    ("studies", "many runs, one answer"),
    ("web", "live page and reports"),
    ("labs", "theory with checks"),
    ("course", "checks of student code"),
    ("trace", "computation graphs"),
    ("interchange", "weights of transformers"),
    ("extras", "ideas of single papers"),
    ("kernels", "code written for speed"),
]
BATCH = [
    ("data", "text, tokenizer,\nbatches of tokens"),
    ("embedder", "tokens to\nvectors [B, T, D]"),
    ("backbone", "blocks of a mixer and a\nfeed-forward network"),
    ("head", "vectors to logits\n[B, T, vocabulary]"),
    ("loss", "sum over tokens;\nthe step divides once"),
    ("step", "backward, clip,\nupdate of the weights"),
]


def box(axes: Axes, corner: tuple[float, float], size: tuple[float, float], color: str) -> None:
    style = "round,pad=0,rounding_size=0.08"
    axes.add_patch(FancyBboxPatch(corner, *size, style, facecolor=color, edgecolor="#888888"))


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], bend: float = 0, label: str = "") -> None:
    style = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.2, "connectionstyle": f"arc3,rad={bend}"}
    axes.annotate(label, end, start, arrowprops=style, fontsize=8)


def canvas(width: float, height: float) -> Axes:
    figure, axes = plt.subplots(figsize=(width, height))
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    axes.axis("off")
    figure.subplots_adjust(0, 0, 1, 1)
    return axes


def save(axes: Axes, name: str) -> None:
    axes.figure.savefig(HERE / name, dpi=150, metadata={"Software": None})
    plt.close(axes.figure)


def draw_parts() -> None:
    axes = canvas(9, 5.4)
    axes.text(0.2, 5.12, "core: each row imports only what is below it", fontsize=10, weight="bold", color=INK)
    axes.text(6.5, 5.12, "shelves: each may be deleted", fontsize=10, weight="bold", color=INK)
    for row, (role, names) in enumerate(CORE):
        low = 4.45 - 0.52 * row
        box(axes, (0.2, low), (5.6, 0.44), BLUE)
        axes.text(0.35, low + 0.22, "  ".join(names), fontsize=9, family="monospace", va="center", color=INK)
        axes.text(5.65, low + 0.22, role, fontsize=8, va="center", ha="right", color="#444444")
    for row, (name, role) in enumerate(SHELVES):
        low = 4.37 - 0.585 * row
        box(axes, (6.5, low), (2.3, 0.52), ORANGE)
        axes.text(6.65, low + 0.36, name, fontsize=9, family="monospace", va="center", color=INK)
        axes.text(6.65, low + 0.14, role, fontsize=8, va="center", color="#444444")
    arrow(axes, (6.45, 2.5), (5.87, 2.5))
    axes.text(6.16, 2.62, "import", fontsize=8, ha="center", color="#444444")
    save(axes, "architecture.png")


def draw_batch() -> None:
    axes = canvas(9, 2.5)
    width, gap = 1.28, 0.2
    for place, (name, role) in enumerate(BATCH):
        left = 0.16 + place * (width + gap)
        box(axes, (left, 0.95), (width, 0.95), GRAY if place in (0, 5) else BLUE)
        axes.text(left + width / 2, 1.7, name, fontsize=10, weight="bold", ha="center", va="center", color=INK)
        axes.text(left + width / 2, 1.27, role, fontsize=6.8, ha="center", va="center", color="#444444")
        if place:
            arrow(axes, (left - gap, 1.42), (left, 1.42))
    middle = 0.16 + 2 * (width + gap) + width / 2
    arrow(axes, (middle + 0.35, 0.95), (middle - 0.35, 0.95), bend=-0.9)
    carried = "state: hidden state, memory or KV cache,\ncarried to the next batch, detached"
    axes.text(middle, 0.3, carried, fontsize=7.5, ha="center", va="center", color="#444444")
    first, last = 0.16 + width + gap + width / 2, 0.16 + 5 * (width + gap) + width / 2
    arrow(axes, (last, 1.9), (first, 1.9), bend=0.09)
    axes.text((first + last) / 2, 2.36, "gradients", fontsize=7.5, ha="center", va="center", color="#444444")
    save(axes, "batch.png")


if __name__ == "__main__":
    draw_parts()
    draw_batch()
