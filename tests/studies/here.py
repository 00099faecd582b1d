"""An engine that runs each job at once in this process, and a callback that records its calls."""

import json
from concurrent.futures import Future

from anaphor.studies import worker
from anaphor.studies.cell import JOB
from anaphor.studies.engines import Engine, JobResult


class Silent:
    def __init__(self):
        self.calls = []

    def on_status(self, cell, status, reason=""):
        self.calls.append((cell.key, status, reason))

    def on_wait(self, running):
        pass


class Here(Engine):
    """Runs each job at once, in this process. `instead` may end some of them in another way."""

    slots = 1

    def __init__(self, instead=lambda job, done: None, slots=1):
        self.jobs, self.instead, self.slots = [], instead, slots

    def close(self):
        pass

    def submit(self, job):
        self.jobs.append((job.action, job.folder.name))
        result = self.instead(job, self.jobs.count(self.jobs[-1]))
        promise = Future()
        promise.set_result(result or JobResult(self.work(job)))
        return promise

    def work(self, job):
        return getattr(worker, job.action)(job.folder, json.loads((job.folder / JOB).read_text()))


def logged(study):
    """The lines of its log."""
    return [json.loads(line) for line in (study.folder / "log.jsonl").read_text().splitlines()]
