"""The five interfaces. Four are kinds of plugin; `Target` is what they all work for.

Plugins are immutable. Drafter and target open mutable per-request sessions, which own tensors;
controllers keep frozen state that goes in and comes out; policies and verifiers keep none.
"""

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
