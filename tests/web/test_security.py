"""Who may ask the server and what leaves it: fault list 18 and 19, to the letter."""

import hashlib
import itertools
import json
import logging
import random
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from anaphor.web import guard
from anaphor.web.catalog import Catalog
from anaphor.web.guard import Access
from anaphor.web.jobs import Jobs
from anaphor.web.server import VERBS, build_app
from web.serving import PRETENDED, serving

GET_ROUTES = (
    "/",
    "/static/app.js",
    "/api/runs",
    "/api/curves",
    "/api/samples",
    "/api/study",
    "/api/job",
    "/api/command",
)
POST_ROUTES = ("/api/cancel", "/api/stop", "/api/resume", "/api/warm", *(f"/api/{verb}" for verb in VERBS))
ROUTES = (*GET_ROUTES, *POST_ROUTES, "/nowhere", "/api/nothing", "/static/nothing", "//", "/?token=x")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "WHATEVER")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


def tell(port, data, *, until_closed=True):
    """Bytes in, bytes out."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(data)
        received = b""
        while more := connection.recv(65536):
            received += more
            if not until_closed:
                break
        return received


def head(served, *more, target="/", method="GET", version="1.1"):
    lines = [f"{method} {target} HTTP/{version}", f"Host: 127.0.0.1:{served.port}", *more, "", ""]
    return "\r\n".join(lines).encode()


def test_a_foreign_host_is_refused_on_every_route_and_method(served):
    for host in ("evil.example", f"evil.example:{served.port}", "127.0.0.1", "127.0.0.1:1", "localhost.:80", "[::1"):
        for route, method in itertools.product(ROUTES, METHODS if host.startswith("evil.example:") else ("GET",)):
            answer = served.request(method, route, Host=host)
            assert answer.status in (400, 403), (host, route, method)
            assert b"<" not in answer.body
    assert served.request("GET", "/api/runs", Host=f"localhost:{served.port}").status == 200
    assert served.request("GET", "/api/runs", Host=f"[::1]:{served.port}").status == 200


def test_a_request_without_host_or_with_two_or_for_another_server_is_refused(served):
    cookie = f"Cookie: anaphor-{served.port}={served.token}"
    for request in (
        f"GET /api/runs HTTP/1.0\r\n{cookie}\r\n\r\n",
        f"GET /api/runs HTTP/1.1\r\n{cookie}\r\n\r\n",
        f"GET /api/runs HTTP/1.1\r\nHost: evil.example\r\nHost: 127.0.0.1:{served.port}\r\n{cookie}\r\n\r\n",
        f"GET http://evil.example/api/runs HTTP/1.0\r\nHost: 127.0.0.1:{served.port}\r\n{cookie}\r\n\r\n",
    ):
        received = tell(served.port, request.encode())
        assert received.startswith(b"HTTP/1.1 400"), request
        assert b'"runs"' not in received


def test_a_foreign_origin_is_refused_on_every_request_but_get_and_head(served):
    origins = (None, "null", "", "https://evil.example", f"https://127.0.0.1:{served.port}", "http://127.0.0.1:1",
               f"http://localhost:{served.port}", f"{served.url}.evil.example", f"{served.url}/")  # fmt: skip
    for method in METHODS[2:]:
        for route in ROUTES:
            assert served.request(method, route, b"{}", Origin="https://evil.example").status == 403, (method, route)
        for origin in origins:
            assert served.request(method, "/api/look", b"{}", Origin=origin).status == 403, (method, origin)
    assert served.request("POST", "/api/look", b"{}", origin=False).status == 403


def test_nothing_is_shown_without_the_token(served):
    wrong = {"Cookie": f"anaphor-{served.port}={'x' * 32}"}
    elsewhere = {"Cookie": f"anaphor-{served.port + 1}={served.token}; anaphor={served.token}"}
    for route in ROUTES:
        for cookie in ({}, wrong, elsewhere):
            answer = served.request("GET", route, cookie=False, **cookie)
            assert answer.status == 403, route
            assert b"token" in answer.body
            assert served.token.encode() not in answer.body
    for route in POST_ROUTES:
        assert served.request("POST", route, b"{}", cookie=False).status == 403
    # The token opens the first address only, not every one.
    assert served.request("GET", f"/api/runs?token={served.token}", cookie=False).status == 403
    assert served.request("GET", f"/?token={served.token}x", cookie=False).status == 403
    assert served.request("POST", f"/?token={served.token}", b"", cookie=False).status == 403


def test_the_first_address_gives_a_cookie_for_this_port_and_leads_to_one_without_the_token(served):
    answer = served.request("GET", f"/?token={served.token}", cookie=False)
    assert answer.status == 303
    assert answer.headers["Location"] == "/"
    name, *attributes = answer.headers["Set-Cookie"].split("; ")
    assert name == f"anaphor-{served.port}={served.token}"
    assert {one.lower() for one in attributes} == {"httponly", "path=/", "samesite=strict"}
    # After a link on another site the cookie would not be sent along with the redirect.
    linked = served.request("GET", f"/?token={served.token}", cookie=False, Sec_Fetch_Site="cross-site")
    assert linked.status == 200
    assert linked.headers["Set-Cookie"] == answer.headers["Set-Cookie"]
    assert b'url=/"' in linked.body
    assert served.token.encode() not in linked.body


def test_tokens_are_compared_in_constant_time(served, monkeypatch):
    compared = []
    pretended = SimpleNamespace(compare_digest=lambda *both: compared.append(both) or False)
    monkeypatch.setattr(guard, "hmac", pretended)
    assert served.request("GET", "/api/runs").status == 403
    assert served.request("GET", "/?token=%C3%A9%FF", cookie=False).status in (400, 403)
    assert (served.token.encode(), served.token.encode()) in compared


def test_every_response_has_the_headers_that_protect_and_none_for_other_origins(served):
    answers = [served.request(method, route, Host=host, Origin=origin, cookie=cookie)
               for method in ("GET", "HEAD", "POST", "OPTIONS", "WHATEVER")
               for route in ROUTES
               for host, origin, cookie in [(f"127.0.0.1:{served.port}", served.url, True),
                                            (f"127.0.0.1:{served.port}", "https://evil.example", False),
                                            ("evil.example", "https://evil.example", True)]]  # fmt: skip
    assert {200, 303, 400, 403, 404, 405} & {answer.status for answer in answers} >= {200, 400, 403, 404, 405}
    for answer in answers:
        assert answer.headers["Content-Security-Policy"] == POLICY
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-store"
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
        assert "Server" not in answer.headers


def test_a_method_is_what_it_says(served):
    assert served.request("GET", "/api/cancel").status == 405
    assert served.request("GET", "/api/look", X_HTTP_Method_Override="POST").status == 405
    assert served.request("GET", "/api/look?_method=POST").status == 405
    assert served.request("POST", "/api/runs", b"{}").status == 405
    assert served.request("OPTIONS", "/api/look", Access_Control_Request_Method="POST").status == 405


def test_protocols_are_not_switched(served):
    cookie = f"Cookie: anaphor-{served.port}={served.token}"
    for protocol in ("websocket", "h2c", "tls"):
        upgrade = ("Connection: Upgrade", f"Upgrade: {protocol}", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
        received = tell(served.port, head(served, cookie, *upgrade, "Sec-WebSocket-Version: 13"), until_closed=False)
        assert received.startswith(b"HTTP/1.1 400")


# ---- paths


def traversals():
    """500 ways to ask for a file outside."""
    ups = ("..", "%2e%2e", ".%2e", "%252e%252e", "..%00", "....", "..;", "%c0%ae%c0%ae", "\\..", "%u002e%u002e", "․․")
    slashes = ("/", "%2f", "\\", "%5c", "%252f", "//", "/./", "%c0%af")
    files = ("secret.txt", "etc/passwd", "secret.txt%00.js", "secret.txt?x.js", "runs/../secret.txt")
    made = [(up + slash) * depth + file for up in ups for slash in slashes for depth in (1, 2, 6) for file in files]
    absolute = [
        "/etc/passwd",
        "//etc/passwd",
        "file:///etc/passwd",
        "C:\\secret.txt",
        "~/secret.txt",
        "/proc/self/environ",
    ]
    return absolute + random.Random(0).sample(made, 500 - len(absolute))


def test_500_traversal_strings_give_no_byte_from_outside(copied):
    outside = "OUTSIDE-7341"
    (copied.parent / "secret.txt").write_text(outside)
    (copied / "linked").symlink_to(copied.parent)
    (copied / "lstm" / "samples.txt").unlink(missing_ok=True)
    (copied / "lstm" / "samples.txt").symlink_to(copied.parent / "secret.txt")
    secrets = [outside.encode(), Path("/etc/passwd").read_bytes()[:20], b"PATH="]
    places = ("/static/{}", "/{}", "/api/{}", "/api/samples?run={}", "/api/study?id={}", "/api/curves?runs={}:",
              "/api/job?id={}", "/static/../{}")  # fmt: skip
    assert len({*traversals()}) == 500
    with serving(copied) as served:
        for number, text in enumerate(traversals()):
            path = text.encode("ascii", "ignore").decode() if text.isascii() else quote(text)
            target = places[number % len(places)].format(path)
            answer = served.request("GET", target)
            assert answer.status in (200, 400, 404), (target, answer.status)
            if answer.status == 200:
                assert json.loads(answer.body) == {"runs": {}}, target
            assert not [one for one in secrets if one in answer.body], target
            body = json.dumps({"run": text, "runs": [text], "job": text, "look": text}).encode()
            sent = served.request("POST", POST_ROUTES[number % len(POST_ROUTES)], body)
            assert sent.status in (400, 404), text
            assert not [one for one in secrets if one in sent.body], text
        runs = served.ask("/api/runs")
        assert not [row for row in runs["runs"] if row["run"].startswith("linked")]
        linked = next(row["id"] for row in runs["runs"] if row["run"] == "lstm")
        assert outside.encode() not in served.request("GET", f"/api/samples?run={linked}").body


def test_runs_are_addressed_by_the_ids_of_the_server_only(served, ids):
    for name in ("lstm", "./lstm", str(served.folder / "lstm"), ids["lstm"].upper(), ids["lstm"] + " ", "0" * 12):
        assert served.request("GET", f"/api/samples?run={quote(name)}").status == 404
        assert served.request("POST", "/api/look", json.dumps({"run": name, "text": "a"}).encode()).status == 404
    assert served.request("GET", f"/api/samples?run={ids['lstm']}").status == 200
    assert served.request("GET", f"/api/study?id={ids['lstm']}").status == 404


# ---- sizes, times and numbers


def test_a_body_over_a_megabyte_is_refused(served):
    for length in (guard.MAX_BODY + 1, 3_000_000, 10**15):
        body = b"x" * min(length, 3_000_000)
        assert served.request("POST", "/api/look", body, Content_Length=str(length)).status == 413
    assert served.request("POST", "/api/look", b"x" * guard.MAX_BODY).status == 400


def test_a_body_in_chunks_is_refused_before_it_has_arrived(served):
    cookie, origin = f"Cookie: anaphor-{served.port}={served.token}", f"Origin: {served.url}"
    request = head(served, cookie, origin, "Transfer-Encoding: chunked", method="POST", target="/api/look")
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
        connection.sendall(request)
        received = threading.Event()
        answer = []

        def listen():
            answer.append(connection.recv(65536))
            received.set()

        thread = threading.Thread(target=listen)
        thread.start()
        sent = 0
        while not received.is_set() and sent < 2000:  # 131 MB: it would never end by itself
            connection.sendall(chunk)
            sent += 1
        thread.join()
    assert answer[0].startswith(b"HTTP/1.1 413")
    assert sent < 2000


def test_a_text_of_more_than_4096_tokens_is_refused(served, ids):
    body = json.dumps({"runs": [ids["lstm"]], "text": "a " * 4097}).encode()
    answer = served.request("POST", "/api/tokens", body)
    assert answer.status == 413
    assert json.loads(answer.body) == {"error": "the text is too long: at most 4,096 tokens"}


def test_a_text_whose_tokens_only_the_model_can_count_is_refused_as_well(folder, ids):
    with serving(folder, jobs=Jobs(PRETENDED)) as served:
        body = json.dumps({"run": ids["lstm"], "text": "is too large"}).encode()
        key = json.loads(served.request("POST", "/api/look", body).body)["job"]
        answer = served.request("GET", f"/api/job?id={key}")
        while json.loads(answer.body)["state"] in ("waiting", "running"):
            answer = served.request("GET", f"/api/job?id={key}")
    assert answer.status == 413
    assert json.loads(answer.body)["error"] == "the text has 5,000 tokens"


def test_a_job_does_what_its_route_says_with_paths_that_only_the_worker_sees(folder, ids):
    with serving(folder, jobs=Jobs(PRETENDED)) as served:
        found = served.send("/api/tokens", runs=[ids["lstm"], ids["lstm-1"]], text="x", verb="look", names="y", job="z")
        assert found["request"] == {
            "verb": "tokens", "text": "x", "names": "y", "job": "z",
            "runs": {ids[name]: str(folder / name) for name in ("lstm", "lstm-1")},
        }  # fmt: skip
        refused = served.send("/api/look", run=ids["lstm"], text="refuses")
        assert "secret" not in refused["error"]


def test_a_request_that_does_not_arrive_is_not_waited_for(served, monkeypatch):
    monkeypatch.setattr(guard, "HEAD_SECONDS", 0.1)
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.1)
    assert tell(served.port, b"") == b""
    assert tell(served.port, b"GET / HTTP/1.1\r\nHost: 127") == b""
    cookie, origin = f"Cookie: anaphor-{served.port}={served.token}", f"Origin: {served.url}"
    request = head(served, cookie, origin, "Content-Length: 100", method="POST", target="/api/look")
    assert tell(served.port, request + b"{", until_closed=False).startswith(b"HTTP/1.1 408")


def test_noise_gets_no_answer_but_a_refusal_and_the_server_stays(served):
    draw = random.Random(0)
    cookie, origin = f"Cookie: anaphor-{served.port}={served.token}", f"Origin: {served.url}"
    for number in range(200):
        request = bytearray(
            head(served, cookie, origin, "Content-Length: 2", method="POST", target="/api/look") + b"{}"
        )
        for _ in range(draw.randint(1, 8)):
            request[draw.randrange(len(request))] = draw.randrange(256)
        with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
            connection.sendall(request if number % 2 else draw.randbytes(200))
            connection.shutdown(socket.SHUT_WR)
            received = connection.recv(65536)
        assert received[9:10] in (b"", b"4"), request
        assert b"Traceback" not in received
    assert served.request("GET", "/api/runs").status == 200


@pytest.mark.needs("studies")
def test_of_200_concurrent_requests_none_fails_but_for_want_of_room(served, ids):
    curves = ",".join(f"{key}:" for key in ids.values())
    targets = ["/api/runs", f"/api/curves?runs={curves}", "/", "/static/app.js", f"/api/study?id={ids['study']}"]

    def ask(number):
        if number % 4 == 0:
            body = json.dumps({"runs": ["0" * 12], "text": "a"}).encode()
            return served.request("POST", "/api/tokens", body)
        return served.request("GET", targets[number % len(targets)])

    with ThreadPoolExecutor(200) as pool:
        answers = list(pool.map(ask, range(200)))
    assert not [answer.body for answer in answers if answer.status not in (200, 404, 503)]
    assert sum(answer.status == 200 for answer in answers) > 100


def test_more_work_than_there_is_room_for_gets_503(folder, ids):
    hung = Jobs(("sleep", "60"))
    with serving(folder, jobs=hung) as served:
        body = json.dumps({"runs": [ids["lstm"]], "text": "a"}).encode()
        with ThreadPoolExecutor(40) as pool:
            found = list(pool.map(lambda _: served.request("POST", "/api/tokens", body).status, range(40)))
        assert {*found} == {200, 503}
        assert found.count(200) in (16, 17), "one at work and sixteen that wait"
        assert sum(job.state == "running" for job in hung.jobs.values()) <= 2


# ---- what is shown


def digest(folder):
    """Everything about the files of a folder but when they were read last."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        found.update(repr((str(path), status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino)).encode())
        if path.is_file():
            found.update(path.read_bytes())
    return found.hexdigest()


