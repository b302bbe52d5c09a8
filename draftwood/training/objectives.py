"""What a block drafter is trained to do, by name: `train.objective` in a training file.

An objective sees log-probabilities of one batch of blocks and returns a scalar. Add one with
`@objective(name)`. Letters in shapes: N blocks, K branches, D = block size - 1 drafts of a block.
"""

import math
from collections.abc import Callable

import torch
from attrs import define
from torch import Tensor

from draftwood.core.errors import ConfigError, Problem
from draftwood.training.config import AcceptedLengthOptions, BlockOptions, DPaceOptions
from draftwood.training.parallel import size, summed

PAPER_GAMMA = {16: 7.0, 10: 5.0, 8: 4.0}


@define(eq=False)  # torch.compile cannot build frozen ones
class Blocks:
    """One batch, of text y that the target wrote. All float32 but `valid`.

    prior: (N, K), log q(z). branches: (N, K, D), log q(y_i | z). log_p: (N, D), log of what the
    distribution that drew y_i gave it: 0 in greedy text. valid: (N, D), False past the end of a
    text."""

    prior: Tensor
    branches: Tensor
    log_p: Tensor
    valid: Tensor

    def prefixes(self) -> Tensor:
        """(N, D), log q(y_1..i) = log sum_z q(z) prod_{m <= i} q(y_m | z); constant past the end
        of a text."""
        along = self.branches.masked_fill(~self.valid[:, None], 0.0).cumsum(-1)
        return (self.prior[..., None] + along).logsumexp(1)

    def conditionals(self) -> Tensor:
        """(N, D), log q(y_i | y_<i) of the mixture; 0 past the end of a text."""
        prefixes = self.prefixes()
        return torch.cat((prefixes[:, :1], prefixes.diff(dim=-1)), -1)

    def per_block(self, losses: Tensor) -> Tensor:
        """The mean of (N,) losses over blocks that have a label."""
        return weighted_mean(losses, self.valid.any(-1).float())


Objective = Callable[[Blocks, BlockOptions], Tensor]
OBJECTIVES: dict[str, Objective] = {}


def objective(name: str) -> Callable[[Objective], Objective]:
    """Register a function of `Blocks` and the training file's options under a name."""

    def register(function: Objective) -> Objective:
        if name in OBJECTIVES:
            raise ValueError(f"an objective named {name!r} is registered already")
        OBJECTIVES[name] = function
        return function

    return register


def find(options: BlockOptions) -> Callable[[Blocks], Tensor]:
    """The objective that the options name, with them. Raises ConfigError naming the choices."""
    name = options.objective
    if name not in OBJECTIVES:
        choices = f"choices: {', '.join(sorted(OBJECTIVES))}"
        problem = Problem("", "train.objective", f"unknown objective {name!r}", (choices,))
        raise ConfigError([problem])
    chosen = OBJECTIVES[name]
    return lambda blocks: chosen(blocks, options)


def gamma_for(block_size: int) -> float:
    """The paper's decay for 8, 10 and 16 slots, and the line through its ends for other sizes."""
    return PAPER_GAMMA.get(block_size, 4.0 + (block_size - 8) * 3.0 / 8.0)


def weighted_mean(losses: Tensor, weights: Tensor) -> Tensor:
    """Over the whole batch. Of several processes each returns its part times their number, so
    that averaged gradients are those of the whole."""
    return (losses * weights).sum() * size() / summed(weights.sum()).clamp_min(1e-6)


@objective("nll")
def nll(blocks: Blocks, options: BlockOptions) -> Tensor:
    """-log q(block), a token, every position alike: the terms -log q(y_i | y_<i) add up to it."""
    return weighted_mean(-blocks.conditionals(), blocks.valid.float())


@objective("nll_weighted")
def nll_weighted(blocks: Blocks, options: BlockOptions) -> Tensor:
    """DFlash's: position k = 1, 2, ... weighs exp(-(k - 1) / gamma), since a token counts only if
    all before it were right. arXiv 2602.06036. Of a mixture the terms -log q(y_i | y_<i) are
    weighed, what each position adds to -log q(block)."""
    slots = blocks.valid.shape[-1]
    gamma = options.gamma or gamma_for(slots + 1)
    weights = torch.exp(-torch.arange(slots, device=blocks.valid.device) / gamma)
    return weighted_mean(-blocks.conditionals(), weights * blocks.valid)


