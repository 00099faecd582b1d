"""Downloads against a server on loopback: checksum, resume, and what is said when there is no network."""

import gzip
import hashlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from anaphor.data.download import NamedFile, Transfer, Upstream, partial_path
from anaphor.errors import DataError
from anaphor.registry import DATASETS

CONTENT = "".join(f"line {number}\n" for number in range(20_000)).encode()


class Server(ThreadingHTTPServer):
    """Serves one file and remembers what it was asked for."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.ranges, self.asked, self.break_after = CONTENT, True, [], None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/file.txt"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.server.ranges else 0
        if start >= len(self.server.content):
            self.send_error(416)
            return
        body = self.server.content[start:]
        self.send_response(206 if asked and self.server.ranges else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        broken, self.server.break_after = self.server.break_after, None
        self.wfile.write(body if broken is None else body[:broken])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def named(url):
    upstream = Upstream(file="file.txt", url=url, sha256=hashlib.sha256(CONTENT).hexdigest(), bytes=len(CONTENT))
    return NamedFile("little", upstream)


def test_a_file_is_downloaded_once_and_checked(server, cache):
    file = named(server.url)
    assert file.find() is None
    assert file.read() == CONTENT
    assert file.read() == CONTENT
    assert server.asked == [None]
    assert file.find() == cache / "data" / "little" / "file.txt"
    assert [path.name for path in file.find().parent.iterdir()] == ["file.txt"], "no litter"


def test_two_who_want_the_same_file_download_it_once(server):
    with ThreadPoolExecutor(2) as both:
        paths = list(both.map(lambda _: named(server.url).find_or_download(), range(2)))
    assert paths[0] == paths[1]
    assert paths[0].read_bytes() == CONTENT
    assert server.asked == [None]


def test_a_file_that_is_compressed_upstream_is_kept_so_and_read_as_text(server, cache):
    server.content = gzip.compress(CONTENT, mtime=0)
    packed = Transfer(hashlib.sha256(server.content).hexdigest(), len(server.content))
    file = NamedFile("little", replace(named(server.url).upstream, gzip=packed))
    server.break_after = 1000
    with pytest.raises(DataError, match=f"broke after 1,000 of {packed.bytes:,} bytes"):
        file.read()
    assert file.read() == CONTENT
    assert file.digest() == hashlib.sha256(CONTENT).hexdigest()
    assert file.find() == file.candidates()[0] == cache / "data" / "little" / "file.txt.gz"
    file.find().unlink()
    server.content = b"y" * packed.bytes
    with pytest.raises(DataError, match="its SHA-256 differs"):
        file.read()


def test_a_broken_download_goes_on_where_it_stopped(server):
    file = named(server.url)
    server.break_after = 70_000
    with pytest.raises(DataError, match=f"the connection broke after 70,000 of {len(CONTENT):,} bytes; try again"):
        file.read()
    assert partial_path(file.cache_path).stat().st_size == 70_000
    assert file.read() == CONTENT
    assert server.asked == [None, "bytes=70000-"]
    assert not partial_path(file.cache_path).exists()


def test_a_server_that_cannot_resume_sends_the_whole_file_again(server):
    file = named(server.url)
    server.ranges = False
    server.break_after = 1000
    with pytest.raises(DataError, match="the connection broke"):
        file.read()
    assert file.read() == CONTENT


@pytest.mark.parametrize("left", [b"something else", b"x" * (len(CONTENT) + 1)], ids=["another beginning", "too long"])
def test_a_wrong_beginning_is_noticed_and_not_kept(server, left):
    file = named(server.url)
    file.cache_path.parent.mkdir(parents=True)
    partial_path(file.cache_path).write_bytes(left)
    if len(left) < len(CONTENT):
        with pytest.raises(DataError, match="its SHA-256 differs; the download was discarded"):
            file.read()
        assert file.find() is None
    assert file.read() == CONTENT


def test_a_file_that_became_shorter_upstream_is_fetched_anew(server):
    file = named(server.url)
    file.cache_path.parent.mkdir(parents=True)
    partial_path(file.cache_path).write_bytes(CONTENT[:1000])
    server.content = CONTENT[:500]
    with pytest.raises(DataError, match="the connection broke after 500"):
        file.read()
    assert server.asked == ["bytes=1000-", None]


def test_another_content_is_refused(server):
    server.content = b"y" * len(CONTENT)
    file = named(server.url)
    with pytest.raises(DataError, match=r"is not little's file\.txt: its SHA-256 differs"):
        file.read()
    assert list(file.cache_path.parent.iterdir()) == []


def test_a_missing_file_upstream_is_told(server):
    server.content = b""
    with pytest.raises(DataError, match="HTTP Error 416"):
        named(server.url).read()


def test_without_a_network_the_message_says_which_file_to_put_where(tmp_path, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    file = named(f"http://127.0.0.1:{port}/file.txt")
    with pytest.raises(DataError) as caught:
        file.read()
    message = str(caught.value)
    assert "\n" not in message
    assert f"http://127.0.0.1:{port}/file.txt" in message
    assert f"put that file at {file.cache_path}" in message
    assert "$ANAPHOR_DATA" in message
    monkeypatch.setenv("ANAPHOR_DATA", str(tmp_path))
    with pytest.raises(DataError, match=f"put that file at {tmp_path / 'little' / 'file.txt'} or {file.cache_path}"):
        file.read()
    # Doing what it says helps, compressed or not.
    (tmp_path / "little").mkdir()
    (tmp_path / "little" / "file.txt.gz").write_bytes(gzip.compress(CONTENT))
    assert file.read() == CONTENT


def test_the_data_folder_comes_before_the_cache(server, tmp_path, monkeypatch):
    file = named(server.url)
    file.read()
    monkeypatch.setenv("ANAPHOR_DATA", str(tmp_path))
    assert file.find() == file.cache_path
    (tmp_path / "little").mkdir()
    (tmp_path / "little" / "file.txt").write_bytes(CONTENT)
    assert file.find() == tmp_path / "little" / "file.txt"


def test_an_edited_copy_does_not_pass_for_the_named_data_set(tmp_path, monkeypatch):
    monkeypatch.setenv("ANAPHOR_DATA", str(tmp_path))
    (tmp_path / "little").mkdir()
    (tmp_path / "little" / "file.txt").write_bytes(CONTENT + b"one line more\n")
    for use in (NamedFile.read, NamedFile.digest):
        with pytest.raises(DataError, match=r"is not little's file\.txt: its SHA-256 is .* the path of its folder"):
            use(named("http://127.0.0.1:1/file.txt"))


def test_every_named_file_has_a_pinned_address_and_a_checksum():
    for named_source in DATASETS.values():
        for file in named_source.files:
            assert len(bytes.fromhex(file.upstream.sha256)) == 32
            if file.data == "sst2":  # published in another form only
                assert not file.upstream.url
                continue
            host, *path = file.upstream.url.removeprefix("https://").split("/")
            assert host in ("raw.githubusercontent.com", "www.cs.toronto.edu")
            assert host != "raw.githubusercontent.com" or len(path[2]) == 40, "a commit, not a branch"


def test_a_file_without_address_says_where_to_put_it(tmp_path, monkeypatch):
    monkeypatch.setenv("ANAPHOR_DATA", str(tmp_path))
    monkeypatch.setenv("ANAPHOR_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match=rf"sst2's train.tsv cannot be downloaded: put that file at {tmp_path}/sst2/"):
        DATASETS["sst2"].open().rows("train")
