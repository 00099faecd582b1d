"""Speed, always as a ratio measured in the same run against a named peer."""

from anaphor.bench.timing import Finding

__all__ = ["Finding"]
