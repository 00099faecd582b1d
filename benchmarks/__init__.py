"""How fast Anaphor is: each measurement runs beside a named peer, and the result is the ratio of their times.

    python -m benchmarks                              # the parts that take minutes and need no other package
    python -m benchmarks --parts training decoding    # some of them; `--help` lists all
    python -m benchmarks --against ../before/src      # this source tree against another one

Run from the root of the repository, on a machine that does nothing else. Nothing in `src/` imports this folder: Anaphor
is complete without it and `tests/benchmarks/`.
"""

import anaphor  # noqa: F401  (before any file imports torch: it bounds the spinning of threads)
