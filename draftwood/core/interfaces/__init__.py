"""The five interfaces. Four are kinds of plugin; `Target` is the model that they speed up.

Plugins are immutable. Drafter and target open mutable sessions for each request, which own tensors;
controllers take frozen state and return it; policies and verifiers keep none.
"""

from typing import TYPE_CHECKING, Any

from draftwood.core.interfaces.controller import (
    BudgetController,
    ControllerState,
    CostProbe,
    Forecast,
)
from draftwood.core.interfaces.drafter import Drafter, DraftSession, DraftWork
from draftwood.core.interfaces.target import Target, TargetSession
from draftwood.core.interfaces.tree import ShouldExpand, TreePolicy
from draftwood.core.interfaces.verifier import NodeDistributions, Verifier
from draftwood.core.kernels.protocol import Kernels
from draftwood.core.renames import missing_attribute

__all__ = [
    "BudgetController",
    "ControllerState",
    "CostProbe",
    "DraftSession",
    "DraftWork",
    "Drafter",
    "Forecast",
    "Kernels",
    "NodeDistributions",
    "ShouldExpand",
    "Target",
    "TargetSession",
    "TreePolicy",
    "Verifier",
]

if not TYPE_CHECKING:  # a type checker would take every name for defined

    def __getattr__(name: str) -> Any:
        raise missing_attribute(__name__, name)
