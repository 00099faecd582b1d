"""`anaphor serve [FOLDER]`: the live page of all runs and studies below a folder."""

from __future__ import annotations

import contextlib
import errno
import html
import ipaddress
import json
import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NoReturn

from anaphor.cli.imports import import_given
from anaphor.cli.table import for_terminal
from anaphor.errors import ConfigError, DataError
from anaphor.flags import Positional, parse
from anaphor.web.connections import BACKLOG, reserve_descriptors

if TYPE_CHECKING:
    from uvicorn import Config

PORT, TRIED = 8765, 100
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Show runs and studies below a folder in the browser, live: curves, samples, tokens, attention. Ctrl-C stops it.

    The address that is printed includes a token, without which the server shows nothing.
    """

    help_examples: ClassVar[tuple[str, ...]] = (
        "anaphor serve",
        "anaphor serve runs --port 8000",
    )

    folder: Annotated[Path, Positional("[FOLDER]")] = Path()
    """Folder with runs and studies (the current folder if not given)."""
    port: int | None = None
    """Port; 0 for any free one (8765, or the next free one, if not given)."""
    host: str = LOOPBACK
    """Address to listen on. The default cannot be reached from other computers."""
    browser: bool = True
    """Open the page in the browser."""
    imports: tuple[Path, ...] = field(default=(), metadata={"flag": "import", "repeated": True})
    """Python file that registers parts of your own; may be given several times."""
    force: bool = False
    """Accept imported files that were edited since the runs were trained."""
    json: bool = False
    """Print one JSON value first: address, port and folder."""

    def __post_init__(self) -> None:
        if self.port is not None and not 0 <= self.port <= 65535:
            raise ConfigError(f"port={self.port}: it must be from 0 to 65535")


def run(argv: Sequence[str]) -> int:
    imports = import_given(argv)
    options = parse(Options, argv, program="anaphor serve")
    folder = options.folder
    if not folder.is_dir():
        raise DataError(f"no folder at {folder}")
    shown = str(folder.resolve())
    reserve_descriptors()
    listening = listen(options.host, options.port)
    port: int = listening.getsockname()[1]
    token = secrets.token_urlsafe(24)
    address = f"http://{public_name(options.host)}:{port}/?token={token}"
    found = {"address": address, "port": port, "folder": shown}
    # Not through rich: an address must not be broken into two lines.
    print(json.dumps(found) if options.json else for_terminal(address, sys.stdout), flush=True)
    hint = tunnel_hint(options.host, port)
    if hint:
        print(hint, file=sys.stderr, flush=True)
    logging.basicConfig(format="anaphor: %(message)s", level=logging.ERROR)
    # uvicorn closes everything at SIGTERM, and then raises the signal again.
    received: list[int] = []
    signal.signal(signal.SIGTERM, partial(_terminate, received))
    with contextlib.ExitStack() as stack:
        if options.browser and has_display():
            page = stack.enter_context(redirect_file(address))
            threading.Thread(target=open_browser, args=(page.as_uri(),), daemon=True).start()

        from uvicorn import Server

        from anaphor.web.jobs import Jobs, worker_command

        jobs = Jobs(worker_command(imports, force=options.force))
        server = Server(build_config(folder, token, listening, options.host, jobs=jobs))
        server.should_exit = bool(received)
        server.run(sockets=[listening])
    return 128 + received[0] if received else 0


def build_config(folder: Path, token: str, listening: socket.socket, host: str, **options: Any) -> Config:
    """The server of uvicorn for a folder. Options: those of `build_app`."""
    from uvicorn import Config

    from anaphor.web.catalog import Catalog
    from anaphor.web.guard import Access, Protocol
    from anaphor.web.server import build_app

    hosts = {LOOPBACK, "localhost", "[::1]", public_name(host).lower()}
    access = Access(token, listening.getsockname()[1], frozenset(hosts), any_address=is_wildcard(host))
    return Config(
        build_app(Catalog(folder), access, **options),
        http=type("LimitedProtocol", (Protocol,), {"limit": reserve_descriptors()}),
        loop="asyncio",
        ws="none",
        backlog=BACKLOG,  # as many are accepted before the first is looked at
        log_config=None,
        log_level=logging.CRITICAL,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=65_536,
        timeout_graceful_shutdown=2,
    )


def _terminate(received: list[int], number: int, frame: object) -> NoReturn:
    """End the process. Raised in a destructor the exception is lost, so the signal is remembered, too."""
    received.append(number)
    raise SystemExit(128 + number)


def listen(host: str, port: int | None) -> socket.socket:
    """A socket that accepts connections at the port, or at the next free one where none was asked for."""
    try:
        family, _, _, _, where = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise ConfigError(f"host={host!r}: there is no such address") from None
    first = PORT if port is None else port
    for number in range(first, min(first + TRIED, 65536)):
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((where[0], number, *where[2:]))
            listening.listen(512)
        except OSError as error:
            listening.close()
            if error.errno != errno.EADDRINUSE:
                raise ConfigError(f"cannot listen on {host} port {number}: {error.strerror}") from None
            if port is not None:
                raise ConfigError(f"port {port} is taken: give another one, or leave out --port") from None
            continue
        if number != first:
            print(f"port {first} is taken: using {number}", file=sys.stderr, flush=True)
        return listening
    raise ConfigError(f"ports {first} to {first + TRIED - 1} are taken: give another one with --port")


def is_wildcard(host: str) -> bool:
    """Whether it stands for all addresses of this computer."""
    return host in ("", "0.0.0.0", "::")


def public_name(host: str) -> str:
    """The host as it stands in an address."""
    name = socket.gethostname() if is_wildcard(host) else host
    return f"[{name}]" if ":" in name else name


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def tunnel_hint(host: str, port: int) -> str | None:
    """What to do about another computer: with --host, and in a session over ssh, where no browser can be opened."""
    tunnel = f"ssh -L {port}:{LOOPBACK}:{port} {os.environ.get('USER', 'USER')}@{socket.gethostname()}"
    if not is_loopback(host):
        return (
            f"warning: {host} can be reached from other computers, and the connection is not encrypted; safer: leave "
            f"out --host, run `{tunnel}` on your computer, and open the address there"
        )
    if os.environ.get("SSH_CONNECTION") and not has_display():
        return f"to open it on your own computer, run there: {tunnel}"
    return None


def has_display() -> bool:
    """Whether a browser has somewhere to open. On Linux the module knows browsers for terminals too, which would take
    over this one."""
    if sys.platform in ("darwin", "win32") or os.environ.get("BROWSER"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


@contextlib.contextmanager
def redirect_file(address: str) -> Iterator[Path]:
    """Inside the block: a page that leads to the address, which only this user can read.

    A browser is given its file, because everyone on this computer can read the arguments of a program, and the address
    has the token. Browsers from snaps see a folder of temporary files of their own, and in the home folder no hidden
    files.
    """
    folder = Path.home() if os.path.isdir("/snap") else None
    if folder is not None and not os.access(folder, os.W_OK):
        folder = None
    handle, name = tempfile.mkstemp(prefix="anaphor-serve-", suffix=".html", dir=folder)
    path = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(
                f'<!doctype html><title>Anaphor</title><meta name="referrer" content="no-referrer">'
                f'<meta http-equiv="refresh" content="0; url={html.escape(address)}">'
            )
        yield path
    finally:
        path.unlink(missing_ok=True)


def open_browser(address: str) -> None:
    import webbrowser

    with contextlib.suppress(Exception):  # the address is printed in any case
        webbrowser.open(address)
