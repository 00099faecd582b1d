"""A process in bubblewrap: no network, no file but those it needs, nothing written but in memory, and limits.

What it may see: Python with its installed packages without Anaphor, a few modules of Anaphor without any reference,
and the submission. All of that is read-only. It may write to a copy of the submission and to `/tmp`, which are in
memory and of a bounded size. It cannot make further processes or sockets, which a filter of system calls refuses.
"""

from __future__ import annotations

import os
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anaphor
from anaphor.errors import ConfigError

MEMORY = 2 << 30
"""Bytes that a student's code may have beyond what torch needs."""
ROOM = 64_000_000
"""Bytes of files that it may write in each of its two folders."""
SUBMISSION, COPY, KIT = "/handed-in", "/submission", "/grader"
"""Where things are in the sandbox: the submission, its copy to write to, and the modules of Anaphor."""
PACKAGE = Path(anaphor.__file__).parent
SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/etc/ld.so.cache", "/etc/alternatives")
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
REFUSED = {
    "x86_64": {
        "fork": 57, "vfork": 58, "socket": 41, "ptrace": 101, "mount": 165, "unshare": 272, "setns": 308, "bpf": 321,
        "keyctl": 250, "add_key": 248, "userfaultfd": 323, "perf_event_open": 298, "io_uring_setup": 425,
        "process_vm_readv": 310, "process_vm_writev": 311,
    },
    "aarch64": {
        "socket": 198, "ptrace": 117, "mount": 40, "unshare": 97, "setns": 268, "bpf": 280, "keyctl": 219,
        "add_key": 217, "userfaultfd": 282, "perf_event_open": 241, "io_uring_setup": 425, "process_vm_readv": 270,
        "process_vm_writev": 271,
    },
}  # fmt: skip
"""System calls that are refused: those that make processes, and some that no exercise needs."""
CLONE = {"x86_64": 56, "aarch64": 220}
CLONE3 = 435
CLONE_THREAD = 0x10000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026


def call_filter(machine: str) -> bytes:
    """The filter of system calls for the kernel: threads may be made, processes may not."""

    def step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("HBBI", code, if_true, if_false, value)

    steps = [step(_LOAD, 4), step(_EQUAL, AUDIT_ARCH[machine], 1), step(_RETURN, _KILL), step(_LOAD, 0)]
    if machine == "x86_64":  # the other calling convention of the same kernel
        steps += [step(_AT_LEAST, 0x40000000, 0, 1), step(_RETURN, _KILL)]
    for number in REFUSED[machine].values():
        steps += [step(_EQUAL, number, 0, 1), step(_RETURN, _EPERM)]
    steps += [step(_EQUAL, CLONE3, 0, 1), step(_RETURN, _ENOSYS)]  # libraries use the older one then
    steps += [step(_EQUAL, CLONE[machine], 0, 3), step(_LOAD, 16), step(_ANY_BIT, CLONE_THREAD, 1)]
    return b"".join([*steps, step(_RETURN, _EPERM), step(_RETURN, _ALLOW)])


