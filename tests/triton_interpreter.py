"""Kernels run in Triton's interpreter here, on numpy arrays, unless there is a GPU."""

import importlib.util
import inspect
from typing import Any

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed here", allow_module_level=True)

from triton import language as tl
from triton.runtime import interpreter


def _patch_builtin(module: Any, builder: Any, scope: Any) -> None:
    """As the interpreter's own, which looks through the whole module at each call of each helper:
    four fifths of a test's time. What was patched already is left alone."""
    for name in _builtins(module):
        member = getattr(module, name)
        if not tl.core.is_builtin(member):
            return
        interpreter._patch_attr(module, name, member, builder, scope)


def _builtins(module: Any, known: dict[Any, list[str]] = {}) -> list[str]:  # noqa: B006
    if module not in known:
        members = inspect.getmembers(module)
        known[module] = [name for name, member in members if tl.core.is_builtin(member)]
    return known[module]


interpreter._patch_builtin = _patch_builtin
