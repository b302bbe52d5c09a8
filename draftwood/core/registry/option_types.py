"""Which types an option may have, as data.

The registration check, the YAML reader, the exported JSON Schema and the generated reference all
read options classes through the shapes below, so that they agree.
"""

import inspect
import re
import typing
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import attrs
from attrs import frozen

from draftwood.core.registry.plugin_options import PluginOptions

SCALARS = (bool, int, float, str, Path)
ALLOWED = (
    "bool, int, float, str, Path, Literal, Enum, tuple, Optional, a nested frozen attrs class, "
    "PluginOptions"
)


@frozen
class Scalar:
    """A bool, int, float, str or Path."""

    type: type


@frozen
class Choice:
    """One of a few values, from a Literal or an Enum.

    Attributes:
        values: Pairs of the value in YAML and the value that the options get.
    """

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
    """A tuple with one item per shape."""

    items: "tuple[Shape, ...]"


@frozen
class Either:
    """A union: the first member that accepts the value."""

    members: "tuple[Shape, ...]"


@frozen
class Nested:
    """A frozen attrs class."""

    type: type


@frozen
class Plugins:
    """Options of installed plugins by name: a subclass of `PluginOptions`."""

    type: type[PluginOptions]


Shape = Scalar | Choice | Null | Many | Row | Either | Nested | Plugins


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
    if isinstance(annotation, type) and issubclass(annotation, PluginOptions):
        return Plugins(annotation)
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


def plugins_field(cls: type) -> tuple[str, type[PluginOptions]] | None:
    """Name and type of the field that takes the options of other plugins, if there is one."""
    shapes = ((name, shape) for name, (_, shape) in fields_of(cls).items())
    return next(((name, s.type) for name, s in shapes if isinstance(s, Plugins)), None)


def meanings(cls: type) -> dict[str, str]:
    """The meaning of each option, from the `Attributes:` sections of a class and its bases."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        section = (inspect.cleandoc(base.__doc__ or "")).partition("Attributes:\n")[2]
        entries = re.findall(r"^ {4}(\w+)(?: \(.*?\))?: (.*(?:\n {8}.*)*)", section, re.MULTILINE)
        texts |= {name: " ".join(text.split()) for name, text in entries}
    return texts


def faults(cls: object, inside: tuple[type, ...] = ()) -> list[str]:
    """Why `cls` cannot be an options class, empty if it can.

    It must be a frozen attrs class whose fields have allowed types, public names and no
    converter (the exported schema could not describe a converter).

    Args:
        cls: The class.
        inside: The classes that contain it, to find one that contains itself.
    """
    if not isinstance(cls, type) or not attrs.has(cls):
        return [f"{cls!r} is not an attrs class"]
    if not _is_frozen(cls):
        return [f"{cls.__name__} is not frozen; define it with attrs.frozen"]
    try:
        hints = typing.get_type_hints(cls)
    except Exception as error:  # noqa: BLE001 - an annotation may raise anything
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
            nested = nested_options(shape_of(hints[attribute.name]))
        except TypeError as error:
            found.append(f"{where}: {error}")
            continue
        for inner in nested:
            around = (*inside, cls)
            found += [f"{where}: contains itself"] if inner in around else faults(inner, around)
    return found


def _is_frozen(cls: type) -> bool:
    """Whether instances refuse assignment; tried on an instance, as attrs has no public flag."""
    try:
        object.__new__(cls).__setattr__("any", None)
    except attrs.exceptions.FrozenInstanceError:
        return True
    except Exception:  # noqa: BLE001 - a class may do anything here; it is not frozen by attrs
        return False
    return False


def nested_options(shape: Shape) -> list[type]:
    """The options classes directly inside a shape."""
    match shape:
        case Nested(type=cls):
            return [cls]
        case Many(item=item):
            return nested_options(item)
        case Row(items=members) | Either(members=members):
            return [cls for member in members for cls in nested_options(member)]
        case _:
            return []
