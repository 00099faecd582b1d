"""The leaderboard of a folder on the live page: what the file has and no more."""

import json

import pytest

from anaphor.errors import DataError
from anaphor.web.leaderboard import has_leaderboard, read_leaderboard

ENTRY = {"name": "ada", "value": 12.5, "low": 11, "high": 14, "rank": 1, "tied": ["bob"], "comment": ""}
BOARD = {
    "title": "001.3.3-run: runs/lstm",
    "metric": "perplexity",
    "goal": "min",
    "same_items": True,
    "entries": [ENTRY],
}


def write(folder, values):
    (folder / "leaderboard.json").write_text(json.dumps(values), encoding="utf-8")


def test_a_board_is_read_as_it_was_written(tmp_path):
    assert not has_leaderboard(tmp_path)
    assert read_leaderboard(tmp_path) == {"boards": []}
    write(tmp_path, {"format": 1, "boards": [BOARD]})
    assert has_leaderboard(tmp_path)
    (board,) = read_leaderboard(tmp_path)["boards"]
    assert board["entries"] == [ENTRY]
    assert board["same_items"] is True


@pytest.mark.parametrize("values", [{"format": 1, "boards": 3}, {"format": 1, "boards": [3, {"entries": 4}]}])
def test_a_damaged_file_shows_nothing_that_is_not_there(tmp_path, values):
    write(tmp_path, values)
    assert not [entry for board in read_leaderboard(tmp_path)["boards"] for entry in board["entries"]]


def test_another_format_is_refused_in_one_line(tmp_path):
    write(tmp_path, {"format": 2, "boards": []})
    with pytest.raises(DataError, match="of another version"):
        read_leaderboard(tmp_path)


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "elsewhere.json").write_text(json.dumps({"format": 1, "boards": [BOARD]}), encoding="utf-8")
    (tmp_path / "leaderboard.json").symlink_to(tmp_path / "elsewhere.json")
    assert not has_leaderboard(tmp_path)
    with pytest.raises(DataError):
        read_leaderboard(tmp_path)
