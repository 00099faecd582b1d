"""The wheels of Anaphor and of all that it needs, through the user's pip: the versions that are installed here.

What a package needs is read from its wheel, round by round, and not from what is installed: a marker such as
`sys_platform == "darwin"` is about the machine that a bundle is for, and pip evaluates it for the one that it runs on.
A wheel that is there already is not downloaded again, so that an interrupted bundle goes on where it was.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from anaphor.course.bundling.target import Target, this_platform
from anaphor.errors import ConfigError, DataError, count_noun

NO_NETWORK = (
    "Failed to establish a new connection", "NewConnectionError", "NameResolutionError", "Name or service not known",
    "Temporary failure in name resolution", "ConnectTimeout", "Read timed out", "ProxyError", "Network is unreachable",
    "getaddrinfo failed", "Connection refused", "Connection reset",
)  # fmt: skip
NO_SPACE = ("No space left on device", "Disk quota exceeded")
NOT_FOUND = ("No matching distribution found for", "Could not find a version that satisfies the requirement")
Report = Callable[[str], None]
"""Gets a line of progress."""


@dataclass(frozen=True)
class WheelFile:
    """A wheel on the disk."""

    path: Path
    name: str
    version: Version

    @classmethod
    def find(cls, folder: Path, requirement: Requirement, target: Target) -> WheelFile | None:
        """The wheel of a folder that a requirement asks for and that runs on the target."""
        name = canonicalize_name(requirement.name)
        for path in sorted(folder.glob("*.whl")):
            own, number, _, tags = parse_wheel_filename(path.name)
            is_wanted = own == name and requirement.specifier.contains(number, prereleases=True)
            if is_wanted and tags & target.tags and zipfile.is_zipfile(path):
                return cls(path, name, number)
        return None

    def requirements(self) -> Iterator[Requirement]:
        """What it says that it needs."""
        with zipfile.ZipFile(self.path) as wheel:
            (name,) = [one for one in wheel.namelist() if one.endswith(".dist-info/METADATA") and one.count("/") == 1]
            facts = HeaderParser().parsestr(wheel.read(name).decode("utf-8"))
        yield from map(Requirement, facts.get_all("Requires-Dist", []))


def collect_wheels(roots: Sequence[Requirement], target: Target, folder: Path, report: Report) -> list[WheelFile]:
    """The wheels that the roots need on a target, fetched into the folder where they are missing."""
    found: dict[str, WheelFile] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [pin(one, target) for one in roots]
    while waiting:
        missing = [one for one in waiting if WheelFile.find(folder, one, target) is None]
        if missing:
            fetch(missing, target, folder, report)
        needed: list[Requirement] = []
        for one in waiting:
            wheel = WheelFile.find(folder, one, target)
            if wheel is None:
                raise DataError(f"pip has no wheel of {one} for {target}")
            found[wheel.name] = wheel
            seen.add((wheel.name, frozenset(one.extras)))
            needed += [need for need in wheel.requirements() if _holds(need, one.extras, target)]
        _refuse_conflicts(needed, found)
        waiting = [pin(one, target) for one in _merge(need for need in needed if _key(need) not in seen)]
    return [found[name] for name in sorted(found)]


def _refuse_conflicts(needed: Sequence[Requirement], found: Mapping[str, WheelFile]) -> None:
    for one in needed:
        wheel = found.get(canonicalize_name(one.name))
        if wheel is not None and not one.specifier.contains(wheel.version, prereleases=True):
            raise ConfigError(
                f"{one} is needed, and {wheel.name} {wheel.version} is installed here: `pip check` says by what"
            )


def _key(requirement: Requirement) -> tuple[str, frozenset[str]]:
    return canonicalize_name(requirement.name), frozenset(requirement.extras)


def _holds(requirement: Requirement, extras: set[str], target: Target) -> bool:
    """Whether a package needs it on this target, with the extras that were asked for."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({**target.environment, "extra": one}) for one in ("", *extras))


def _merge(requirements: Iterator[Requirement]) -> list[Requirement]:
    """One for each package and set of extras: the versions that all allow."""
    merged: dict[tuple[str, frozenset[str]], Requirement] = {}
    for one in requirements:
        key = _key(one)
        if key in merged:
            merged[key].specifier &= one.specifier
        else:
            merged[key] = Requirement(f"{one.name}{_extras(one)}{one.specifier}")
    return [*merged.values()]


def _extras(requirement: Requirement) -> str:
    return f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""


def pin(requirement: Requirement, target: Target) -> Requirement:
    """The version that is installed here, where one is and may be used; else what was asked for."""
    try:
        installed = Version(version(requirement.name))
    except PackageNotFoundError:
        return requirement
    if requirement.url is not None or not requirement.specifier.contains(installed, prereleases=True):
        return requirement
    # torch 2.13.0+cpu is a build for this kind of machine; another kind may have 2.13.0 only.
    number = installed if target.platform == this_platform() else installed.public
    return Requirement(f"{requirement.name}{_extras(requirement)}=={number}")


def read_requirement(text: str) -> Requirement:
    """A package that the user names."""
    try:
        return Requirement(text)
    except InvalidRequirement:
        raise ConfigError(f"packages={text!r} is not the name of a package, with or without a version") from None


def fetch(requirements: Sequence[Requirement], target: Target, folder: Path, report: Report) -> None:
    """Let pip download wheels into the folder; here it also builds those of packages that have none."""
    if importlib.util.find_spec("pip") is None:
        raise ConfigError("pip is missing in this environment: `python -m ensurepip` installs it")
    names = [str(one) for one in requirements]
    report(f"{count_noun(len(names), 'wheel')} for {target}: {', '.join(names)}")
    verb = ["wheel", "-w"] if target.is_here else ["download", *target.pip_options, "-d"]
    words = ["-m", "pip", *verb, str(folder), "--no-deps", "--no-input", "--retries", "2", "--progress-bar", "off"]
    lines: list[str] = []
    with subprocess.Popen(
        [sys.executable, *words, *names],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
    ) as pip:
        assert pip.stdout is not None
        try:
            for line in pip.stdout:
                lines.append(line.strip())
                if line.strip().startswith("Downloading "):
                    report(f"  {line.strip()}")
        except BaseException:
            pip.terminate()
            raise
    if pip.returncode:
        raise DataError(explain(lines, target))


def explain(lines: Sequence[str], target: Target) -> str:
    """Why pip failed, in one line."""
    text = "\n".join(lines)
    if any(one in text for one in NO_SPACE):
        return "the disk is full while pip downloads wheels: free some space and call again; what is there is kept"
    wanted = next((line.rpartition(" for ")[2] for line in lines if NOT_FOUND[0] in line), "")
    wanted = wanted.partition(" (")[0] or "a package"
    if any(one in text for one in NO_NETWORK):
        return (
            f"pip cannot reach its index for {wanted}: a bundle is made where there is a network; "
            "call again there, and what was downloaded is kept"
        )
    if any(one in text for one in NOT_FOUND):
        return (
            f"pip finds no {wanted} for {target}: install another version of it here, or name an index that has it, "
            "for example with PIP_EXTRA_INDEX_URL"
        )
    errors = [line.partition(":")[2].strip() for line in lines if line.startswith("ERROR:")]
    return f"pip failed for {target}: {errors[-1] if errors else lines[-1] if lines else 'it printed nothing'}"
