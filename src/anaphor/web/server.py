"""The server of the live page: its files, the data of runs and studies by GET, work with models by POST.

Runs have ids that the catalog makes; no path comes in or goes out. What changes anything is a POST.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from anaphor.errors import AnaphorError
from anaphor.plain_values import replace_nonfinite
from anaphor.web.catalog import Catalog, Listing
from anaphor.web.commands import Commands
from anaphor.web.connections import log_once
from anaphor.web.guard import Access, Guard, error_response
from anaphor.web.history import read_curves, read_samples, read_step_log
from anaphor.web.jobs import Busy, Job, Jobs
from anaphor.web.leaderboard import has_leaderboard, read_leaderboard
from anaphor.web.worker import without_paths

PAGE = "app.html"
KINDS = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "png": "image/png"}
SCAN_SECONDS = 0.5  # several open pages cost as much as one
SCAN_PAUSE = 19.0
CURVES_SECONDS = 2.0  # of one request: others wait for the reading thread
JOB_WAIT = 1.0
MAX_READS = 256
MAX_RUNS = 1000
MAX_POINTS = 100_000
MAX_TOKENS = 4096
MAX_IMAGE = 700_000  # characters of base64
_ID = re.compile(r"[0-9a-f]{12}")
_INTEGER = re.compile(r"-?[0-9]{1,16}")

VERBS = ("look", "head", "tokens", "passages", "continue")
"""Work with models; `anaphor.web.inference` says what options each has, and checks them."""


def build_app(catalog: Catalog, access: Access, jobs: Jobs | None = None) -> Starlette:
    """The whole server as an ASGI application."""
    api = Api(catalog, jobs or Jobs())

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        log_once(asyncio.get_running_loop())
        api.start()
        yield
        await api.close()

    routes = [
        Route("/", api.get_page, methods=["GET"]),
        Route("/static/{name}", api.get_static, methods=["GET"]),
        Route("/api/runs", api.get_runs, methods=["GET"]),
        Route("/api/curves", api.get_curves, methods=["GET"]),
        Route("/api/samples", api.get_samples, methods=["GET"]),
        Route("/api/study", api.get_study, methods=["GET"]),
        Route("/api/leaderboard", api.get_leaderboard, methods=["GET"]),
        Route("/api/job", api.get_job, methods=["GET"]),
        Route("/api/command", api.get_command, methods=["GET"]),
        Route("/api/stop", api.stop_or_resume, methods=["POST"]),
        Route("/api/resume", api.stop_or_resume, methods=["POST"]),
        Route("/api/warm", api.warm, methods=["POST"]),
        Route("/api/cancel", api.cancel, methods=["POST"]),
        *(Route(f"/api/{verb}", api.submit, methods=["POST"]) for verb in VERBS),
    ]
    handlers: dict[Any, Any] = {HTTPException: _on_http_exception, AnaphorError: _on_anaphor_error}
    # The list of runs repeats itself: packed, it has a twentieth of its size.
    middleware = [Middleware(Guard, access=access), Middleware(GZipMiddleware, minimum_size=1000, compresslevel=1)]
    app = Starlette(routes=routes, middleware=middleware, exception_handlers=handlers, lifespan=lifespan)
    app.router.redirect_slashes = False
    app.state.jobs = api.jobs
    return app


async def _on_http_exception(request: Request, error: HTTPException) -> Response:
    answer = error_response(error.status_code, error.detail)
    answer.headers.update(error.headers or {})
    return answer


async def _on_anaphor_error(request: Request, error: AnaphorError) -> Response:
    return error_response(400, without_paths(str(error)))


class Api:
    """The routes. Files are read by one thread: a page may be open on a machine that trains."""

    def __init__(self, catalog: Catalog, jobs: Jobs) -> None:
        self.catalog, self.jobs, self.commands = catalog, jobs, Commands()
        self._static = find_static()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="reader")
        self._reads = 0
        self._listing: tuple[Listing, str] | None = None
        self._valid_until = 0.0

    def start(self) -> None:
        """Look at the folder while the browser loads the page."""
        self._reader.submit(self.list_runs)

    async def close(self) -> None:
        await self.jobs.close()
        self.commands.close()
        self._reader.shutdown(cancel_futures=True)

    async def read(self, function: Callable[..., Any], *arguments: Any) -> Response:
        """What a function returns, as JSON, computed in the reading thread."""
        if self._reads >= MAX_READS:
            raise HTTPException(503, "too many requests at a time: try again later")
        self._reads += 1
        try:
            loop = asyncio.get_running_loop()
            body = await loop.run_in_executor(self._reader, lambda: encode(function(*arguments)))
        finally:
            self._reads -= 1
        return Response(body, media_type="application/json")

    def list_runs(self) -> tuple[Listing, str]:
        """The runs and studies and their version. To look at the folder again takes a twentieth of the time at most,
        however many runs and open pages there are."""
        if self._listing is None or time.monotonic() > self._valid_until:
            start = time.monotonic()
            listing = self.catalog.scan()
            self._listing = listing, listing.version
            now = time.monotonic()
            self._valid_until = now + max(SCAN_SECONDS, SCAN_PAUSE * (now - start))
        return self._listing

    def find_place(self) -> str:
        """The folder as a command has it that is typed where the server was started; elsewhere its name alone."""
        folder, here = self.catalog.folder, Path.cwd()
        return str(folder.relative_to(here)) if folder.is_relative_to(here) else folder.name

    async def get_page(self, request: Request) -> Response:
        return Response(self._static[PAGE].read_bytes(), media_type="text/html")

    async def get_static(self, request: Request) -> Response:
        name = request.path_params["name"]
        kind = KINDS.get(name.rpartition(".")[2])
        if name not in self._static or kind is None:
            raise HTTPException(404, "no such file")
        return Response(self._static[name].read_bytes(), media_type=kind)

    async def get_runs(self, request: Request) -> Response:
        version = request.query_params.get("version")

        def read() -> dict[str, Any]:
            listing, newest = self.list_runs()
            if newest == version:
                return {"version": version, "unchanged": True}
            return {
                **listing.to_plain(),
                "place": self.find_place(),
                "leaderboard": has_leaderboard(self.catalog.folder),
            }

        return await self.read(read)

    async def get_curves(self, request: Request) -> Response:
        given = [one.partition(":") for one in request.query_params.get("runs", "").split(",") if one]
        if len(given) > MAX_RUNS:
            raise HTTPException(400, f"{len(given):,} runs: ask for at most {MAX_RUNS:,} at a time")
        points = _integer(request, "points", 1000, 10, MAX_POINTS)
        steps = None
        if "from" in request.query_params or "to" in request.query_params:
            steps = _integer(request, "from", 0, 0, 10**15), _integer(request, "to", 10**15, 0, 10**15)

        def read() -> dict[str, Any]:
            start, found = time.monotonic(), dict[str, Any]()
            for key, _, cursor in given:
                if _ID.fullmatch(key) and (value := self._read_run(key, cursor, points, steps)):
                    found[key] = value
                if time.monotonic() - start > CURVES_SECONDS:  # the others are still new when they are asked for again
                    break
            return {"runs": found}

        return await self.read(read)

    def _read_run(self, key: str, cursor: str, points: int, steps: tuple[int, int] | None) -> dict[str, Any] | None:
        """The curves of a run; an error of one must not keep the others from being shown. None: nothing new."""
        cursor, _, logged = cursor.partition(":")
        try:
            folder = self._find(key)
            found = read_curves(folder, cursor, points, steps)
        except HTTPException as error:
            return {"error": error.detail}
        except AnaphorError as error:
            return {"error": without_paths(str(error))}
        log = read_step_log(folder, logged, points, steps)
        is_new = [one["restart"] or one["cursor"] != before for one, before in ((found, cursor), (log, logged))]
        return {**found, "log": log} if any(is_new) else None

    def _find(self, key: str, *, study: bool = False) -> Path:
        """The folder of a run or a study by its id."""

        def is_known() -> bool:
            return key in (self.catalog.studies if study else self.catalog.runs)

        if not is_known():
            self.list_runs()  # it may be new
        if is_known():
            with suppress(KeyError):  # a link has taken its place
                return self.catalog.path(key)
        raise HTTPException(404, f"no such {'study' if study else 'run'}: it may have been deleted")

    async def get_samples(self, request: Request) -> Response:
        key, after = request.query_params.get("run", ""), _integer(request, "after", -1, -1, 10**15)
        return await self.read(lambda: {"samples": read_samples(self._find(key), after)})

    async def get_study(self, request: Request) -> Response:
        key = request.query_params.get("id", "")
        return await self.read(lambda: self.catalog.read_study(self._find(key, study=True)))

    async def get_leaderboard(self, request: Request) -> Response:
        return await self.read(lambda: read_leaderboard(self.catalog.folder))

    async def get_command(self, request: Request) -> Response:
        key = request.query_params.get("run", "")
        return await self.read(lambda: self.commands.describe(self._find(key), self.catalog.study_of(key)))

    async def stop_or_resume(self, request: Request) -> Response:
        key = (await _read_body(request)).get("run")
        if not isinstance(key, str):
            raise HTTPException(400, "choose a run")
        if request.url.path.endswith("/stop"):
            return await self.read(lambda: self.commands.stop(self._find(key)))
        return await self.read(lambda: self.commands.resume(self._find(key), self.catalog.study_of(key)))

    async def submit(self, request: Request) -> Response:
        values = check_values(await _read_body(request))
        verb = request.url.path.rpartition("/")[2]
        if not {"run", "runs", "look"} & set(values):
            raise HTTPException(400, "choose a run")
        keys = [values["run"]] if "run" in values else values.get("runs", [])
        loop = asyncio.get_running_loop()
        names = await loop.run_in_executor(self._reader, self._names, keys)
        if "run" in values:
            values["run"] = names[values["run"]][0]
        if "runs" in values:
            values["runs"] = {key: names[key][0] for key in keys}
        values["verb"] = verb
        try:
            job = self.jobs.submit({"request": values, "names": dict(names.values())})
        except Busy:
            raise HTTPException(503, "too many requests are waiting for a model: try again later") from None
        return Response(encode({"job": job.id}), media_type="application/json")

    def _names(self, keys: list[str]) -> dict[str, tuple[str, str]]:
        """Path and name of each run."""
        paths = {key: self._find(key) for key in keys}
        return {key: (str(path), path.relative_to(self.catalog.folder).as_posix()) for key, path in paths.items()}

    def _job(self, key: object) -> Job:
        job = self.jobs.jobs.get(key) if isinstance(key, str) else None
        if job is None:
            raise HTTPException(404, "no such job: ask again")
        return job

    async def get_job(self, request: Request) -> Response:
        job = self._job(request.query_params.get("id"))
        await job.wait(JOB_WAIT)
        plain = {"state": job.state, "progress": job.progress}
        if job.error:
            plain["error"] = job.error
        result = b"," + b'"result":' + job.result + b"}" if job.state == "done" else b"}"
        return Response(encode(plain)[:-1] + result, 413 if job.is_too_large else 200, media_type="application/json")

    async def warm(self, request: Request) -> Response:
        """A page is open whose models may be asked for soon."""
        if await _read_body(request):
            raise HTTPException(400, "this takes no values")
        self.jobs.warm()
        return Response(encode({}), media_type="application/json")

    async def cancel(self, request: Request) -> Response:
        job = self._job((await _read_body(request)).get("job"))
        self.jobs.cancel(job)
        return Response(encode({"state": job.state}), media_type="application/json")


def find_static() -> dict[str, Traversable]:
    """The files of the page by name, and those that it shares with the page of `look`."""
    folders = [files("anaphor") / part / "static" for part in ("inspect", "web")]  # the package inspect loads torch
    return {file.name: file for folder in folders for file in folder.iterdir() if file.is_file()}


def encode(value: Any) -> bytes:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:  # a number that JSON has no name for; to look at all takes half as long as to write them
        text = json.dumps(replace_nonfinite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def check_values(values: dict[str, Any]) -> dict[str, Any]:
    """What was sent, if its runs are ids, all else is text and numbers, and nothing is too large."""
    for name, value in values.items():
        if name == "runs":
            if (
                not isinstance(value, list)
                or not all(isinstance(one, str) for one in value)
                or not 1 <= len(value) <= 2
            ):
                raise HTTPException(400, "runs must be a list of one or two ids")
        elif not isinstance(value, str | int | float | None):
            raise HTTPException(400, f"{name[:50]!r} must be a text or a number")
    if "run" in values and not isinstance(values["run"], str):
        raise HTTPException(400, "run must be an id")
    if "run" in values and "runs" in values:
        raise HTTPException(400, "give run or runs")
    text, image = values.get("text"), values.get("image")
    if isinstance(text, str) and len(text.split()) > MAX_TOKENS:  # a tokenizer has at least a token for a word
        raise HTTPException(413, f"the text is too long: at most {MAX_TOKENS:,} tokens")
    if isinstance(image, str) and len(image) > MAX_IMAGE:
        raise HTTPException(413, f"the image is too large: at most {MAX_IMAGE:,} characters of base64")
    return dict(values)


async def _read_body(request: Request) -> dict[str, Any]:
    body = await request.body()
    try:
        values = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise HTTPException(400, "the request must be a JSON object")
    return values


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _integer(request: Request, name: str, default: int, low: int, high: int) -> int:
    given = request.query_params.get(name, str(default))
    if not _INTEGER.fullmatch(given) or not low <= int(given) <= high:
        raise HTTPException(400, f"{name} must be a whole number from {low:,} to {high:,}")
    return int(given)
