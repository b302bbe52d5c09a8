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
from draftwood.plugins.verifiers.triton.judge.launch import Judging


class Triton(Verifier):
    """Decides as the rule of the same name does, given the same keys, without the host.

    Every node's distribution, draw and residual is worked out where the logits are; the walk is a
    kernel too, and one small copy brings the path, the bonus token and, if the device grew it, the
    tree. The number of launches depends on the rule and the filters alone.

    Decisions can differ from the rule's only where rounding decides: the two best values of a
    race, a uniform and the probability it is compared with, or a filter's edge and the nearest
    token, lie within 1e-5 of each other (relative; 1e-12 for float64 logits). Those are
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
        """Raises UnsupportedTarget where the kernels cannot run on the target's device."""
        hint = "use verifier match, ratio or multi_round, which make the same decisions"
        require_triton(target.device, "verifier triton", hint)
        return self

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        """Walk `tree` on the device by this verifier's rule.

        distributions: their scores, (N+1, V) float16, bfloat16, float32 or float64 on the device.
        tree: its columns on the device or the host; for `ratio` and `multi_round` with q. rng:
        keyed draws, since a kernel makes them itself from their keys. Raises NonFiniteLogits naming
        the node if a row on the path is NaN or has no finite entry, RequestError if the draws have
        no keys."""
        if not isinstance(rng, Seeded):
            raise RequestError(
                f"verifier triton makes its draws on the device from their keys, and "
                f"{type(rng).__name__} has none; use its `reference`, which decides the same"
            )
        judging = Judging(
            distributions.scores(), distributions.sampling, tree, rng, distributions.position(0)
        )
        count, bonus, near_ties, broken, *path = _read(judging.ruling(self.options.rule), tree)
        accepted = path[:count]
        stop = next((i for i, node in enumerate(accepted) if distributions.ends(node)), None)
        if stop is not None:  # the kernel walks on; what it decided past a stop is dropped
            return Verdict(tuple(accepted[: stop + 1]), None, near_ties)
        if broken >= 0:
            raise NonFiniteLogits(broken, distributions.position(broken))
        return Verdict(tuple(accepted), bonus, near_ties)


def _read(ruling: Tensor, tree: TokenTree) -> list[int]:
    """The ruling on the host; in the same copy the tree's columns, if they are on the device."""
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
