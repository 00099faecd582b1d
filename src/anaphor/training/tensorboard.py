"""TensorBoard events: the curves and samples of a run, as in `metrics.jsonl` and `samples.txt`.

The package that writes them is an extra.
"""

from __future__ import annotations

import importlib.util
import os
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anaphor.errors import ConfigError, DataError
from anaphor.training.files import sync

PATTERN = "events.out.tfevents.*"


def require_tensorboard() -> None:
    """Raise before training if events cannot be written."""
    if importlib.util.find_spec("tensorboardX") is None:
        raise ConfigError("--tensorboard needs a package that is not installed: pip install 'anaphor[tensorboard]'")


class TensorBoard:
    """A file of events in `folder`, started after so many steps. Later events of older files are removed.

    Each step is on the disk when `add` returns: the package's own writer uses a thread, and a kill would lose what is
    queued there.
    """

    def __init__(self, folder: Path, metrics: Sequence[str], after: int = 0) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self.folder, self.metrics = folder, tuple(metrics)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in folder.glob(PATTERN):
                _cut(path, after)
            # The step in the name: two files that are begun in one second would otherwise be one.
            self.writer = EventsWriter(str(folder / "events"), f".{after}")
        except OSError as error:
            raise self._refusal(error) from None
        if after:
            # For an open TensorBoard that has read what was removed: it drops those points, though not samples.
            start = SessionLog(status=SessionLog.START)
            self._write([Event(step=after + 1, session_log=start)])

    def add(self, step: int, line: Mapping[str, Any], sample: str) -> None:
        from tensorboardX import summary
        from tensorboardX.proto.event_pb2 import Event

        points = [summary.scalar(name, value) for name, value in scalars_of(line, self.metrics).items()]
        # Indented, or it would be read as Markdown.
        text = textwrap.indent(sample, "    ").encode(errors="replace").decode()
        summaries, now = [*points, *([summary.text("sample", text)] if sample else [])], time.time()
        self._write([Event(step=step, wall_time=now, summary=one) for one in summaries])

    def close(self) -> None:
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


def _cut(path: Path, step: int) -> None:
    """Remove events of later steps, and an incomplete record."""
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
            return  # not a file of this program
        if event.step > step and event.HasField("summary"):
            break
        place = end
    if place < len(content):
        os.truncate(path, place)
        sync(path)


def scalars_of(line: Mapping[str, Any], metrics: Sequence[str]) -> dict[str, float]:
    """The curves of a line of metrics: loss of training and its accuracy where it has one, learning rate, and every
    metric of validation."""
    found = {f"{name}/train": line.get(f"train_{name}") for name in ("loss", "accuracy")}
    found["learning-rate"] = line.get("lr")
    found |= {f"{name}/valid": line["valid"].get(name) for name in metrics}
    return {name: float(value) for name, value in found.items() if value is not None}
