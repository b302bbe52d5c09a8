"""The JSON Schema (draft 2020-12) of pipeline files, for the plugins that are installed.

Editors complete and check pipelines with it: `# yaml-language-server: $schema=FILE` as a file's
first line. It is made from the same shapes that the reader uses.
"""

import inspect
from enum import Enum
from pathlib import Path
from typing import Any

import attrs

from draftwood.core.config.defaults import DESCRIPTIONS
from draftwood.core.config.pipeline import RuntimeConfig, TargetConfig, builtin_pipelines
from draftwood.core.config.structure import nestable_plugins
from draftwood.core.options import GenerationOptions
from draftwood.core.registry import option_types as types
from draftwood.core.registry.loader import installed
from draftwood.core.registry.plugin import Kind
from draftwood.core.registry.registry import Registry

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", Path: "string"}
_BOUNDS = {">=": "minimum", ">": "exclusiveMinimum", "<=": "maximum", "<": "exclusiveMaximum"}


def pipeline_schema(registry: Registry | None = None) -> dict[str, Any]:
    """The schema of a pipeline file.

    Args:
        registry: The plugins to describe; the installed ones by default.
    """
    registry = registry or installed()
    return {
        "$schema": DIALECT,
        "title": "draftwood pipeline",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "extends": {
                "type": "string",
                "description": "the file that this one changes, relative to it, or a builtin name: "
                + ", ".join(builtin_pipelines()),
            },
            "target": _optional(options_schema(TargetConfig)),
            **{kind.value: _optional(_component(kind, registry)) for kind in Kind},
            "generation": _optional(options_schema(GenerationOptions)),
            "runtime": _optional(options_schema(RuntimeConfig)),
        },
    }


def options_schema(cls: type, registry: Registry | None = None) -> dict[str, Any]:
    """The schema of a frozen attrs class of options.

    No option is required: a file may inherit it by `extends`, which only the reader resolves.

    Args:
        cls: The options class.
        registry: The plugins that options may name; the installed ones by default.
    """
    texts = types.meanings(cls)
    parts, plugins = types.plugins_field(cls), dict[str, Any]()
    if parts is not None:
        registry = registry or installed()
        for name in nestable_plugins(parts[1].kind, registry):
            plugin = registry.get(parts[1].kind, name).plugin
            plugins[name] = {
                **_optional(options_schema(plugin.options)),
                "description": plugin.summary,
            }
    return {
        "type": "object",
        "description": inspect.cleandoc(cls.__doc__ or cls.__name__).partition("\n")[0],
        "additionalProperties": False,
        "properties": {
            name: {
                **shape_schema(shape),
                **({"description": texts[name]} if name in texts else {}),
                **_default(attribute),
                **_bounds(attribute.validator),
            }
            for name, (attribute, shape) in types.fields_of(cls).items()
            if not isinstance(shape, types.Plugins)
        }
        | plugins,
    }


def shape_schema(shape: types.Shape) -> dict[str, Any]:
    """The schema of one option's type."""
    match shape:
        case types.Scalar(type=kind):
            return {"type": _TYPES[kind]}
        case types.Choice(values=values):
            return {"enum": [written for written, _ in values]}
        case types.Null():
            return {"type": "null"}
        case types.Many(item=item):
            return {"type": "array", "items": shape_schema(item)}
        case types.Row(items=items):
            return {
                "type": "array",
                "prefixItems": [shape_schema(item) for item in items],
                "items": False,
                "minItems": len(items),
            }
        case types.Nested(type=cls):
            return options_schema(cls)
        case types.Plugins():
            return {"type": "object"}
        case types.Either(members=members):
            return _any_of([shape_schema(member) for member in members])


def _component(kind: Kind, registry: Registry) -> dict[str, Any]:
    """A mapping whose allowed options are those of the plugin that `use` names."""
    names = registry.names(kind)
    entries = [registry.get(kind, name) for name in names]
    return {
        "type": "object",
        **({"description": DESCRIPTIONS[kind]} if kind in DESCRIPTIONS else {}),
        "properties": {
            "use": {
                "enum": names,
                "description": "\n".join(f"{e.plugin.name}: {e.plugin.summary}" for e in entries),
            }
        },
        "allOf": [
            {
                "if": {"properties": {"use": {"const": entry.plugin.name}}, "required": ["use"]},
                "then": _with_use(options_schema(entry.plugin.options, registry)),
            }
            for entry in entries
        ],
    }


def _with_use(schema: dict[str, Any]) -> dict[str, Any]:
    """A plugin's options beside `use`. No "type": an empty section satisfies every `if`."""
    rest = {key: value for key, value in schema.items() if key != "type"}
    return {**rest, "properties": {"use": True, **schema["properties"]}}


def _optional(schema: dict[str, Any]) -> dict[str, Any]:
    """A section may be empty, which means the same as no section."""
    return {**schema, "type": ["object", "null"]}


def _default(attribute: "attrs.Attribute[Any]") -> dict[str, Any]:
    value = attribute.default
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, (bool, int, float, str)) or value is None:
        return {"default": value}
    return {}


def _bounds(validator: Any) -> dict[str, Any]:
    """The bounds of attrs' number validators, alone or combined.

    A bound applies to the whole option: JSON Schema ignores it for values that are no numbers,
    such as "auto" and null.
    """
    inner = getattr(validator, "_validators", None) or getattr(validator, "validator", None)
    if isinstance(inner, tuple):
        return {key: value for one in inner for key, value in _bounds(one).items()}
    if inner is not None:
        return _bounds(inner)
    keyword = _BOUNDS.get(getattr(validator, "compare_op", ""))
    return {keyword: validator.bound} if keyword else {}


def _any_of(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    """One of several; plain types become one list of types, which editors show best."""
    if all(set(schema) == {"type"} for schema in schemas):
        types = list(dict.fromkeys(schema["type"] for schema in schemas))
        return {"type": types if len(types) > 1 else types[0]}
    return {"anyOf": schemas}
