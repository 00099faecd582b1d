"""Tries the faults for as many minutes as there are: `PYTHONPATH=tests python -m torture --minutes 60`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from torture.experiment import FAULTS, describe, describe_failures, run_experiment, write_report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="share of an hour's tries (60: all of them)")
    parser.add_argument("--fault", nargs="*", choices=sorted(FAULTS), help="only these faults")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first try of each fault")
    parser.add_argument("--tries", type=int, help="number of tries of each fault, in place of --minutes")
    parser.add_argument("--jobs", type=int, default=2, help="tries side by side")
    parser.add_argument("--out", type=Path, help="file for the table (Markdown)")
    options = parser.parse_args()
    reports = []
    with tempfile.TemporaryDirectory(prefix="torture-") as place:
        for report in run_experiment(
            Path(place),
            options.fault or list(FAULTS),
            hours=options.minutes / 60,
            tries=options.tries,
            seed=options.seed,
            jobs=options.jobs,
        ):
            reports.append(report)
            sys.stdout.write(describe(report))
            sys.stdout.flush()
            if options.out is not None:
                write_report(reports, options.out)
    sys.stdout.write(describe_failures(reports))
    if options.out is not None:
        sys.stdout.write(f"{options.out}\n")
    return 0 if all(report.survived == report.count for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
