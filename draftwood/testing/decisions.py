"""Whether a verifier on a device decides as its reference does, given the same keys.

A kernel's draws cannot be enumerated. Its distribution is therefore shown in two steps: the
reference's exactly, by enumeration, and here that both decide alike, tree by tree. Decisions may
differ where two compared numbers are closer than rounding. The verifier reports these cases in
`Verdict.near_ties`; they are counted and must be rare.
"""

from collections.abc import Collection, Sequence

import torch
from attrs import asdict, frozen

from draftwood.core.draws import Draws
from draftwood.core.interfaces import Verifier
from draftwood.core.node_distributions import TargetDistributions
from draftwood.core.options import Sampling
from draftwood.core.randomness import Seeded
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits, Verdict
from draftwood.testing.toy_pipelines import FILTERS, FORMS, TEMPERATURES, TREES, trees_with
from draftwood.testing.toys import RepetitionPenalty, seeded, toy_proposal

HISTORY = (0, 1)
CASES = 48


@frozen
class DecisionCase:
    """A tree, a target's logits at its nodes, and a seed, all from a few names and numbers.

    Attributes:
        tree: Name in TREES.
        temperature: Of target and drafter.
        filters: Name in FILTERS.
        penalty: Whether a repetition penalty is applied.
        vocab: Number of tokens.
        double: Whether logits and q are float64, else float32.
        seed: Of everything random.
    """

    tree: str = "best_first"
    temperature: float = 1.0
    filters: str = "none"
    penalty: bool = False
    vocab: int = 5
    double: bool = False
    seed: int = 0

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, **FILTERS[self.filters])

    def grow(self) -> TokenTree:
        """The tree, on the host."""
        form = FORMS[self.seed % len(FORMS)]
        proposal = toy_proposal(form, ("decision", self.seed), self.sampling, vocab=self.vocab)
        policy = TREES[self.tree][1]()
        tree = policy.grow(HISTORY[-1], proposal, Limits(6), lambda _: True, Seeded(self.seed))
        if tree.q is None or self.double:
            return tree
        lists = (tree.token_list, tree.parent_list, tree.depth_list, tree.log_rho_list)
        return TokenTree.from_lists(*lists, tree.draws, tree.q.float())

    def logits(self, nodes: int) -> torch.Tensor:
        """(nodes, V) logits, flat to sharp, some of them equal, some -inf; float32 or float64."""
        rng = seeded("logits", self)
        spread = rng.choice((0.5, 2.0, 8.0))
        values = [[rng.gauss(0, spread) for _ in range(self.vocab)] for _ in range(nodes)]
        logits = torch.tensor(values, dtype=torch.float64)
        if rng.random() < 0.25:
            logits = logits.round()
        if rng.random() < 0.25:
            logits[:, rng.randrange(self.vocab)] = -torch.inf
        return logits if self.double else logits.float()

    def judged(
        self, verifiers: Sequence[Verifier], device: torch.device | str = "cpu"
    ) -> list[Verdict]:
        """The verdict of each verifier, with the logits on `device`."""
        tree = self.grow()
        logits = self.logits(len(tree)).to(device)
        penalties = (RepetitionPenalty(),) if self.penalty else ()
        verdicts = []
        for verifier in verifiers:
            distributions = TargetDistributions(logits, tree, HISTORY, self.sampling, penalties, 0)
            verdicts.append(verifier.judge(distributions, tree, Seeded(self.seed).stream("verify")))
        return verdicts


@frozen
class DecisionEvidence:
    """Decisions of a verifier beside its reference's.

    Attributes:
        cases: Number of decisions that both made.
        near_ties: How many of them rounding could have changed.
        difference: The first that differs without a near tie; None if none does.
    """

    cases: int
    near_ties: int
    difference: str | None = None

    @property
    def biased(self) -> bool:
        return self.difference is not None

    @property
    def too_many_near_ties(self) -> bool:
        """Whether there are so many near ties that agreement shows little."""
        return too_many_near_ties(self.near_ties, self.cases)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def too_many_near_ties(near_ties: int, cases: int) -> bool:
    """Whether more than one case in twenty is a near tie; one is always allowed."""
    return near_ties > max(1, cases // 20)


def check_decisions(
    verifier: Verifier,
    draws: Collection[Draws],
    device: torch.device | str = "cpu",
    cases: int = CASES,
) -> DecisionEvidence | None:
    """Judge toy trees by a verifier and by its reference.

    Args:
        verifier: Bound to a target on `device`.
        draws: Kinds of trees to judge.
        device: Of the logits.
        cases: Number of trees.

    Returns:
        The evidence; None for a verifier without a reference.
    """
    reference = verifier.reference
    if reference is None:
        return None
    names = trees_with(draws)
    near_ties, difference = 0, None
    for seed in range(cases):
        case = DecisionCase(
            tree=names[seed % len(names)],
            temperature=TEMPERATURES[seed // 2 % len(TEMPERATURES)],
            filters=tuple(FILTERS)[seed // 3 % len(FILTERS)],
            penalty=seed % 7 == 3,
            vocab=(3, 5, 40)[seed % 3],
            double=seed % 5 == 4 and torch.device(device).type != "mps",
            seed=seed,
        )
        ours, theirs = case.judged([verifier, reference], device)
        near_ties += ours.near_ties > 0
        if ours != theirs and not ours.near_ties and difference is None:
            difference = f"{case}: {ours}, by the reference {theirs}"
    return DecisionEvidence(cases, near_ties, difference)
