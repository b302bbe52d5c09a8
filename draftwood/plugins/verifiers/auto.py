"""`auto`: the `triton` verifier where its kernels run, else the rule of the same name."""

from draftwood.core.errors import RequestError
from draftwood.core.interfaces import NodeDistributions, Target, Verifier
from draftwood.core.kernels.available import unavailable_reason
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict
from draftwood.plugins.verifiers.host_rules import HOST_RULES
from draftwood.plugins.verifiers.options import AutoOptions, TritonOptions


class Auto(Verifier):
    """Picks a verifier for the device of the target that it is bound to.

    Up to rounding both make the same decisions from the same seed; they differ in speed.
    """

    def __init__(self, options: AutoOptions | None = None) -> None:
        self.options = options or AutoOptions()

    @property
    def reference(self) -> Verifier:
        return HOST_RULES[self.options.rule]()

    def bind(self, target: Target) -> "Picked":
        if unavailable_reason(target.device.type) is None:
            from draftwood.plugins.verifiers.triton.verifier import Triton

            return Picked(Triton(TritonOptions(self.options.rule)).bind(target))
        return Picked(self.reference.bind(target))

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        raise RequestError("verifier auto is not bound to a target; use what bind(target) returns")


class Picked(Verifier):
    """The verifier that `auto` picked for a target."""

    def __init__(self, picked: Verifier) -> None:
        self.picked = picked

    @property
    def name(self) -> str:
        return f"{self.picked.name} (auto)"

    @property
    def reference(self) -> Verifier | None:
        return self.picked.reference or self.picked

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        return self.picked.judge(distributions, tree, rng)
