"""Calls of plugins while decoding: what a plugin raises becomes an error that names the plugin."""

import traceback
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, TypeVar

import torch

from draftwood.core.errors import DraftwoodError, PluginError

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
        raise failure(method, error) from error
    if not isinstance(result, returns):
        raise PluginError(
            f"{_described(method)} returned {type(result).__name__}, not {returns.__name__}"
        )
    return result


def failure(method: Callable[..., Any], error: Exception) -> PluginError:
    """The PluginError for an error that a plugin's method caused."""
    message = f"{_described(method)} failed: {type(error).__name__}: {error}"
    if frames := traceback.extract_tb(error.__traceback__):
        message += f" (raised at {frames[-1].filename}:{frames[-1].lineno})"
    return PluginError(message)


def _described(method: Callable[..., Any]) -> str:
    """The method with its class, and the distribution that the class came from if it is known."""
    owner = type(getattr(method, "__self__", None))
    name = f"{owner.__module__}:{owner.__qualname__}.{getattr(method, '__name__', '?')}"
    distribution = _distribution(owner.__module__)
    return f"plugin {name} of '{distribution}'" if distribution else f"plugin {name}"


def _distribution(module: str) -> str | None:
    """Name and version of the distribution whose draftwood plugins lie beside `module`."""
    package = module.partition(".")[0]
    if package == "draftwood":
        return "draftwood"
    for point in entry_points(group="draftwood"):
        if point.dist is not None and point.module.partition(".")[0] == package:
            return f"{point.dist.name} {point.dist.version}"
    return None
