"""Lossless speculative decoding, one plugin per decision.

    import draftwood

    pipeline = draftwood.load_pipeline("bastion")
    print(pipeline.generate("def main(").text)

Public are this module and `draftwood.testing`, with the names in their `__all__`, and besides them
the command line and the keys of YAML files. All other modules are private: they may change in any
release.

Importing this module imports no torch: a name is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from draftwood.version import __version__

if TYPE_CHECKING:
    from draftwood.core.build import load_pipeline
    from draftwood.core.distributions import sampling_probs, stable_topk
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
    from draftwood.core.generation import Chunk, Generation, Pipeline
    from draftwood.core.interfaces import (
        BudgetController,
        ControllerState,
        CostProbe,
        Drafter,
        DraftSession,
        DraftWork,
        Forecast,
        Kernels,
        NodeDistributions,
        ShouldExpand,
        Target,
        TargetSession,
        TreePolicy,
        Verifier,
    )
    from draftwood.core.options import GenerationOptions, Sampling
    from draftwood.core.proposals import (
        Children,
        FactorizedProposal,
        Frontier,
        LookupPaths,
        LookupProposal,
        MarkovProposal,
        MixtureProposal,
        Proposal,
        Vocabulary,
    )
    from draftwood.core.randomness import Randomness, Seeded
    from draftwood.core.registry.hookspecs import hookimpl
    from draftwood.core.registry.plugin import (
        ControllerTraits,
        DrafterTraits,
        Kind,
        Plugin,
        TrainablePlugin,
        TreeTraits,
        VerifierTraits,
    )
    from draftwood.core.stats import RequestStats
    from draftwood.core.tree import TokenTree, TreeBuilder
    from draftwood.core.values import Forwarded, Limits, RoundContext, RoundStats, Timings, Verdict

__all__ = [
    "BudgetController",
    "CheckpointError",
    "Children",
    "Chunk",
    "CompositionError",
    "ConfigError",
    "ControllerState",
    "ControllerTraits",
    "CostProbe",
    "DraftSession",
    "DraftWork",
    "Drafter",
    "DrafterTraits",
    "DraftwoodError",
    "Draws",
    "FactorizedProposal",
    "Forecast",
    "Forwarded",
    "Frontier",
    "Generation",
    "GenerationOptions",
    "Kernels",
    "Kind",
    "Limits",
    "LookupPaths",
    "LookupProposal",
    "MarkovProposal",
    "MixtureProposal",
    "NodeDistributions",
    "NonFiniteLogits",
    "PairingError",
    "Pipeline",
    "Plugin",
    "PluginError",
    "Problem",
    "Proposal",
    "Randomness",
    "RequestError",
    "RequestStats",
    "RoundContext",
    "RoundStats",
    "Sampling",
    "Seeded",
    "ShouldExpand",
    "Target",
    "TargetSession",
    "TestingError",
    "Timings",
    "TokenTree",
    "TrainablePlugin",
    "TreeBuilder",
    "TreeError",
    "TreePolicy",
    "TreeTraits",
    "UnsupportedTarget",
    "Verdict",
    "Verifier",
    "VerifierTraits",
    "Vocabulary",
    "__version__",
    "hookimpl",
    "load_pipeline",
    "sampling_probs",
    "stable_topk",
]

_MODULES = (
    "draftwood.core.draws",
    "draftwood.core.errors",
    "draftwood.core.options",
    "draftwood.core.registry.hookspecs",
    "draftwood.core.registry.plugin",
    # The following import torch.
    "draftwood.core.build",
    "draftwood.core.distributions",
    "draftwood.core.generation",
    "draftwood.core.interfaces",
    "draftwood.core.proposals",
    "draftwood.core.randomness",
    "draftwood.core.stats",
    "draftwood.core.tree",
    "draftwood.core.values",
)
"""Where the names of `__all__` are defined, in the order of the search."""


def __getattr__(name: str) -> Any:
    """Load a public name from the module that defines it, once."""
    if name in __all__:
        for module in map(import_module, _MODULES):
            if hasattr(module, name):
                value = globals()[name] = getattr(module, name)
                return value
    from draftwood.core.renames import missing_attribute

    raise missing_attribute(__name__, name)


def __dir__() -> list[str]:
    return sorted(__all__)
