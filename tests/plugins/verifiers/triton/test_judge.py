"""The judge's kernels beside the host's rules: the same noise, the same distributions, the same
decisions on both sides of every boundary; and where rounding decides, they say so."""

import itertools

import pytest
import torch
import triton
import triton.language as tl

from draftwood.core.distributions import filtered
from draftwood.core.draws import Draws
from draftwood.core.kernels.launches import LAUNCHES
from draftwood.core.node_distributions import TargetDistributions
from draftwood.core.options import Sampling
from draftwood.core.randomness import Seeded
from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict
from draftwood.plugins.verifiers.match import Match
from draftwood.plugins.verifiers.multi_round import MultiRound
from draftwood.plugins.verifiers.triton.judge.buffers import FilterBounds, JudgeBuffers
from draftwood.plugins.verifiers.triton.judge.draws import log_noise
from draftwood.plugins.verifiers.triton.judge.launch import Blocks, JudgeLaunch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
POSITION = 3
HISTORY = [0] * POSITION
SMALL = Blocks(chunk=32, tile=16, wide=16, filter_tile=16)
"""So small that a vocabulary of 70 has three chunks and tiles that end inside it."""


def decided(
    logits: torch.Tensor,
    tree: TokenTree,
    sampling: Sampling,
    seed: int,
    rule: str = "match",
    blocks: Blocks = SMALL,
    buffer_type: type[JudgeBuffers] = JudgeBuffers,
) -> Verdict:
    launch = JudgeLaunch(
        logits.to(DEVICE), sampling, tree, Seeded(seed), POSITION, blocks, buffer_type
    )
    count, bonus, near_ties, broken, *path = launch.decide(rule).tolist()
    assert broken == -1
    return Verdict(tuple(path[:count]), bonus, near_ties)


def by_reference(
    logits: torch.Tensor, tree: TokenTree, sampling: Sampling, seed: int, rule: str = "match"
) -> Verdict:
    verifier = Match() if rule == "match" else MultiRound()
    return verifier.judge(
        TargetDistributions(logits, tree, HISTORY, sampling, (), 0), tree, Seeded(seed)
    )


@triton.jit
def _noise_kernel(keys, out, DOUBLE: tl.constexpr, SIZE: tl.constexpr):
    token = tl.arange(0, SIZE)
    key = tl.load(keys).to(tl.uint64, bitcast=True)
    tl.store(out + token, log_noise(key, token, DOUBLE))


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 2e-6), (torch.float64, 1e-13)])
@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_the_noise_is_the_hosts(dtype: torch.dtype, error: float, seed: int) -> None:
    key, size = Seeded(seed).key(POSITION), 2**14
    keys = torch.tensor([key - 2**64 if key >= 2**63 else key], device=DEVICE)
    out = torch.full((size,), torch.nan, dtype=dtype, device=DEVICE)
    _noise_kernel[(1,)](keys, out, DOUBLE=dtype is torch.float64, SIZE=size)
    wanted = Seeded(seed).exponentials(size, POSITION).log()
    assert (out.double().cpu() - wanted).abs().max() <= error
    assert wanted.min() < -8  # noise so small that its uniform rounds to 1 in float32


ROOT = TokenTree.root(0)


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize(("first", "second"), [*itertools.permutations(range(3), 2)])
def test_two_that_nearly_tie_are_decided_alike_or_counted(
    first: int, second: int, side: int
) -> None:
    """Both sides of every boundary between two tokens of a small vocabulary."""
    noise = Seeded(1).exponentials(4, POSITION).log()
    for distance, counted in ((1e-4, 0), (3e-6, 1)):
        logits = torch.full((1, 4), -9.0, dtype=torch.float64)
        logits[0, first] = noise[first]
        logits[0, second] = noise[second] + side * distance
        sampling = Sampling(1.0)
        mine = decided(logits.float(), ROOT, sampling, 1)
        assert mine.near_ties == counted
        wanted = {second if side > 0 else first} if not counted else {first, second}
        assert mine.bonus in wanted
        if not counted:
            assert mine == by_reference(logits.float(), ROOT, sampling, 1)


