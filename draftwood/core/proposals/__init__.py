"""Proposals: the drafter's distributions over the next tokens, one class for each form.

A proposal gives the distribution of the next token after any path of draft tokens. The forms
differ in what it depends on: the depth (*factorized*, DFlash), the parent token (*Markov*,
DFlash 2), K branch weights carried along the path (*mixture*, DBlast), or the whole path
(*autoregressive*, a forward pass per level). Tree policies use this interface only, so every
policy grows trees over every form.
"""

from typing import TYPE_CHECKING, Any

from draftwood.core.proposals.base import Children, Frontier, Proposal
from draftwood.core.proposals.best_first_search import best_first_search
from draftwood.core.proposals.factorized import FactorizedProposal
from draftwood.core.proposals.lookup import LookupPaths, LookupProposal
from draftwood.core.proposals.markov import MarkovProposal
from draftwood.core.proposals.mixture import MixtureProposal
from draftwood.core.proposals.table import Path, Row, Table, path_table
from draftwood.core.proposals.vocabulary import Vocabulary
from draftwood.core.renames import missing_attribute

__all__ = [
    "Children",
    "FactorizedProposal",
    "Frontier",
    "LookupPaths",
    "LookupProposal",
    "MarkovProposal",
    "MixtureProposal",
    "Path",
    "Proposal",
    "Row",
    "Table",
    "Vocabulary",
    "best_first_search",
    "path_table",
]

if not TYPE_CHECKING:  # a type checker would take every name for defined

    def __getattr__(name: str) -> Any:
        raise missing_attribute(__name__, name)
