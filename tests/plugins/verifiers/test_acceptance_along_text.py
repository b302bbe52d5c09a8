"""Acceptance computed along text drawn from p equals acceptance enumerated over drafts."""

import itertools
import math

import pytest
import torch

from draftwood.plugins.verifiers.acceptance import accepted_along_text

V, D, K = 3, 3, 3
TEXTS = list(itertools.product(range(V), repeat=D))


class Joint:
    """A random joint p and a mixture q, both as functions of a prefix."""

    def __init__(self, seed: int, sharp: float = 2.0) -> None:
        torch.manual_seed(seed)
        self.whole = torch.randn((V,) * D, dtype=torch.float64).mul(2).flatten().softmax(0)
        self.whole = self.whole.view((V,) * D)
        self.prior = torch.randn(K, dtype=torch.float64).softmax(0)
        self.branches = torch.randn(K, D, V, dtype=torch.float64).mul(sharp).softmax(-1)
        self.greedy = self.branches.argmax(-1).tolist()

    def p(self, prefix: tuple[int, ...]) -> torch.Tensor:
        rest = self.whole[prefix]
        probs = rest.reshape(V, -1).sum(1)
        return probs / probs.sum()

    def q(self, prefix: tuple[int, ...], greedy: bool = False) -> torch.Tensor:
        total = torch.zeros(V, dtype=torch.float64)
        for z in range(K):
            probs = (
                torch.eye(V, dtype=torch.float64)[self.greedy[z]] if greedy else self.branches[z]
            )
            total += (
                self.prior[z]
                * math.prod(probs[m, x] for m, x in enumerate(prefix))
                * probs[len(prefix)]
            )
        return total / total.sum()

    def over_texts(self) -> dict[str, float]:
        """The function under test, averaged over texts with their probabilities under p."""
        y = torch.tensor(TEXTS)
        p = torch.stack([torch.stack([self.p(t[:i]) for i in range(D)]) for t in TEXTS])
        rows = len(TEXTS)
        accepted = accepted_along_text(
            p, self.prior.expand(rows, K), self.branches.expand(rows, K, D, V), y
        )
        weights = torch.stack([self.whole[t] for t in TEXTS])
        return {name: (weights * value).sum().item() for name, value in accepted.items()}

    def by_ratio(self, greedy: bool) -> float:
        total = 0.0
        for draft in TEXTS:
            drawn, passed = 1.0, 1.0
            for i, x in enumerate(draft):
                q = self.q(draft[:i], greedy)
                drawn *= q[x]
                if drawn == 0:
                    break
                passed *= min(1.0, (self.p(draft[:i])[x] / q[x]).item())
                # Drafts that share a prefix share its acceptance: count each prefix once.
                total += drawn * passed / V ** (D - 1 - i)
        return float(total)

    def by_block(self) -> float:
        """Block verification: reached[i] = min(1, reached[i-1] p/q), sum of E_q."""
        total = 0.0
        for draft in TEXTS:
            drawn, kept = 1.0, 1.0
            for i, x in enumerate(draft):
                q = self.q(draft[:i])
                drawn *= q[x]
                kept = min(1.0, kept * (self.p(draft[:i])[x] / q[x]).item())
                total += drawn * kept / V ** (D - 1 - i)
        return float(total)

    def by_match(self, chains: list[list[int]]) -> float:
        """A prefix tree of chains: the sum of its nodes' probabilities."""
        nodes = {tuple(chain[: i + 1]) for chain in chains for i in range(D)}
        return sum(self.whole[node].sum().item() for node in nodes)


@pytest.mark.parametrize("seed", range(3))
def test_accepted_drafts_equal_enumeration_for_every_rule(seed):
    joint = Joint(seed)
    found = joint.over_texts()
    likeliest: list[int] = []
    for _ in range(D):
        likeliest.append(int(joint.q(tuple(likeliest)).argmax()))
    single = sum(joint.prior[z].item() * joint.by_match([joint.greedy[z]]) for z in range(K))
    expected = {
        "mixture_ratio": joint.by_ratio(greedy=False),
        "mixture_block": joint.by_block(),
        "branch_ratio": joint.by_ratio(greedy=True),
        "branch_match": single,
        "likeliest_match": joint.by_match([likeliest]),
        "tree_match": joint.by_match(joint.greedy),
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-12), name
    assert found["mixture_ratio"] < found["mixture_block"] < found["mixture_bound"]
    assert found["branch_match"] <= found["branch_ratio"]


def test_equal_distributions_accept_every_draft():
    joint = Joint(0)
    joint.branches = joint.branches[:1].expand(K, D, V)
    joint.whole = torch.einsum("a,b,c->abc", *joint.branches[0])
    found = joint.over_texts()
    for name in ("mixture_ratio", "mixture_block", "mixture_bound"):
        assert found[name] == pytest.approx(D)


def test_greedy_distributions_accept_until_the_first_difference():
    """Temperature 0: p and branches are one-hot; a branch that differs once stays excluded."""
    eye = torch.eye(V, dtype=torch.float64)
    y = torch.tensor([[0, 1, 2]])
    branches = torch.stack([eye[[0, 1, 0]], eye[[0, 0, 2]], eye[[1, 1, 2]]])[None]
    prior = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    found = accepted_along_text(eye[y], prior, branches, y)
    assert found["tree_match"].item() == 2
    assert found["branch_match"].item() == pytest.approx(0.5 * 2 + 0.3 * 1)
    assert found["mixture_ratio"].item() == pytest.approx(0.8 + 0.5)
    assert found["likeliest_match"].item() == 2
