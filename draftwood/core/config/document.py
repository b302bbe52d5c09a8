"""Settings as a tree of values with their places in the file.

YAML files, Python mappings and `--set` all become the same tree; `extends` and `--set` are merged
here, before validation. YAML is read by the rules of 1.2, not PyYAML's 1.1: `1e-5` is a float,
`off` and `yes` are text, only `true` and `false` are booleans, and duplicate keys are errors.
"""

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import yaml
from attrs import evolve, frozen

from draftwood.core.errors import ConfigError, Problem


@frozen
class Node:
    """One value.

    Attributes:
        data: None, bool, int, float, str, Path, list of nodes or dict of nodes.
        where: Place of the value, "file:line:col".
        key: Place of its key, for errors about the key.
        base: The folder that relative paths start from.
        builtin: Whether a builtin pipeline says it.
    """

    data: Any
    where: str
    key: str
    base: Path
    builtin: bool = False

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.data, dict)


MAX_BYTES, MAX_DEPTH, MAX_VALUES = 1 << 20, 64, 100_000
"""Limits of a document. Aliases can make 10^9 values of 600 bytes, and brackets nest as deep as
Python's stack."""


class _Loader(yaml.SafeLoader):
    """PyYAML with the scalars of YAML 1.2 (the core schema, lower-case words only)."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own registry
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """PyYAML's, which calls itself for every level."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            message = f"values are nested more than {MAX_DEPTH} levels deep"
            raise yaml.MarkedYAMLError(problem=message, problem_mark=self.peek_event().start_mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


_TAG = "tag:yaml.org,2002:"
for _kind, _pattern, _first in (
    ("null", r"~|null|", ["~", "n", ""]),
    ("bool", r"true|false", list("tf")),
    ("int", r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    (
        "float",
        r"[-+]?(([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.inf)|\.nan",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(f"(?:{_pattern})$"), _first)


def read_file(path: Path, *, shown: str | None = None, builtin: bool = False) -> Node:
    """The document in a YAML file.

    Args:
        path: The file.
        shown: The file's name in errors; the path by default.
        builtin: Whether it is a builtin pipeline.

    Raises:
        ConfigError: The file cannot be read, or as for `read_text`.
    """
    name = shown or str(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError([Problem(name, "", f"is larger than {MAX_BYTES} bytes")])
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(name, "", f"is not UTF-8 text ({error})")]) from error
    except OSError as error:
        raise ConfigError([Problem(name, "", error.strerror or "cannot be read")]) from error
    return read_text(text, name, path.resolve().parent, builtin=builtin)


def read_text(text: str, name: str, base: Path, *, builtin: bool = False) -> Node:
    """The document in a YAML text.

    Raises:
        ConfigError: With every problem of the syntax.
    """
    try:
        root = yaml.compose(text, _Loader)
    except yaml.MarkedYAMLError as error:
        where = _place(name, error.problem_mark or error.context_mark)
        detail = ", ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError([Problem(where, "", f"is not YAML: {detail}")]) from error
    except yaml.YAMLError as error:
        raise ConfigError([Problem(name, "", f"is not YAML: {error}")]) from error
    reader = _Reader(name, base, builtin)
    document = Node({}, name, name, base, builtin) if root is None else reader.node(root)
    if reader.problems:
        raise ConfigError(reader.problems)
    return document


def from_python(value: Any, where: str = "<mapping>", *, builtin: bool = False) -> Node:
    """The document of a Python mapping; relative paths start from the working directory.

    Raises:
        ConfigError: With every value that YAML could not contain.
    """
    base, problems = Path.cwd(), list[Problem]()

    def convert(value: Any, path: str, depth: int = 0) -> Node:
        data: Any
        match value:
            case Mapping() | list() | tuple() if depth == MAX_DEPTH:
                message = f"values are nested more than {MAX_DEPTH} levels deep"
                raise ConfigError([Problem(where, path[:80].lstrip("."), message)])
            case Mapping():
                data = {
                    str(key): convert(item, f"{path}.{key}", depth + 1)
                    for key, item in value.items()
                }
            case list() | tuple():
                items = enumerate(value)
                data = [convert(item, f"{path}[{index}]", depth + 1) for index, item in items]
            case Enum():
                data = value.value
            case None | bool() | int() | float() | str() | Path():
                data = value
            case _:
                message = f"a {type(value).__name__} cannot be a setting"
                problems.append(Problem(where, path.lstrip("."), message))
                data = None
        return Node(data, where, where, base, builtin)

    document = convert(value, "")
    if problems:
        raise ConfigError(problems)
    return document


def merge(under: Node, over: Node) -> Node:
    """`under` changed by `over`: mappings merge key by key, anything else replaces.

    A mapping that names another plugin (`use`) replaces, since options belong to a plugin.
    """
    if not (under.is_mapping and over.is_mapping):
        return over
    use = over.data.get("use")
    if use is not None and "use" in under.data and under.data["use"].data != use.data:
        return over
    data = dict(under.data)
    for key, value in over.data.items():
        data[key] = merge(data[key], value) if key in data else value
    return evolve(over, data=data)


def apply_settings(document: Node, settings: Iterable[str]) -> Node:
    """The document changed by each "section.option=value"; values are YAML.

    Every `use` is applied first, so that the order of settings does not matter. Of two settings
    for one key the later applies.

    Raises:
        ConfigError: With every setting that is not of this form.
    """
    problems: list[Problem] = []
    overlays: list[tuple[list[str], Node]] = []
    for setting in settings:
        path, equals, text = setting.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            message = f"{setting!r} is not section.option=value"
            problems.append(Problem("--set", "", message, ("example: --set tree.max_nodes=64",)))
            continue
        where = f"--set {path.strip()}"
        try:
            value = read_text(text, where, Path.cwd()).data if text.strip() else None
        except ConfigError as error:
            problems += error.problems
            continue
        overlays.append((keys, Node(value, where, where, Path.cwd())))
    if problems:
        raise ConfigError(problems)
    for keys, node in sorted(overlays, key=lambda overlay: overlay[0][-1] != "use"):
        document = _put(document, keys, node)
    return document


def _put(node: Node, keys: list[str], value: Node) -> Node:
    """The node with `value` at a path of keys, mappings made where there are none."""
    key, *rest = keys
    data = dict(node.data) if node.is_mapping else {}
    if rest:
        inner = data.get(key, Node(None, value.where, value.key, value.base))
        value = _put(inner, rest, value)
    elif key == "use" and key in data and data[key].data != value.data:
        data = {}
    data[key] = value
    return evolve(node, data=data)


class _Reader:
    """Converts PyYAML's nodes to `Node`s and collects every problem."""

    def __init__(self, name: str, base: Path, builtin: bool) -> None:
        self.name, self.base, self.builtin = name, base, builtin
        self.problems: list[Problem] = []
        self._open: list[int] = []
        self._values = 0

    def node(self, node: yaml.Node, key: yaml.Node | None = None) -> Node:
        where = _place(self.name, node.start_mark)
        self._values += 1
        if self._values > MAX_VALUES:
            message = f"the document has more than {MAX_VALUES} values, aliases expanded"
            raise ConfigError([*self.problems, Problem(where, "", message)])
        if len(self._open) >= MAX_DEPTH:
            message = f"aliases nest values more than {MAX_DEPTH} levels deep"
            raise ConfigError([*self.problems, Problem(where, "", message)])
        if id(node) in self._open:
            self.problems.append(Problem(where, "", "an alias refers to a value that contains it"))
            return Node(None, where, where, self.base, self.builtin)
        self._open.append(id(node))
        data: Any
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            data = self._mapping(node)
        elif isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            data = [self.node(item) for item in node.value]
        else:
            data = self._scalar(node, where)
        self._open.pop()
        of_key = where if key is None else _place(self.name, key.start_mark)
        return Node(data, where, of_key, self.base, self.builtin)

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Node]:
        found: dict[str, Node] = {}
        for key, value in node.value:
            where = _place(self.name, key.start_mark)
            if key.tag != f"{_TAG}str":
                self.problems.append(Problem(where, "", "a key must be a word"))
            elif key.value in found:
                first = found[key.value].key
                message = f"duplicate key {key.value!r}; first at {first}"
                self.problems.append(Problem(where, "", message))
            else:
                found[key.value] = self.node(value, key)
        return found

    def _scalar(self, node: yaml.Node, where: str) -> Any:
        match node.tag.removeprefix(_TAG):
            case "null":
                return None
            case "str":
                return node.value
            case "bool" if node.value in ("true", "false"):
                return node.value == "true"
            case "int" | "float" as kind:
                try:
                    text = node.value.lower().replace(".inf", "inf").replace(".nan", "nan")
                    return int(text) if kind == "int" else float(text)
                except (ValueError, AttributeError):
                    shown = node.value if isinstance(node.value, str) else ""
                    if len(shown) > 1000:
                        message = f"a number of {len(shown)} digits is too long"
                        self.problems.append(Problem(where, "", message))
                        return None
        self.problems.append(Problem(where, "", f"the tag {node.tag!r} cannot be used here"))
        return None


def _place(name: str, mark: yaml.Mark | None) -> str:
    return name if mark is None else f"{name}:{mark.line + 1}:{mark.column + 1}"
