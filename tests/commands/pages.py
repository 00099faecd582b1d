"""Run the snippets of a documentation page in order and compare what they print with what the page shows.

`python tests/commands/pages.py docs/*.md` writes the real outputs into the pages, for when one has changed on purpose.

Python blocks of a page share one namespace; a bash block holds `anaphor` commands, one on a line, each of which may
write to a file by `> FILE`. The `text` block right after either is its output, in which `…` stands for whatever is left
out: part of a line, or a line of its own for lines. A block with a title is a file of that name.
"""

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path

from anaphor.cli.main import main

BLOCK = re.compile(r"^```(?:\{ \.)?(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'^```\{ \.\w+ title="([\w.-]+)" \}\n')


def printed(language: str, code: str, namespace: dict) -> str:
    """What a snippet writes, to either stream, at a width of 100."""
    written = io.StringIO()
    os.environ["COLUMNS"] = "100"
    with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
        if language == "python":
            exec(compile(code, "<page>", "exec"), namespace)
        else:
            for line in code.replace("\\\n", " ").splitlines():
                run_command(line)
    return stripped(written.getvalue())


def run_command(line: str) -> None:
    program, *words = shlex.split(line, comments=True)
    assert program == "anaphor", line
    if ">" not in words:
        main(words)
        return
    *words, _, name = words
    with open(name, "w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
        main(words)


def stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def agrees(shown: str, text: str) -> bool:
    """Whether a snippet printed what the page shows, which may leave out parts."""
    patterns = [
        r"(?:.*\n)?" if line == "…" else r"[^\n]*".join(map(re.escape, line.split("…"))) + r"\n"
        for line in stripped(shown).splitlines()
    ]
    return re.fullmatch("".join(patterns), f"{text}\n", flags=re.DOTALL) is not None


def outputs(page: str) -> list[tuple[int, int, str, str]]:
    """(start, end, shown, printed) of every output; a snippet that prints must be followed by one."""
    found, namespace = [], {"__name__": "page"}
    blocks = list(BLOCK.finditer(page))
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if title := TITLE.match(block[0]):
            Path(title[1]).write_text(block[2], encoding="utf-8")
            continue
        if block[1] not in ("python", "bash"):
            continue
        text = printed(block[1], block[2], namespace)
        answered = (
            following is not None and following[1] == "text" and not page[block.end() : following.start()].strip()
        )
        assert answered or not text, f"the page does not show what this prints:\n{block[2]}"
        if answered:
            found.append((following.start(2), following.end(2), following[2], text))
    return found


def fill(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        found = outputs(page)
        os.chdir(home)
    for start, end, shown, text in reversed(found):
        if agrees(shown, text):
            continue
        page = f"{page[:start]}{text}\n{page[end:]}"
    path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        fill(Path(name))
