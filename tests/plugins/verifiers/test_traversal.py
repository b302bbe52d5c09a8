"""`traversal`: a leaf's draw decides about its ancestors, so rounds must have different draws."""

import pytest
import torch

from draftwood.core.draws import Draws
from draftwood.core.errors import TestingError
from draftwood.core.interfaces import Verifier
from draftwood.core.node_distributions import TargetDistributions
from draftwood.core.options import Sampling
from draftwood.core.tree import TokenTree
from draftwood.plugins.verifiers.multi_round import MultiRound
from draftwood.plugins.verifiers.traversal import Traversal
from draftwood.testing import Enumerating, outcomes

V = 3
FORMS = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.2, 0.7]], dtype=torch.float64)
Q = torch.tensor([[0.2, 0.2, 0.6], [0.5, 0.4, 0.1]], dtype=torch.float64)
CHAIN = TokenTree.from_lists([0, 2, 0], [-1, 0, 1], [0, 1, 2], [0.0] * 3, Draws.IID, Q)
STAR = TokenTree.from_lists([0, 2, 1], [-1, 0, 0], [0, 1, 1], [0.0] * 3, Draws.IID, Q)


def positions_judged_twice(verifier: Verifier, rounds: tuple[int, int]) -> int:
    """Judge a chain of two, then two siblings, for every outcome of the draws.

    Returns how often the second tree's last node was at the position of the chain's end.
    """
    repeated = 0

    def experiment(rng: Enumerating) -> bool:
        ids = [1, 0]
        distributions = TargetDistributions(FORMS.log(), CHAIN, ids, Sampling(1.0), (), rounds[0])
        verdict = verifier.judge(distributions, CHAIN, rng)
        drafts = [CHAIN.token_list[node] for node in verdict.accepted[1:]]
        ids = [*ids, *drafts, verdict.bonus]
        distributions = TargetDistributions(FORMS.log(), STAR, ids, Sampling(1.0), (), rounds[1])
        verifier.judge(distributions, STAR, rng)
        return not drafts

    for _, rejected, _ in outcomes(experiment):
        repeated += rejected
    return repeated


@pytest.mark.parametrize("verifier", [Traversal(), MultiRound()], ids=["traversal", "multi_round"])
def test_no_two_rounds_share_a_draw(verifier: Verifier) -> None:
    assert positions_judged_twice(verifier, (0, 1)) > 0


def test_traversal_in_one_round_makes_a_draw_twice() -> None:
    """Negative control: in the same round, node 2 at the same position has the same draw."""
    with pytest.raises(TestingError, match="made twice"):
        positions_judged_twice(Traversal(), (0, 0))
    assert positions_judged_twice(MultiRound(), (0, 0)) > 0  # it judges no position twice
