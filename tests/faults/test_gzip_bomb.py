"""A small gzip file with gigabytes inside is refused before it fills the memory."""

import gzip
import tracemalloc

import pytest

from anaphor.cli.main import main
from anaphor.data.files import StoredFile, max_file_bytes
from anaphor.errors import ConfigError, DataError

MEGABYTE = 1 << 20


@pytest.fixture
def bomb(tmp_path, monkeypatch):
    """64 MB in 64 kB, where 8 MB are allowed."""
    monkeypatch.setenv("ANAPHOR_MAX_FILE_BYTES", str(8 * MEGABYTE))
    monkeypatch.setenv("ANAPHOR_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "text.txt.gz"
    path.write_bytes(gzip.compress(b"a cat sat on a mat\n" * (64 * MEGABYTE // 19), compresslevel=1))
    return path


@pytest.mark.parametrize("action", ["read", "digest"])
def test_memory_stays_within_the_bound(bomb, action):
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"more than 8,388,608 bytes, decompressed.*ANAPHOR_MAX_FILE_BYTES"):
            getattr(StoredFile(bomb), action)()
        assert tracemalloc.get_traced_memory()[1] < 12 * MEGABYTE
    finally:
        tracemalloc.stop()


def test_the_command_ends_in_one_line(bomb, tmp_path, error_of):
    line = error_of(["train", "lm", "--data", str(bomb), "--out", str(tmp_path / "run")])
    assert str(bomb) in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("words", [["--max-file-bytes", "100000000"], ["--max-file-bytes=100000000"]])
def test_a_flag_raises_the_bound(bomb, tmp_path, words, monkeypatch):
    seen = []
    monkeypatch.setattr("anaphor.cli.data.run", lambda rest: seen.append((rest, max_file_bytes())) or 0)
    assert main(["data", "list", *words, "--json"]) == 0
    assert seen == [(["list", "--json"], 100_000_000)]
    assert max_file_bytes() == 8 * MEGABYTE, "the flag is for one command"


def test_a_bound_that_is_no_number_is_refused(bomb, error_of):
    assert "it must be a number of bytes" in error_of(["train", "lm", "--data", str(bomb), "--max-file-bytes", "much"])


def test_the_bound_can_be_raised(bomb, monkeypatch):
    monkeypatch.setenv("ANAPHOR_MAX_FILE_BYTES", str(100 * MEGABYTE))
    assert len(StoredFile(bomb).read()) == 64 * MEGABYTE // 19 * 19
    monkeypatch.setenv("ANAPHOR_MAX_FILE_BYTES", "a lot")
    with pytest.raises(ConfigError, match="a number of bytes"):
        max_file_bytes()
    monkeypatch.delenv("ANAPHOR_MAX_FILE_BYTES")
    assert max_file_bytes() == 1 << 30


def test_a_digest_needs_no_copy_of_the_content(bomb, monkeypatch):
    monkeypatch.setenv("ANAPHOR_MAX_FILE_BYTES", str(100 * MEGABYTE))
    tracemalloc.start()
    try:
        StoredFile(bomb).digest()
        assert tracemalloc.get_traced_memory()[1] < 6 * MEGABYTE
    finally:
        tracemalloc.stop()