@pytest.mark.needs("studies")
def test_get_and_head_change_nothing(copied, ids):
    before = digest(copied)
    with serving(copied) as served:
        every = ",".join(f"{key}:" for key in ids.values())
        targets = [*ROUTES, f"/api/curves?runs={every}", *(f"/api/samples?run={key}" for key in ids.values()),
                   f"/api/study?id={ids['study']}"]  # fmt: skip
        for target, method in itertools.product(targets, ("GET", "HEAD")):
            assert served.request(method, target).status < 500
        jobs = served.app.state.jobs
        assert jobs.jobs == {}
    assert digest(copied) == before


def test_markup_in_names_texts_and_errors_leaves_as_json_only(served, ids):
    script = "<script>alert(1)</script>"
    answers = [
        served.request("GET", "/api/runs"),
        served.request("GET", f"/api/samples?run={ids['hybrid']}"),
        served.request("GET", f"/api/job?id={quote(script)}"),
        served.request("GET", f"/api/curves?points={quote(script)}"),
        served.request("GET", f"/{quote(script)}"),
        served.request("GET", f"/static/{quote(script)}.js"),
        served.request("POST", "/api/look", json.dumps({script: [1]}).encode()),
    ]
    assert b"<script>" in answers[0].body, "it is in the name of a run"
    for answer in answers:
        assert answer.headers["Content-Type"] == "application/json"
        json.loads(answer.body)


