"""Ctrl-C while a library is being loaded: numpy and torch catch the exception and go on half loaded."""

import subprocess
import sys

import pytest

# A library that gets Ctrl-C while it is loaded, and that has no use for the exception.
LIBRARY = """
import signal
try:
    signal.raise_signal(signal.SIGINT)
except BaseException:
    print("caught")
{then}
"""

# The handler is set, because a shell starts what it runs in the background with signals that are ignored.
PROGRAM = """
import signal, sys
from anaphor.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, sys.argv.pop(1))
sys.exit(main())
"""


@pytest.mark.parametrize("then", ["", "raise ImportError('cannot load module more than once per process')"])
def test_ctrl_c_while_a_library_is_loaded_ends_the_program(tmp_path, then):
    (tmp_path / "torch.py").write_text(LIBRARY.format(then=then))
    words = [sys.executable, "-c", PROGRAM, str(tmp_path), "models", "lstm"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "anaphor: interrupted\n")
