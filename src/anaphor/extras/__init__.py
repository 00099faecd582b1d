"""Ideas of single papers, a file or a folder each, registered by the functions with which users register theirs.

Deleting a file or a folder here deletes its idea. None of them imports torch before it is used: an idea with a
module of torch is a folder, whose `__init__` names it by a string.
"""

from importlib import import_module
from pkgutil import iter_modules


def register() -> None:
    """Add the ideas that are here: the registry calls it when names are first needed."""
    for module in iter_modules(__path__, f"{__name__}."):
        import_module(module.name).register()
