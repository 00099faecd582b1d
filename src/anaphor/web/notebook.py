"""Runs and looks in a notebook, as frames that can reach neither the notebook nor the network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path

from anaphor.inspect.alignment import Alignment, alignment_page
from anaphor.inspect.image_maps import ImageLook
from anaphor.inspect.look import Look
from anaphor.inspect.page import build_page, image_page
from anaphor.training.load import Run
from anaphor.web.inference import Cache, answer
from anaphor.web.report import build_report

VIEWS = ("curves", "look")


@dataclass(frozen=True)
class Frame:
    """A page as the output of a notebook's cell."""

    page: str
    title: str
    left_out: tuple[str, ...] = ()
    height: int = 640

    def _repr_html_(self) -> str:
        # Without allow-same-origin the page is of no origin: it sees nothing of the notebook, its files or its server.
        return (
            f'<iframe sandbox="allow-scripts" title="{escape(self.title)}" width="100%" height="{self.height}" '
            f'frameborder="0" srcdoc="{escape(self.page)}"></iframe>'
        )

    def __repr__(self) -> str:
        return f"Frame({self.title!r}, {len(self.page) / 1e6:.1f} MB)"


class _Loaded(Cache):
    """Requests for one run, whose model is in memory."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._loaded = run

    def run(self, path: Path) -> Run:
        return self._loaded


def show_run(run: Run, text: str | None = None) -> Frame:
    """Curves of a run, and what its model does with a text, or with an example of validation."""
    report = build_report([run.folder], text=text, ask=partial(answer, cache=_Loaded(run)), views=VIEWS)
    return Frame(report.page, report.runs[0], report.left_out)


def show_look(look: Look | ImageLook | Alignment) -> Frame:
    """The page of `anaphor look` for one text or image, or the alignment of a translation."""
    if isinstance(look, Alignment):
        return Frame(alignment_page(look), "alignment")
    if isinstance(look, ImageLook):
        return Frame(image_page([look], look.label, ""), look.name)
    page, left_out = build_page({"model": look})
    return Frame(page, "look inside", left_out)
