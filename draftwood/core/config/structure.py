"""Reads a document's nodes as frozen attrs instances and finds every problem with its place.

Scalars are strict: a whole number is accepted for a float and nothing else is converted, so 3.7
does not become 3, nor "off" false.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from draftwood.core.config.document import Node
from draftwood.core.errors import Problem
from draftwood.core.registry.loader import installed
from draftwood.core.registry.option_types import (
    Choice,
    Either,
    Many,
    Nested,
    Null,
    Plugins,
    Row,
    Scalar,
    Shape,
    fields_of,
    plugins_field,
)
from draftwood.core.registry.plugin import Kind
from draftwood.core.registry.plugin_options import PluginOptions
from draftwood.core.registry.registry import Refusal, Registry
from draftwood.core.renames import OPTION_VALUES
from draftwood.core.suggestions import did_you_mean, key_hint


@frozen
class Invalid:
    """Type of INVALID, the value of a node whose problems have been recorded."""


INVALID = Invalid()
_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
}


def build(
    cls: type,
    node: Node,
    path: str,
    problems: list[Problem],
    *,
    label: str = "",
    skip: str = "",
    registry: Registry | None = None,
) -> Any:
    """An instance of the attrs class `cls` from a mapping, or INVALID.

    Args:
        cls: A frozen attrs class of options.
        node: The mapping.
        path: Dotted key of the mapping.
        problems: Gets every unknown or missing key, wrong type and refused value.
        label: Name of the plugin that has these options, for messages.
        skip: A key of the mapping that is not an option.
        registry: The plugins that options may name; the installed ones by default.
    """
    if not node.is_mapping:
        problems.append(Problem(node.where, path, f"expected a mapping, got {shown(node)}"))
        return INVALID
    before, fields, values = len(problems), fields_of(cls), dict[str, Any]()
    owner = f" for {label}" if label else ""
    parts = plugins_field(cls)
    if parts is not None:
        del fields[parts[0]]
        named = {k: v for k, v in node.data.items() if k != skip and k not in fields}
        plugins = _plugins(parts[1], named, path, problems, label, registry or installed())
        values[parts[0]] = plugins
    for key, value in node.data.items():
        if key == skip or (parts is not None and key in named):
            continue
        if key not in fields:
            choices = (*fields, *filter(None, [skip]))
            problems.append(unknown_key(key, value, path, choices, owner))
            continue
        values[key] = structure(fields[key][1], value, _join(path, key), problems)
    for name, (attribute, _) in fields.items():
        if attribute.default is attrs.NOTHING and name not in values:
            problems.append(Problem(node.where, _join(path, name), f"is required{owner}"))
    return _instance(cls, node, path, values, problems, complete=len(problems) == before)


def _plugins(
    cls: type[PluginOptions],
    named: Mapping[str, Node],
    path: str,
    problems: list[Problem],
    label: str,
    registry: Registry,
) -> PluginOptions:
    """The options of plugins by name; a name without a value is left out."""
    entries, options = {}, {}
    for name, node in named.items():
        place = _join(path, name)
        entry = registry.find(cls.kind, name, bundled_only=node.builtin)
        if isinstance(entry, Refusal):
            problems.append(Problem(node.where, place, entry.message, entry.hints))
        elif plugins_field(entry.plugin.options) is not None:
            nestable = ", ".join(nestable_plugins(cls.kind, registry))
            message = f"{cls.kind} {name!r} cannot be part of {label or 'another plugin'}"
            problems.append(Problem(node.where, place, message, (f"choices: {nestable}",)))
        elif node.data is not None:
            entries[name] = entry
            options[name] = build(entry.plugin.options, node, place, problems, label=name)
    return cls(entries, options)


def nestable_plugins(kind: Kind, registry: Registry) -> list[str]:
    """Names of the plugins that can be part of another one."""
    names = registry.names(kind)
    return [n for n in names if plugins_field(registry.get(kind, n).plugin.options) is None]


def structure(shape: Shape, node: Node, path: str, problems: list[Problem]) -> Any:
    """The value of a node read as `shape`, or INVALID with the reason added to `problems`."""
    match shape:
        case Scalar(type=kind):
            value = _scalar(kind, node)
            if value is not INVALID:
                return value
            hint = " (quote it)" if kind is str and not isinstance(node.data, (dict, list)) else ""
            message = f"expected {_WORDS[kind]}, got {shown(node)}{hint}"
        case Null() if node.data is None:
            return None
        case Choice(values=values):
            for written, value in values:
                if type(written) is type(node.data) and written == node.data:
                    return value
            names = [str(written) for written, _ in values]
            message = f"{shown(node)} is none of the choices{_value_hint(node, names)}"
            if renamed := OPTION_VALUES.get(path, {}).get(str(node.data)):
                message = f"{shown(node)} is now called {renamed!r}"
            problems.append(Problem(node.where, path, message, (f"choices: {', '.join(names)}",)))
            return INVALID
        case Nested(type=cls):
            return build(cls, node, path, problems)
        case Either(members=members):
            return _either(members, node, path, problems)
        case Many() | Row() if isinstance(node.data, list):
            return _tuple(shape, node, path, problems)
        case _:
            message = f"expected {describe(shape)}, got {shown(node)}"
    problems.append(Problem(node.where, path, message))
    return INVALID


def describe(shape: Shape) -> str:
    """A shape in words, for messages."""
    match shape:
        case Scalar(type=kind):
            return _WORDS[kind]
        case Choice(values=values):
            return " or ".join(repr(written) for written, _ in values)
        case Null():
            return "null"
        case Many(item=item):
            return f"a list, each item {describe(item)}"
        case Row(items=items):
            return f"a list of {len(items)}: {', '.join(map(describe, items))}"
        case Nested() | Plugins():
            return "a mapping"
        case Either(members=members):
            return " or ".join(dict.fromkeys(map(describe, members)))


def shown(node: Node) -> str:
    """A value as a message quotes it."""
    match node.data:
        case None:
            return "nothing"
        case bool() as flag:
            return str(flag).lower()
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case other:
            text = repr(other)
            return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"


def unknown_key(
    key: str, node: Node, path: str, choices: Collection[str], owner: str = ""
) -> Problem:
    """The problem of an unknown key, with the nearest choice or all of them."""
    suggestion = key_hint(key, choices)
    options = ", ".join(choice for choice in choices if choice != "use")
    hints = () if suggestion else (f"choices: {options or 'none'}",)
    return Problem(node.key, _join(path, key), f"unknown key {key!r}{owner}{suggestion}", hints)


def _value_hint(node: Node, names: Collection[str]) -> str:
    """What is meant by a value that is none of the choices; `true` may mean `on`."""
    data = node.data
    return did_you_mean(str(data).lower() if isinstance(data, bool) else data, names)


def _scalar(kind: type, node: Node) -> Any:
    data = node.data
    if kind is float and type(data) is float:
        return INVALID if math.isnan(data) else data
    if kind is Path:
        return _path(node)
    if kind is float and type(data) is int:
        return float(data) if abs(data) < 2**1000 else INVALID
    return data if type(data) is kind else INVALID


def _path(node: Node) -> Any:
    """The absolute path of a text; INVALID for a name that no file can have."""
    data = node.data
    if not isinstance(data, (str, Path)) or not str(data):
        return INVALID
    try:
        path = (node.base / Path(data).expanduser()).resolve()
        path.exists()
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, a home that is unknown
        return INVALID
    return path


def _either(members: tuple[Shape, ...], node: Node, path: str, problems: list[Problem]) -> Any:
    if Scalar(Path) in members and Scalar(str) in members and isinstance(node.data, (str, Path)):
        return _path_or_name(node, path, problems)
    closest: list[Problem] | None = None
    for member in members:
        own_problems: list[Problem] = []
        value = structure(member, node, path, own_problems)
        if not own_problems:
            return value
        # Only the member of the node's own kind can say what is wrong inside it.
        if (isinstance(node.data, list) and isinstance(member, (Many, Row))) or (
            node.is_mapping and isinstance(member, Nested)
        ):
            closest = own_problems
    if closest is None:
        message = f"expected {describe(Either(members))}, got {shown(node)}"
        closest = [Problem(node.where, path, message)]
    problems += closest
    return INVALID


def _path_or_name(node: Node, path: str, problems: list[Problem]) -> Any:
    """An absolute Path if it exists or looks like a path, else a name; `builtin` is a name."""
    if isinstance(node.data, str) and node.data.partition(":")[0] == "builtin":
        return node.data
    local = _scalar(Path, node)
    if local is not INVALID and local.exists():
        return local
    if local is INVALID or isinstance(node.data, Path) or node.data[0] in "./~":
        message = f"no such file or folder: {str(node.data if local is INVALID else local)[:200]}"
        problems.append(Problem(node.where, path, message))
        return INVALID
    return node.data


def _tuple(shape: Many | Row, node: Node, path: str, problems: list[Problem]) -> Any:
    items: list[Node] = node.data
    if isinstance(shape, Row) and len(items) != len(shape.items):
        message = f"expected {describe(shape)}, got {len(items)} items"
        problems.append(Problem(node.where, path, message))
        return INVALID
    shapes = shape.items if isinstance(shape, Row) else (shape.item,) * len(items)
    values = tuple(
        structure(inner, item, f"{path}[{index}]", problems)
        for index, (inner, item) in enumerate(zip(shapes, items, strict=True))
    )
    return INVALID if any(value is INVALID for value in values) else values


def _instance(
    cls: type,
    node: Node,
    path: str,
    values: dict[str, Any],
    problems: list[Problem],
    *,
    complete: bool,
) -> Any:
    """Construct; if validators refuse, record each refusal at the place of its field.

    attrs itself stops at the first refusal.

    Args:
        complete: Whether nothing is wrong so far. If not, only the validators run, so that the
            refused values are reported together with the other problems.
    """
    message = ""
    if complete:
        try:
            return cls(**values)
        except (TypeError, ValueError, OverflowError) as error:
            message = _message(error)
    refusals = list(_refusals(cls, values))
    if message and not refusals:  # by __attrs_post_init__, which compares several fields
        problems.append(Problem(node.where, path, message))
    for name, refusal in refusals:
        where = node.data[name].where if name in node.data else node.where
        problems.append(Problem(where, _join(path, name), refusal))
    return INVALID


def _refusals(cls: type, values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Each field whose validator refuses, with its message, on an instance that is dropped."""
    draft: Any = object.__new__(cls)
    for attribute in attrs.fields(cls):
        value = values.get(attribute.name, attribute.default)
        if isinstance(value, attrs.Factory):  # type: ignore[arg-type]
            value = value.factory(draft) if value.takes_self else value.factory()
        object.__setattr__(draft, attribute.name, value)
    for attribute in attrs.fields(cls):
        value = getattr(draft, attribute.name)
        if attribute.validator is None or value is INVALID or value is attrs.NOTHING:
            continue
        try:
            attribute.validator(draft, attribute, value)
        except (TypeError, ValueError, OverflowError) as error:
            yield attribute.name, _message(error)


def _message(error: Exception) -> str:
    return str(error.args[0]) if error.args else type(error).__name__


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