def test_errors_show_no_paths_and_no_traceback(served, ids):
    broken = [b"", b"{", b"[]", b"null", b"[" * 900_000, b'{"run": NaN}', b'{"runs": 5}', b'{"run": {}}', b"\xff\xfe",
              b'{"run": "x", "runs": ["y"]}', b'{"text": "\\ud800"}', b'{"head": ' + b"1" * 5000 + b"}"]  # fmt: skip
    answers = [served.request("POST", f"/api/{verb}", body) for verb in VERBS for body in broken]
    answers += [served.request("GET", path) for path in ("/nowhere", "/api/curves?points=x", "/api/samples?after=")]
    for answer in answers:
        assert 400 <= answer.status < 500
        assert b"/" not in answer.body
        assert b"Traceback" not in answer.body
        assert answer.body.count(b"\n") == 0


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (RuntimeError("/home/me/secret"), 500, "internal error: the terminal of `anaphor serve` shows the details"),
        (OSError(5, "Input/output error", "/home/me/secret"), 503, "the folder cannot be read now: Input/output error"),
        (TimeoutError("/home/me/secret"), 503, "this took too long: try again later"),
    ],
)
def test_an_unexpected_error_is_a_line_for_the_page_and_a_traceback_for_the_terminal(
    folder, monkeypatch, caplog, error, status, line
):
    def fail(catalog):
        raise error

    monkeypatch.setattr(Catalog, "scan", fail)
    client = TestClient(
        build_app(Catalog(folder), Access("t", 80, frozenset({"testserver"}))), cookies={"anaphor-80": "t"}
    )
    with caplog.at_level(logging.ERROR):
        answer = client.get("/api/runs")
    assert (answer.status_code, answer.json()) == (status, {"error": line})
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert ("/home/me/secret" in caplog.text) == (status == 500)


