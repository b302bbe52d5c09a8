"""Best-first trees: both forms are the best tree of every size, ties included."""

import itertools
import math

import pytest
import torch
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from draftwood.core.errors import TreeError
from draftwood.core.options import Sampling
from draftwood.core.proposals import (
    FactorizedProposal,
    MarkovProposal,
    MixtureProposal,
    Proposal,
    Row,
    Table,
    Vocabulary,
    best_first_search,
)
from draftwood.core.randomness import Seeded
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits
from draftwood.plugins.trees.best_first import WIDTH, BestFirst
from draftwood.plugins.trees.by_level import grow_by_level
from draftwood.plugins.trees.options import BestFirstOptions

from .reference import (
    PerLevel,
    Whole,
    always,
    brute_force,
    factorized,
    factorized_distributions,
    listed,
    mixture_distributions,
    paths,
    point_paths,
    tree_distributions,
)

ANCHOR = 3


def by_search(proposal: Proposal, nodes: int, depth: int) -> TokenTree:
    table = proposal.table(nodes)
    assert table is not None
    return best_first_search(ANCHOR, table, nodes, depth).validate()


def by_levels(proposal: Proposal, nodes: int, depth: int) -> TokenTree:
    return grow_by_level(ANCHOR, proposal, nodes, depth, always).validate()


def grow(proposal: Proposal, limits: Limits, **options: object) -> TokenTree:
    options = {"score_temperature": proposal.sampling.temperature or None, **options}
    policy = BestFirst(BestFirstOptions(**options))  # type: ignore[arg-type]
    return policy.grow(ANCHOR, proposal, limits, always, Seeded(0)).validate()


def same(left: TokenTree, right: TokenTree) -> bool:
    return all(
        torch.equal(getattr(left, name), getattr(right, name))
        for name in ("tokens", "parents", "depths", "log_rho")
    )


@given(tree_distributions(), st.integers(1, 40), st.integers(1, 4))
def test_both_forms_are_the_brute_force_tree(proposal: Proposal, nodes: int, depth: int) -> None:
    depth = min(depth, proposal.max_depth)
    expected = brute_force(proposal, nodes, depth)
    assert listed(by_search(proposal, nodes, depth)) == expected
    assert listed(by_levels(proposal, nodes, depth)) == expected


@given(st.one_of(tree_distributions(), point_paths()), st.integers(1, 40))
def test_the_two_forms_are_one_tree(proposal: Proposal, nodes: int) -> None:
    depth = proposal.max_depth
    assert same(by_search(proposal, nodes, depth), by_levels(proposal, nodes, depth))


@given(st.integers(0, 2**32 - 1), st.integers(1, 300), st.sampled_from([1.0, 3.0, 12.0]))
def test_the_two_forms_are_one_tree_on_large_distributions(
    seed: int, nodes: int, sharpness: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(7, 61, generator=generator) * sharpness).round(decimals=1)
    proposal = FactorizedProposal(logits, Sampling(1.0), Vocabulary(61))
    assert same(by_search(proposal, nodes, 7), by_levels(proposal, nodes, 7))


@pytest.mark.parametrize("nodes", [20, 61, 200])
def test_a_tree_that_wants_more_than_the_first_table_gets_it(nodes: int) -> None:
    logits = torch.randn(5, 400, generator=torch.Generator().manual_seed(1)) * 0.3
    proposal = FactorizedProposal(logits, Sampling(1.0), Vocabulary(400))
    wide = by_search(proposal, nodes, 5)
    assert len(set(wide.token_list)) > WIDTH
    assert same(grow(proposal, Limits(nodes), form="search"), wide)
    # Negative control: a table that is too narrow is not taken for the whole distribution.
    table = proposal.table(WIDTH)
    assert table is not None
    assert best_first_search(ANCHOR, table, nodes, 5, width=WIDTH) is None
    assert not same(best_first_search(ANCHOR, table, nodes, 5) or wide, wide)


def test_growing_ends_at_the_first_node_below_its_floor() -> None:
    proposal = factorized([[0.6, 0.3, 0.1], [0.6, 0.3, 0.1]])
    whole = grow(proposal, Limits(8))
    scores = whole.log_rho_list[1:]
    floors = [-math.inf] * 8
    floors[4] = scores[4] + 1e-9
    ended = grow(proposal, Limits(8, floors=tuple(floors)))
    assert same(ended, whole.cut(4))
    # A floor that is just reached ends nothing, nor does a list shorter than the tree.
    floors[4] = scores[4]
    assert same(grow(proposal, Limits(8, floors=tuple(floors))), whole)
    assert same(grow(proposal, Limits(8, floors=(-math.inf,))), whole)


