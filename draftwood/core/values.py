"""The values that pass between the parts of a round. Frozen; nobody writes to their tensors.

Requests are lists and trees are ragged: nothing here has a batch axis. A forward pass over several
requests packs them inside the target.
"""

from functools import cached_property

from attrs import astuple, field, frozen
from torch import Tensor

from draftwood.core.tree import TokenTree


@frozen
class Limits:
    """What a budget controller allows this round.

    Attributes:
        nodes: Most draft nodes; 0 is a plain step without a draft.
        depth: Depth of the deepest draft node allowed; None for the proposal's own limit.
        floors: Log path scores. A deterministic tree that adds nodes by falling score may end
            before node i if the score of node i is below floors[i - 1]: neither that node nor any
            later one would pay for itself.
        pass_price: Committed tokens that a forward pass of the drafter's model must add to pay for
            its time; 0 if it has no price. A drafter that can propose without a forward pass may
            skip one that does not pay.
    """

    nodes: int
    depth: int | None = None
    floors: tuple[float, ...] = ()
    pass_price: float = 0.0


@frozen
class RoundContext:
    """What is known when a round starts; nothing in it depends on the round's own draws.

    Attributes:
        round: 0-based index in the request.
        context: Committed tokens, the anchor included.
        remaining: Tokens that the request may still commit, at least 1.
        last_draft: Rounds since the drafter last ran (0: in the round before); None if it has not.
        passes: Forward passes of the drafter's model for the proposal; 1 before it is made.
    """

    round: int
    context: int
    remaining: int
    last_draft: int | None = None
    passes: int = 1


@frozen(eq=False)
class Forwarded:
    """What the target returns for one request.

    The tensors are not written to afterwards, so they can be kept.

    Attributes:
        logits: (N+1, V), row i after node i. For a prefill (1, V), after the last token.
        features: (N+1, len(taps) * H), the outputs of the tapped layers side by side; None if no
            layer is tapped. For a prefill of n tokens (n, len(taps) * H).
    """

    logits: Tensor
    features: Tensor | None = None


@frozen
class Verdict:
    """A verifier's decision. The round commits the accepted drafts and the bonus.

    Attributes:
        accepted: Node indices of the accepted path, the anchor (0) first.
        bonus: One more token, drawn after the last accepted node; None if the text ends with that
            node (`NodeDistributions.ends`).
        near_ties: Decisions on the path that rounding could have changed, if the verifier counts
            them.
    """

    accepted: tuple[int, ...]
    bonus: int | None
    near_ties: int = field(default=0, eq=False)


@frozen
class Timings:
    """Seconds of one round or request by stage.

    Attributes:
        prefill: The prompt's forward pass.
        draft: The proposal.
        grow: The tree and its budget.
        verify: The target's forward pass.
        judge: The decision.
        commit: Moving the accepted K/V.
        other: Masks, copies, stop rules, streaming, and committed tokens that a drafter receives
            late because it did not run.
    """

    prefill: float = 0.0
    draft: float = 0.0
    grow: float = 0.0
    verify: float = 0.0
    judge: float = 0.0
    commit: float = 0.0
    other: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of all stages."""
        seconds: tuple[float, ...] = astuple(self)
        return sum(seconds)


@frozen(eq=False)
class RoundStats:
    """One round as observers and controllers see it: on the host, after streaming.

    Attributes:
        request: Number of the request.
        round: 0-based index in the request.
        context: Committed tokens before the round, the anchor included.
        drafted: Whether the drafter ran.
        grown: Draft nodes grown.
        budget: Draft nodes verified.
        accepted: Drafts committed.
        committed: Tokens committed after stop rules: accepted + bonus, unless a stop rule cut them.
        tree: The verified tree.
        verdict: The decision, before stop rules.
        timings: Seconds by stage.
        passes: Forward passes of the drafter's model, those of the tree's levels included.
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
        """Depth of the deepest draft that the accepted path could have included."""
        last = self.verdict.accepted[-1]
        further = self.verdict.bonus is not None and bool(self.tree.children[last])
        return self.accepted + further
