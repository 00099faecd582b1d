"""A report: the live page of some runs as one file, with the answers that its server would give inside.

The page has the same scripts as the live one. What a reader can ask for without a model is there; of what needs one,
an example: two runs token by token, the passages where they differ most, and the maps of one input.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from anaphor.draw.html import embed
from anaphor.errors import AnaphorError, ConfigError
from anaphor.plain_values import replace_nonfinite
from anaphor.training.run_folder import NO_DATA, STUDY, RunFolder
from anaphor.user_paths import user_path
from anaphor.web.catalog import Catalog
from anaphor.web.history import read_curves, read_samples, read_step_log
from anaphor.web.report_head import describe_head, describe_winners, rank
from anaphor.web.worker import without_paths

LIMIT = 2_900_000
"""Bytes of a report. What does not fit is left out, and the page says so."""
POINTS = 500
"""Points of a curve, as the page asks for them; of many runs fewer are embedded."""
CURVE_SHARE, SAMPLE_SHARE = 0.4, 0.1
"""Shares of the limit for all curves, and for all samples."""
HEAD = 200_000
"""Bytes of its beginning, most of them pictures of curves."""
LOOKS = 3
"""Runs whose example is shown from inside."""
LENGTH, PASSAGES = 64, 40
LAYERED = ("attention", "gradient-weighted")  # views of an image that have a map for each head
TOO_LARGE = "the page would be too large"
WITHOUT_DATA = "the run was converted and has no data of its own; a model of text takes --text"
UNENCODED = "!*'()~"  # by encodeURIComponent
_STYLE = re.compile(r'<link rel="stylesheet" href="/static/([\w.-]+)">\n')
_SCRIPT = re.compile(r'<script src="/static/([\w.-]+)"></script>\n')
_DATA = re.compile(r'(<script type="application/json" id="data">).*?(</script>)', flags=re.DOTALL)


@dataclass(frozen=True)
class Report:
    """One HTML file that needs no network."""

    page: str
    runs: tuple[str, ...]
    """Their names in the page."""
    left_out: tuple[str, ...]
    """A line for each thing that is not in the page, though it could be asked for."""


class Answers:
    """What is embedded, by the requests of the page. Nothing is added beyond the limit."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit, self.size = limit, 0
        self.found: dict[str, Any] = {}

    def add(self, key: str, answer: Any, share: float = 1.0) -> bool:
        """Whether it fits into a share of the whole."""
        size = len(json.dumps(replace_nonfinite(answer), separators=(",", ":"))) + len(key) + 4
        if self.size + size > share * self.limit:
            return False
        self.size += size
        self.found[key] = answer
        return True


def get_key(path: str, **parameters: str | int) -> str:
    """The name of an answer to GET, as the page's script spells it."""
    query = "&".join(f"{name}={quote(str(value), safe=UNENCODED)}" for name, value in sorted(parameters.items()))
    return f"GET {path}?{query}" if query else f"GET {path}"


def post_key(path: str, body: Mapping[str, Any]) -> str:
    """The name of an answer to POST."""
    return f"POST {path} {json.dumps(body, sort_keys=True, separators=(',', ':'), ensure_ascii=False)}"


def build_report(
    paths: Sequence[Path],
    *,
    text: str | None = None,
    ask: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    views: Sequence[str] | None = None,
) -> Report:
    """The page of the runs and studies in some folders.

    `ask` answers requests to models, as `anaphor.web.inference.answer` does; without it the report has what the files
    say. `text` is what models look at. `views` names those that the page has; None means all.
    """
    catalog = open_catalog(paths)
    listing = catalog.scan().to_plain()
    if not listing["runs"]:
        raise ConfigError(f"no run in {', '.join(map(str, paths))}: name folders of runs or studies")
    left_out: list[str] = []
    studies = {}
    for row in listing["studies"]:
        try:
            studies[row["id"]] = catalog.read_study(catalog.path(row["id"]))
        except AnaphorError as error:
            left_out.append(f"the table of the study {row['study']}: {without_paths(str(error))}")
    listing["runs"] = sort_cells(listing["runs"], studies.values())
    markup, styles, scripts = read_parts()
    head = describe_head(
        listing["runs"],
        list(studies.values()),
        {row["id"]: _read_curves(catalog.path(row["id"]), POINTS) for row in listing["runs"] if not row["study"]},
    )
    while head["pictures"] and len(json.dumps(head)) > HEAD:
        head["pictures"].pop()
        left_out.append("a picture of curves, which are in their view")
    answers = Answers(LIMIT - len(json.dumps(head)) - len(markup) - sum(map(len, (*styles, *scripts))))
    if not answers.add(get_key("/api/runs"), listing, 0.5):
        raise ConfigError(f"{len(listing['runs']):,} runs are too many for one page: name fewer")
    names = {row["id"]: row["study"] for row in listing["studies"]}
    for key, study in studies.items():
        if not answers.add(get_key("/api/study", id=key), study, 0.6):
            left_out.append(f"the table of the study {names[key]}: it is too large")
    _add_curves(answers, catalog, listing["runs"], left_out)
    _add_samples(answers, catalog, listing["runs"], left_out)
    start: dict[str, dict[str, str]] = {}
    groups: dict[str, Any] = {}
    comparison = None
    if ask is not None:
        models = _Models(answers, catalog, listing["runs"], ask, left_out, views)
        start, groups = models.add(text)
        comparison = models.comparison
    head["sentences"] = describe_winners(listing["runs"], comparison)
    content = {
        "mode": "report", "views": views, "start": start, "groups": groups, "notes": left_out, "answers": answers.found,
        "head": head,
    }  # fmt: skip
    runs = tuple(row["run"] for row in listing["runs"])
    return Report(embed(markup, styles, scripts, content), runs, tuple(left_out))


