"""A mixture's distributions are the conditionals of its joint distribution, by brute force."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood.core.distributions import stable_topk
from draftwood.core.options import Sampling
from draftwood.core.proposals import FactorizedProposal, Frontier, MixtureProposal, Vocabulary
from draftwood.core.randomness import Seeded
from draftwood.core.values import Limits
from draftwood.plugins.trees.best_first import BestFirst
from draftwood.plugins.trees.options import BestFirstOptions

V, D = 4, 3
PLAIN = Sampling(1.0)
SAMPLINGS = [PLAIN, Sampling(0.5), Sampling(1.5, top_k=2), Sampling(1.0, top_p=0.7), Sampling(0.0)]


def mixture(
    seed: int, branches: int, sampling: Sampling = PLAIN, z_t: float = 1.0
) -> MixtureProposal:
    generator = torch.Generator().manual_seed(seed)
    prior = torch.randn(branches, generator=generator, dtype=torch.float64)
    logits = 2 * torch.randn(branches, D, V, generator=generator, dtype=torch.float64)
    return MixtureProposal(prior, logits, sampling, Vocabulary(V), z_t)


def walk(
    proposal: MixtureProposal | FactorizedProposal, path: tuple[int, ...]
) -> tuple[float, Frontier]:
    """The path's score and the frontier after it."""
    at, rho = proposal.root(), 1.0
    for token in path:
        rho *= float(proposal.probs(at)[0, token])
        at = proposal.advance(at, torch.tensor([0]), torch.tensor([token]))
    return rho, at


def joint(proposal: MixtureProposal, path: tuple[int, ...]) -> float:
    """sum_z q(z) prod_i q_i(x_i | z), from each branch by itself."""
    prior = (proposal.prior / proposal.prior_temperature).softmax(0)
    total = 0.0
    for weight, logits in zip(prior.tolist(), proposal.logits, strict=True):
        branch = FactorizedProposal(logits, proposal.sampling, proposal.vocabulary)
        total += weight * walk(branch, path)[0]
    return total


@given(st.integers(0, 99), st.integers(1, 4), st.sampled_from(SAMPLINGS), st.floats(0.3, 3.0))
def test_a_paths_score_is_its_joint_probability(
    seed: int, branches: int, sampling: Sampling, z_t: float
) -> None:
    proposal = mixture(seed, branches, sampling, z_t)
    paths = list(itertools.product(range(V), repeat=2))
    expected = [joint(proposal, path) for path in paths]
    assert sum(expected) == pytest.approx(1.0)
    for path, mass in zip(paths, expected, strict=True):
        if mass > 0:
            assert walk(proposal, path)[0] == pytest.approx(mass, abs=1e-12)


def test_the_product_of_marginals_is_another_distribution() -> None:
    """What a mixture must not be scored by: the negative control of the test above."""
    proposal = mixture(1, 3)
    marginals = torch.einsum("k,kdv->dv", proposal.prior.softmax(0), proposal.logits.softmax(-1))
    wrong = [float(marginals[0, a] * marginals[1, b]) for a in range(V) for b in range(V)]
    right = [walk(proposal, (a, b))[0] for a in range(V) for b in range(V)]
    assert max(abs(x - y) for x, y in zip(wrong, right, strict=True)) > 0.01


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_one_branch_is_factorized(sampling: Sampling) -> None:
    one = mixture(2, 1, sampling)
    same = FactorizedProposal(one.logits[0], sampling, one.vocabulary)
    ours, theirs = one.root(), same.root()
    for _ in range(D):
        assert torch.equal(one.probs(ours), same.probs(theirs))
        here, there = one.expand(ours, 3), same.expand(theirs, 3)
        possible = here.log_q > -math.inf
        assert torch.equal(here.log_q, there.log_q)
        assert torch.equal(here.tokens[possible], there.tokens[possible])
        if one.max_depth > ours.depth + 1:
            ours = one.advance(ours, torch.tensor([0]), here.tokens[0, :1])
            theirs = same.advance(theirs, torch.tensor([0]), here.tokens[0, :1])


def test_repeated_branches_are_one_branch_of_their_joint_weight() -> None:
    one = mixture(3, 2)
    twice = MixtureProposal(
        torch.cat([one.prior, one.prior[:1]]) - torch.tensor([math.log(2), 0, math.log(2)]),
        torch.cat([one.logits, one.logits[:1]]),
        PLAIN,
        one.vocabulary,
    )
    for path in ((), (1,), (2, 0)):
        assert torch.allclose(one.probs(walk(one, path)[1]), twice.probs(walk(twice, path)[1]))


def test_a_branch_of_weight_zero_is_no_branch() -> None:
    two = mixture(4, 2)
    three = MixtureProposal(
        torch.cat([two.prior, torch.tensor([-math.inf])]),
        torch.cat([two.logits, torch.full((1, D, V), 3.0)]),
        PLAIN,
        two.vocabulary,
    )
    for path in ((), (1,), (2, 0)):
        assert torch.allclose(two.probs(walk(two, path)[1]), three.probs(walk(three, path)[1]))


def test_only_the_best_branch_is_left_at_prior_temperature_zero() -> None:
    proposal = mixture(5, 3, z_t=0.0)
    alone = FactorizedProposal(proposal.logits[proposal.prior.argmax()], PLAIN, proposal.vocabulary)
    assert torch.allclose(proposal.probs(proposal.root()), alone.probs(alone.root()))