@objective("dpace")
def dpace(blocks: Blocks, options: BlockOptions) -> Tensor:
    """D-PACE, arXiv 2605.18810: - sum_j w_j log q_j with the detached weights
    w_j = sum_{m >= j} prod_{i <= m} s_i, s = (1 - alpha) q + alpha, whose gradient is that of the
    expected accepted length sum_m prod_{i <= m} q_i with smoothed confidences.

    Mean over blocks: dividing by the sum of the weights would cancel what they say about a block.
    Of a mixture q_j is q(y_j | y_<j).
    """
    alpha = (options.dpace or DPaceOptions()).alpha
    losses = -blocks.conditionals()
    with torch.no_grad():
        smoothed = (1 - alpha) * (-losses).exp() + alpha
        reached = smoothed.cumprod(-1) * blocks.valid
        weights = reached.flip(-1).cumsum(-1).flip(-1) * blocks.valid
    return blocks.per_block((weights * losses).sum(-1))


@objective("al")
def al(blocks: Blocks, options: BlockOptions) -> Tensor:
    """Accepted length: - sum_{i in R} logsumexp_{j >= i} lbar_j, a block (DBlast, 2608.05448).

    lbar_i is the clamped log-ratio of `log_ratios`. R, by `al.retained`: `threshold`, the first
    position and those whose log-ratio is above log `al.threshold`; `whole_block`, the last one;
    `one_prefix`, the first one; `all_retained`. p and the choice of R carry no gradient.
    """
    chosen = options.al or AcceptedLengthOptions()
    clamped, ratios = log_ratios(blocks, chosen.rule)
    # Row i of later: lbar_j for j >= i; before i and past the text's end nothing, though finite,
    # since a row of -inf alone has no gradient.
    slots = clamped.shape[-1]
    from_i = torch.ones((slots, slots), dtype=torch.bool, device=clamped.device).triu()
    nothing = torch.finfo(clamped.dtype).min / 2
    later = clamped[:, None].masked_fill(~(from_i & blocks.valid[:, None]), nothing)
    kept = retained(ratios.detach(), blocks.valid, chosen)
    return blocks.per_block(-later.logsumexp(-1).masked_fill(~kept, 0.0).sum(-1))


def log_ratios(blocks: Blocks, rule: str) -> tuple[Tensor, Tensor]:
    """(N, D) clamped and unclamped log-ratios of q and p over prefixes of y.

    `sequence`: lbar_i = min(0, log q(y_1..i) - log p(y_1..i)); sum_i E_p[exp lbar_i] bounds every
    rule's accepted length from above. `token`: lbar_i = sum_{m <= i} min(0, log q(y_m | y_<m)
    - log p(y_m | y_<m)); the sum is exactly the accepted length of `ratio`.
    """
    log_p = blocks.log_p.masked_fill(~blocks.valid, 0.0)
    if rule == "token":
        clamped = (blocks.conditionals() - log_p).clamp(max=0.0).cumsum(-1)
        return clamped, clamped
    ratios = blocks.prefixes() - log_p.cumsum(-1)
    return ratios.clamp(max=0.0), ratios


def retained(ratios: Tensor, valid: Tensor, options: AcceptedLengthOptions) -> Tensor:
    """R: (N, D) bool. The first position always stays: without it, a drafter that is far off
    would retain nothing and learn nothing."""
    positions = torch.arange(valid.shape[-1], device=valid.device)
    match options.retained:
        case "threshold":
            kept = (positions == 0) | (ratios > math.log(options.threshold))
        case "whole_block":
            kept = positions == valid.sum(-1, keepdim=True) - 1
        case "one_prefix":
            kept = positions == 0
        case _:
            kept = torch.ones_like(positions, dtype=torch.bool)
    return kept & valid


def unbalance(prior: Tensor) -> Tensor:
    """KL(usage || uniform) of the branches, usage being the mean of q(z) over a batch (N, K).

    Its gradient is exact over several processes, where the value is this process's part: usage is
    taken over all of them and held fixed, as the derivative of u log u is log u + 1.
    """
    own = prior.exp()
    usage = summed(own.sum(0)) / summed(own.sum())
    slope = (usage * usage.shape[0]).clamp_min(1e-6).log()
    return (slope * own.mean(0)).sum()
