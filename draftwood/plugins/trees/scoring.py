"""The temperature and the depth that deterministic trees are grown with."""

from draftwood.core.proposals import Proposal
from draftwood.core.values import Limits


def scored(proposal: Proposal, score_temperature: float | None) -> Proposal:
    """`proposal` at the temperature that its trees are scored with.

    score_temperature: None for the request's own, but at least the proposal's
    `min_score_temperature`. Filters stay as they are. `match` stays exact whatever scores a tree
    (maths: any deterministic tree will do)."""
    own = proposal.sampling.temperature
    chosen = (
        max(own, proposal.min_score_temperature) if score_temperature is None else score_temperature
    )
    return proposal if chosen == own else proposal.tempered(chosen)


def depth_limit(proposal: Proposal, limits: Limits) -> int:
    """Deepest level that both the proposal and the controller allow."""
    if limits.depth is None:
        return proposal.max_depth
    return min(limits.depth, proposal.max_depth)
