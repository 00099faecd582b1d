"""`anaphor serve`: the address at once, ports that are taken, other hosts, and a clean end."""

import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import webbrowser
from pathlib import Path

import pytest

from anaphor.cli.main import main
from anaphor.web import serve_verb as serve

COMMAND = (sys.executable, "-P", "-m", "anaphor", "serve")
CPU_SECONDS = 1.5


@pytest.fixture
def start(tmp_path):
    """From words to a running process that has printed its first line."""
    started = []

    def begin(*words, **environment):
        process = subprocess.Popen(
            [*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
            env={**os.environ, **environment},
        )  # fmt: skip
        started.append(process)
        return process, process.stdout.readline()

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def ask(address, path):
    place, _, token = address.partition("/?token=")
    host, _, port = place.removeprefix("http://").rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=60)
    connection.request("GET", path, headers={"Cookie": f"anaphor-{port}={token}"})
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def cpu_seconds(process):
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_the_address_is_one_line_that_works_at_once_without_torch_and_ctrl_c_ends_it(start):
    process, line = start("--port", "0", "--no-browser", COLUMNS="20")
    assert line.startswith("http://127.0.0.1:")
    assert line.endswith("\n")
    status, body = ask(line.strip(), "/api/runs")
    assert status == 200
    assert json.loads(body)["runs"] == []
    assert ask(line.strip(), "/")[0] == 200
    if sys.platform == "linux":
        assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()
        assert cpu_seconds(process) < CPU_SECONDS
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (130, "", "anaphor: interrupted\n")


def test_a_json_value_comes_first_and_sigterm_ends_it(start, tmp_path):
    process, line = start(".", "--port", "0", "--no-browser", "--json")
    found = json.loads(line)
    assert found["address"].startswith(f"http://127.0.0.1:{found['port']}/?token=")
    assert (found["folder"], sorted(found)) == (str(tmp_path.resolve()), ["address", "folder", "port"])
    assert ask(found["address"], "/api/runs")[0] == 200
    process.terminate()
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (143, "", "")


def test_the_worker_does_not_outlive_the_server(start, tmp_path):
    """Not even one that is killed."""
    command = (sys.executable, "-P", "-m", "anaphor.web.worker")
    reading, writing = os.pipe()
    worker = subprocess.Popen(command, stdin=reading, stdout=subprocess.DEVNULL)
    os.close(reading)
    os.close(writing)
    assert worker.wait(60) == 0


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6 here")
def test_an_ipv6_address_works(start):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("there is no IPv6 here")
    _, line = start("--host", "::1", "--port", "0", "--no-browser")
    assert line.startswith("http://[::1]:")
    assert ask(line.strip(), "/api/runs")[0] == 200


def test_a_taken_port_is_told_and_the_next_one_used_unless_it_was_asked_for(capsys, monkeypatch, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(serve, "PORT", port)
        with serve.listen("127.0.0.1", None) as found:
            used = found.getsockname()[1]
            assert port < used < port + serve.TRIED
            assert found.getsockname()[0] == "127.0.0.1"
        assert capsys.readouterr().err == f"port {port} is taken: using {used}\n"
        assert main(["serve", str(tmp_path), "--port", str(port)]) == 2
        expected = f"anaphor: port {port} is taken: give another one, or leave out --port\n"
        assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["no/folder"], "anaphor: no folder at no/folder\n"),
        (["--port", "70000"], "anaphor: port=70000: it must be from 0 to 65535\n"),
        (["--host", "no such host"], "anaphor: host='no such host': there is no such address\n"),
        (["--host", "192.0.2.1"], "anaphor: cannot listen on 192.0.2.1 port 8765: Cannot assign requested address\n"),
    ],
)
def test_mistakes_are_told_in_one_line(words, error, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["serve", "--no-browser", *words]) == 2
    assert capsys.readouterr().err == error


