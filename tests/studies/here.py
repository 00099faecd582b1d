"""An engine that does each job at once in this process, and a watcher that remembers what it was told."""

import json
from concurrent.futures import Future

from anaphor.studies import worker
from anaphor.studies.cell import JOB
from anaphor.studies.engines import Ended


class Silent:
    def __init__(self):
        self.told = []

    def changed(self, cell, status, reason=""):
        self.told.append((cell.key, status, reason))

    def waited(self, running):
        pass


class Here:
    """Does each job at once, in this process. `instead` may end some of them otherwise."""

    slots = 1

    def __init__(self, instead=lambda job, done: None):
        self.jobs, self.instead = [], instead

    def submit(self, job):
        self.jobs.append((job.what, job.folder.name))
        ended = self.instead(job, self.jobs.count(self.jobs[-1]))
        promise = Future()
        promise.set_result(ended or Ended(self.work(job)))
        return promise

    def work(self, job):
        return getattr(worker, job.what)(job.folder, json.loads((job.folder / JOB).read_text()))
