"""The rejection rules keep the target's law on drawn chains and trees; faulty ones do not."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import DRAFTERS, VOCAB, Adversary, engine, spiky_target

from draftwood.core.interfaces import DraftWork, NodeLaws, TreePolicy, Verifier
from draftwood.core.options import GenerationOptions, Sampling
from draftwood.core.randomness import Randomness
from draftwood.core.values import Limits, TokenTree, Verdict
from draftwood.plugins.controllers.fixed import Fixed
from draftwood.plugins.controllers.options import FixedOptions
from draftwood.plugins.trees.options import SampledOptions
from draftwood.plugins.trees.sampled import Sampled
from draftwood.plugins.verifiers import traversal
from draftwood.plugins.verifiers.match import Match
from draftwood.plugins.verifiers.multi_round import MultiRound
from draftwood.plugins.verifiers.ratio import Ratio
from draftwood.plugins.verifiers.residual import ratio, residual
from draftwood.plugins.verifiers.traversal import Traversal
from draftwood.testing import Enumerating, assert_lossless, outcomes

SHAPES = {
    "chain": SampledOptions(widths=(1, 1)),
    "iid": SampledOptions(widths=(2, 1), replacement=True),
    "iid-wide": SampledOptions(widths=(3,), replacement=True),
    "without": SampledOptions(widths=(2, 1)),
    "without-deep": SampledOptions(widths=(1, 2)),
}
RULES = {"match": Match, "ratio": Ratio, "multi_round": MultiRound, "traversal": Traversal}
CASES = [(rule, shape) for rule in RULES for shape in SHAPES if rule != "ratio" or shape == "chain"]
SAMPLINGS = {
    "T=1": GenerationOptions(temperature=1.0),
    "T=0.6,top_p=0.9": GenerationOptions(temperature=0.6, top_p=0.9),
    "greedy": GenerationOptions(),
}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize(("rule", "shape"), CASES)
def test_the_law_is_the_targets(rule: str, shape: str, drafter: str, sampling: str) -> None:
    pipeline = engine(
        DRAFTERS[drafter](2),
        Sampled(SHAPES[shape]),
        Fixed(FixedOptions(nodes=4)),
        verifier=RULES[rule](),
    )
    assert_lossless(pipeline, [0, 1], 4, SAMPLINGS[sampling])


@pytest.mark.parametrize(("rule", "shape"), CASES)
def test_predictable_budgets_keep_the_law(rule: str, shape: str) -> None:
    """Limits set before a round may depend on all that happened before it."""
    pipeline = engine(
        DRAFTERS["factorized"](3), Sampled(SHAPES[shape]), Adversary(), verifier=RULES[rule]()
    )
    assert_lossless(pipeline, [0, 1], 4, SAMPLINGS["T=1"])


class RawQ(Sampled):
    """Wrong: declares another law than the one it drew from, as a raw softmax under a filter."""

    def grow(self, *args: object) -> TokenTree:
        tree = super().grow(*args)  # type: ignore[arg-type]
        if tree.q is None:
            return tree
        flat = (tree.q + 1.0 / VOCAB) / 2
        return TokenTree.of(
            tree.token_list, tree.parent_list, tree.depth_list, tree.log_rho.tolist(),
            tree.draws, flat,
        )  # fmt: skip


class NotRenormalised(Sampled):
    """Wrong: siblings without replacement all declare the law of the first draw."""

    def grow(self, *args: object) -> TokenTree:
        tree = super().grow(*args)  # type: ignore[arg-type]
        if tree.q is None:
            return tree
        q = tree.q.clone()
        for nodes in tree.children:
            for node in nodes[1:]:
                q[node - 1] = q[nodes[0] - 1]
        return TokenTree.of(
            tree.token_list, tree.parent_list, tree.depth_list, tree.log_rho.tolist(),
            tree.draws, q,
        )  # fmt: skip


class CutByScore(Sampled):
    """Wrong: drops drawn nodes whose own score came out low."""

    def grow(self, *args: object) -> TokenTree:
        tree = super().grow(*args)  # type: ignore[arg-type]
        if tree.q is None or tree.nodes < 2 or tree.log_rho[-1] > -1.5:
            return tree
        n = tree.nodes
        return TokenTree.of(
            tree.token_list[:n], tree.parent_list[:n], tree.depth_list[:n],
            tree.log_rho[:n].tolist(), tree.draws, tree.q[: n - 1],
        )  # fmt: skip


class BonusFromP(Ratio):
    """Wrong: after a rejection draws from p instead of the residual."""

    def judge(self, laws: NodeLaws, tree: TokenTree, rng: Randomness) -> Verdict:
        accepted, node = [0], 0
        while tree.children[node]:
            (child,) = tree.children[node]
            assert tree.q is not None
            p, q, position = laws.law(node), tree.q[child - 1], laws.position(node)
            if not rng.accept(ratio(p, q, tree.token_list[child]), position):
                return Verdict(tuple(accepted), rng.categorical(p, position, 1))
            accepted.append(child)
            node = child
        return Verdict(tuple(accepted), rng.categorical(laws.law(node), laws.position(node)))


class PotentialKept(Traversal):
    """Wrong: a rejected child leaves its parent's potential as it was."""

    def judge(self, laws: NodeLaws, tree: TokenTree, rng: Randomness) -> Verdict:
        right = traversal._rejected
        traversal._rejected = lambda a, p, q: (a, right(a, p, q)[1])
        try:
            return super().judge(laws, tree, rng)
        finally:
            traversal._rejected = right


