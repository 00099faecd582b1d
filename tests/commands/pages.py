"""Run the snippets of a documentation page in order and compare what they print with what the page shows.

`python tests/commands/pages.py docs/*.md` writes the real outputs into the pages, for when one has changed on purpose.

Python blocks of a page share one namespace; a bash block holds one `anaphor` command. The `text` block right after
either is its output. A block with a title is a file of that name.
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
            program, *words = shlex.split(code)
            assert program == "anaphor", code
            main(words)
    return stripped(written.getvalue())


def stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


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
    for start, end, _, text in reversed(found):
        page = f"{page[:start]}{text}\n{page[end:]}"
    path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        fill(Path(name))
