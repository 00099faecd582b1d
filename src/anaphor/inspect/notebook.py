"""What a notebook shows of a look inside: the page of `anaphor look`, as a frame that the shelf `web` makes."""

from __future__ import annotations

from anaphor.registry import SERVICES


class ShownAsPage:
    """Something that has a page of its own. Without the shelf `web` a notebook prints it."""

    def _repr_html_(self) -> str | None:
        if "show-look" not in SERVICES:
            return None
        html: str = SERVICES["show-look"](self)._repr_html_()
        return html
