"""Which types an option may have, as data: one reading of an options class for everyone.

The registration check, the YAML reader and the exported JSON Schema all switch on the shapes
below, so what one accepts the others describe.
"""

import typing
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import attrs
from attrs import frozen

SCALARS = (bool, int, float, str, Path)
ALLOWED = "bool, int, float, str, Path, Literal, Enum, tuple, Optional, a nested frozen attrs class"


@frozen
class Scalar:
    """A bool, int, float, str or Path."""

    type: type


@frozen
class Choice:
    """One of a few values, from a Literal or an Enum. values: as written -> as given."""

    values: tuple[tuple[Any, Any], ...]


@frozen
class Null:
    """None."""


@frozen
class Many:
    """tuple[item, ...]."""

    item: "Shape"


@frozen
class Row:
    """tuple of as many items as there are shapes."""

    items: "tuple[Shape, ...]"


@frozen
class Either:
    """A union; the first member that takes the value wins."""

    members: "tuple[Shape, ...]"


@frozen
class Nested:
    """A frozen attrs class."""

    type: type


Shape = Scalar | Choice | Null | Many | Row | Either | Nested


def shape_of(annotation: Any) -> Shape:
    """The shape of an annotation. Raises TypeError naming what is not allowed."""
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation in SCALARS:
        return Scalar(annotation)
    if annotation is None or annotation is NoneType:
        return Null()
    if origin is Literal:
        return Choice(tuple((value, value) for value in args))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return Choice(tuple((member.value, member) for member in annotation))
    if origin in (Union, UnionType):
        return Either(tuple(shape_of(arg) for arg in args))
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return Many(shape_of(args[0]))
    if origin is tuple and args:
        return Row(tuple(shape_of(arg) for arg in args))
    if isinstance(annotation, type) and attrs.has(annotation):
        return Nested(annotation)
    name = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    raise TypeError(f"type {name} is not allowed; choices: {ALLOWED}")


def fields_of(cls: type) -> dict[str, tuple["attrs.Attribute[Any]", Shape]]:
    """Each option of an attrs class: its attribute and shape, in order of definition."""
    hints = typing.get_type_hints(cls)
    return {
        attribute.name: (attribute, shape_of(hints[attribute.name]))
        for attribute in attrs.fields(cls)
    }


def faults(cls: object, inside: tuple[type, ...] = ()) -> list[str]:
    """Why `cls` cannot be an options class, empty if it can.

    It must be a frozen attrs class whose fields have allowed types, public names and no
    converter (a converter would make the exported schema untrue). inside: the classes that
    contain it, to find one that contains itself.
    """
    if not isinstance(cls, type) or not attrs.has(cls):
        return [f"{cls!r} is not an attrs class"]
    if not _is_frozen(cls):
        return [f"{cls.__name__} is not frozen; define it with attrs.frozen"]
    try:
        hints = typing.get_type_hints(cls)
    except Exception as error:  # noqa: BLE001 - whatever an annotation does is the author's
        return [f"{cls.__name__}: an annotation cannot be read ({error})"]
    found = []
    for attribute in attrs.fields(cls):
        where = f"{cls.__name__}.{attribute.name}"
        if attribute.name not in hints:
            found.append(f"{where}: has no type annotation")
            continue
        if (
            attribute.name.startswith("_")
            or attribute.alias != attribute.name
            or not attribute.init
        ):
            found.append(f"{where}: an option is a public name that __init__ takes")
        if attribute.converter is not None:
            found.append(f"{where}: has a converter; use a validator")
        try:
            nested = _nested(shape_of(hints[attribute.name]))
        except TypeError as error:
            found.append(f"{where}: {error}")
            continue
        for inner in nested:
            around = (*inside, cls)
            found += [f"{where}: contains itself"] if inner in around else faults(inner, around)
    return found


def _is_frozen(cls: type) -> bool:
    """Whether instances refuse assignment, asked of an instance: attrs has no public flag."""
    try:
        object.__new__(cls).__setattr__("any", None)
    except attrs.exceptions.FrozenInstanceError:
        return True
    except Exception:  # noqa: BLE001 - a class may do anything here; it is not frozen by attrs
        return False
    return False


def _nested(shape: Shape) -> list[type]:
    """The attrs classes directly inside a shape."""
    match shape:
        case Nested(type=cls):
            return [cls]
        case Many(item=item):
            return _nested(item)
        case Row(items=members) | Either(members=members):
            return [cls for member in members for cls in _nested(member)]
        case _:
            return []