@pytest.mark.parametrize(
    ("policy", "rule", "shape"),
    [
        (RawQ, Ratio, "chain"),
        (RawQ, MultiRound, "iid"),
        (RawQ, Traversal, "without"),
        (NotRenormalised, MultiRound, "without"),
        (NotRenormalised, Traversal, "without"),
        (CutByScore, Ratio, "chain"),
        (CutByScore, MultiRound, "without"),
        (Sampled, BonusFromP, "chain"),
        (Sampled, PotentialKept, "without"),
    ],
)
def test_a_fault_is_rejected(policy: type[Sampled], rule: type, shape: str) -> None:
    pipeline = engine(
        DRAFTERS["factorized"](2),
        policy(SHAPES[shape]),
        Fixed(FixedOptions(nodes=4)),
        verifier=rule(),
    )
    with pytest.raises(AssertionError, match="first wrong prefix"):
        assert_lossless(pipeline, [0, 1], 4, SAMPLINGS["T=1"])


class Laws(NodeLaws):
    """One law per node, for judging a tree by itself."""

    greedy, round = False, 0

    def __init__(self, rows: list[torch.Tensor], depths: list[int]) -> None:
        self.rows, self.depths, self.size = rows, depths, len(rows)

    def law(self, node: int) -> torch.Tensor:
        return self.rows[node]

    def argmax(self, node: int) -> int:
        return int(self.rows[node].argmax())

    def position(self, node: int) -> int:
        return 10 + self.depths[node]


def accepted_length(rule: Verifier, policy: TreePolicy, seed: int) -> float:
    """Expected drafts accepted in one round, by enumeration over draws and judgement."""
    pipeline = engine(DRAFTERS["factorized"](seed), policy, Adversary())
    drafter, target = pipeline.drafter, spiky_target(seed)

    def experiment(rng: Enumerating) -> int:
        assert drafter
        session = drafter.open(target, Sampling(1.0))
        session.commit([0], None)
        limits = Limits(8)
        work = DraftWork(session, 1, 1, limits, rng.stream("draft"))
        (proposal,) = drafter.propose([work])
        tree = policy.grow(1, proposal, limits, lambda tree: True, rng.stream("draft"))
        paths = [[0, *(tree.token_list[i] for i in tree.path(n))] for n in range(len(tree))]
        rows = [target.logits(tuple(path)).exp() for path in paths]
        verdict = rule.judge(Laws(rows, tree.depth_list), tree, rng.stream("verify"))
        return len(verdict.accepted) - 1

    return sum(p * accepted for p, accepted, _ in outcomes(experiment))


@settings(max_examples=8)
@given(st.integers(0, 200), st.sampled_from(["chain", "iid", "without", "without-deep"]))
def test_traversal_accepts_at_least_as_much_as_multi_round(seed: int, shape: str) -> None:
    policy = Sampled(SHAPES[shape])
    lower = accepted_length(MultiRound(), policy, seed)
    assert accepted_length(Traversal(), policy, seed) >= lower - 1e-12


def test_multi_round_of_a_chain_is_ratio() -> None:
    policy = Sampled(SHAPES["chain"])
    for seed in range(5):
        expected = accepted_length(Ratio(), policy, seed)
        assert accepted_length(MultiRound(), policy, seed) == pytest.approx(expected, abs=1e-12)


def test_equal_laws_leave_p_after_an_impossible_rejection() -> None:
    p = torch.tensor([0.25, 0.75])
    assert torch.equal(residual(p, p.clone()), p)
    assert ratio(torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.5]), 0) == 0.0
