"""Tasks, a folder each: what is trained, on which data, and how it is scored. Imports no torch.

`registry.TASKS` names them. A folder defines `TASK`, a `TaskDefinition`, in its `__init__.py`; its other modules are
imported when they are needed.
"""
