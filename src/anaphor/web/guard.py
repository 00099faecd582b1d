"""What every request must pass, whatever its route and method: host, origin, token, size and time. And the headers of
every response."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import re
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import parse_qsl

import h11
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from anaphor.web.connections import MAX_CONNECTIONS

MAX_BODY = 1_000_000  # bytes
HEAD_SECONDS = 10.0
BODY_SECONDS = 10.0
REQUEST_SECONDS = 60.0
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
TOO_LARGE = f"the request is too large: at most {MAX_BODY:,} bytes"
NO_TOKEN = "open the address that `anaphor serve` has printed: it holds the token"
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?", re.ASCII)
# A link on another site leads here without the cookie that has just been set, because of SameSite=Strict; what this
# page itself leads to has it.
_CONTINUE = (
    '<!doctype html><title>Anaphor</title><meta http-equiv="refresh" content="0; url=/"><a href="/">continue</a>'
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Access:
    """Who may ask: the names of this server and the secret of its users."""

    token: str
    port: int
    hosts: frozenset[str]
    """Names for the Host header, in lower case and without port; IPv6 addresses in brackets."""
    any_address: bool = False
    """Accept every IP address as a name: for a server on all addresses. No name of another site can be one."""

    @property
    def cookie(self) -> str:
        # Browsers share cookies between the ports of a host.
        return f"anaphor-{self.port}"

    def is_own_host(self, header: str) -> bool:
        match = _HOST.fullmatch(header.lower())
        if match is None or int(match[2] or 80) != self.port:
            return False
        return match[1] in self.hosts or (self.any_address and _is_address(match[1]))

    def is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


class Guard:
    """ASGI middleware. Nothing behind it sees a request that is not allowed."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        is_started = False

        async def send_guarded(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                answer = self.respond(scope)
                await (self.app if answer is None else answer)(scope, _limit(receive), send_guarded)
        except Exception as error:  # a bug of ours: the page gets one line, the terminal the rest
            if is_started:
                raise
            await _describe(error)(scope, receive, send_guarded)

    def respond(self, scope: Scope) -> Response | None:
        """The answer to a request that goes no further."""
        headers, method, path = Headers(scope=scope), scope["method"], scope["path"]
        host = headers.get("host", "")
        if not self.access.is_own_host(host):
            line = f"this server is not {host[:100]!r}: use the address it has printed (with a tunnel, the same port)"
            return error_response(403 if host else 400, line)
        if "upgrade" in headers:
            return error_response(400, "this server does not switch protocols")
        if method not in ("GET", "HEAD") and headers.get("origin", "").lower() != f"http://{host.lower()}":
            return error_response(403, "only the page itself may send this")
        if not headers.get("content-length", "0").isdecimal() or int(headers.get("content-length", "0")) > MAX_BODY:
            return error_response(413, TOO_LARGE)
        if not path.startswith("/"):
            return error_response(400, "the address must begin with /")
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        if path == "/" and method in ("GET", "HEAD") and "token" in query:
            return self._enter(query["token"], headers)
        cookies = [value for line in headers.getlist("cookie") for value in _values(line, self.access.cookie)]
        if not any(map(self.access.is_token, cookies)):
            return Response(NO_TOKEN, 403, media_type="text/plain") if path == "/" else error_response(403, NO_TOKEN)
        return None

    def _enter(self, token: str, headers: Headers) -> Response:
        """From the address with the token to the one without it."""
        if not self.access.is_token(token):
            return Response(f"wrong token: {NO_TOKEN}", 403, media_type="text/plain")
        is_link = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        answer: Response = HTMLResponse(_CONTINUE) if is_link else RedirectResponse("/", 303)
        answer.set_cookie(self.access.cookie, self.access.token, httponly=True, samesite="strict", path="/")
        return answer


def _values(line: str, name: str) -> list[str]:
    """Values of a cookie. A name that comes twice is two cookies."""
    pairs = (cookie_parser(part) for part in line.split(";"))
    return [pair[name] for pair in pairs if name in pair]


def _limit(receive: Receive) -> Receive:
    """Count what arrives: a body in chunks does not say how long it is."""
    size = 0

    async def receive_limited() -> Message:
        nonlocal size
        try:
            async with asyncio.timeout(BODY_SECONDS):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, "the request did not arrive in time") from None
        size += len(message.get("body", b""))
        if size > MAX_BODY:
            raise HTTPException(413, TOO_LARGE)
        return message

    return receive_limited


def _describe(error: Exception) -> Response:
    """One line without paths."""
    if isinstance(error, TimeoutError):
        return error_response(503, "this took too long: try again later")
    if isinstance(error, OSError):  # a disk that fails, too many open files
        return error_response(503, f"the folder cannot be read now: {error.strerror or 'input/output error'}")
    _log_unexpected(error)
    return error_response(500, "internal error: the terminal of `anaphor serve` shows the details")


def _log_unexpected(error: Exception) -> None:
    """The same error at the same place is shown once."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    place = (type(error), None if last is None else (last.tb_frame.f_code.co_filename, last.tb_lineno))
    if place not in _SHOWN:
        _SHOWN.add(place)
        logger.error("unexpected error (shown once)", exc_info=error)


_SHOWN = set[object]()


def error_response(status: int, line: str) -> JSONResponse:
    return JSONResponse({"error": line}, status)


class Protocol(H11Protocol):
    """The HTTP protocol of uvicorn, which waits for the head of a request forever. This one closes a connection whose
    request does not arrive in time, however slowly its bytes come, and those that are too many."""

    _deadline: asyncio.TimerHandle | None = None
    limit: ClassVar[int] = MAX_CONNECTIONS
    """Connections at a time. With a further one, that is closed which has waited longest without a request: without
    descriptors nobody would be served."""
    is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > self.limit:
            waiting = [one for one in self.connections if isinstance(one, Protocol) and one._deadline is not None]
            oldest = min(waiting, key=lambda one: one._deadline.when() if one._deadline else 0.0, default=self)
            oldest.refuse()

    def refuse(self) -> None:
        """Close the connection now."""
        self.is_refused = True
        self._stop_watching()
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.is_refused:
            return
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_watching()

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop_watching()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _stop_watching(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
