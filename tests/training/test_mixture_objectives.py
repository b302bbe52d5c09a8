"""Objectives of mixtures against the formulas written out, on joints small enough to enumerate."""

import itertools
import math

import pytest
import torch

from draftwood.core.errors import ConfigError
from draftwood.training.config import (
    AcceptedLengthOptions,
    BlockOptions,
    DPaceOptions,
    MixtureOptions,
)
from draftwood.training.objectives import (
    Blocks,
    al,
    dpace,
    find,
    gamma_for,
    log_ratios,
    nll,
    nll_weighted,
    unbalance,
)

V, D, K = 3, 3, 2
TEXTS = list(itertools.product(range(V), repeat=D))
Y = torch.tensor(TEXTS)


def joint(seed: int, k: int = K) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """p over every text (V ** D,), prior (k,) and branches (k, D, V), in float64."""
    torch.manual_seed(seed)
    p = torch.randn(len(TEXTS), dtype=torch.float64).mul(2).softmax(0)
    prior = torch.randn(k, dtype=torch.float64).softmax(0)
    return p, prior, torch.randn(k, D, V, dtype=torch.float64).mul(2).softmax(-1)


def token_distributions(p: torch.Tensor) -> torch.Tensor:
    """(texts, D), p(y_i | y_<i)."""
    whole = p.view((V,) * D)
    found = []
    for text in TEXTS:
        reached = [whole[text[:i]].sum() for i in range(D + 1)]
        found.append([reached[i + 1] / reached[i] for i in range(D)])
    return torch.tensor(found, dtype=torch.float64)


def blocks_of(p, prior, branches, valid=None) -> Blocks:
    """One block a text."""
    said = torch.stack([branches[:, i, Y[:, i]] for i in range(D)], -1)  # k, texts, D
    return Blocks(
        prior.log().expand(len(TEXTS), -1),
        said.log().transpose(0, 1),
        token_distributions(p).log(),
        torch.ones(len(TEXTS), D, dtype=torch.bool) if valid is None else valid,
    )


def written_out(p, prior, branches, lengths, retained, rule, clamp=True) -> torch.Tensor:
    """The mean of L_AL over texts cut to lengths, in plain Python."""
    distributions, losses = token_distributions(p), []
    for n, text in enumerate(TEXTS):
        b, ratios, bars = lengths[n], [], []
        for i in range(b):
            mass = [sum(prior[z] * math.prod(branches[z, m, text[m]] for m in range(j))
                        for z in range(len(prior))) for j in (i, i + 1)]  # fmt: skip
            token = (mass[1] / mass[0]).log() - distributions[n, i].log()
            whole = mass[1].log() - distributions[n, : i + 1].log().sum()
            if rule == "token":
                held = torch.minimum(token, torch.zeros_like(token)) if clamp else token
                bars.append(held + (bars[-1] if bars else 0.0))
                ratios.append(bars[-1])
            else:
                ratios.append(whole)
                bars.append(torch.minimum(whole, torch.zeros_like(whole)) if clamp else whole)
        keep = {
            "threshold": [i == 0 or ratios[i] > math.log(0.1) for i in range(b)],
            "whole_block": [i == b - 1 for i in range(b)],
            "one_prefix": [i == 0 for i in range(b)],
            "all_retained": [True] * b,
        }[retained]
        terms = [-torch.stack(bars[i:]).logsumexp(0) for i in range(b) if keep[i]]
        losses.append(torch.stack(terms).sum())
    return torch.stack(losses).mean()


def logits_of(seed: int):
    p, prior, branches = joint(seed)
    return p, prior.log().requires_grad_(), branches.log().requires_grad_()


@pytest.mark.parametrize("rule", ["sequence", "token"])
@pytest.mark.parametrize("retained", ["threshold", "whole_block", "one_prefix", "all_retained"])
def test_al_is_the_formula_with_its_gradient(retained, rule):
    """Texts cut at every length, so that what lies past the end of a text counts for nothing."""
    lengths = [1 + n % D for n in range(len(TEXTS))]
    valid = torch.arange(D) < torch.tensor(lengths)[:, None]
    options = BlockOptions(objective="al", al=AcceptedLengthOptions(retained=retained, rule=rule))
    found = []
    for compute in (
        lambda *parts: al(blocks_of(*parts, valid), options),
        lambda *parts: written_out(*parts, lengths, retained, rule),
    ):
        p, prior, branches = logits_of(3)
        loss = compute(p, prior.softmax(-1), branches.softmax(-1))
        found.append((loss, *torch.autograd.grad(loss, (prior, branches))))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-9)


def test_al_without_its_clamp_is_another_objective():
    options = BlockOptions(objective="al")
    p, prior, branches = joint(3)
    lengths = [D] * len(TEXTS)
    unclamped = written_out(p, prior, branches, lengths, "threshold", "sequence", clamp=False)
    assert abs(al(blocks_of(p, prior, branches), options) - unclamped) > 0.1


def test_the_first_position_is_learnt_however_far_off_the_drafter_is():
    p, prior, branches = logits_of(0)
    far = branches.detach().clone()
    far[:, 0] = torch.tensor([-20.0, -20.0, 20.0])  # text 0 begins with token 0
    far.requires_grad_()
    blocks = blocks_of(p, prior.softmax(-1), far.softmax(-1))
    one = Blocks(*(getattr(blocks, name)[:1] for name in ("prior", "branches", "log_p", "valid")))
    _, ratios = log_ratios(one, "sequence")
    assert ratios.max() < math.log(0.1)
    (grad,) = torch.autograd.grad(al(one, BlockOptions(objective="al")), far)
    assert grad[:, 0, 0].min() < -0.1 / K


