"""Whether a verifier on a device decides as its reference does, given the same keys.

A kernel's draws cannot be enumerated, so its distribution is shown in two steps: the reference's,
exactly, by enumeration, and here that both decide alike, tree by tree. Where they need not, because
two numbers that are compared lie nearer to each other than rounding, the verifier says so in
`Verdict.near_ties`: such cases are counted, and few."""

from collections.abc import Collection, Sequence

import torch
from attrs import frozen

from draftwood.core.draws import Draws
from draftwood.core.interfaces import Verifier
from draftwood.core.node_distributions import TargetDistributions
from draftwood.core.options import Sampling
from draftwood.core.randomness import Seeded
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits, Verdict
from draftwood.testing.cells import FILTERS, FORMS, TEMPERATURES, TREES
from draftwood.testing.toys import RepetitionPenalty, seeded, toy_proposal

HISTORY = (0, 1)
CASES = 48


@frozen
class Decision:
    """A tree, a target's logits at its nodes, and a seed, all from a few names and numbers."""

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
        return TokenTree.of(*lists, tree.draws, tree.q.float())

    def logits(self, nodes: int) -> torch.Tensor:
        """(nodes, V), flat to sharp, some of them equal, some -inf; float32 or float64."""
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
        """What each decides, with the logits on `device`."""
        tree = self.grow()
        logits = self.logits(len(tree)).to(device)
        penalties = (RepetitionPenalty(),) if self.penalty else ()
        verdicts = []
        for verifier in verifiers:
            distributions = TargetDistributions(logits, tree, HISTORY, self.sampling, penalties, 0)
            verdicts.append(verifier.judge(distributions, tree, Seeded(self.seed).stream("verify")))
        return verdicts


@frozen
class Decisions:
    """cases: decisions that both made. near_ties: of which rounding could have changed. difference:
    the first that differed though it could not, None if none did."""

    cases: int
    near_ties: int
    difference: str | None = None

    @property
    def biased(self) -> bool:
        return self.difference is not None

    @property
    def excused(self) -> bool:
        """Whether so many are near that their agreement shows little."""
        return self.near_ties > max(1, self.cases // 20)

    def as_dict(self) -> dict[str, object]:
        return {"cases": self.cases, "near_ties": self.near_ties, "difference": self.difference}


def check_decisions(
    verifier: Verifier,
    draws: Collection[Draws],
    device: torch.device | str = "cpu",
    cases: int = CASES,
) -> Decisions | None:
    """Judge toy trees of these kinds by a verifier and its reference; None without a reference.

    verifier: bound to a target on `device`.
    """
    reference = verifier.reference
    if reference is None:
        return None
    names = [name for name, (how, _) in TREES.items() if how in draws]
    near_ties, first = 0, None
    for seed in range(cases):
        case = Decision(
            tree=names[seed % len(names)],
            temperature=TEMPERATURES[seed // 2 % len(TEMPERATURES)],
            filters=tuple(FILTERS)[seed // 3 % len(FILTERS)],
            penalty=seed % 7 == 3,
            vocab=(3, 5, 40)[seed % 3],
            double=seed % 5 == 4 and torch.device(device).type != "mps",
            seed=seed,
        )
        mine, wanted = case.judged([verifier, reference], device)
        near_ties += mine.near_ties > 0
        if mine != wanted and not mine.near_ties and first is None:
            first = f"{case}: {mine}, by the reference {wanted}"
    return Decisions(cases, near_ties, first)