FOREIGN = """<!doctype html><title>foreign</title><a id="link" href="ADDRESS">open</a><iframe src="URL/"></iframe>
<script src="URL/api/runs"></script>
<form id="form" method="post" enctype="text/plain" action="URL/api/look">
<input name='{"run":"RUN","text":"a' value='"}'>
</form>"""
ATTEMPTS = """async ([url, body]) => {
  const attempt = (path, options) => fetch(url + path, { credentials: "include", ...options })
    .then(async (answer) => answer.type === "opaque" ? "opaque" : await answer.text(), () => "refused");
  return Promise.all([attempt("/api/runs"), attempt("/api/runs", { mode: "no-cors" }),
    attempt("/api/look", { method: "POST", body }), attempt("/api/look", { method: "POST", body, mode: "no-cors" }),
    attempt("/api/look", { method: "POST", body, headers: { "Content-Type": "application/json" } })]);
}"""


@pytest.fixture
def foreign(served, ids, tmp_path):
    """A page of another origin on the same host, to which browsers send the cookies of all ports."""
    text = FOREIGN.replace("ADDRESS", served.address).replace("URL", served.url).replace("RUN", ids["lstm"])
    (tmp_path / "index.html").write_text(text)
    handler = partial(QuietHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        yield other.server_port
        other.shutdown()
        thread.join()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


def test_in_a_browser_that_has_the_cookie_another_site_gets_nothing(served, ids, foreign, browser):
    page = browser.new_page()
    page.goto(served.address)
    assert page.url == f"{served.url}/"
    assert page.evaluate("document.cookie") == ""
    body = json.dumps({"run": ids["lstm"], "text": "a"})
    for host in ("127.0.0.1", "localhost"):
        page.goto(f"http://{host}:{foreign}/")
        assert {*page.evaluate(ATTEMPTS, [served.url, body])} <= {"refused", "opaque"}
        frame = page.frames[1]
        assert "Anaphor" not in frame.content()
        page.evaluate("document.getElementById('form').submit()")
        page.wait_for_url(f"{served.url}/api/look")
        assert page.evaluate("document.body.textContent") == '{"error":"only the page itself may send this"}'
    assert served.app.state.jobs.jobs == {}
    page.close()


@pytest.mark.slow
def test_a_link_on_another_site_opens_the_page(served, foreign, browser):
    context = browser.new_context()
    page = context.new_page()
    for host in ("127.0.0.1", "localhost"):
        page.goto(f"http://{host}:{foreign}/")
        context.clear_cookies()
        page.click("#link")
        page.wait_for_url(f"{served.url}/")
        page.wait_for_selector("#tabs a, #tabs button, #tabs li")
    context.close()


def test_names_of_a_server_on_all_addresses():
    access = Access("t", 8000, frozenset({"localhost", "box"}), any_address=True)
    for host in ("localhost:8000", "BOX:8000", "192.168.1.5:8000", "[fe80::1]:8000"):
        assert access.is_own_host(host)
    for host in ("evil.example:8000", "192.168.1.5", "192.168.1.5.evil.example:8000", "box.evil:8000", "", "a b:8000"):
        assert not access.is_own_host(host)
    assert not Access("t", 8000, frozenset({"box"})).is_own_host("192.168.1.5:8000")
    assert Access("t", 80, frozenset({"box"})).is_own_host("box")
