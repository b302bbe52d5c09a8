"""Counts a forward's operations by tracing it, for any architecture: nothing is computed."""

import copy

import torch
from torch.utils.flop_counter import FlopCounterMode

from draftwood.core.errors import UnsupportedTarget
from draftwood.core.hf.cache import TreeCache
from draftwood.core.hf.costs import chain_tree
from draftwood.core.hf.scorer import TreeScorer
from draftwood.core.hf.session import HFSession
from draftwood.core.hf.taps import Taps, decoder_of


class TracedFlops:
    """FLOPs of forwards, from a copy of the model that has shapes and no weights.

    Raises:
        UnsupportedTarget: the model cannot run without values, as some mixtures of experts, whose
            routing depends on them.
    """

    def __init__(self, scorer: TreeScorer) -> None:
        config = copy.deepcopy(scorer.model.config)
        config._attn_implementation = "eager"  # its products are counted in every release
        try:
            with torch.device("meta"):
                model = type(scorer.model)(config).eval()
            shapes = TreeScorer(model, name=scorer.name)
        except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            raise UnsupportedTarget(
                f"{scorer.name} cannot be traced without weights: {error}"
            ) from error
        no_taps = Taps(decoder_of(model), (), shapes.layers)
        self._session = HFSession(shapes, no_taps, TreeCache(shapes.layout))

    def __call__(self, tokens: int, context: int) -> float:
        """Multiplications and additions of a forward over a tree of `tokens` nodes on `context`
        tokens of context."""
        with torch.inference_mode():
            self._session.cache.pretend(context)
        with FlopCounterMode(display=False) as counter:
            self._session.forward(chain_tree(tokens))
        return float(counter.get_total_flops())