def test_another_host_is_answered_with_a_tunnel(monkeypatch):
    monkeypatch.setenv("USER", "me")
    monkeypatch.setattr(socket, "gethostname", lambda: "box")
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    for host in ("127.0.0.1", "::1", "localhost", "127.1.2.3"):
        assert serve.tunnel_hint(host, 8765) is None
    for host in ("0.0.0.0", "box", "192.168.1.5", "::"):
        hint = serve.tunnel_hint(host, 8765)
        assert "`ssh -L 8765:127.0.0.1:8765 me@box`" in hint
        assert "\n" not in hint
    monkeypatch.setenv("SSH_CONNECTION", "1.2.3.4 1 5.6.7.8 22")
    for display in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(display, raising=False)
    assert serve.tunnel_hint("127.0.0.1", 1) == "to open it on your own computer, run there: " + (
        "ssh -L 1:127.0.0.1:1 me@box"
    )
    assert serve.public_name("0.0.0.0") == "box"
    assert serve.public_name("fe80::1") == "[fe80::1]"


def test_no_browser_of_the_terminal_is_opened_and_one_that_fails_is_no_error(monkeypatch):
    for display in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(display, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert not serve.has_display()
    monkeypatch.setenv("DISPLAY", ":0")
    assert serve.has_display()

    def fail(address):
        raise webbrowser.Error("no browser")

    monkeypatch.setattr(webbrowser, "open", fail)
    serve.open_browser("http://127.0.0.1")
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    serve.open_browser("http://127.0.0.1")
    assert opened == ["http://127.0.0.1"]


def test_an_open_page_does_not_keep_the_server_from_ending(start):
    """Browsers keep connections open."""
    process, line = start("--port", "0", "--no-browser")
    port = int(line.partition("/?")[0].rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as idle:
        idle.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        assert idle.recv(12) == b"HTTP/1.1 403"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_the_browser_is_given_a_file_that_only_this_user_can_read(tmp_path, monkeypatch):
    """Everyone on the computer sees the arguments of a program."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with serve.redirect_file("http://127.0.0.1:1/?token=secret&more") as page:
        assert page.stat().st_mode & 0o777 == 0o600
        assert "url=http://127.0.0.1:1/?token=secret&amp;more" in page.read_text()
        assert "secret" not in page.as_uri()
    assert not page.exists()


def test_the_token_is_in_no_argument_of_the_browser(start, tmp_path):
    browser = tmp_path / "browser.sh"
    browser.write_text(
        '#!/bin/sh\necho "$@" > arguments.part && cat "${1#file://}" > page.html && mv arguments.part arguments\n'
    )
    browser.chmod(0o700)
    process, line = start("--port", "0", BROWSER=str(browser), DISPLAY=":0")
    token = line.strip().partition("?token=")[2]
    deadline = time.monotonic() + 60
    while not (tmp_path / "arguments").exists() and time.monotonic() < deadline:
        select.select([], [], [], 0.05)
    arguments = (tmp_path / "arguments").read_text()
    assert token not in arguments
    assert token in (tmp_path / "page.html").read_text()
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    assert not Path(arguments.strip().removeprefix("file://")).exists()


LIMITED = (
    "import resource, sys; from anaphor.cli.main import main; resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {0})); "
)


def test_a_start_with_few_descriptors_is_refused(tmp_path):
    code = LIMITED.format(64) + "sys.exit(main(['serve', '--port', '0', '--no-browser']))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "64 files at a time" in line
    assert "ulimit -n" in line


LOST = """
import os, signal, sys
from anaphor.cli.main import main
from anaphor.web import serve_verb

class Ending:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

built = serve_verb.build_config

def build_config(*arguments, **options):
    Ending()
    return built(*arguments, **options)

serve_verb.build_config = build_config
sys.exit(main(["serve", "--port", "0", "--no-browser"]))
"""


def test_a_signal_that_comes_in_a_destructor_while_it_starts_ends_it(tmp_path):
    """There the exception of a handler is lost."""
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 128 + signal.SIGTERM


@pytest.mark.slow
def test_idle_connections_cost_one_line_and_the_page_is_served_after_them(start, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", LIMITED.format(256) + "sys.exit(main(['serve', '--port', '0', '--no-browser']))"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    )  # fmt: skip
    try:
        address = process.stdout.readline().strip()
        port = int(address.partition("/?")[0].rpartition(":")[2])
        assert ask(address, "/api/runs")[0] == 200
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(700)]
        assert ask(address, "/api/runs")[0] == 200
        for connection in idle:
            connection.close()
        assert ask(address, "/api/runs")[0] == 200
    finally:
        process.terminate()
        _, complaints = process.communicate(timeout=60)
    assert len(complaints.splitlines()) <= 3, complaints[:2000]
