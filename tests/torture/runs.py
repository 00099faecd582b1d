"""Small runs of all four tasks that use what is hard to resume: memory, averages, accumulation, mixing, adapters."""

from __future__ import annotations

from pathlib import Path

from torture import children

TEXT = "the cat sat on the mat\nthe dog sat on the log\na bird sang\n" * 40
END = ["--device", "cpu", "--threads", "1", "--no-test"]
STEPS = 40
SHORT = ["--steps", str(STEPS), "--eval-every", "7"]
STREAM = ["--batch-size", "4", "--bptt", "6", "--width", "16"]
CLASSIFIER = ["--data", "negation", "--max-examples", "60", "--width", "16", "--layers", "1", "--batch-size", "8"]

RUNS: dict[str, list[str]] = {
    "hybrid with memory, dropout and an average": [
        "lm", *STREAM, "--model", "hybrid", "--layers", "2", "--heads", "2", "--memory", "8", "--dropout", "0.2",
        "--average", "ema",
    ],
    "transformer-xl with accumulation": [
        "lm", *STREAM, "--model", "transformer-xl", "--layers", "2", "--heads", "2", "--memory", "8",
        "--accumulate", "2", "--dropout", "0.1", "--random-offset",
    ],
    "lstm with weight drop and a plateau schedule": [
        "lm", *STREAM, "--model", "lstm", "--layers", "2", "--weight-drop", "0.3", "--dropout", "0.2",
        "--schedule", "plateau", "--optimizer", "sgd", "--lr", "1", "--partial-shuffle",
    ],
    "gated delta rule with a short convolution": [
        "lm", *STREAM, "--model", "gated-delta", "--layers", "2", "--heads", "2", "--dropout", "0.1",
    ],
    "translation with input feeding": [
        "translate", "--data", "reverse", "--max-examples", "60", "--model", "luong", "--width", "16",
        "--batch-size", "8", "--dropout", "0.2",
    ],
    "transformer for translation with R-Drop": [
        "translate", "--data", "reverse", "--max-examples", "60", "--model", "transformer-translation", "--width", "16",
        "--heads", "2", "--layers", "1", "--batch-size", "8", "--rdrop", "1", "--dropout", "0.1",
    ],
    "images with mixup, cutmix and augmentation": [
        "images", "--data", "shapes", "--max-examples", "80", "--model", "vit-nano", "--width", "16", "--heads", "2",
        "--layers", "1", "--batch-size", "8", "--mixup", "0.4", "--cutmix", "0.5", "--flip", "--rotation", "10",
        "--average", "ema",
    ],
    "a classifier with dropout": ["classify", *CLASSIFIER, "--model", "lstm", "--dropout", "0.2"],
    "fine-tuning with LoRA": [
        "classify", "--data", "negation", "--max-examples", "60", "--batch-size", "8", "--lora", "2",
    ],
}  # fmt: skip


def write_inputs(place: Path) -> None:
    """Text, and a classifier to begin from."""
    (place / "text.txt").write_text(TEXT, encoding="utf-8")
    words = [
        *CLASSIFIER,
        "--model",
        "transformer",
        "--heads",
        "2",
        "--steps",
        "2",
        *END,
        "--out",
        str(place / "pretrained"),
    ]
    children.checked(children.run(place, ["train", "classify", *words]))


def command(name: str, place: Path, out: Path, *more: str) -> list[str]:
    """The command line that trains the run of that name in `out`, from inputs in `place`."""
    task, *settings = RUNS[name]
    if task == "lm":
        settings += ["--data", str(place / "text.txt")]
    if "--lora" in settings:
        settings += ["--init", str(place / "pretrained")]
    return ["train", task, *settings, *SHORT, *END, "--out", str(out), "--json", *more]