def test_ties_at_the_boundary_of_top_k_are_what_the_comparison_catches() -> None:
    """Negative control: the order that `topk` leaves open among equal ones is another tree."""
    proposal = factorized([[0.25] * 4, [0.25] * 4])
    tree = by_search(proposal, 6, 2)
    assert tree.token_list == [ANCHOR, 0, 1, 2, 3, 0, 1]
    reversed_ids = FactorizedProposal(
        proposal.logits, proposal.sampling, Vocabulary(4, torch.tensor([3, 2, 1, 0]))
    )
    assert same(by_search(reversed_ids, 6, 2), tree)
    table = reversed_ids.table(6)
    assert table is not None

    def reversed_row(index: int) -> Row:
        row = table.row(index)
        return Row(row.tokens[::-1], row.log_q, row.next_rows)

    assert not same(best_first_search(ANCHOR, Table(reversed_row), 6, 2), tree)


@given(tree_distributions(), st.integers(1, 30))
def test_every_prefix_is_the_best_tree_of_its_size(proposal: Proposal, nodes: int) -> None:
    tree = grow(proposal, Limits(nodes))
    for size in range(1, tree.nodes + 1):
        assert same(tree.cut(size).validate(), grow(proposal, Limits(size)))


@given(factorized_distributions(reduced=False), st.integers(1, 4))
def test_no_tree_of_any_shape_has_more_expected_tokens(
    proposal: FactorizedProposal, nodes: int
) -> None:
    best = float(grow(proposal, Limits(nodes)).expected_tokens()[-1])
    every = {path: score for score, path in paths(proposal, min(2, proposal.max_depth))}
    values = [
        1.0 + sum(float(torch.tensor(every[p], dtype=torch.float64).exp()) for p in chosen)
        for chosen in itertools.combinations(every, min(nodes, len(every), 3))
        if all(len(p) == 1 or p[:-1] in chosen for p in chosen)
    ]
    assert max(values) <= best + 1e-12


def test_a_breadth_first_tree_is_not_the_best() -> None:
    """Negative control of the test above: it can tell a worse tree."""
    proposal = factorized([[0.9, 0.1], [0.9, 0.1]])
    best = grow(proposal, Limits(2))
    assert best.depth_list == [0, 1, 2]
    assert float(best.expected_tokens()[-1]) > 1 + 0.9 + 0.1


@given(tree_distributions(), st.integers(1, 40))
def test_expected_tokens_are_concave_and_scores_never_increase(
    proposal: Proposal, nodes: int
) -> None:
    tree = grow(proposal, Limits(nodes))
    gains = tree.expected_tokens().diff()
    assert float(tree.expected_tokens()[0]) == 1.0
    assert bool((tree.log_rho.diff() <= 0).all())
    assert bool((gains.diff() <= 1e-12).all())


def test_a_tree_grown_level_by_level_is_not_concave() -> None:
    """Negative control of the test above."""
    proposal = factorized([[0.9, 0.1], [0.9, 0.1]])
    best = {path: score for score, path in listed(grow(proposal, Limits(6)))}
    by_level = sorted(best, key=lambda path: (len(path), path))
    gains = torch.tensor([best[path] for path in by_level]).exp()
    assert bool((gains.diff() > 1e-12).any())


@given(tree_distributions(), st.integers(0, 20), st.integers(0, 4), st.integers(1, 20))
def test_limits_and_options_are_respected(
    proposal: Proposal, nodes: int, depth: int, most: int
) -> None:
    for form in ("search", "by_level"):
        tree = grow(proposal, Limits(nodes, depth), max_nodes=most, form=form)
        assert tree.nodes <= min(nodes, most)
        assert max(tree.depth_list) <= min(depth, proposal.max_depth)
        everything = len(list(paths(proposal, min(depth, proposal.max_depth))))
        assert tree.nodes == min(nodes, most, everything)


