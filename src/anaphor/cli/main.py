"""The command: find the verb, hand it the rest, turn our errors into one line and an exit code."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, TextIO, TypeVar

from anaphor import __version__
from anaphor.cli.imports import import_given, split_leading_imports, without_imports
from anaphor.cli.table import for_terminal
from anaphor.config import look_up
from anaphor.errors import AnaphorError, ConfigError, DataError
from anaphor.flags import before_end, split_argv
from anaphor.imported_files import describe_own_error
from anaphor.registry import VERBS, Verb
from anaphor.training.launch import read_launch

Value = TypeVar("Value")
SIZE_VARIABLE, KERNELS_VARIABLE = "ANAPHOR_MAX_FILE_BYTES", "ANAPHOR_NO_KERNELS"
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the result is the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an encoding without × still has room for the rest of a table
    with forgiving_stderr(), silent_ranks():
        try:
            with interruptible_imports():
                code = run_command(argv)
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where it can still be told that it failed
            return code
        except BrokenPipeError:  # the reader has gone: `anaphor models | head`
            discard_output(sys.stdout)
            return 141
        except OSError as error:
            if isinstance(error, IsADirectoryError):
                print_error(f"{error.filename2 or error.filename} is a folder, but a file is needed there")
                return DataError.exit_code
            if error.errno not in UNWRITABLE:
                raise
            discard_output(sys.stdout)
            print_error(f"{error.filename or 'the output'} cannot be written to: {error.strerror}")
            return DataError.exit_code


class ForgivingStream:
    """A stream where what cannot be written is lost and ends nothing: a log on a full disk ends no training."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.has_failed = False

    def write(self, text: str) -> int:
        return self._attempt(lambda: self._stream.write(text), len(text))

    def flush(self) -> None:
        self._attempt(self._stream.flush, None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _attempt(self, call: Callable[[], Value], otherwise: Value) -> Value:
        try:
            return call()
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            self.has_failed = True
            return otherwise


@contextlib.contextmanager
def forgiving_stderr() -> Iterator[None]:
    """Inside the block everything can be written to stderr, also where it is closed (`2>&-`), full or a log that is."""
    before = sys.stderr
    with contextlib.ExitStack() as stack:
        # A closed one is None, and `print` would take stdout for it.
        stream = stack.enter_context(open(os.devnull, "w", encoding="utf-8")) if before is None else before
        stderr: Any = ForgivingStream(stream)
        sys.stderr = stderr
        try:
            yield
        finally:
            sys.stderr = before
            if stderr.has_failed:
                discard_output(before)


@contextlib.contextmanager
def silent_ranks() -> Iterator[None]:
    """Inside the block only the first of the processes that torchrun has started prints."""
    launch = read_launch()
    if launch.ranks > 1:  # torch would say in many lines that it has lost a connection, which we say in one
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if launch.is_first:
        yield
        return
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


def run_command(argv: list[str]) -> int:
    """Our errors, those of a user's own parts, and a GPU or a machine without memory, as one line and an exit code."""
    try:
        refuse_broken(argv)
        return dispatch(argv)
    except AnaphorError as error:
        if error.has_last_word:
            sys.stderr = sys.__stderr__  # also of a process that is silent
        print_error(str(error))
        return error.exit_code
    except KeyboardInterrupt as error:
        print_error(str(error) or "interrupted")
        return 130
    except Exception as error:
        if isinstance(error, FileNotFoundError) and is_folder_gone():
            print_error("the current folder has been deleted: change to another one")
            return DataError.exit_code
        if line := describe_missing_memory(error):
            print_error(line)
            return ConfigError.exit_code
        line = None if is_unwritable(error) else describe_own_error(error)
        if line is None:
            raise
        print_error(line)
        return ConfigError.exit_code


def is_folder_gone() -> bool:
    """Whether the current folder has been deleted."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def is_unwritable(error: Exception) -> bool:
    """Whether the output cannot be written: its reader is gone, or the disk is full."""
    return isinstance(error, BrokenPipeError) or (isinstance(error, OSError) and error.errno in UNWRITABLE)


def describe_missing_memory(error: Exception) -> str | None:
    """What to say where a GPU or this machine has no memory left; None for other errors."""
    if not isinstance(error, RuntimeError | MemoryError):
        return None
    size = re.search(r"(?:[Tt]ried|Unable) to allocate ([\d.]+ \w+)", str(error))
    detail = f" (tried to allocate {size[1]})" if size else ""
    if isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in str(error):
        return f"this machine is out of memory{detail}: use a smaller batch or model"
    if "torch" not in sys.modules:
        return None

    from anaphor.operations import is_out_of_memory

    if not is_out_of_memory(error):
        return None
    return f"the GPU is out of memory{detail}: use a smaller batch or model, or --device cpu"


@contextlib.contextmanager
def interruptible_imports() -> Iterator[None]:
    """Inside the block Ctrl-C ends the program even where a library is being loaded.

    numpy and torch catch a KeyboardInterrupt there: the program would go on with half of them, and fail much later.
    """
    is_main = threading.current_thread() is threading.main_thread()  # signals cannot be caught in other threads
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            with contextlib.suppress(OSError, RuntimeError, AttributeError):  # stdout may be gone, or in use
                sys.stdout.flush()
            print_error("interrupted")
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


def print_error(line: str) -> None:
    print(for_terminal(f"anaphor: {line}", sys.stderr), file=sys.stderr)


def discard_output(stream: TextIO | None) -> None:
    """What is left to be written goes nowhere: Python would complain once more while it closes the stream."""
    with contextlib.suppress(OSError, AttributeError), open(os.devnull, "wb") as nowhere:  # it may be no file, or None
        os.dup2(nowhere.fileno(), stream.fileno())  # type: ignore[union-attr]


def refuse_broken(argv: Sequence[str]) -> None:
    """Refuse an argument whose bytes are no text in this locale: it can be neither written down nor printed."""
    for argument in argv:
        if any("\udc80" <= character <= "\udcff" for character in argument):
            shown = argument.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            raise ConfigError(
                f"{shown!r} cannot be read as text in the encoding "
                f"{sys.getfilesystemencoding()}: set PYTHONUTF8=1 or a UTF-8 locale, or use another name"
            )


def dispatch(argv: list[str]) -> int:
    """Call the function of a verb. `--import FILE` may stand before the verb, too, for the verb may be the user's."""
    argv, imports = split_leading_imports(argv)
    import_given(imports)
    if not argv or argv[0] in ("-h", "--help"):
        print(overview())
        return 0
    if argv[0] == "--version":
        print(f"anaphor {__version__}")
        return 0
    name, options = argv[0], before_end(argv[1:])
    rest = [*options, *imports, *argv[1 + len(options) :]]
    if name.startswith("-"):
        raise ConfigError(f"the verb is missing: it comes before all options (known: {', '.join(sorted(VERBS))})")
    if name not in VERBS or VERBS.is_registered(name):  # it may be a verb of the files, or become one
        import_given(rest)
    verb: Verb = look_up(VERBS, name, "verb")
    if VERBS.origin(name) is not None:  # its function need not know the flag
        rest = without_imports(rest)
    try:
        with global_options(rest) as rest:
            return verb.run(rest)
    except SystemExit as done:  # --help has been printed
        if isinstance(done.__context__, BrokenPipeError):  # of a table, for which rich has an exit code of its own
            raise done.__context__ from None
        return int(done.code or 0)


@dataclass(frozen=True)
class GlobalOptions:
    """Flags of every verb, beside `--json`."""

    max_file_bytes: str = ""
    no_kernels: bool = False


@contextlib.contextmanager
def global_options(argv: list[str]) -> Iterator[list[str]]:
    """The arguments without the flags of every verb, which hold for the command and, as variables, for its workers."""
    given, rest = split_argv(GlobalOptions, argv)
    variables = {}
    if "max_file_bytes" in given:
        variables[SIZE_VARIABLE] = size = given["max_file_bytes"]
        if not size.isdecimal():
            raise ConfigError(f"max_file_bytes={size!r}: it must be a number of bytes")
    if "no_kernels" in given:
        variables[KERNELS_VARIABLE] = "1"
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield rest if given else argv
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def overview() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {verb.summary}" for name, verb in VERBS.items())
    second = "serve" if "serve" in VERBS else "models"
    return (
        "examples:\n"
        "  anaphor train lm --data grammar --model lstm --epochs 1\n"
        f"  anaphor {second}\n\n"
        "usage: anaphor VERB [OPTIONS]\n\n"
        "Train, compare and look inside recurrent, attention and hybrid sequence models.\n\n"
        f"{verbs}\n\n"
        "`anaphor VERB --help` explains a verb. Every verb takes --json,\n"
        "--max-file-bytes N (largest size of a compressed file, decompressed; default 1 GiB) and\n"
        "--no-kernels (run readable code in place of kernels written by hand for speed).\n"
        "Values that begin with dashes: --prompt='--x', and texts after --, which ends the options.\n"
        "Environment: ANAPHOR_DATA (folder of data sets), ANAPHOR_CACHE (folder of caches),\n"
        "ANAPHOR_STATE (folder with the record of the data that runs were trained on here),\n"
        "ANAPHOR_IN_MEMORY_BYTES (larger data are read from the disk; default 256 MiB),\n"
        "ANAPHOR_MAX_FILE_BYTES and ANAPHOR_NO_KERNELS (as the flags)."
    )
