"""Look inside a model while it runs."""

from anaphor.inspect.record import recorded

__all__ = ["recorded"]
