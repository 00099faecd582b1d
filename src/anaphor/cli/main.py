"""The command: find the verb, hand it the rest, turn our errors into one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from anaphor import __version__
from anaphor.config import look_up
from anaphor.errors import AnaphorError

VERBS = {
    "train": "train one model, keep the best, score it",
    "evaluate": "validation or test score of a run, at other lengths too",
    "generate": "write with a trained model",
    "score": "loss of independent sentences, token by token",
    "translate": "translate sentences with a trained model, and see what it looked at",
    "bleu": "how close translations are to their references",
    "look": "attention, gates and losses of a text inside a run, as figures and one page",
    "trace": "computation graph of any function: value and gradient at every node",
    "study": "many runs: a table, a figure, and what the numbers support",
    "lab": "claims about attention and recurrence that can be run and changed",
    "data": "the data sets there are, what is on this disk, and how to get the rest",
    "models": "the models there are, how large they are and how much they remember",
    "bench": "speed side by side with what people use instead",
}


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line; the result is the exit code."""
    words = list(sys.argv[1:] if words is None else words)
    try:
        return dispatch(words)
    except AnaphorError as error:
        print(f"anaphor: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("anaphor: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader has gone (`anaphor models | head`). Python would complain once more while it closes stdout.
        sys.stderr.close()
        return 141


def dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(overview())
        return 0
    if words[0] == "--version":
        print(f"anaphor {__version__}")
        return 0
    verb, *rest = words
    look_up(VERBS, verb, "verb")
    module = import_module(f"anaphor.cli.{verb}")
    try:
        return int(module.run(rest))
    except SystemExit as done:  # --help has been printed
        return int(done.code or 0)


def overview() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {does}" for name, does in VERBS.items())
    return (
        "usage: anaphor VERB [OPTIONS]\n\n"
        "Train, compare and look inside recurrent, attention and hybrid sequence models.\n\n"
        f"{verbs}\n\n"
        "`anaphor VERB --help` explains a verb. Every verb takes --json."
    )


if __name__ == "__main__":
    sys.exit(main())
