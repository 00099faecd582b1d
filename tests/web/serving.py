"""A server of the live page in a thread, and requests to it."""

import http.client
import json
import shutil
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import uvicorn

from anaphor.web.serve_verb import build_config, listen

PRETENDED = (sys.executable, str(Path(__file__).with_name("pretended_worker.py")))
"""The command of a worker without models."""


class Served(SimpleNamespace):
    """A running server: `address` (with the token), `url` (without), `port`, `token`, `folder`, `app`."""

    def request(self, method, path, body=None, *, cookie=True, origin=True, **headers):
        """Status, headers and bytes. The headers of a page unless others are given; None leaves one out."""
        every = {"Host": f"127.0.0.1:{self.port}"}
        if cookie:
            every["Cookie"] = f"anaphor-{self.port}={self.token}"
        if origin and method not in ("GET", "HEAD"):
            every["Origin"] = self.url
        every |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            if body is not None:
                every.setdefault("Content-Length", str(len(body)))
            for name, value in every.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return SimpleNamespace(status=answer.status, headers=answer.headers, body=answer.read())
        finally:
            connection.close()

    def ask(self, path):
        """JSON by GET."""
        answer = self.request("GET", path)
        assert answer.status == 200, answer.body
        assert answer.headers["Content-Type"] == "application/json"
        return json.loads(answer.body)

    def send(self, path, **values):
        """JSON by POST: what the job gives, or its error as {"error": …}."""
        answer = self.request("POST", path, json.dumps(values).encode())
        found = json.loads(answer.body)
        key = found.get("job")
        while "job" in found or found.get("state") in ("waiting", "running"):
            found = json.loads(self.request("GET", f"/api/job?id={key}").body)
        return found["result"] if "result" in found else {"error": found["error"]}


@contextmanager
def serving(folder, **options):
    """A server for a folder, in a thread."""
    listening, token = listen("127.0.0.1", 0), "t" * 32
    port = listening.getsockname()[1]
    server = uvicorn.Server(build_config(folder, token, listening, "127.0.0.1", **options))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    url = f"http://127.0.0.1:{port}"
    try:
        yield Served(
            address=f"{url}/?token={token}", url=url, port=port, token=token, folder=folder, app=server.config.app
        )
    finally:
        server.should_exit = True
        thread.join(60)
    assert not thread.is_alive()


def begin_run(folder, source):
    """A run that trains, as far as files can tell: half of the metrics, no result. Its lock must be held as well."""
    shutil.copytree(source, folder)
    (folder / "result.json").unlink()
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_bytes(b"".join(lines[: len(lines) // 2]))
    return lines[len(lines) // 2 :]