@dataclass(frozen=True)
class Sandbox:
    """How processes are started."""

    kit: Path | None
    """Folder with the modules of Anaphor that the process may import; None for all, where no student's code runs."""
    is_safe: bool = True
    """Whether bubblewrap is around it. Otherwise limits alone hold, and files and the network can be reached."""
    python: str = sys.executable

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        readable: Sequence[tuple[Path, str]],
        descriptors: Sequence[int] = (),
        scratch: Path,
        output: int = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        """Start a module of the kit.

        Args:
            module: Its name.
            arguments: What it is called with.
            readable: Folders it may read, and where it finds them.
            descriptors: Open files that it inherits.
            scratch: Folder for its files where there is no bubblewrap, and for the filter.
            output: Where its output goes.
        """
        argv = [self.python, "-P", "-W", "ignore", "-m", module, *arguments]
        environment = {
            "PATH": "/usr/bin:/bin", "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8",
            "PYTHONPATH": _python_path(KIT), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MPLBACKEND": "agg",
        }  # fmt: skip
        if not self.is_safe:
            own = {
                "PYTHONPATH": _python_path(str(self.kit or PACKAGE.parent)),
                "HOME": str(scratch),
                "TMPDIR": str(scratch),
            }
            environment |= own
            return self._popen(argv, environment, descriptors, output)
        with tempfile.TemporaryFile(dir=scratch) as file:
            file.write(call_filter(platform.machine()))
            file.seek(0)
            kit = (PACKAGE, f"{KIT}/anaphor") if self.kit is None else (self.kit, KIT)
            mounted = [kit, *readable]
            argv = [*bubblewrap_argv(mounted, file.fileno(), environment), *argv]
            return self._popen(argv, {"PATH": os.defpath}, [*descriptors, file.fileno()], output)

    def _popen(
        self, argv: Sequence[str], environment: dict[str, str], descriptors: Sequence[int], output: int
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv, env=environment, pass_fds=descriptors, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip


def bubblewrap_argv(mounted: Sequence[tuple[Path, str]], filter_file: int, environment: dict[str, str]) -> list[str]:
    """The command before the command."""
    argv = ["bwrap", "--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL",
             "--new-session", "--die-with-parent", "--clearenv", "--hostname", "sandbox"]  # fmt: skip
    for path in SYSTEM:
        if os.path.islink(path):
            argv += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            argv += ["--ro-bind", path, path]
    argv += ["--proc", "/proc", "--dev", "/dev", "--size", str(ROOM), "--tmpfs", "/tmp", "--size", str(ROOM),
              "--tmpfs", COPY]  # fmt: skip
    for folder in _python_folders():
        argv += ["--ro-bind", folder, folder]
    for folder in _python_folders():
        for found in Path(folder).rglob("site-packages/anaphor"):
            argv += ["--tmpfs", str(found)]
    for source, target in mounted:
        argv += ["--ro-bind", str(source), target]
    argv += [word for name, value in environment.items() for word in ("--setenv", name, value)]
    return [*argv, "--remount-ro", "/", "--chdir", "/tmp", "--seccomp", str(filter_file), "--"]


def _python_path(kit: str) -> str:
    return os.pathsep.join([kit, *(path for path in sys.path if path.endswith("-packages"))])


def _python_folders() -> list[str]:
    """Where Python and its packages are, beside the system's own."""
    folders = [sys.prefix, sys.base_prefix, *(path for path in sys.path if path.endswith("-packages"))]
    folders += [os.path.dirname(os.path.dirname(os.path.realpath(sys.executable)))]
    real = dict.fromkeys(path for path in folders if os.path.isdir(path) and not path.startswith("/usr/"))
    inside = [path for path in real if any(path != other and path.startswith(f"{other}/") for other in real)]
    return [path for path in real if path not in inside and path != "/usr"]


def why_not_safe() -> str:
    """Why bubblewrap cannot be used here; empty where it can."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is missing: install it (`apt install bubblewrap`)"
    if platform.machine() not in AUDIT_ARCH:
        return f"no filter of system calls is known for {platform.machine()}"
    with tempfile.TemporaryFile() as file:
        file.write(call_filter(platform.machine()))
        file.seek(0)
        argv = [*bubblewrap_argv([], file.fileno(), {}), sys.executable, "-s", "-P", "-c", "print('ready')"]
        try:
            done = subprocess.run(argv, capture_output=True, pass_fds=[file.fileno()], timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"bubblewrap does not work here: {error}"
    if done.stdout == b"ready\n":
        return ""
    reason = done.stderr.decode(errors="replace").strip().splitlines() or [f"it ends with code {done.returncode}"]
    return f"bubblewrap does not work here ({reason[-1][:200]}); it needs user namespaces"


def require_safe(*, unsafe: bool) -> bool:
    """Whether there is a sandbox; an error where there is none and none of it is wanted."""
    reason = why_not_safe()
    if reason and not unsafe:
        raise ConfigError(f"{reason}; --unsafe runs the code of students without a sandbox, with your own rights")
    return not reason
