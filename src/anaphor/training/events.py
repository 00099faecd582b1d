"""TensorBoard events: the curves and samples of a run for those who watch many runs side by side.

They say nothing that `metrics.jsonl` and `samples.txt` do not say. The package that writes them is an extra.
"""

from __future__ import annotations

import importlib.util
import os
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anaphor.errors import ConfigError, DataError
from anaphor.training.durable import sync

PATTERN = "events.out.tfevents.*"
SCALARS = {
    "loss/train": ("train_loss",),
    "loss/valid": ("valid", "loss"),
    "perplexity/valid": ("valid", "perplexity"),
    "learning-rate": ("lr",),
}
"""Names of curves, and where their values stand in a line of metrics."""


def require_tensorboard() -> None:
    """Refuse before anything is trained if events cannot be written."""
    if importlib.util.find_spec("tensorboardX") is None:
        raise ConfigError("--tensorboard needs a package that is not installed: pip install 'anaphor[tensorboard]'")


class Events:
    """Told of every validation. This one keeps nothing."""

    def add(self, step: int, line: Mapping[str, Any], sample: str) -> None:
        """A line of metrics, and what the model wrote."""

    def close(self) -> None:
        """Nothing more will be told."""


class TensorBoard(Events):
    """A file of events in `folder`, begun after so many steps. What older files tell of later ones is cut off.

    Each step is on the disk when `add` returns: the package's own writer hands events to a thread, and a kill would
    lose those that wait there.
    """

    def __init__(self, folder: Path, after: int = 0) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in folder.glob(PATTERN):
                _cut(path, after)
            # The step in the name: two files that are begun in one second would otherwise be one.
            self.writer = EventsWriter(str(folder / "events"), f".{after}")
        except OSError as error:
            raise self._refusal(error) from None
        if after:
            # For a TensorBoard that is open and has read what was cut off. It forgets points, though not samples.
            start = SessionLog(status=SessionLog.START)
            self._write([Event(step=after + 1, session_log=start)])

    def add(self, step: int, line: Mapping[str, Any], sample: str) -> None:
        from tensorboardX import summary
        from tensorboardX.proto.event_pb2 import Event

        found = {name: _value(line, path) for name, path in SCALARS.items()}
        points = [summary.scalar(name, value) for name, value in found.items() if value is not None]
        # Indented, or it would be read as Markdown.
        text = textwrap.indent(sample, "    ").encode(errors="replace").decode()
        told, now = [*points, summary.text("sample", text)], time.time()
        self._write([Event(step=step, wall_time=now, summary=point) for point in told])

    def close(self) -> None:
        self.writer.close()

    def _write(self, events: list[Any]) -> None:
        try:
            for event in events:
                self.writer.write_event(event)
            self.writer.flush()
        except OSError as error:
            raise self._refusal(error) from None

    def _refusal(self, error: OSError) -> DataError:
        return DataError(f"cannot write events to {self.folder}: {error.strerror or error}")


def _cut(path: Path, step: int) -> None:
    """Take away what a file tells of later steps, and what a kill left unfinished."""
    from google.protobuf.message import DecodeError
    from tensorboardX.proto.event_pb2 import Event

    content, place = path.read_bytes(), 0
    while place < len(content):
        # A record: its length, a checksum of that, the event, a checksum of that.
        size = int.from_bytes(content[place : place + 8], "little")
        end = place + 8 + 4 + size + 4
        if end > len(content):
            break
        try:
            event = Event.FromString(content[place + 12 : end - 4])
        except DecodeError:
            return  # none of ours
        if event.step > step and event.HasField("summary"):
            break
        place = end
    if place < len(content):
        os.truncate(path, place)
        sync(path)


def _value(line: Mapping[str, Any], path: tuple[str, ...]) -> float | None:
    value: Any = line
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return None if value is None else float(value)
