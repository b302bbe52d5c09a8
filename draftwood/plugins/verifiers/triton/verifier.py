"""The `triton` verifier: judges in kernels on the device."""

from typing import Self

import torch
from torch import Tensor

from draftwood.core import devices
from draftwood.core.errors import NonFiniteLogits, RequestError
from draftwood.core.interfaces import NodeDistributions, Target, Verifier
from draftwood.core.kernels.resolve import require_triton
from draftwood.core.randomness import Randomness, Seeded
from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict
from draftwood.plugins.verifiers.host_rules import HOST_RULES
from draftwood.plugins.verifiers.options import TritonOptions
from draftwood.plugins.verifiers.triton.judge.launch import JudgeLaunch


class Triton(Verifier):
    """Makes the decisions of a rule on the device, given the same keys.

    Every node's distribution, draw and residual is computed where the logits are, and so is the
    accepted path. One small copy to the host has the path, the bonus token and, if the tree was
    grown on the device, the tree. The number of launches depends on the rule and the filters alone.

    Decisions can differ from the rule's only where rounding decides: the two largest scores of a
    draw, a uniform and the probability that it is compared with, or a filter's threshold and the
    nearest token are within 1e-5 of each other (relative; 1e-12 for float64 logits). Those are
    counted in `Verdict.near_ties`. The distribution of the output is the target's either way.
    """

    def __init__(self, options: TritonOptions | None = None) -> None:
        self.options = options or TritonOptions()

    @property
    def name(self) -> str:
        return f"triton, rule {self.options.rule}"

    @property
    def reference(self) -> Verifier:
        return HOST_RULES[self.options.rule]()

    def bind(self, target: Target) -> Self:
        """Check the device.

        Raises:
            UnsupportedTarget: The kernels cannot run on the target's device.
        """
        hint = "use verifier match, ratio or multi_round, which make the same decisions"
        require_triton(target.device, "verifier triton", hint)
        return self

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        """Walk `tree` on the device by this verifier's rule.

        Args:
            distributions: With `scores` (N+1, V) float16, bfloat16, float32 or float64 on the
                device.
            tree: On the device or the host.
            rng: Keyed draws: a kernel computes them from their keys.

        Raises:
            NonFiniteLogits: The row of a node on the path is NaN or has no finite entry.
            RequestError: The draws have no keys.
        """
        if not isinstance(rng, Seeded):
            raise RequestError(
                f"verifier triton draws on the device from keys, and {type(rng).__name__} has "
                "none; use its `reference`, which makes the same decisions"
            )
        launch = JudgeLaunch(
            distributions.scores(), distributions.sampling, tree, rng, distributions.position(0)
        )
        count, bonus, near_ties, broken, *path = _read(launch.decide(self.options.rule), tree)
        accepted = path[:count]
        stop = next((i for i, node in enumerate(accepted) if distributions.ends(node)), None)
        if stop is not None:  # the kernel knows no stops: drop what it decided behind one
            return Verdict(tuple(accepted[: stop + 1]), None, near_ties)
        if broken >= 0:
            raise NonFiniteLogits(broken, distributions.position(broken))
        return Verdict(tuple(accepted), bonus, near_ties)


def _read(ruling: Tensor, tree: TokenTree) -> list[int]:
    """The ruling on the host, and the tree's columns in the same copy if they are on the device."""
    if devices.reads_without_sync(tree.tokens.device):
        return ruling.tolist()
    size = len(tree)
    scores = tree.log_rho.view(torch.int64)
    words = torch.cat([ruling, tree.tokens, tree.parents, tree.depths, scores]).cpu()
    ruled, tokens, parents, depths, scores = words.split([ruling.shape[0], *[size] * 4])
    tree.keep_lists(
        tokens=tokens.tolist(),
        parents=parents.tolist(),
        depths=depths.tolist(),
        log_rho=scores.view(torch.float64).tolist(),
    )
    return ruled.tolist()
