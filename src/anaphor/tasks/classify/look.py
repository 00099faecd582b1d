"""`anaphor look` for text classification: attention, states, and what each token contributes to the label."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anaphor.config import look_up
from anaphor.files import replace_file
from anaphor.inspect.figures import draw_attention, draw_contributions, draw_units
from anaphor.inspect.look import ClassLook, look_at_class
from anaphor.inspect.page import build_page
from anaphor.progress_listener import track_progress
from anaphor.tasks.classify.verbs import LookOptions
from anaphor.tasks.tables import align_columns
from anaphor.user_paths import writing_to

if TYPE_CHECKING:
    from anaphor.tasks.classify.experiment import ClassifyExperiment

SHOWN = 12  # tokens that are printed


def look(
    experiment: ClassifyExperiment, options: LookOptions, run: Path, out: Path
) -> tuple[dict[str, Any], list[str]]:
    """Write the page and the figures. Returns all values as JSON, and lines for people."""
    found = look_at(experiment, options.text, options.label)
    written = write(found, str(run), out)
    plain = {
        "model": found.model,
        **predict_or_none(experiment, options.text),
        "contributions_to": found.label,
        "tokens": list(found.tokens),
        "contributions": list(found.contributions),
        "weights": {name: maps.tolist() for name, maps in found.maps.items()},
        "notes": list(found.notes),
        "written": [str(path) for path in written],
    }
    lines = [f"{run}: {found.model}", f"  {found.summary}", *describe(found), *found.notes, *map(str, written)]
    return plain, lines


def look_at(experiment: ClassifyExperiment, text: str, label: str | None = None) -> ClassLook:
    """A text in the model of a run."""
    number, summary = None, "no head: attention and states only"
    if experiment.classes or label is not None:
        (row,) = experiment.predict([text])
        label = row["label"] if label is None else label
        number = look_up({name: place for place, name in enumerate(experiment.classes)}, label, "label")
        summary = f"predicted: {row['label']} with probability {row['probabilities'][row['label']]:.4f}"
    ids, _ = experiment.encode_text(text)
    return look_at_class(
        experiment.model,
        ids.tolist(),
        number,
        label=label,
        tokens=[experiment.tokenizer.tokens[number] for number in ids],
        joined=experiment.tokenizer.is_joined,
        summary=summary,
    )


def predict_or_none(experiment: ClassifyExperiment, text: str) -> dict[str, Any]:
    """The prediction of a text; without label and probabilities where the model has no head."""
    if not experiment.classes:
        return {"text": text, "label": None, "probabilities": None}
    (row,) = experiment.predict([text])
    return row


def write(look: ClassLook, run: str, out: Path) -> list[Path]:
    """Write the page and the figures. Returns their paths."""
    page, _ = build_page({run: look})
    with writing_to(out):
        replace_file(out / "attention.html", page.encode())
        figures = (draw_contributions, draw_attention, draw_units)
        return [
            out / "attention.html",
            *(path for draw in track_progress("drawing", figures) for path in draw(look, out)),
        ]


def describe(look: ClassLook) -> list[str]:
    """The tokens with the largest contributions, in the order of the text."""
    if not look.contributions:
        return []
    ranked = sorted(range(len(look.tokens)), key=lambda place: -abs(look.contributions[place]))[:SHOWN]
    largest = abs(look.contributions[ranked[0]])
    # At least three digits of the largest: those of a model that has hardly been trained are small.
    digits = min(max(4, 2 - math.floor(math.log10(largest))), 12) if 0 < largest < math.inf else 4
    rows = [["token", "gradient × input"]]
    rows += [[look.tokens[place], f"{look.contributions[place]:+.{digits}f}"] for place in sorted(ranked)]
    few = f" (largest {SHOWN} of {len(look.tokens)})" if len(look.tokens) > SHOWN else ""
    return [f"contributions to the logit of {look.label}{few}:", *(f"  {line}" for line in align_columns(rows))]