@given(mixture_distributions(), st.integers(1, 40), st.integers(1, 3))
def test_trees_over_mixtures_are_the_brute_force_trees(
    proposal: MixtureProposal, nodes: int, depth: int
) -> None:
    depth = min(depth, proposal.max_depth)
    found, expected = listed(by_levels(proposal, nodes, depth)), brute_force(proposal, nodes, depth)
    assert [score for score, _ in found] == pytest.approx([score for score, _ in expected])
    # Scores of different branches are sums in another order: equal ones may differ in a bit.
    assert {p for s, p in found if s > expected[-1][0] + 1e-9} == {
        p for s, p in expected if s > expected[-1][0] + 1e-9
    }


def mixture_of(seed: int, branches: int, size: int, sampling: Sampling) -> MixtureProposal:
    """As sure as drafters are, with branches that agree in part."""
    generator = torch.Generator().manual_seed(seed)
    sharpness = torch.linspace(4.0, 2.5, 5)[:, None] * (0.3 + torch.rand(1, generator=generator))
    shared = torch.randn(5, size, generator=generator)
    own = torch.randn(branches, 5, size, generator=generator)
    prior = torch.randn(branches, generator=generator)
    return MixtureProposal(prior, (shared + own) * sharpness, sampling, Vocabulary(size))


@given(
    st.integers(0, 9999),
    st.sampled_from([2, 4]),
    st.integers(1, 64),
    st.sampled_from([Sampling(1.0), Sampling(1.5, top_k=20, top_p=0.8), Sampling(1.0, top_p=0.95)]),
)
def test_a_tree_found_among_few_tokens_is_the_tree_of_the_whole_distribution(
    seed: int, branches: int, nodes: int, sampling: Sampling
) -> None:
    proposal = mixture_of(seed, branches, 900, sampling)
    assert same(by_levels(proposal, nodes, 5), by_levels(Whole(proposal), nodes, 5))


def test_joining_the_branches_best_tokens_is_what_the_comparison_catches() -> None:
    """Negative control: the best token of the mixture is the second of both branches."""
    size = 64
    logits = torch.full((2, 1, size), -9.0, dtype=torch.float64)
    logits[0, 0, 40], logits[1, 0, 50], logits[:, 0, 60] = 4.0, 4.0, 3.7
    proposal = MixtureProposal(torch.zeros(2), logits, Sampling(1.0), Vocabulary(size))
    assert listed(by_levels(proposal, 1, 1))[0][1] == (60,)
    few = proposal.shortlisted(1)
    assert int(few.expand(few.root(), 1).tokens) != 60


def test_tokens_of_probability_zero_never_become_nodes() -> None:
    proposal = factorized([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])
    for form in ("search", "by_level"):
        tree = grow(proposal, Limits(50), form=form)
        assert listed(tree) == [
            (0.0, (1,)),
            (pytest.approx(-0.6931471805599453), (1, 0)),
            (pytest.approx(-0.6931471805599453), (1, 2)),
        ]


def test_a_pass_per_level_proposal_advances_only_what_may_be_kept_and_asks_first() -> None:
    distributions = [[0.6, 0.3, 0.1]] * 4
    advanced: list[int] = []
    sizes: list[int] = []

    def twice(tree: TokenTree) -> bool:
        sizes.append(tree.validate().nodes)
        return len(sizes) < 3

    policy = BestFirst(BestFirstOptions(max_nodes=6, score_temperature=1.0))
    tree = policy.grow(
        0, PerLevel(factorized(distributions), advanced), Limits(6), twice, Seeded(0)
    )
    assert sizes == [3, 6, 6]
    assert len(advanced) == 2  # the third level was refused
    assert listed(tree) == brute_force(factorized(distributions), 6, 3)
    # Of nine paths of two tokens none below the sixth-best score goes on.
    assert advanced[0] == 3
    assert advanced[1] < 6


def test_a_level_that_can_add_nothing_is_not_expanded() -> None:
    advanced: list[int] = []
    proposal = PerLevel(factorized([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]), advanced)
    grow(proposal, Limits(2))
    assert advanced == []


