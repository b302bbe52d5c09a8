"""union: the mixed distribution along paths, what is learnt of sources, exactness, and the text."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve

from draftwood import load_pipeline
from draftwood.core.errors import ConfigError
from draftwood.core.generation import Pipeline
from draftwood.core.hf import load_target
from draftwood.core.interfaces import DraftWork, Target
from draftwood.core.options import Sampling
from draftwood.core.proposals import (
    FactorizedProposal,
    Frontier,
    LookupPaths,
    Proposal,
    Vocabulary,
    best_first_search,
)
from draftwood.core.randomness import Seeded
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits
from draftwood.plugins.drafters.ngram.drafter import Ngram
from draftwood.plugins.drafters.options import NgramOptions, UnionOptions
from draftwood.plugins.drafters.union.proposal import UnionProposal
from draftwood.plugins.drafters.union.source_weights import SourceWeights
from draftwood.plugins.trees.by_level import grow_by_level
from draftwood.testing import OracleDrafter, OracleTarget, ToyPipeline
from draftwood.testing.suites import DrafterSuite
from draftwood.testing.toys import toy_proposal

FIXTURES = Path(__file__).parents[3] / "fixtures"
RECORDS = json.loads((FIXTURES / "zlab/dflash/expected.json").read_text())


def factorized(distributions: list[list[float]]) -> FactorizedProposal:
    logits = torch.tensor(distributions, dtype=torch.float64).log()
    return FactorizedProposal(logits, Sampling(1.0), Vocabulary(len(distributions[0])))


def union(*sources: Proposal, weights: tuple[float, ...] = (), **sampling: Any) -> UnionProposal:
    each = weights or (1 / len(sources),) * len(sources)
    return UnionProposal(sources, each, Sampling(1.0, **sampling), 3)


def at(proposal: Proposal, *path: int) -> Frontier:
    here = proposal.root()
    for token in path:
        here = proposal.advance(here, torch.tensor([0]), torch.tensor([token]))
    return here


def probs(proposal: Proposal, *path: int) -> list[float]:
    found: list[float] = proposal.probs(at(proposal, *path))[0].tolist()
    return found


def test_path_weights_follow_the_sources_joint_probability() -> None:
    """By hand: the joint chance of a path is the weighted sum of its chances in the sources."""
    one = factorized([[0.8, 0.1, 0.1], [0.5, 0.5, 0.0]])
    two = factorized([[0.2, 0.8, 0.0], [0.0, 0.1, 0.9]])
    both = union(one, two, weights=(0.25, 0.75))
    assert probs(both) == pytest.approx([0.35, 0.625, 0.025])
    joint = [0.25 * 0.8 * a + 0.75 * 0.2 * b for a, b in ((0.5, 0.0), (0.5, 0.1), (0.0, 0.9))]
    assert probs(both, 0) == pytest.approx([chance / 0.35 for chance in joint])
    assert probs(both, 2) == pytest.approx([0.5, 0.5, 0.0])  # only the first gave token 2 chance
    assert probs(both, 0) != pytest.approx(
        [0.125, 0.2, 0.675]
    )  # negative control: not w at the root


def test_twice_the_same_source_is_the_source() -> None:
    source = factorized([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    both = union(source, source)
    for path in ((), (0,), (2,)):
        assert probs(both, *path) == pytest.approx(probs(source, *path))


def test_inactive_sources_do_not_mix_and_keep_their_weight() -> None:
    lookup = LookupPaths(((0, 1),), Sampling(1.0), 3, confidence=0.7)
    short = factorized([[0.6, 0.2, 0.2]])
    both = union(lookup, short)
    spread = 0.3 / 3
    assert probs(both) == pytest.approx([0.7, 0.15, 0.15])
    # Past the short one's depth the lookup speaks alone; off its path no one does.
    assert probs(both, 0) == pytest.approx([spread, 0.7 + spread, spread])
    assert probs(both, 1) == [0.0, 0.0, 0.0]
    assert union(LookupPaths((), Sampling(1.0), 3), short).max_depth == 1
    assert probs(union(LookupPaths((), Sampling(1.0), 3), short)) == pytest.approx([0.6, 0.2, 0.2])


def test_filters_apply_to_the_mixed_distribution_and_greedy_is_its_argmax() -> None:
    one, two = factorized([[0.8, 0.2, 0.0]]), factorized([[0.0, 0.3, 0.7]])
    assert probs(union(one, two, top_k=2)) == pytest.approx([0.4 / 0.75, 0.0, 0.35 / 0.75])
    both = union(one, two, weights=(0.4, 0.6))
    greedy = UnionProposal(both.sources, both.weights, Sampling(0.0), 3)
    assert probs(greedy) == [0.0, 0.0, 1.0]


def test_rows_of_a_frontier_are_each_their_own_path() -> None:
    forms = [toy_proposal(form, 1, Sampling(1.0)) for form in ("markov", "autoregressive")]
    both = union(*forms)
    root = both.root()
    tokens = [token for token, chance in enumerate(probs(both)) if chance > 0]
    many = both.advance(root, torch.zeros(len(tokens), dtype=torch.long), torch.tensor(tokens))
    for row, token in enumerate(tokens):
        assert both.probs(many)[row].tolist() == pytest.approx(probs(both, token))


def guesses() -> LookupPaths:
    return LookupPaths(((0, 1, 2), (1, 1)), Sampling(1.0), 3, confidence=0.7)


@pytest.mark.parametrize(
    "forms", [("factorized", "lookup"), ("factorized", "factorized"), ("markov", "factorized")]
)
@pytest.mark.parametrize("seed", range(4))
def test_a_tree_grown_on_the_host_is_the_one_of_whole_distributions(
    forms: tuple[str, ...], seed: int
) -> None:
    """Where every source lists all its tokens, as it does over three, nothing is left out."""
    sources = [toy_proposal(form, (seed, place), Sampling(1.0)) for place, form in enumerate(forms)]  # type: ignore[arg-type]
    both = union(*sources, guesses(), weights=(0.5, 0.2, 0.3))
    table = both.table(6)
    assert table is not None
    # Below the distributions' depth guesses speak alone, and whole distributions give what they do
    # not name a share.
    one, two = best_first_search(0, table, 6, 2), grow_by_level(0, both, 6, 2, lambda growth: True)
    assert one.log_rho.tolist() == pytest.approx(two.log_rho.tolist(), abs=1e-4)
    assert sorted(map(tuple, paths(one))) == sorted(map(tuple, paths(two)))


def test_min_score_temperature_is_the_highest_of_the_sources() -> None:
    distributions = {
        form: toy_proposal(form, 1, Sampling(1.0)) for form in ("markov", "factorized")
    }  # type: ignore[arg-type]
    distributions["markov"] = evolve(distributions["markov"], min_score_temperature=1.3)
    assert (
        distributions["markov"].min_score_temperature
        > distributions["factorized"].min_score_temperature
    )
    assert (
        union(*distributions.values()).min_score_temperature
        == distributions["markov"].min_score_temperature
    )
    assert (
        union(distributions["factorized"], guesses()).min_score_temperature
        == distributions["factorized"].min_score_temperature
    )


def paths(tree: TokenTree) -> list[list[int]]:
    return [[tree.token_list[node] for node in tree.path(at)[1:]] for at in range(1, len(tree))]


def test_a_path_may_leave_what_one_source_lists_and_come_back() -> None:
    """A block drafter has distributions past a token that only the look-up named, and the look-up
    knows what follows tokens that only the block drafter named."""
    drafter = Ngram(NgramOptions(max_depth=4))
    session = drafter.open(OracleTarget(40, lambda prefix: [1.0] * 40), Sampling(1.0))
    session.commit([1, 2, 7, 8, 9, 1], None)
    (lookup,) = drafter.propose([DraftWork(session, 2, 6, Limits(8), Seeded(0))])
    block = torch.full((3, 40), -20.0)
    block[0, 30] = block[1, 7] = block[2, 31] = 0.0
    both = UnionProposal(
        (lookup, FactorizedProposal(block, Sampling(1.0), Vocabulary(40))),
        (0.5, 0.5),
        Sampling(1.0),
        40,
    )
    table = both.table(12)
    assert table is not None

    def after(*path: int) -> list[int]:
        row = 0
        for token in path:
            row = table.row(row).next_rows[list(table.row(row).tokens).index(token)]
        return list(table.row(row).tokens)

    assert {7, 30} <= set(after())
    assert after(30)[0] == 7
    assert 8 in after(30, 7)  # what the text said after 7, which only the block came to
    assert after(7, 8)[0] == 9
    assert 31 in after(7, 8)  # what the block says there, whatever came before


def test_filters_take_whole_distributions() -> None:
    assert union(guesses(), guesses(), top_k=1).table(4) is None
    assert union(guesses(), toy_proposal("autoregressive", 1, Sampling(1.0))).table(4) is None


def drafter() -> OracleDrafter:
    """A toy union of three forms of distribution, one of them inactive off its paths."""

    def propose(prefix: tuple[int, ...], sampling: Sampling) -> Proposal:
        own = Sampling(sampling.temperature)
        forms = ("factorized", "autoregressive", "lookup")
        sources = tuple(toy_proposal(form, (7, prefix), own) for form in forms)
        return UnionProposal(sources, (0.5, 0.3, 0.2), sampling, 3)

    return OracleDrafter(propose)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("filters", ["none", "top_p"])
def test_the_output_distribution_is_the_targets(temperature: float, filters: str) -> None:
    for tree, rule in (("best_first", "match"), ("sampled-chain", "ratio")):
        cell = ToyPipeline("factorized", tree, rule, "adversarial", temperature, filters, seed=2)
        cell.check(drafter=drafter())


def test_weight_moves_to_the_source_that_was_right_and_back() -> None:
    weights = SourceWeights.even(2)
    for _ in range(10):
        weights = weights.learn([0.9, 0.1])
    assert weights.normalised()[0] > 0.95
    for _ in range(20):
        weights = weights.learn([0.1, 0.9])
    assert weights.normalised()[1] > 0.9
    assert weights.learn([0.0, 0.0]).normalised() == pytest.approx(
        weights.learn([0.01, 0.01]).normalised()
    )


def test_sources_without_a_distribution_keep_their_learnt_weight() -> None:
    weights = SourceWeights.even(3)
    for _ in range(10):
        weights = weights.learn([0.9, 0.1, None])
    assert weights.logs[2] == 0.0
    assert weights.learn([0.5, None, None]) == weights  # nothing to compare it with


@cache
def shared_target() -> Target:
    return load_target(FIXTURES / "zlab/target", device="cpu", dtype="float32")


def pipeline(drafter: dict[str, Any], tree: str = "best_first") -> Pipeline:
    return load_pipeline(
        {
            "drafter": drafter,
            "tree": {"use": tree},
            "controller": {"use": "fixed", "nodes": 16},
            "verifier": {"use": "match"},
        },
        target=shared_target(),
    )


NGRAM: dict[str, Any] = {"min_ngram": 2}
DFLASH = {"checkpoint": str(FIXTURES / "zlab/dflash")}
EAGLE = {"checkpoint": str(FIXTURES / "speculators/eagle3"), "max_depth": 3}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("tree", ["best_first", "dynamic"])
def test_the_text_is_plain_decodings(temperature: float, tree: str) -> None:
    plain = Pipeline(shared_target())
    options = {"max_new_tokens": 24, "temperature": temperature, "seed": 5, "eos_token_id": ()}
    three = {"use": "union", "ngram": NGRAM, "dflash": DFLASH, "eagle3": EAGLE}
    result = pipeline(three, tree).generate(RECORDS[0]["prompt"], **options)
    assert result.tokens == plain.generate(RECORDS[0]["prompt"], **options).tokens
    assert result.stats.accepted > 0
    assert result.stats.rejected > 0


def test_a_union_commits_no_less_than_its_better_source() -> None:
    """Over a text that a block drafter knows and a lookup does not, and one that repeats."""
    repeated = RECORDS[1]["output"][:12] * 3

    def tau(drafter: dict[str, Any], prompt: list[int]) -> float:
        stats = pipeline(drafter).generate(prompt, max_new_tokens=32, eos_token_id=()).stats
        return stats.committed / stats.rounds

    for prompt in (RECORDS[0]["prompt"], repeated):
        alone = [tau({"use": "ngram", **NGRAM}, prompt), tau({"use": "dflash", **DFLASH}, prompt)]
        both = tau({"use": "union", "ngram": NGRAM, "dflash": DFLASH}, prompt)
        assert both >= 0.95 * max(alone)


def test_a_union_of_one_source_is_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"at least two sources; choices: dblast, dflash, draft_model, eagle3, ngram$",
    ):
        UnionOptions.of(ngram=NgramOptions())
    with pytest.raises(ConfigError, match="at least two sources"):
        pipeline({"use": "union", "ngram": {}})


class TestSuite(DrafterSuite):
    plugin = "union"

    @property
    def options(self) -> dict[str, Any]:  # type: ignore[override]
        from draftwood.plugins.drafters.options import DFlashOptions

        options = UnionOptions.of(
            ngram=NgramOptions(), dflash=DFlashOptions(FIXTURES / "zlab/dflash")
        )
        return {"sources": options.sources}

    def target(self) -> Target:
        return shared_target()
