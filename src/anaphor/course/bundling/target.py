"""The machines for which a bundle has wheels: a system and a version of Python, as pip and markers know them."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from packaging.markers import default_environment
from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms, sys_tags

from anaphor.config import look_up
from anaphor.errors import ConfigError

NEWEST_GLIBC = 28  # 2.28 is in every distribution with Python 3.11
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def _linux(machine: str, oldest: int, *older: str) -> tuple[str, ...]:
    by_glibc = (f"manylinux_2_{minor}_{machine}" for minor in range(NEWEST_GLIBC, oldest - 1, -1))
    return (*by_glibc, *(f"{name}_{machine}" for name in older), f"linux_{machine}")


PLATFORMS: Mapping[str, tuple[str, ...]] = {
    "linux-x86_64": _linux("x86_64", 5, "manylinux2014", "manylinux2010", "manylinux1"),
    "linux-aarch64": _linux("aarch64", 17, "manylinux2014"),
    "macos-arm64": tuple(mac_platforms((15, 0), "arm64")),
}
"""The systems with a torch for them, and the tags of wheels that run there, the best first."""
WINDOWS = ("windows", "win", "win32", "win64", "win_amd64", "windows-x86_64", "windows-amd64")


@dataclass(frozen=True)
class Target:
    """A system and a version of Python."""

    platform: str
    """A name in `PLATFORMS`."""
    python: str
    """`3.11`"""

    @property
    def is_here(self) -> bool:
        """Whether it is the Python that runs this, for which pip builds what has no wheel."""
        return (self.platform, self.python) == (this_platform(), this_python())

    @cached_property
    def tags(self) -> frozenset[Tag]:
        """The tags of wheels that run there."""
        if self.is_here:
            return frozenset(sys_tags())
        version = self._version
        platforms, interpreter = PLATFORMS[self.platform], f"cp{version[0]}{version[1]}"
        return frozenset(
            [*cpython_tags(version, platforms=platforms), *compatible_tags(version, interpreter, platforms)]
        )

    @cached_property
    def environment(self) -> dict[str, str]:
        """What markers of requirements are compared with."""
        here: dict[str, str] = {name: str(value) for name, value in default_environment().items()}
        if self.is_here:
            return here
        system, _, machine = self.platform.partition("-")
        is_linux = system == "linux"
        return {
            **here,
            "sys_platform": "linux" if is_linux else "darwin",
            "platform_system": "Linux" if is_linux else "Darwin",
            "platform_machine": machine,
            "os_name": "posix",
            "python_version": self.python,
            "python_full_version": f"{self.python}.0",
            "implementation_version": f"{self.python}.0",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
        }

    @property
    def pip_options(self) -> list[str]:
        """Options of `pip download` for this target."""
        platforms = [word for tag in PLATFORMS[self.platform] for word in ("--platform", tag)]
        return [*platforms, "--python-version", self.python, "--implementation", "cp", "--only-binary=:all:"]

    @property
    def _version(self) -> tuple[int, int]:
        major, minor = self.python.split(".")
        return int(major), int(minor)

    def __str__(self) -> str:
        return f"{self.platform} with Python {self.python}"


def this_platform() -> str:
    """The name of this machine's system."""
    system = {"Linux": "linux", "Darwin": "macos"}.get(platform.system(), platform.system().lower())
    return f"{system}-{platform.machine()}"


def this_python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def choose_targets(platforms: tuple[str, ...], pythons: tuple[str, ...]) -> list[Target]:
    """Every platform with every Python; those of this machine where none is named."""
    for name in platforms:
        if name.lower() in WINDOWS:
            raise ConfigError(
                f"platform={name}: Anaphor runs on Windows in WSL2, which is Linux: bundle for linux-x86_64"
            )
        look_up(dict.fromkeys((*PLATFORMS, this_platform())), name, "platform")
    for python in pythons:
        look_up(dict.fromkeys(PYTHONS), python, "Python")
    chosen = [
        Target(name, python)
        for name in dict.fromkeys(platforms or (this_platform(),))
        for python in dict.fromkeys(pythons or (this_python(),))
    ]
    for target in chosen:
        if target.platform not in PLATFORMS and not target.is_here:
            raise ConfigError(
                f"on {target.platform} only its own Python {this_python()} can be bundled for; "
                f"other platforms: {', '.join(PLATFORMS)}"
            )
    return chosen