def test_the_best_token_may_be_the_best_of_no_branch() -> None:
    distributions = torch.tensor([[[0.4, 0.0, 0.3, 0.3]], [[0.0, 0.4, 0.3, 0.3]]])
    proposal = MixtureProposal(torch.zeros(2), distributions.log(), PLAIN, Vocabulary(V))
    assert proposal.expand(proposal.root(), 2).tokens.tolist() == [[2, 3]]


def test_a_long_unlikely_path_keeps_finite_weights() -> None:
    logits = torch.zeros(2, 60, V)
    logits[:, :, 0] = -40.0
    logits[1, :, 0] -= 1.0
    proposal = MixtureProposal(torch.zeros(2), logits, PLAIN, Vocabulary(V))
    _, at = walk(proposal, (0,) * 59)
    assert float(at.state.sum()) == pytest.approx(1.0)
    assert float(proposal.probs(at).sum()) == pytest.approx(1.0)


def test_a_reduced_vocabulary_speaks_the_targets_ids() -> None:
    small = mixture(6, 2)
    ids = torch.tensor([5, 0, 7, 2])
    mapped = MixtureProposal(small.prior, small.logits, PLAIN, Vocabulary(8, ids))
    probs = mapped.probs(walk(mapped, (5, 2))[1])
    assert torch.allclose(probs[0, ids], small.probs(walk(small, (0, 3))[1])[0])
    assert float(probs.sum()) == pytest.approx(1.0)
    assert probs.dtype == small.logits.dtype


def large(seed: int, branches: int, sampling: Sampling = PLAIN, size: int = 600) -> MixtureProposal:
    """Sharp and flat branches over many tokens, rounded so that there are ties."""
    generator = torch.Generator().manual_seed(seed)
    sharpness = 0.5 + 4 * torch.rand(branches, 3, 1, generator=generator)
    logits = (torch.randn(branches, 3, size, generator=generator) * sharpness).round(decimals=1)
    prior = torch.randn(branches, generator=generator)
    return MixtureProposal(prior, logits, sampling, Vocabulary(size))


LARGE = [PLAIN, Sampling(0.6), Sampling(1.5, top_k=20, top_p=0.8), Sampling(0.0)]


@given(
    st.integers(0, 999), st.sampled_from([1, 2, 4, 8]), st.sampled_from(LARGE), st.integers(1, 40)
)
def test_children_found_among_few_tokens_are_those_of_the_whole_distribution(
    seed: int, branches: int, sampling: Sampling, k: int
) -> None:
    proposal = large(seed, branches, sampling)
    at = proposal.root()
    for _ in range(3):
        found = proposal.expand(at, k)
        tokens, probs = stable_topk(proposal.probs(at), k)
        possible = probs > 0
        assert found.log_q.equal(probs.double().log())
        assert found.tokens[possible].equal(tokens[possible])
        if at.depth < 2:
            at = proposal.advance(
                at, torch.zeros(3, dtype=torch.long), found.tokens[0, :1].expand(3)
            )


def test_no_token_outside_a_shortlist_is_as_likely_as_it_says() -> None:
    proposal = large(3, 4)
    at = proposal.root()
    listed = proposal.shortlisted(8)
    assert listed is not proposal
    few = listed.expand(at, 600)
    assert few.unlisted_bound is not None
    left = proposal.probs(at)[0].index_fill(0, few.tokens[0], 0.0).max().double().log()
    assert few.tokens.shape[1] < 600
    assert float(few.unlisted_bound[0]) - 2.0 < float(left) < float(few.unlisted_bound[0])


def test_path_scores_are_the_scores_of_walking() -> None:
    proposal = mixture(8, 3)
    paths = torch.tensor([[0, 1, 2], [3, 3, 3]])
    expected = [
        [math.log(walk(proposal, tuple(p[:n]))[0]) for n in (1, 2, 3)] for p in paths.tolist()
    ]
    assert torch.allclose(proposal.path_scores(paths), torch.tensor(expected, dtype=torch.float64))
    assert proposal.weights().tolist() == proposal.root().state[0].tolist()


def test_greedy_branches_are_each_branchs_best_tokens_in_the_targets_ids() -> None:
    small = mixture(9, 2)
    ids = torch.tensor([5, 0, 7, 2])
    mapped = MixtureProposal(small.prior, small.logits, PLAIN, Vocabulary(8, ids))
    assert mapped.greedy().equal(ids[small.logits.argmax(-1)])
    assert mapped.greedy().equal(mapped.tempered(0.0).greedy())


@pytest.mark.parametrize("vocabulary", [6, 600])
def test_a_certain_token_never_raises_a_paths_score(vocabulary: int) -> None:
    """Else rounding would put a node before its parent."""
    logits = torch.zeros(4, 3, vocabulary)
    logits[..., 1] = 200.0
    overshot = 0
    for seed in range(400):
        prior = torch.randn(4, generator=torch.Generator().manual_seed(seed))
        found = MixtureProposal(prior, logits, PLAIN, Vocabulary(vocabulary))
        if not found.probs(found.root()).max() > 1:
            continue
        overshot += 1
        assert found.expand(found.root(), 2).log_q.max() <= 0
        tree = BestFirst(BestFirstOptions(max_nodes=3, form="by_level")).grow(
            0, found, Limits(3), lambda tree: True, Seeded(0)
        )
        tree.validate()
    assert overshot > 0  # weights in float32 do add up to more than 1
