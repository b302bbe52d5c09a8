"""Proposals: the drafter's distribution over the next few tokens, one class per form of
distribution.

A proposal answers "given this path of draft tokens, what comes next?". The forms differ in what
the answer depends on: nothing but the depth (*factorized*, DFlash), the parent token (*Markov*,
DFlash 2), the K branch weights carried along the path (*mixture*, DBlast), or everything
(*autoregressive*: a pass per level). Tree policies use this interface only, so every policy grows
trees over every form.
"""

from draftwood.core.proposals.base import Children, Frontier, Proposal, Table
from draftwood.core.proposals.best_first_search import best_first_search
from draftwood.core.proposals.factorized import FactorizedProposal
from draftwood.core.proposals.lookup import LookupPaths, LookupProposal, lazy_table
from draftwood.core.proposals.markov import MarkovProposal
from draftwood.core.proposals.mixture import MixtureProposal
from draftwood.core.proposals.vocabulary import Vocabulary

__all__ = [
    "Children",
    "FactorizedProposal",
    "Frontier",
    "LookupPaths",
    "LookupProposal",
    "MarkovProposal",
    "MixtureProposal",
    "Proposal",
    "Table",
    "Vocabulary",
    "best_first_search",
    "lazy_table",
]
