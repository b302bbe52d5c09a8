"""The values that pass between the parts of a round. Frozen; tensors in them are not written to.

Requests are lists and trees are ragged: nothing here has a batch axis. A forward over several
requests packs them inside the target.
"""

from functools import cached_property

from attrs import field, frozen
from torch import Tensor

from draftwood.core.tree import TokenTree


@frozen
class Limits:
    """What a budget controller allows this round.

    nodes: most draft nodes; 0 is a plain step, for which nothing is drafted.
    depth: deepest draft node, None for the proposal's own limit.
    floors: log path scores; a deterministic tree that adds nodes by falling score may end before
    node i if that node's score is below floors[i - 1]: neither it nor any later one would pay.
    pass_price: committed tokens that a pass of the drafter's model must add to pay for its time; a
    drafter that has something to propose without one may leave it out. 0 where nobody prices it.
    """

    nodes: int
    depth: int | None = None
    floors: tuple[float, ...] = ()
    pass_price: float = 0.0


@frozen
class RoundContext:
    """What is known when a round starts, and nothing that depends on its own draws.

    round: 0-based index in the request. context: committed tokens, the anchor included.
    remaining: tokens the request may still commit, at least 1. last_draft: rounds since the
    drafter last ran (0: in the round before), None if it never has. passes: what the proposal took
    of the drafter's model; 1 before it is made.
    """

    round: int
    context: int
    remaining: int
    last_draft: int | None = None
    passes: int = 1


@frozen(eq=False)
class Forwarded:
    """What the target returns for one request.

    logits: (N+1, V), row i after node i. features: (N+1, len(taps) * H), the outputs of the tapped
    layers side by side, None if nothing is tapped. For a prefill of n tokens logits is (1, V), for
    the last of them, and features (n, ...), for all. Neither is written to again: whoever gets
    them may keep them.
    """

    logits: Tensor
    features: Tensor | None = None


@frozen
class Verdict:
    """accepted: node indices of the accepted path, the anchor (0) first. bonus: one more token,
    drawn after the last of them. The round commits len(accepted) tokens: drafts plus bonus.
    near_ties: decisions on the way that rounding could have changed, where a verifier counts
    them."""

    accepted: tuple[int, ...]
    bonus: int
    near_ties: int = field(default=0, eq=False)


@frozen
class Timings:
    """Seconds of one round or request by stage. verify is the target's forward, judge the
    decision; `other` is the rest: masks, copies, stop rules, streaming, and a drafter's catching
    up on tokens committed while it was off."""

    prefill: float = 0.0
    draft: float = 0.0
    grow: float = 0.0
    verify: float = 0.0
    judge: float = 0.0
    commit: float = 0.0
    other: float = 0.0

    @property
    def total(self) -> float:
        return (
            self.prefill
            + self.draft
            + self.grow
            + self.verify
            + self.judge
            + self.commit
            + self.other
        )


@frozen(eq=False)
class RoundStats:
    """One round as observers and controllers see it: host-side, frozen, after streaming.

    request: identifier. round: 0-based. context: committed tokens before the round, anchor
    included. drafted: whether the drafter was asked. passes: how often its model ran, levels of a
    tree included. grown: draft nodes grown. budget: of which verified.
    accepted: drafts committed. committed: tokens committed after stop rules (accepted + bonus
    unless a stop cut them). tree: the verified tree. verdict: the decision before any cut.
    """

    request: int
    round: int
    context: int
    drafted: bool
    grown: int
    budget: int
    accepted: int
    committed: int
    tree: TokenTree
    verdict: Verdict
    timings: Timings
    passes: int = 1

    @cached_property
    def offered(self) -> int:
        """Deepest level at which the accepted path could have gone on."""
        last = self.verdict.accepted[-1]
        return self.accepted + bool(self.tree.children[last])
