"""The references by name, with what they are. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from anaphor.config import look_up
from anaphor.registry import import_object

if TYPE_CHECKING:
    from anaphor.course.reference import Reference


@dataclass(frozen=True)
class Entry:
    """A line of the list of references."""

    call: str
    """How the student's own is made and called, and what it returns."""
    reference: str
    """Where it is: "module:attribute"."""
    other_names: tuple[str, ...] = ()
    """Names that courses have for it."""


_FOLDER = "anaphor.course.references"
CATALOG: dict[str, Entry] = {
    "AttentionHead": Entry(
        "(dim, n_hidden); forward(x, attn_mask=None) -> out [B, T, n_hidden], A [B, T, T]",
        f"{_FOLDER}.attention:ATTENTION_HEAD",
        ("SelfAttention", "SingleHeadAttention", "Head"),
    ),
    "MultiHeadAttention": Entry(
        "(dim, n_hidden, num_heads) or (dim, num_heads); forward(x, attn_mask=None) -> out [B, T, dim], A [B, H, T, T]",
        f"{_FOLDER}.attention:MULTI_HEAD_ATTENTION",
        ("MultiHeadedAttention", "MultiHeadSelfAttention", "MHA"),
    ),
}


def has_reference(name: str) -> bool:
    """Whether there is a reference of that name, or of another name that courses have for it."""
    return name in CATALOG or any(name in entry.other_names for entry in CATALOG.values())


def find_reference(name: str) -> Reference:
    """The reference of that name, or of another name that courses have for it."""
    others = {other: known for known, entry in CATALOG.items() for other in entry.other_names}
    reference: Reference = import_object(look_up(CATALOG, others.get(name, name), "reference").reference)
    return reference
