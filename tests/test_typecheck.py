"""Types at run time: what is refused, what is accepted, and what a spec keeps of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anaphor.errors import ConfigError
from anaphor.typecheck import check_arguments, check_types, check_value


@dataclass(frozen=True)
class Spec:
    name: str = "lstm"
    layers: int | None = None
    lr: float = 0.1
    tied: bool = False
    widths: tuple[int, ...] = ()
    other: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        check_types(self)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": 3}, "name=3: it must be a string"),
        ({"name": None}, "name=None: it must be a string"),
        ({"layers": "2"}, "layers='2': it must be a whole number"),
        ({"layers": 2.0}, "layers=2.0: it must be a whole number"),
        ({"layers": True}, "layers=True: it must be a whole number"),
        ({"lr": "high"}, "lr='high': it must be a number"),
        ({"lr": np.True_}, "lr=True: it must be a number"),
        ({"tied": 1}, "tied=1: it must be True or False"),
        ({"widths": 8}, "widths=8: it must be a list of whole numbers"),
        ({"widths": "8"}, "widths='8': it must be a list of whole numbers"),
        ({"widths": None}, "widths=None: it must be a list of whole numbers"),
        ({"widths": {8: 16}}, "widths={8: 16}: it must be a list of whole numbers"),
        ({"widths": (8, "x")}, "widths[1]='x': it must be a whole number"),
        ({"name": ["a" * 200]}, f"name=['{'a' * 77}…: it must be a string"),
    ],
)
def test_a_field_of_another_type_is_refused(given, message):
    with pytest.raises(ConfigError) as caught:
        Spec(**given)
    assert str(caught.value) == message


def test_what_a_spec_keeps_is_plain():
    given = Spec(
        layers=np.int64(2),
        lr=np.float32(0.5),
        tied=np.True_,
        widths=np.array([8, 16]),
        name=np.str_("gru"),
        other={1: 2},
    )
    assert given == Spec(layers=2, lr=0.5, tied=True, widths=(8, 16), name="gru", other={1: 2})
    assert [type(getattr(given, name)) for name in ("layers", "lr", "tied", "widths")] == [int, float, bool, tuple]
    assert Spec(widths=[8, 16]).widths == Spec(widths=iter([8, 16])).widths == (8, 16)
    assert Spec(lr=1).lr == 1


def test_annotations_need_not_be_text():
    kind = make_dataclass(
        "Options", [("layers", int | None, None), ("widths", tuple[int, ...], ()), ("any", Any, None)]
    )
    check_types(kind(layers=3, widths=[8], any=object()))
    with pytest.raises(ConfigError, match=r"^layers='x': it must be a whole number$"):
        check_types(kind(layers="x"))


def call(text: str, paths: Iterable[Path | str] = (), *, items: "Sequence[Missing] | None" = None) -> None:  # noqa: F821
    """Has an annotation that cannot be evaluated, as names have that are imported for type checkers alone."""


def test_arguments_are_checked_by_their_annotations():
    check_arguments(call, "a", ["b", Path("c")], items=[1, "x"])
    for arguments, options, message in (
        ((5,), {}, "text=5: it must be a string"),
        (("a", "b"), {}, "paths='b': it must be a list of paths"),
        (("a", [5]), {}, "paths[0]=5: it must be a path"),
        (("a",), {"items": 3}, "items=3: it must be a list"),
        ((), {}, "call: missing a required argument: 'text' (it takes text, paths, items)"),
    ):
        with pytest.raises(ConfigError) as caught:
            check_arguments(call, *arguments, **options)
        assert str(caught.value) == message


def test_an_iterator_is_not_read():
    items = iter([1, 2])
    check_value("items", items, "Iterable[int]")
    assert list(items) == [1, 2]
