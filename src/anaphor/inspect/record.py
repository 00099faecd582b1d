"""Record any named tap while a model runs."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch import Tensor, nn

from anaphor.config import nearest
from anaphor.errors import ConfigError
from anaphor.taps import Tap, taps_of


@contextmanager
def recorded(model: nn.Module, wanted: str = "*") -> Iterator[dict[str, Tensor]]:
    """Collect what passes the taps whose names match, as in `recorded(model, "layers.*.weights")`.

    The dictionary holds the tensor of the last call under the tap's name. Inside the block the layers concerned take
    their explicit path; afterwards they are fast again.
    """
    known = taps_of(model)
    taps = {name: tap for name, tap in known.items() if fnmatch.fnmatchcase(name, wanted)}
    if not taps:
        deeper = f"*.{wanted}"
        hint = f"; did you mean {deeper!r}?" if fnmatch.filter(known, deeper) else nearest(wanted, known)
        raise ConfigError(f"no tap is called {wanted!r}{hint} (known: {', '.join(known) or 'none'})")
    found: dict[str, Tensor] = {}
    handles = [tap.register_forward_hook(partial(_keep, found, name)) for name, tap in taps.items()]
    for tap in taps.values():
        tap.watchers += 1
    try:
        yield found
    finally:
        for tap, handle in zip(taps.values(), handles, strict=True):
            tap.watchers -= 1
            handle.remove()


def _keep(found: dict[str, Tensor], name: str, tap: Tap, inputs: tuple[Tensor], output: Tensor) -> None:
    found[name] = output