@pytest.mark.parametrize("token", range(3))
@pytest.mark.parametrize("side", [1, -1])
def test_a_uniform_beside_its_probability_is_decided_alike_or_counted(
    token: int, side: int
) -> None:
    seed = next(seed for seed in range(99) if 0.6 < Seeded(seed).uniform(POSITION) < 0.9)
    uniform = Seeded(seed).uniform(POSITION)
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    for distance, counted in ((1e-3, 0), (1e-6, 1)):
        chance = uniform * (1 + side * distance)
        # A distribution that gives the token p / chance, and the others what is left.
        q = (1 - p[token] / chance) * p / (1 - p[token])
        q[token] = p[token] / chance
        assert q.min() >= 0
        tree = TokenTree.from_lists(
            [0, token], [-1, 0], [0, 1], [0.0, 0.0], Draws.CHAIN, q.float()[None]
        )
        logits = p.log().float().expand(2, -1).contiguous()
        mine = decided(logits, tree, Sampling(1.0), seed, "ratio")
        assert (mine.near_ties > 0) == bool(counted)
        if not counted:
            assert mine == by_reference(logits, tree, Sampling(1.0), seed, "ratio")
            assert (len(mine.accepted) == 2) == (side > 0)


@pytest.mark.parametrize("kept", [1, 2, 3])
@pytest.mark.parametrize("side", [1, -1])
def test_a_mass_beside_top_p_is_decided_alike_or_counted(kept: int, side: int) -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64).log().float()
    for distance, counted in ((1e-3, 0), (1e-6, 1)):
        top_p = sum((0.4, 0.3, 0.2)[:kept]) + side * distance
        sampling = Sampling(1.0, top_p=top_p)
        mine = [decided(logits, ROOT, sampling, seed) for seed in range(2)]
        assert all((verdict.near_ties > 0) == bool(counted) for verdict in mine)
        if not counted:
            assert mine == [by_reference(logits, ROOT, sampling, seed) for seed in range(2)]


def survivors(logits: torch.Tensor, sampling: Sampling) -> set[int]:
    """Which tokens the kernel keeps, from its bounds: each as the only one with any chance."""
    launch = JudgeLaunch(logits.to(DEVICE), sampling, ROOT, Seeded(0), POSITION, SMALL)
    inputs, _ = launch._send([0])
    bounds, masses = launch._filters(launch._row_max(), inputs)
    last, first, _ = bounds[0].tolist()
    row = logits[0].float()
    # As a GPU divides: by multiplying with the inverse.
    inverse_temperature = torch.tensor(1 / sampling.temperature, dtype=torch.float32)
    scores = (row - row.max()) * inverse_temperature if sampling.temperature != 1 else row
    bits = (scores + 0.0).view(torch.int32).long()
    order = torch.where(bits < 0, -(bits & 0x7FFFFFFF) - 1, bits)
    away = (order.max() - order).tolist()
    found = {t for t, far in enumerate(away) if far < last or (far == last and t >= first)}
    probs = (scores - scores.max()).double().exp()
    assert float(masses[0]) == pytest.approx(float(probs[sorted(found)].sum()), rel=1e-5)
    return found


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1.0, top_k=3),
        Sampling(0.7, top_p=0.6),
        Sampling(1.3, min_p=0.2),
        Sampling(0.9, top_k=9, top_p=0.7, min_p=0.05),
    ],
)
def test_filters_keep_what_the_hosts_keep_ties_included(sampling: Sampling) -> None:
    generator = torch.Generator().manual_seed(7)
    for rounded in (False, True):
        logits = torch.randn(1, 40, generator=generator) * 2
        logits = logits.round() if rounded else logits
        row = (logits - logits.max()) / sampling.temperature
        wanted = filtered(row if sampling.temperature != 1 else logits, sampling)[0]
        assert survivors(logits, sampling) == set(wanted.isfinite().nonzero().flatten().tolist())


