"""Computation graphs of functions on tensors, with a value and a gradient at every node.

The package can be called: `anaphor.trace(f)` is `anaphor.trace.trace(f)`.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from anaphor.registry import register_verb

if TYPE_CHECKING:
    from anaphor.trace.graph import Edge, Graph, Node
    from anaphor.trace.tracing import Traced, trace

__all__ = ["Edge", "Graph", "Node", "Traced", "trace"]


def register() -> None:
    """Add the verbs of this shelf: the registry calls it when names are first needed."""
    register_verb(
        "trace", "computation graph of any function: value and gradient at every node", "anaphor.trace.verb:run"
    )


if not TYPE_CHECKING:  # which would take every name for known

    def __getattr__(name: str) -> Any:
        """Public names are imported on first use, so that `anaphor --help` does not wait for torch."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

        from anaphor.trace import graph, tracing

        return getattr(tracing if name in ("Traced", "trace") else graph, name)


class _CallablePackage(ModuleType):
    def __call__(
        self, function: Callable[..., Any], *, level: str = "operations", output: str | None = None
    ) -> "Traced":
        from anaphor.trace.tracing import trace

        return trace(function, level=level, output=output)


sys.modules[__name__].__class__ = _CallablePackage
