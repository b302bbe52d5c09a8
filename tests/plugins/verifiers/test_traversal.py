"""`traversal`: a leaf's draw decides about its ancestors, so rounds must not share draws."""

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


def judged_again(verifier: Verifier, rounds: tuple[int, int]) -> int:
    """A chain of two and then two siblings are judged, in every way that it can end. Returns how
    often the chain's end was judged and the next tree's last node stood at its position."""
    again = 0

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
        again += rejected
    return again


@pytest.mark.parametrize("verifier", [Traversal(), MultiRound()], ids=["traversal", "multi_round"])
def test_no_two_rounds_share_a_draw(verifier: Verifier) -> None:
    assert judged_again(verifier, (0, 1)) > 0


def test_what_tells_draws_of_two_rounds_apart_is_the_round() -> None:
    """Negative control: in one round, node 2 at the position that it had before is drawn alike."""
    with pytest.raises(TestingError, match="made twice"):
        judged_again(Traversal(), (0, 0))
    assert judged_again(MultiRound(), (0, 0)) > 0  # it judges no position again