class PoisonedBuffers(JudgeBuffers):
    """Memory that no kernel writes is recognised by its values."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        poison = torch.nan if dtype.is_floating_point else -(2**40)
        return torch.full(shape, poison, dtype=dtype, device=DEVICE)


TREE = TokenTree.from_lists([0, 1, 2, 3, 1, 2], [-1, 0, 0, 1, 1, 4], [0, 1, 1, 2, 2, 3], [0.0] * 6)


def drawn_tree(vocab: int, generator: torch.Generator) -> TokenTree:
    q = torch.rand(5, vocab, generator=generator)
    lists = (TREE.token_list, TREE.parent_list, TREE.depth_list, [0.0] * 6)
    return TokenTree.from_lists(*lists, Draws.WITHOUT_REPLACEMENT, q / q.sum(-1, keepdim=True))


@pytest.mark.parametrize("rule", ["match", "multi_round"])
@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(0.8, top_p=0.9)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_across_chunks_and_tiles_from_poisoned_memory(
    rule: str, sampling: Sampling, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(3)
    tree = TREE if rule == "match" else drawn_tree(40, generator)
    logits = (torch.randn(6, 40, generator=generator) * 2).to(dtype)
    logits[:, 1:4] += 4  # so that drafts are accepted
    mine = decided(logits, tree, sampling, 1, rule, buffer_type=PoisonedBuffers)
    assert mine == by_reference(logits, tree, sampling, 1, rule)
    assert mine.near_ties == 0


def test_the_first_of_equal_logits_wins_in_whatever_chunk() -> None:
    for best in ([5, 40], [33, 34, 69], [15, 16]):
        logits = torch.zeros(1, 70)
        logits[0, best] = 1.0
        assert decided(logits, ROOT, Sampling(0.0), 0).bonus == best[0]


def test_rows_may_lie_apart() -> None:
    """Logits are a view where a target pads its vocabulary."""
    padded = torch.full((6, 100), 50.0, device=DEVICE)
    padded[:, :70] = torch.randn(6, 70, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    view = padded[:, :70]
    wanted = by_reference(view.cpu(), TREE, Sampling(1.0), 2)
    assert decided(view, TREE, Sampling(1.0), 2) == wanted


@pytest.mark.parametrize("rule", ["match", "multi_round"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_without_a_distribution_counts_only_if_the_walk_reaches_it(
    rule: str, bad: float
) -> None:
    q = torch.full((5, 70), 1 / 70)
    lists = (TREE.token_list, TREE.parent_list, TREE.depth_list, [0.0] * 6)
    tree = TREE if rule == "match" else TokenTree.from_lists(*lists, Draws.WITHOUT_REPLACEMENT, q)
    logits = torch.full((6, 70), -30.0)
    logits[range(6), [1, 1, 0, 0, 2, 9]] = 30.0  # 0 -> 1 -> 4 -> 5
    for node, wanted in ((2, -1), (4, 4)):
        spoilt = logits.clone()
        spoilt[node] = bad
        launch = JudgeLaunch(spoilt.to(DEVICE), Sampling(1.0), tree, Seeded(0), POSITION, SMALL)
        assert launch.decide(rule)[3] == wanted


@pytest.mark.parametrize(
    ("rule", "sampling", "launches"),
    [
        ("match", Sampling(0.0), 2),
        ("match", Sampling(1.0), 3),
        ("match", Sampling(1.0, top_k=3), 4),
        ("ratio", Sampling(1.0), 6),
        ("ratio", Sampling(0.0), 5),
    ],
)
def test_launches_depend_on_the_rule_alone(rule: str, sampling: Sampling, launches: int) -> None:
    for vocab, tree in ((5, ROOT), (40, TREE)):
        q = torch.full((5, vocab), 1 / vocab)
        if rule == "ratio" and tree is TREE:
            tree = TokenTree.from_lists(
                [0, 1, 2], [-1, 0, 1], [0, 1, 2], [0.0] * 3, Draws.CHAIN, q[:2]
            )
        before = sum(LAUNCHES.counts().values())
        decided(torch.zeros(len(tree), vocab), tree, sampling, 0, rule)
        assert sum(LAUNCHES.counts().values()) - before == launches


def test_draws_follow_the_distribution() -> None:
    """One launch, 300 positions of one distribution: Pearson's statistic within what chance
    allows."""
    size, probs = 300, torch.tensor([0.5, 0.25, 0.15, 0.1])
    chain = TokenTree.from_lists(
        [3] * size, list(range(-1, size - 1)), list(range(size)), [0.0] * size
    )
    logits = probs.log().expand(size, -1).contiguous()
    launch = JudgeLaunch(logits.to(DEVICE), Sampling(1.0), chain, Seeded(11), POSITION)
    inputs, tree = launch._send([Seeded(11).key(POSITION + depth) for depth in range(size)])
    row_max = launch._row_max()
    filters = FilterBounds(inputs, row_max.maxima)
    winners = launch._race(row_max, inputs, tree, filters).tokens
    seen = winners[:, 0].cpu().bincount(minlength=4)
    statistic = float(((seen - size * probs) ** 2 / (size * probs)).sum())
    assert statistic < 16.3  # exceeded once in a thousand, with three degrees of freedom
    tilted = torch.tensor([0.4, 0.35, 0.15, 0.1])
    assert float(((seen - size * tilted) ** 2 / (size * tilted)).sum()) > 16.3
