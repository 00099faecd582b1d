"""`anaphor report RUN… --out FILE.html`: one page of one or several runs that needs no network."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

from anaphor.cli.imports import import_given
from anaphor.cli.table import for_terminal
from anaphor.cli.train import warn
from anaphor.errors import ConfigError
from anaphor.flags import Positional, parse
from anaphor.progress import Bar, SecondBar
from anaphor.progress_listener import progress_listener
from anaphor.user_paths import user_path, writing_to


@dataclass(frozen=True, kw_only=True)
class Options:
    """One page of runs or studies that needs no network: curves, settings, scores, samples, attention, token losses."""

    help_examples: ClassVar[tuple[str, ...]] = (
        "anaphor report runs/lstm runs/transformer --out report.html",
        "anaphor report studies/bptt --out report.html",
    )

    runs: Annotated[tuple[Path, ...], Positional("RUN")]
    """Folders of runs or studies."""
    out: Path
    """HTML file to write."""
    pdf: bool = False
    """Also print it to a PDF file beside --out, where Chromium is installed."""
    text: str | None = None
    """Text to score and to look at (for each task an example of validation if not given)."""
    no_model: bool = False
    """Load no model: only what the files of the runs say."""
    device: str = "auto"
    """Device: auto, cpu or cuda."""
    threads: int | None = None
    """CPU threads (all cores if not given)."""
    imports: tuple[Path, ...] = field(default=(), metadata={"flag": "import", "repeated": True})
    """Python file that registers mixers, tasks or data sets of your own; may be given several times."""
    force: bool = False
    """Accept imported files that were edited since the runs were trained."""
    trust: bool = False
    """The runs are your own: read the data that they name, now and later, although they were trained elsewhere."""
    json: bool = False
    """Print one JSON value."""

    def __post_init__(self) -> None:
        if self.out.suffix.lower() not in (".html", ".htm"):
            raise ConfigError(f"out={self.out}: it must be a file whose name ends with .html")
        if user_path(self.out).is_dir():
            raise ConfigError(f"out={self.out} is a folder: name a file in it")
        if self.no_model and self.text is not None:
            raise ConfigError("--text needs models: leave out --no-model")


def run(argv: Sequence[str]) -> int:
    import_given(argv)
    options = parse(Options, argv, program="anaphor report")

    from anaphor.files import replace_file
    from anaphor.web.report import build_report

    out = user_path(options.out)
    with writing_to(out.parent), ExitStack() as stack:
        ask = None if options.no_model else _load_models(options, stack)
        report = build_report(options.runs, text=options.text, ask=ask)
        content = report.page.encode()
        replace_file(out, content)
    pdf = print_pdf(options.out) if options.pdf else None
    if options.json:
        plain = {"report": str(options.out), "bytes": len(content), "runs": report.runs, "left_out": report.left_out}
        plain |= {"pdf": pdf and str(pdf)} if options.pdf else {}
        print(json.dumps(plain))
        return 0
    for line in report.left_out:
        print(for_terminal(f"left out: {line}", sys.stdout))
    count = f"{len(report.runs)} run{'s' if len(report.runs) > 1 else ''}"
    print(for_terminal(f"report: {options.out} ({count}, {len(content) / 1e6:.1f} MB)", sys.stdout))
    if pdf is not None:
        print(for_terminal(f"report: {pdf}", sys.stdout))
    return 0


def print_pdf(out: Path) -> Path | None:
    """The PDF file of a report; None where it cannot be printed, and a line says why."""
    from anaphor.web.pdf import BROWSERS, PrintingFailed, find_browser, print_page

    browser, path = find_browser(), out.with_suffix(".pdf")
    if browser is None:
        warn(f"no PDF: Chromium is not found ({', '.join(BROWSERS[:3])}); open {out} in a browser and print it")
        return None
    try:
        print_page(browser, user_path(out), user_path(path))
    except PrintingFailed as error:
        warn(f"no PDF: {browser} failed: {error}; open {out} in a browser and print it")
        return None
    return path


def _load_models(options: Options, stack: ExitStack) -> Any:
    """What answers requests to models, with a progress bar."""
    from anaphor.training.device import choose_device, set_threads
    from anaphor.web.inference import Cache, answer

    set_threads(options.threads)
    choose_device(options.device)  # refuse an unknown one now
    bar = stack.enter_context(Bar("report"))
    stack.enter_context(progress_listener(SecondBar(bar, alone=True)))
    return partial(answer, cache=Cache(device=options.device, force=options.force, trust=options.trust))
