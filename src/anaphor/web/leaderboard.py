"""The leaderboard of a folder, a file that `anaphor leaderboard` has written. Nothing is scored here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anaphor.errors import DataError
from anaphor.web.history import to_number
from anaphor.web.summary import make_plain, read_json

FILE = "leaderboard.json"
FORMAT = 1
MAX_BOARDS, MAX_ENTRIES = 100, 1_000
NUMBERS, TEXTS = ("value", "low", "high", "rank"), ("name", "comment")


def has_leaderboard(folder: Path) -> bool:
    """Whether there is a file to show; a link is none."""
    path = folder / FILE
    return path.is_file() and not path.is_symlink()


def read_leaderboard(folder: Path) -> dict[str, Any]:
    """The boards: what is expected of each and no more."""
    found = read_json(folder / FILE)
    if found and found.get("format") != FORMAT:
        raise DataError(f"{FILE} is of another version: write it again with anaphor leaderboard")
    boards = found.get("boards")
    listed = boards[:MAX_BOARDS] if isinstance(boards, list) else []
    return {"boards": [_read_board(one) for one in listed if isinstance(one, dict)]}


def _read_board(board: dict[str, Any]) -> dict[str, Any]:
    entries = board.get("entries")
    listed = entries[:MAX_ENTRIES] if isinstance(entries, list) else []
    return {
        "title": make_plain(str(board.get("title"))),
        "metric": make_plain(str(board.get("metric"))),
        "same_items": board.get("same_items") is True,
        "entries": [_read_entry(one) for one in listed if isinstance(one, dict)],
    }


def _read_entry(entry: dict[str, Any]) -> dict[str, Any]:
    tied = entry.get("tied")
    return {
        **{name: to_number(entry.get(name)) for name in NUMBERS},
        **{name: make_plain(str(entry.get(name) or "")) for name in TEXTS},
        "tied": [make_plain(str(one)) for one in tied[:MAX_ENTRIES]] if isinstance(tied, list) else [],
    }
