"""Counts a forward's operations by tracing it, for any architecture: nothing is computed."""

import copy
from typing import TYPE_CHECKING

import torch
from torch.utils.flop_counter import FlopCounterMode

from draftwood.core.errors import UnsupportedTarget
from draftwood.core.hf.costs import line

if TYPE_CHECKING:
    from draftwood.core.hf.target import HFTarget


class TracedFlops:
    """FLOPs of forwards of a target, from a copy of its model that has shapes and no weights.

    Raises UnsupportedTarget if the model cannot run without values, as some mixtures of experts,
    whose routing depends on them.
    """

    def __init__(self, target: "HFTarget") -> None:
        from draftwood.core.hf.target import HFTarget

        config = copy.deepcopy(target.model.config)
        config._attn_implementation = "eager"  # its products are counted in every release
        try:
            with torch.device("meta"):
                model = type(target.model)(config).eval()
            self._target = HFTarget(model, name=target.name, check=False)
        except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            raise UnsupportedTarget(
                f"{target.name} cannot be traced without weights: {error}"
            ) from error
        self._session = self._target.open()

    def __call__(self, tokens: int, context: int) -> float:
        """Multiplications and additions of a forward over a tree of `tokens` nodes on `context`
        tokens of context."""
        with torch.inference_mode():
            self._session.cache.pretend(context)
        with FlopCounterMode(display=False) as counter:
            self._target.forward([(self._session, line(tokens))])
        return float(counter.get_total_flops())
