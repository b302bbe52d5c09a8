"""Calls of plugins while decoding: what a plugin raises becomes an error that names the plugin."""

import traceback
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, TypeVar

import torch

from draftwood.core.errors import DraftwoodError, PluginError
from draftwood.version import __version__

Result = TypeVar("Result")


def call(returns: type, method: Callable[..., Result], *args: Any) -> Result:
    """Call a plugin's method and check the type of its result.

    Args:
        returns: Class of the result; `object` for any.
        method: Bound method of a plugin.
        args: Its arguments.

    Raises:
        PluginError: The method raised, or returned something else. A DraftwoodError passes
            through, and so does an out-of-memory error, which is not the plugin's fault.
    """
    try:
        result = method(*args)
    except (DraftwoodError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error} (raised at {frame.filename}:{frame.lineno})"
        raise plugin_error(method, f"failed: {reason}") from error
    if not isinstance(result, returns):
        given = type(result).__name__
        raise plugin_error(method, f"returned {given}, not {returns.__name__}")
    return result


def plugin_error(method: Callable[..., Any], what: str) -> PluginError:
    """An error that names a plugin's method, and where known the distribution of its class."""
    owner = type(getattr(method, "__self__", None))
    name = f"{owner.__module__}:{owner.__qualname__}.{getattr(method, '__name__', '?')}"
    distribution = _distribution(owner.__module__)
    source = f" of '{distribution}'" if distribution else ""
    return PluginError(f"plugin {name}{source} {what}")


def _distribution(module: str) -> str | None:
    """Name and version of the distribution whose draftwood plugins lie beside `module`."""
    package = module.partition(".")[0]
    if package == "draftwood":
        return f"draftwood {__version__}"
    for point in entry_points(group="draftwood"):
        if point.dist is not None and point.module.partition(".")[0] == package:
            return f"{point.dist.name} {point.dist.version}"
    return None
