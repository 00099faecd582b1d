"""Submissions as they were handed in: found in folders, and copied so that nothing outside of them is read.

A submission may have links that lead anywhere, pipes, files without end and folders without bottom. So only regular
files are copied, each opened without following a link, up to a number and a size; what is left out is listed. All that
follows reads the copy.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from anaphor.course.submission import MANIFEST
from anaphor.errors import ConfigError, count_noun

MAX_FILES = 2_000
MAX_DEPTH = 10
MAX_FILE = 200_000_000
"""Bytes of a file; larger ones are not read."""
MAX_TOTAL = 1_000_000_000
LEFT_OUT = ("__pycache__", ".git", ".ipynb_checkpoints", ".venv", "previous", "events")
"""Folders that no exercise needs."""
ARCHIVES = (".zip", ".gz", ".tgz", ".tar", ".7z", ".rar")
SEARCH_DEPTH = 5
"""How deep below a given folder a submission may be."""


@dataclass(frozen=True)
class Snapshot:
    """A copy of a submission."""

    folder: Path
    digest: str
    """Of names and contents."""
    left_out: tuple[str, ...]
    """What was not copied, and why, a line each."""
    has_links: bool
    has_large: bool


def find_submissions(folders: list[Path]) -> tuple[list[Path], list[str]]:
    """Folders that have a manifest, below those that are given or one of them; and what is none, a line each."""
    found, notes = dict[Path, None](), list[str]()
    for given in folders:
        if not given.is_dir():
            raise ConfigError(f"there is no folder {given}" if not given.exists() else f"{given} is not a folder")
        here = list(_search(given, SEARCH_DEPTH))
        if not here:
            raise ConfigError(
                f"{given} has no {MANIFEST}, and no folder in it has one: it holds no submission "
                f"(`anaphor handout` writes {MANIFEST} into every handout){_mention_archives(given)}"
            )
        found |= dict.fromkeys(here)
        notes += [f"{path} is not graded: {reason}" for path, reason in list_others(given, here)]
    return list(found), notes


def list_others(given: Path, submissions: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """The folders in a folder that hold no submission, and why they are not graded."""
    if os.path.lexists(given / MANIFEST):
        return
    for path in _folders(given):
        if not any(one == path or path in one.parents for one in submissions):
            deep = next(_search(path, 2 * SEARCH_DEPTH), None)
            if deep is None:
                yield path, f"it has no {MANIFEST}{_mention_archives(path)}"
            else:
                levels = len(deep.relative_to(given).parts)
                yield path, f"its {MANIFEST} lies {levels} folders deep, and at most {SEARCH_DEPTH} are read"


def _mention_archives(folder: Path) -> str:
    """What to do where a submission was not unpacked; empty if there is no archive in the folder or one of its own."""
    for place in (folder, *_folders(folder)):
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            if names := [one.name for one in entries if one.name.endswith(ARCHIVES)]:
                return f"; unpack {place / min(names)} first"
    return ""


def _search(folder: Path, depth: int) -> Iterator[Path]:
    if os.path.lexists(folder / MANIFEST):
        yield folder
    elif depth:
        for path in _folders(folder):
            yield from _search(path, depth - 1)


def _folders(folder: Path) -> list[Path]:
    """Folders in a folder, not links to folders; none where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            names = [one.name for one in entries if one.is_dir(follow_symlinks=False) and not one.name.startswith(".")]
    except OSError:
        return []
    return [folder / name for name in sorted(names)]


def take_snapshot(folder: Path, target: Path) -> Snapshot:
    """Copy a submission."""
    copier = _Copier(target)
    for parent, folders, names, descriptor in os.fwalk(folder, follow_symlinks=False):
        where = Path(parent).relative_to(folder)
        copier.skip_folders(where, folders, descriptor)
        for name in sorted(names):
            copier.copy(where / name, name, descriptor)
    return Snapshot(target, copier.digest.hexdigest(), tuple(copier.left_out), copier.has_links, copier.has_large)


class _Copier:
    """Copies files one by one, within bounds."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.digest = hashlib.sha256()
        self.left_out: list[str] = []
        self.has_links = self.has_large = False
        self.files = self.folders = self.bytes = 0

    def skip_folders(self, where: Path, folders: list[str], descriptor: int) -> None:
        """Which folders are walked through."""
        for name in sorted(folders):
            if stat.S_ISLNK(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
                self._leave_out(where / name, "a link")
                self.has_links = True
        self.folders += 1
        is_deep = len(where.parts) >= MAX_DEPTH
        if is_deep and folders:
            self._leave_out(where, "too deep")
        folders[:] = [] if is_deep or max(self.files, self.folders) >= MAX_FILES else sorted({*folders} - {*LEFT_OUT})

    def copy(self, path: Path, name: str, descriptor: int) -> None:
        """Copy a file, if it is a regular one and there is room."""
        if self.files >= MAX_FILES:
            if self.files == MAX_FILES:
                self._leave_out(path, f"more than {count_noun(MAX_FILES, 'file')}")
                self.files += 1
            return
        try:
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor)
        except OSError as error:
            self.has_links |= self._is_link(name, descriptor)
            self._leave_out(path, "a link" if self._is_link(name, descriptor) else str(error.strerror))
            return
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                self._leave_out(path, "not a regular file")
            elif status.st_size > min(MAX_FILE, MAX_TOTAL - self.bytes):
                self.has_large = True
                self._leave_out(path, f"{status.st_size:,} bytes")
            else:
                self._write(path, file.read(status.st_size))

    def _write(self, path: Path, content: bytes) -> None:
        self.files += 1
        self.bytes += len(content)
        self._note(path, hashlib.sha256(content).hexdigest())
        copy = self.target / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)

    def _leave_out(self, path: Path, reason: str) -> None:
        self._note(path, reason)
        if len(self.left_out) < 20:
            self.left_out.append(f"{path}: {reason}")

    def _note(self, path: Path, content: str) -> None:
        self.digest.update(f"{path}\0{content}\0".encode("utf-8", "surrogatepass"))

    @staticmethod
    def _is_link(name: str, descriptor: int) -> bool:
        try:
            return stat.S_ISLNK(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode)
        except OSError:
            return False
