"""Speed, only ever as a ratio measured in the same run against a named peer."""

from anaphor.bench.finding import Finding

__all__ = ["Finding"]