def sort_cells(rows: Sequence[dict[str, Any]], studies: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the runs of each study in its own order: the names of their folders are digests."""
    places = {cell["run"]: place for study in studies for place, cell in enumerate(study["cells"])}
    first: dict[str, int] = {}
    for number, row in enumerate(rows):
        first.setdefault(row["study"] or row["id"], number)
    return sorted(rows, key=lambda row: (first[row["study"] or row["id"]], places.get(row["id"], -1)))


def open_catalog(paths: Sequence[Path]) -> Catalog:
    """Of the given folders alone. Names of runs begin below the folder that all are in."""
    folders = []
    for path in paths:
        folder = user_path(path).resolve()
        if not folder.is_dir():
            raise ConfigError(f"no run at {path}: there is no such folder")
        folders.append(folder)
    shown = [folder.parent if is_run_or_study(folder) else folder for folder in folders]
    return Catalog(Path(os.path.commonpath(shown)), only=list(dict.fromkeys(folders)))


def is_run_or_study(folder: Path) -> bool:
    return RunFolder(folder).exists or (folder / STUDY).is_file()


def read_parts() -> tuple[str, list[str], list[str]]:
    """Markup of the live page with places for a report's parts, its styles and its scripts."""
    folders = [files("anaphor") / part / "static" for part in ("inspect", "web")]  # the package inspect loads torch
    parts = {file.name: file for folder in folders for file in folder.iterdir() if file.is_file()}

    def read(name: str) -> str:
        return parts[name].read_text(encoding="utf-8")

    page = read("app.html")
    styles, scripts = _STYLE.findall(page), _SCRIPT.findall(page)
    policy = '<meta http-equiv="Content-Security-Policy" content="@policy@">\n'
    page = _SCRIPT.sub("", _STYLE.sub("", page))
    page = page.replace('<meta charset="utf-8">\n', f'<meta charset="utf-8">\n{policy}', 1)
    page = page.replace("</head>", "<style>@style@</style>\n</head>", 1)
    page = _DATA.sub(r"\1@data@\2\n<script>@script@</script>", page, count=1)
    return page, [*map(read, styles), read("report.css")], [*map(read, scripts), read("report.js")]


def round_numbers(value: Any, digits: int = 5) -> Any:
    """The same with fewer digits, which is most of a report's size."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, Mapping):
        return {key: round_numbers(inner, digits) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [round_numbers(inner, digits) for inner in value]
    return value


def _add_curves(answers: Answers, catalog: Catalog, rows: Sequence[dict[str, Any]], left_out: list[str]) -> None:
    points = POINTS
    while True:
        found = {row["id"]: _read_curves(catalog.path(row["id"]), points) for row in rows}
        size = len(json.dumps(found, separators=(",", ":")))
        if size <= CURVE_SHARE * answers.limit or points < 20:
            break
        points //= 2
    for row in rows:
        key = get_key("/api/curves", points=POINTS, runs=f"{row['id']}:")
        if not answers.add(key, {"runs": {row["id"]: found[row["id"]]}}, 0.9):
            left_out.append(f"the curves of {row['run']}: {TOO_LARGE}")
    if points < POINTS:
        left_out.append(f"points of curves: {points} of each are kept, with the smallest and largest of each stretch")


def _read_curves(path: Path, points: int) -> dict[str, Any]:
    try:
        curves = {**read_curves(path, "", points), "log": read_step_log(path, "", points)}
        found: dict[str, Any] = round_numbers(curves, 6)
    except AnaphorError as error:
        return {"error": without_paths(str(error))}
    return found


def _add_samples(answers: Answers, catalog: Catalog, rows: Sequence[dict[str, Any]], left_out: list[str]) -> None:
    """Of many samples every second one goes, the oldest first to go, until all fit."""
    found = {row["id"]: read_samples(catalog.path(row["id"])) for row in rows if "samples" in row["offers"]}
    total = sum(map(len, found.values()))
    while len(json.dumps(found)) > SAMPLE_SHARE * answers.limit and any(len(one) > 1 for one in found.values()):
        found = {key: samples[-1::-2][::-1] for key, samples in found.items()}
    kept = 0
    for key, samples in found.items():
        if answers.add(get_key("/api/samples", run=key), {"samples": samples}):
            kept += len(samples)
    if kept < total:
        left_out.append(f"{total - kept} of {total} samples")


class _Models:
    """What needs models: two runs token by token, their passages, and the maps of an example in the first runs."""

    def __init__(
        self,
        answers: Answers,
        catalog: Catalog,
        rows: Sequence[dict[str, Any]],
        ask: Callable[[dict[str, Any]], dict[str, Any]],
        left_out: list[str],
        views: Sequence[str] | None,
    ) -> None:
        self.answers, self.catalog, self.rows, self.ask, self.left_out = answers, catalog, rows, ask, left_out
        self.views = views
        self.names = {row["id"]: row["run"] for row in rows}
        self.comparison: dict[str, Any] | None = None
        """The two runs that were scored together, and how their losses differ."""

    def add(self, text: str | None) -> tuple[dict[str, dict[str, str]], dict[str, Any]]:
        """Ask, and give the address that each view starts with, and the losses by position and the like of runs."""
        start: dict[str, dict[str, str]] = {}
        # Where runs have passages they are compared by these, or not at all: their tokens need not be the same.
        view = "passages" if self._ids_offering("passages") else "tokens"
        two = self._find_two(view) if self._has("tokens") else []
        split = two if all("passages" in self._row(key)["offers"] for key in two) else []
        body = {"runs": two, "split": "valid", "length": LENGTH, "count": PASSAGES}
        passages = self._post("passages", body, "passages") if split else None
        if passages is not None and "overall" in passages:
            item = str(passages["counted"]).removesuffix("s")
            self.comparison = {"runs": two, "overall": passages["overall"], "item": item}
        first = passages["passages"][0]["places"][two[0]][0] if passages and passages["passages"] else 0
        looked = self._ids_offering("look")[:LOOKS] if self._has("look") else []
        scored = two or (self._ids_offering("tokens")[:1] if self._has("tokens") else [])
        sources = self._find_sources([*two, *looked, *scored], text, first)
        has_maps = False
        for key in looked:
            source = sources[self._row(key)["task"]]
            if self._lacks_data(key) and "text" not in source:
                self.left_out.append(f"the inside of {self.names[key]}: {WITHOUT_DATA}")
                continue
            found = self._look(key, source) if source else None
            if found is not None and ("look" not in start or (found["layers"] and not has_maps)):
                has_maps = bool(found["layers"])  # a run with attention is shown first
                start["look"] = {"run": key, **{name: str(value) for name, value in source.items()}}
        if scored and "tokens" in self._row(scored[0])["offers"]:
            source = sources[self._row(scored[0])["task"]]
            if "text" in source:
                self._post("tokens", {"runs": scored, "text": source["text"]}, "losses of tokens")
        # Two runs have been scored for their passages; of one alone this is all that is said of the split.
        grouped = split or (self._ids_offering("passages")[:1] if self._has("report") else [])
        groups = {key: self._ask("groups", {"run": key, "split": "valid"}, "losses by group") for key in grouped}
        return start, {key: found for key, found in groups.items() if found is not None}

    def _find_sources(self, runs: Sequence[str], text: str | None, first: int) -> dict[str, dict[str, Any]]:
        """What models are shown, by task: the given text, else an example of validation, which all runs of a task get
        alike. `first` is the number of the example for the first run."""
        sources: dict[str, dict[str, Any]] = {}
        for number, key in enumerate(dict.fromkeys(runs)):
            source = sources.setdefault(self._row(key)["task"], {} if text is None else {"text": text})
            if not source and not self._lacks_data(key):
                source.update(self._find_example(key, 0 if number else first))
        return sources

    def _find_example(self, run: str, number: int) -> dict[str, Any]:
        """An example of validation, as a text where the task reads running text; empty where there is none."""
        found = self._ask("look", {"run": run, "example": number, "length": LENGTH}, "an example of validation")
        if found is None:
            return {}
        return {"text": found["text"]} if found["kind"] == "text" else {"example": number}

    def _lacks_data(self, key: str) -> bool:
        return bool(self._row(key)["settings"].get("data") == NO_DATA)

    def _has(self, view: str) -> bool:
        return self.views is None or view in self.views

    def _row(self, key: str) -> dict[str, Any]:
        return next(row for row in self.rows if row["id"] == key)

    def _ids_offering(self, view: str) -> list[str]:
        return [row["id"] for row in self.rows if view in row["offers"]]

    def _find_two(self, view: str) -> list[str]:
        """The best two runs of one task that offer a view, on the same data where there are such, in the order of the
        page; empty where there are none. Of a study they are runs of two settings, where it has two: its
        first runs differ in their seed only."""
        by_data: dict[tuple[str, ...], list[str]] = {}
        by_task: dict[tuple[str, ...], list[str]] = {}
        for key in self._ids_offering(view):
            row = self._row(key)
            by_data.setdefault((row["task"], str(row["settings"].get("data"))), []).append(key)
            by_task.setdefault((row["task"],), []).append(key)
        for one, *others in (*by_data.values(), *by_task.values()):
            if others:
                row = self._row(one)
                if not any(self._row(key)["study"] for key in (one, *others)):
                    return self._best_two([one, *others])
                other = (key for key in others if not row["study"] or self._row(key)["group"] != row["group"])
                return [one, next(other, others[0])]
        return []

    def _best_two(self, keys: Sequence[str]) -> list[str]:
        """Of these the two with the best values of the metric of the first; the first two where there are none."""
        metric = self._row(keys[0])["metric"]
        valued = [self._row(key) for key in keys if self._row(key)["best"] is not None]
        ranked = rank([row for row in valued if row["metric"] == metric])
        chosen = {row["id"] for row in ranked[:2]} if len(ranked) > 1 else {*keys[:2]}
        return [key for key in keys if key in chosen]

    def _ask(self, verb: str, body: Mapping[str, Any], what: str) -> dict[str, Any] | None:
        """The answer; None where there is none, and a line says why."""
        paths = {key: str(self.catalog.path(key)) for key in body.get("runs", [body.get("run")])}
        runs: dict[str, Any] = {"runs": paths} if "runs" in body else {"run": paths[body["run"]]}
        try:
            found: dict[str, Any] = round_numbers(self.ask({"verb": verb, **body, **runs}))
        except AnaphorError as error:
            line = without_paths(str(error), {path: self.names[key] for key, path in paths.items()})
            self.left_out.append(f"{self._of_runs(what, body)}: {line}")
            return None
        return found

    def _post(self, verb: str, body: Mapping[str, Any], what: str) -> dict[str, Any] | None:
        """The answer, embedded if it fits."""
        found = self._ask(verb, body, what)
        if found is not None and not self.answers.add(post_key(f"/api/{verb}", body), found):
            self.left_out.append(f"{self._of_runs(what, body)}: {TOO_LARGE}")
            return None
        return found

    def _of_runs(self, what: str, body: Mapping[str, Any]) -> str:
        return f"{what} of {', '.join(self.names[key] for key in body.get('runs', [body.get('run')]))}"

    def _look(self, key: str, source: Mapping[str, Any]) -> dict[str, Any] | None:
        """An input from inside, with the maps that fit."""
        what = "the inside"
        found = self._post("look", {"run": key, **source}, what)
        if found is None:
            return None
        maps = list(_maps_of(found))
        kept = 0
        for body in maps:
            answer = self._ask("head", {"run": key, **source, **body}, what)
            kept += answer is not None and self.answers.add(post_key("/api/head", body), answer)
        if kept < len(maps):
            self.left_out.append(f"{len(maps) - kept} of {len(maps)} maps of {self.names[key]}: {TOO_LARGE}")
        return found


def _maps_of(look: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Requests for all maps of a look, those that its view shows first at the beginning."""
    layers = look["layers"]
    heads = [(head["name"], head["head"]) for head in look.get("heads") or ()]
    heads += [(layer["tap"], "mean") for layer in layers]
    heads += [(layer["tap"], head) for layer in layers for head in range(layer["heads"])]
    kinds = [{"of": kind} for kind in look.get("views") or () if kind in LAYERED] or [{}]
    for tap, head in dict.fromkeys(heads):
        yield from ({"look": look["look"], "tap": tap, "head": head, **kind} for kind in kinds)
    yield from ({"look": look["look"], "tap": one["tap"], "head": "rollout"} for one in layers if one["rollout"])
    yield from ({"look": look["look"], "unit": unit["key"]} for unit in look.get("units") or ())
