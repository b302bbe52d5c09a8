"""What a target's first forwards must show: a tree's paths score like texts."""

from typing import Any

import torch
from torch import Tensor

from draftwood.core.errors import UnsupportedTarget
from draftwood.core.hf.scorer import TreeScorer
from draftwood.core.hf.supported import refused_if_it_raises
from draftwood.core.interfaces.target import Target, TargetSession
from draftwood.core.kernels.protocol import Kernels
from draftwood.core.tree import TokenTree

SAME_SHAPE = 1e-3
"""Share of the rounding between shapes that two forwards of one shape may differ by."""


def self_check(target: Target, scorer: TreeScorer) -> None:
    """Score a tiny tree and refuse the target unless its paths behave like texts.

    A chain's logits must equal those of the model's own forward over the text, without a cache. A
    node's logits must equal those of its path as a chain, and must be right again after a branch
    was committed. All this is within what rounding explains. Logits must not move when a sibling's
    token changes: these forwards have equal shapes, so rounding explains next to nothing in any
    dtype. A model whose rows share something (a scale of activations, say) fails here. Seven
    forwards of at most six tokens.

    Raises:
        UnsupportedTarget: one of the four does not hold, with the difference and its bound.
    """
    size = scorer.tokens
    anchor, child, uncle, grandchild, after, other = (token % size for token in range(3, 9))

    def logits(session: TargetSession, tree: TokenTree) -> Tensor:
        return target.forward([(session, tree)])[0].logits[:, :size].double().cpu()

    with refused_if_it_raises(scorer.name):
        session = target.open()
        prompt = [1 % size, 2 % size]
        session.prefill(prompt)
        chain = TokenTree.from_lists(
            [anchor, child, grandchild, after], [-1, 0, 1, 2], [0, 1, 2, 3], [0.0] * 4
        )
        straight = logits(session, chain)
        own = scorer.uncached([*prompt, *chain.token_list])[len(prompt) :, :size].double().cpu()
        changed_sibling = logits(session, _branching(anchor, child, other, grandchild))
        branch = logits(session, _branching(anchor, child, uncle, grandchild))
        repeated = logits(session, _branching(anchor, child, uncle, grandchild))
        session.commit([0, 1, 3])
        committed = logits(session, TokenTree.root(after))
    path = [0, 1, 3]
    rounding = _rounding_bound(scorer.dtype, straight)
    noise = float((repeated - branch).abs().max())
    for fault, got, expected, bound in (
        (
            "its own forward without a cache scores the same text differently",
            straight,
            own,
            rounding,
        ),
        (
            "a path in a tree does not score like the same text",
            branch[path],
            straight[:3],
            rounding,
        ),
        (
            "a sibling's token moves another branch",
            changed_sibling[path],
            branch[path],
            rounding if _routes_tokens(scorer.config) else 2 * noise + SAME_SHAPE * rounding,
        ),
        (
            "a committed branch does not continue like the same text",
            committed[-1],
            straight[-1],
            rounding,
        ),
    ):
        difference = float((got - expected).abs().max())
        if not difference <= bound:
            raise UnsupportedTarget(
                f"{scorer.name} cannot be a target: {fault} (logits differ by {difference:.3g}, "
                f"rounding explains {bound:.3g})"
            )


def _routes_tokens(config: Any) -> bool:
    """Whether rows go to experts in groups: another row's token then changes the groups' shapes."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return any(getattr(config, name, None) for name in names)


def kernel_check(target: Target, scorer: TreeScorer, kernels: Kernels) -> None:
    """Compare `kernels` with the model's own attention on a tiny tree.

    Raises:
        UnsupportedTarget: the logits differ by more than rounding, so the model's attention does
            something that the kernels are not told of.
    """
    size = scorer.tokens
    tokens = [token % size for token in range(3, 7)]
    logits = []
    how = "attention by tree kernels"
    with refused_if_it_raises(scorer.name, how):
        for session in (target.open(), target.open(kernels=kernels)):
            first = session.prefill([1 % size, 2 % size]).logits
            tree = target.forward([(session, _branching(*tokens))])[0].logits
            logits.append(torch.cat([first, tree])[:, :size].double().cpu())
    expected, got = logits
    difference = float((got - expected).abs().max())
    bound = _rounding_bound(scorer.dtype, expected)
    if not difference <= bound:
        raise UnsupportedTarget(
            f"{scorer.name} cannot use {how}: its logits differ from those of its own attention "
            f"by {difference:.3g}, rounding explains {bound:.3g}; use runtime.kernels: torch"
        )


def _rounding_bound(dtype: torch.dtype, logits: Tensor) -> float:
    """Largest difference that rounding explains. Models round their norms to float32 even in
    float64."""
    relative = 1e-3 if dtype in (torch.float64, torch.float32) else 6e-2
    return relative * float(logits.abs().max())


def _branching(anchor: int, child: int, uncle: int, grandchild: int) -> TokenTree:
    """The anchor has two children; the first has a child that comes after its uncle."""
    tokens = [anchor, child, uncle, grandchild]
    return TokenTree.from_lists(tokens, [-1, 0, 0, 1], [0, 1, 1, 2], [0.0] * 4)
