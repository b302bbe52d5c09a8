"""Lossless speculative decoding, one plugin per decision.

    import draftwood

    pipeline = draftwood.load_pipeline("bastion")
    print(pipeline.generate("def main(").text)

Importing this package imports no torch: every name below is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftwood.core.build import load_pipeline
    from draftwood.core.draws import Draws
    from draftwood.core.errors import (
        CheckpointError,
        CompositionError,
        ConfigError,
        DraftwoodError,
        NonFiniteLogits,
        PairingError,
        PluginError,
        Problem,
        RequestError,
        TestingError,
        TreeError,
        UnsupportedTarget,
    )
    from draftwood.core.generation import Pipeline
    from draftwood.core.options import GenerationOptions
    from draftwood.core.registry.hookspecs import hookimpl
    from draftwood.core.registry.plugin import (
        ControllerTraits,
        DrafterTraits,
        Kind,
        Plugin,
        TreeTraits,
        VerifierTraits,
    )

__version__ = "0.1.0"

_HOMES = {
    "draftwood.core.errors": (
        "CheckpointError",
        "CompositionError",
        "ConfigError",
        "DraftwoodError",
        "NonFiniteLogits",
        "PairingError",
        "PluginError",
        "Problem",
        "RequestError",
        "TestingError",
        "TreeError",
        "UnsupportedTarget",
    ),
    "draftwood.core.build": ("load_pipeline",),
    "draftwood.core.generation": ("Pipeline",),
    "draftwood.core.registry.hookspecs": ("hookimpl",),
    "draftwood.core.options": ("GenerationOptions",),
    "draftwood.core.registry.plugin": (
        "ControllerTraits",
        "DrafterTraits",
        "Draws",
        "Kind",
        "Plugin",
        "TreeTraits",
        "VerifierTraits",
    ),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "CheckpointError",
    "CompositionError",
    "ConfigError",
    "ControllerTraits",
    "DrafterTraits",
    "DraftwoodError",
    "Draws",
    "GenerationOptions",
    "Kind",
    "NonFiniteLogits",
    "PairingError",
    "Pipeline",
    "Plugin",
    "PluginError",
    "Problem",
    "RequestError",
    "TestingError",
    "TreeError",
    "TreeTraits",
    "UnsupportedTarget",
    "VerifierTraits",
    "__version__",
    "hookimpl",
    "load_pipeline",
]


def __getattr__(name: str) -> Any:
    """Load `name` from where it lives, once."""
    if name not in _HOME:
        raise AttributeError(f"module 'draftwood' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
