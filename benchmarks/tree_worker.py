"""A process of `trees.py`: trains as a user would, so many steps whenever a line on stdin says so.

It runs with the package of either source tree. So it uses only what Anaphor promises its users: `anaphor.train`, whose
callback holds the training until the next line.

    python benchmarks/tree_worker.py lm '{"recipe": "wikitext-2-lstm", "data": "FOLDER", …}'
"""

from __future__ import annotations

import json
import os
import sys

import anaphor


class StepsOnDemand:
    """A callback: reads a number of steps, lets them pass, answers with an empty line, and reads the next number."""

    def __init__(self) -> None:
        self.remaining = 1  # the first step builds what the others use: it passes before the first number

    def on_step(self, *step: object) -> None:
        self.remaining -= 1
        if self.remaining == 0:
            print(flush=True)
            line = sys.stdin.readline()
            if not line:
                os._exit(0)  # nobody waits for the end of the training
            self.remaining = int(line)

    def on_evaluation(self, *results: object) -> None:
        pass


if __name__ == "__main__":
    task, settings = sys.argv[1:]
    anaphor.train(task, callback=StepsOnDemand(), **json.loads(settings))