def test_nodes_below_their_floor_are_not_expanded() -> None:
    """Floors as a controller gives them, the first node excepted: the tree is the one that a search
    grows, and passes are run for its nodes alone."""
    distributions = [[0.6, 0.3, 0.1]] * 4
    for floor in (0.05, 0.2, 0.4, 0.99):
        advanced: list[int] = []
        limits = Limits(30, floors=(-math.inf, *[math.log(floor)] * 29))
        tree = grow(PerLevel(factorized(distributions), advanced), limits)
        assert listed(tree) == listed(grow(factorized(distributions), limits, form="search"))
        assert sum(advanced) <= tree.nodes
    assert tree.nodes == 1
    # Negative control: without floors thirty nodes are kept, and more are expanded.
    advanced = []
    assert grow(PerLevel(factorized(distributions), advanced), Limits(30)).nodes == 30
    assert sum(advanced) > 20


def test_floors_that_fall_leave_both_forms_the_same_nodes() -> None:
    """The first place of a tile asks more of a node than the places after it."""
    distributions = [[0.6, 0.3, 0.1]] * 4
    floors = (-math.inf, *map(math.log, (0.3, 0.2, 0.1, 0.1, 0.1, 0.05)), *[math.log(0.05)] * 13)
    limits = Limits(20, floors=floors)
    whole = grow(factorized(distributions), limits, form="search")
    assert min(whole.log_rho_list) < floors[1]  # the first finite floor would have ended it
    kept = set(listed(whole))
    assert kept <= set(listed(grow(factorized(distributions), limits, form="by_level")))
    assert kept <= set(listed(grow(PerLevel(factorized(distributions), []), limits)))


def test_scores_come_from_a_warmer_distribution_than_a_cold_request() -> None:
    logits = torch.tensor([[3.0, 2.0, 0.0]])

    def scores(temperature: float, score_temperature: float | None) -> torch.Tensor:
        policy = BestFirst(BestFirstOptions(score_temperature=score_temperature))
        proposal = FactorizedProposal(logits, Sampling(temperature), Vocabulary(3))
        return policy.grow(0, proposal, Limits(3), always, Seeded(0)).log_rho[1:].float()

    for temperature in (0.0, 0.3, 0.8):
        assert torch.allclose(scores(temperature, None), (logits[0] / 0.8).log_softmax(-1))
    assert torch.allclose(scores(1.3, None), (logits[0] / 1.3).log_softmax(-1))
    assert torch.allclose(scores(1.3, 0.9), (logits[0] / 0.9).log_softmax(-1))
    # A proposal may require a higher temperature.
    pairs = MarkovProposal(
        torch.tensor([[0, 1, 2]]), logits[0], logits.new_empty(0, 3, 3), Sampling(0.3), 3, 1.3
    )
    for temperature, requested, expected in ((0.3, None, 1.3), (1.5, None, 1.5), (0.3, 0.7, 0.7)):
        probs = evolve(pairs, sampling=Sampling(temperature))
        grown = BestFirst(BestFirstOptions(score_temperature=requested)).grow(
            0, probs, Limits(3), always, Seeded(0)
        )
        assert torch.allclose(grown.log_rho[1:].float(), (logits[0] / expected).log_softmax(-1))
    # Negative control: without a warmer distribution a greedy request has a chain of certain
    # tokens.
    assert not torch.allclose(scores(0.0, None)[:1], torch.zeros(1))


def test_filters_hold_for_scores_too() -> None:
    proposal = FactorizedProposal(
        torch.tensor([[3.0, 2.0, 0.0]]), Sampling(1.0, top_k=2), Vocabulary(3)
    )
    assert grow(proposal, Limits(3)).token_list[1:] == [0, 1]


def test_search_without_a_table_raises_and_auto_grows_by_level() -> None:
    proposal = PerLevel(factorized([[0.5, 0.5]]), [])
    with pytest.raises(TreeError, match=r"PerLevel has no table.*auto or by_level"):
        grow(proposal, Limits(2), form="search")
    assert grow(proposal, Limits(2)).nodes == 2


def test_auto_searches_on_the_host_and_grows_by_level_on_other_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> TokenTree:
        raise AssertionError("the search copies the distributions to the host")

    monkeypatch.setattr("draftwood.plugins.trees.best_first.best_first_search", refuse)
    with pytest.raises(AssertionError):
        grow(factorized([[0.5, 0.5]]), Limits(2))
    other_device = property(lambda self: torch.device("meta"))
    monkeypatch.setattr(FactorizedProposal, "device", other_device)
    monkeypatch.setattr(
        "draftwood.plugins.trees.best_first.grow_by_level", lambda *_, **__: TokenTree.root(1)
    )
    assert grow(factorized([[0.5, 0.5]]), Limits(2)).nodes == 0