def test_prefixes_are_the_mixture_summed_over_branches():
    p, prior, branches = joint(1, k=3)
    blocks = blocks_of(p, prior, branches)
    for n, text in enumerate(TEXTS):
        for i in range(D):
            mass = sum(
                prior[z] * math.prod(branches[z, m, text[m]] for m in range(i + 1))
                for z in range(3)
            )
            assert blocks.prefixes()[n, i].exp() == pytest.approx(mass.item(), rel=1e-12)
    assert blocks.prefixes()[:, -1].exp().sum() == pytest.approx(1.0)
    loss = nll(blocks, BlockOptions(objective="nll"))
    assert loss.item() == pytest.approx(-blocks.prefixes()[:, -1].mean().item() / D)


def accepted_by_ratio(p, prior, branches) -> float:
    """Drafts drawn from the mixture and judged one by one, every draw with its chance."""
    distributions = dict(zip(TEXTS, token_distributions(p).tolist(), strict=True))
    total = 0.0
    for draft in TEXTS:
        mass = [
            sum(prior[z] * math.prod(branches[z, m, draft[m]] for m in range(j)) for z in range(K))
            for j in range(D + 1)
        ]
        passed = 1.0
        for i in range(D):
            q = mass[i + 1] / mass[i]
            passed *= min(1.0, distributions[draft][i] / q)
            total += mass[D] * passed
    return float(total)


@pytest.mark.parametrize("seed", range(4))
def test_the_token_rule_is_the_accepted_length_of_ratio(seed):
    p, prior, branches = joint(seed)
    token, _ = log_ratios(blocks_of(p, prior, branches), "token")
    expected = accepted_by_ratio(p, prior, branches)
    assert (p[:, None] * token.exp()).sum().item() == pytest.approx(expected, rel=1e-12)
    sequence, _ = log_ratios(blocks_of(p, prior, branches), "sequence")
    assert (p[:, None] * sequence.exp()).sum() > expected + 1e-3


def test_dpace_unsmoothed_ascends_the_accepted_length():
    """Its gradient is that of sum_m prod_{i <= m} q(y_i | y_<i)."""
    options = BlockOptions(objective="dpace", dpace=DPaceOptions(alpha=0.0))
    p, prior, branches = logits_of(2)
    blocks = blocks_of(p, prior.softmax(-1), branches.softmax(-1))
    ours = torch.autograd.grad(dpace(blocks, options), (prior, branches))
    p, prior, branches = logits_of(2)
    blocks = blocks_of(p, prior.softmax(-1), branches.softmax(-1))
    length = blocks.conditionals().cumsum(-1).exp().sum(-1).mean()
    for mine, theirs in zip(ours, torch.autograd.grad(-length, (prior, branches)), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-9)


def test_dpace_fully_smoothed_weighs_by_what_is_left():
    """alpha = 1: position j of D weighs D - j + 1, whatever the drafter says."""
    p, prior, branches = joint(2)
    blocks = blocks_of(p, prior, branches)
    options = BlockOptions(objective="dpace", dpace=DPaceOptions(alpha=1.0))
    weights = torch.arange(D, 0, -1)
    expected = -(weights * blocks.conditionals()).sum(-1).mean()
    assert dpace(blocks, options).item() == pytest.approx(expected.item())


def test_weighted_nll_decays_over_positions_inside_the_text():
    p, prior, branches = joint(5)
    valid = torch.arange(D) < torch.tensor([1 + n % D for n in range(len(TEXTS))])[:, None]
    blocks = blocks_of(p, prior, branches, valid)
    weights = torch.exp(-torch.arange(D) / gamma_for(D + 1)) * valid
    expected = -(weights * blocks.conditionals()).sum() / weights.sum()
    options = BlockOptions(objective="nll_weighted")
    assert nll_weighted(blocks, options).item() == pytest.approx(expected.item())


def test_past_the_end_of_a_text_anything_may_stand():
    p, prior, branches = joint(5)
    valid = torch.arange(D) < torch.tensor([1 + n % D for n in range(len(TEXTS))])[:, None]
    plain, other = blocks_of(p, prior, branches, valid), blocks_of(p, prior, branches, valid)
    other.branches = other.branches - 5.0 * ~valid[:, None]
    other.log_p = other.log_p - 3.0 * ~valid
    for name in ("nll", "nll_weighted", "dpace", "al"):
        objective = find(BlockOptions(objective=name))
        assert objective(plain).item() == objective(other).item()


def test_balance_descends_the_divergence_of_usage_from_uniform():
    torch.manual_seed(0)
    logits = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    (ours,) = torch.autograd.grad(unbalance(logits.log_softmax(-1)), logits)
    usage = logits.softmax(-1).mean(0)
    (theirs,) = torch.autograd.grad((usage * (usage * 4).log()).sum(), logits)
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-9)
    assert unbalance(logits.log_softmax(-1)).item() == pytest.approx(
        (usage * (usage * 4).log()).sum().item()
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"objective": "nll", "al": AcceptedLengthOptions()},
        {"objective": "al", "dpace": DPaceOptions()},
        {"objective": "al", "gamma": 3.0},
    ],
)
def test_options_of_another_objective_are_refused(wrong):
    with pytest.raises(ValueError, match="is an option of objective"):
        MixtureOptions(**wrong)


def test_unknown_objectives_are_named_with_the_choices():
    with pytest.raises(ConfigError, match="choices: al, dpace, nll, nll_weighted"):
        find(BlockOptions(objective="nil"))
