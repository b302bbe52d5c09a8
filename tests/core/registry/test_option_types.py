"""Which options classes may be registered."""

import re
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest
from attrs import field, frozen

from draftwood.core.options import GenerationOptions
from draftwood.core.registry.option_types import faults


class Colour(Enum):
    RED = "red"


@frozen
class Inner:
    depth: int = 1


@frozen
class Allowed:
    a: bool
    b: int | None = None
    c: float = 1.0
    d: str = "x"
    e: Path | str = "x"
    f: Literal["auto"] | int = "auto"
    g: Colour = Colour.RED
    h: tuple[int, ...] = ()
    i: tuple[int, float] = (1, 2.0)
    j: Inner = Inner()
    k: tuple[Inner, ...] = ()
    l: "int | None" = None  # noqa: E741


@frozen
class Loop:
    again: "Loop | None" = None


@attrs.define
class Mutable:
    a: int = 1


def one_field(annotation: Any, **settings: Any) -> type:
    return attrs.make_class("One", {"a": field(type=annotation, **settings)}, frozen=True)


@pytest.mark.parametrize("cls", [Allowed, GenerationOptions, Inner])
def test_every_allowed_type_is_allowed(cls):
    assert faults(cls) == []


@pytest.mark.parametrize(
    ("cls", "fault"),
    [
        (int, "is not an attrs class"),
        (3, "is not an attrs class"),
        (Mutable, "is not frozen"),
        (Loop, "contains itself"),
        (one_field(list[int]), r"type list\[int\] is not allowed; choices: bool, int"),
        (one_field(dict), "type dict is not allowed"),
        (one_field(Any), "is not allowed"),
        (one_field(tuple), "type tuple is not allowed"),
        (one_field(int | set, default=1), "type set is not allowed"),
        (one_field(int, converter=int), "has a converter"),
        (one_field(int, alias="b"), "is a public name"),
        (one_field(int, init=False, default=1), "is a public name"),
        (one_field("Nowhere"), "an annotation cannot be read"),
        (one_field(None), "has no type annotation"),
        (one_field(Mutable), "Mutable is not frozen"),
    ],
)
def test_anything_else_is_a_fault(cls, fault):
    assert len(faults(cls)) == 1
    assert re.search(fault, faults(cls)[0])
