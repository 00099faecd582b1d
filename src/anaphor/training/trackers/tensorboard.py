"""TensorBoard events: the curves and samples of a run, as in `metrics.jsonl` and `samples.txt`.

The package that writes them is an optional dependency.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anaphor.errors import DataError
from anaphor.files import make_folder
from anaphor.training.trackers import TrackedRun, scalars_of, step_scalars


class TensorBoard:
    """A file of events in `folder`, started after so many steps. What earlier files have of later steps is hidden.

    Each step is on the disk when `add` returns. This is `SummaryWriter(purge_step=)` of the package without its thread:
    that one keeps events in a queue, which a kill loses, and which is read no more once the disk was full.
    """

    def __init__(self, folder: Path, metrics: Sequence[str], after: int = 0) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self.folder, self.metrics = folder, tuple(metrics)
        try:
            make_folder(folder, within=folder.parent)
            # The step in the name: two files that are begun in one second would otherwise be one.
            self.writer = EventsWriter(str(folder / "events"), f".{after}")
        except OSError as error:
            raise self._refusal(error) from None
        # TensorBoard drops points from this step on at every start but the first, so that the first needs one, too.
        self._write([Event(step=after + 1, session_log=SessionLog(status=SessionLog.START))])

    def add(self, step: int, line: Mapping[str, Any], sample: str) -> None:
        """Write the values of a validation, a line of `metrics.jsonl`, and the sample beside it."""
        from tensorboardX import summary
        from tensorboardX.proto.event_pb2 import Event

        points = [summary.scalar(name, value) for name, value in scalars_of(line, self.metrics).items()]
        # Indented, or it would be read as Markdown.
        text = textwrap.indent(sample, "    ").encode(errors="replace").decode()
        summaries, now = [*points, *([summary.text("sample", text)] if sample else [])], time.time()
        self._write([Event(step=step, wall_time=now, summary=one) for one in summaries])

    def add_step(self, line: Mapping[str, Any]) -> None:
        """Write the values of a step, a line of `steps.jsonl`."""
        from tensorboardX import summary
        from tensorboardX.proto.event_pb2 import Event

        points = [summary.scalar(name, value) for name, value in step_scalars(line).items()]
        now = time.time()
        self._write([Event(step=line["step"], wall_time=now, summary=one) for one in points])

    def close(self) -> None:
        """Write what is buffered."""
        try:
            self.writer.close()
        except OSError as error:  # what is buffered may not fit on the disk
            raise self._refusal(error) from None

    def _write(self, events: list[Any]) -> None:
        try:
            for event in events:
                self.writer.write_event(event)
            self.writer.flush()
        except OSError as error:
            raise self._refusal(error) from None

    def _refusal(self, error: OSError) -> DataError:
        return DataError(f"cannot write events to {self.folder}: {error.strerror or error}")


def open_events(run: TrackedRun) -> TensorBoard:
    """The events of a run, in `events/` below its folder."""
    return TensorBoard(run.folder / "events", run.metrics, run.after)
