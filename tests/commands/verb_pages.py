"""The pages of the reference on the verbs, made from what `anaphor VERB --help` says.

`PYTHONPATH=tests python tests/commands/verb_pages.py` writes them into `docs/commands`, for when an option or its help
has changed.
"""

import argparse
import contextlib
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

from anaphor.cli.main import main
from anaphor.registry import TASKS, VERBS, load_plugins

FOLDER = Path(__file__).parents[2] / "docs" / "commands"
GUIDES = {
    "train": ["../training.md", "../translation.md", "../images.md", "../classification.md"],
    "evaluate": ["../evaluation.md", "../length.md"],
    "generate": ["../evaluation.md#generation"],
    "score": ["../evaluation.md#sentences"],
    "translate": ["../translation.md"],
    "predict": ["../classification.md", "../images.md"],
    "bleu": ["../translation.md#bleu"],
    "look": ["../looking-inside.md", "../images.md#where-it-looks"],
    "check-mixer": ["../own-parts.md"],
    "data": ["../training.md"],
    "models": ["../models.md"],
    "convert": ["../interchange.md"],
    "export": ["../interchange.md"],
    "study": ["../studies.md"],
    "trace": ["../trace.md"],
    "lab": ["../labs/index.md"],
    "adapter": ["../grading.md#otter-and-nbgrader"],
    "bundle": ["../for-teachers.md#a-room-without-a-network"],
    "check": ["../check.md"],
    "grade": ["../grading.md"],
    "handout": ["../handouts.md"],
    "hint": ["../handouts.md"],
    "leaderboard": ["../grading.md#leaderboard"],
    "runs": ["../live-page.md"],
    "serve": ["../live-page.md"],
    "report": ["../live-page.md"],
}
"""Pages with examples of a verb."""


def help_of(words: Sequence[str]) -> argparse.ArgumentParser | None:
    """The parser whose help a command prints; None for one that names tasks alone."""
    found: list[argparse.ArgumentParser] = []

    def keep(parser: argparse.ArgumentParser) -> str:
        found.append(parser)
        return ""

    with mock.patch("argparse.ArgumentParser.format_help", keep), contextlib.redirect_stdout(io.StringIO()):
        main([*words, "--help"])
    return found[-1] if found else None


def commands_of(verb: str) -> list[list[str]]:
    """All commands of a verb that have options of their own."""
    if verb == "train":
        return [["train", task] for task in TASKS]
    if verb == "lab":
        from anaphor.labs.lab import LABS  # the tests are collected without this shelf, too

        return [["lab"], *(["lab", name] for name in LABS)]
    return [[verb]]


def cell(text: str) -> str:
    """Text for a cell of a table: `|` separates cells, and `<` begins a tag."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def spelled(action: argparse.Action) -> str:
    """An option as one types it; a switch with its opposite."""
    if not action.option_strings:
        return f"`{action.metavar}`"
    value = f" {action.metavar}" if action.metavar and action.nargs != 0 else ""
    return ", ".join(f"`{name}{value}`" for name in action.option_strings)


def describe(action: argparse.Action) -> tuple[str, str]:
    """The help of an option, and its default."""
    text, _, rest = (action.help or "").replace("%%", "%").rpartition(" (default: ")
    if text:
        default = rest.removesuffix(")")
        return text, default if default.startswith("the ") else f"`{default}`"
    text, required, _ = rest.partition(" (required)")
    return text, "required" if required else ""


def tables(parser: argparse.ArgumentParser, level: str) -> Iterator[str]:
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if "--help" not in action.option_strings]
        if not actions:
            continue
        title = (group.title or "").capitalize()
        yield f"{level} {title}\n"
        yield "| " + ("argument" if group.title == "arguments" else "option") + " | meaning | default |"
        yield "| --- | --- | --- |"
        for action in actions:
            text, default = describe(action)
            yield f"| {cell(spelled(action))} | {cell(text)} | {cell(default)} |"
        yield ""


def title_of(path: str) -> str:
    page = (FOLDER / path.partition("#")[0]).read_text(encoding="utf-8")
    return re.search(r"^# (.*)$", page, re.MULTILINE)[1]


def verb_page(verb: str) -> str:
    """The page of a verb: what its help says, as tables."""
    lines = [f"# anaphor {verb}\n"]
    commands = commands_of(verb)
    for words in commands:
        parser = help_of(words)
        assert parser is not None, words
        level = "##"
        if len(commands) > 1 and words != [verb]:
            lines.append(f"## anaphor {' '.join(words)}\n")
            level = "###"
        lines += [" ".join((parser.description or "").split()), ""]
        usage = (parser.usage or "").replace("%%", "%")
        lines += ["```console", f"$ {usage}", "```", ""]
        lines += [*tables(parser, level)]
    guides = ", ".join(f"[{title_of(path)}]({path})" for path in GUIDES.get(verb, ()))
    lines += [f"Examples: {guides}."] if guides else []
    return "\n".join(lines).rstrip() + "\n"


def index_page(verbs: Sequence[str]) -> str:
    lines = ["# Verbs of the command\n", "What `anaphor VERB --help` says, a page for each verb.\n"]
    lines += ["| verb | what it does |", "| --- | --- |"]
    lines += [f"| [`{name}`]({name}.md) | {VERBS[name].summary} |" for name in verbs]
    lines += ["", "Every verb takes `--json`, which prints one JSON value; progress goes to stderr.", ""]
    lines += ["| exit code | meaning |", "| ---: | --- |"]
    lines += ["| 0 | done |"]
    lines += ["| 1 | `check` and `trace --check`: what was checked is not right |"]
    lines += ["| 2 | wrong input: one line names the value, what is allowed, and the nearest guess |"]
    lines += ["| 3 | training diverged |", "| 4 | some cells of a study failed |", "| 130 | interrupted |"]
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """The text of every page by the name of its file."""
    load_plugins()
    return {"index.md": index_page([*VERBS]), **{f"{verb}.md": verb_page(verb) for verb in VERBS}}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
