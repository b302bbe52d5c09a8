"""The comparison fails when it should: each mistake that parity is meant to catch, made once."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from draftwood.core.hf import masks
from draftwood.core.hf.cache import TreeCache
from draftwood.core.interfaces import NodeDistributions
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict
from draftwood.plugins.verifiers.match import Match

from .parts import Case, assert_same_text, plain, speculated, speculative


def keeps_the_first_rows(self: TreeCache, path: Sequence[int], *_: object) -> None:
    """Wrong: a rejected sibling's rows stay where the accepted ones belong."""
    self.advance(len(path))


def window_counted_in_columns(
    visible: torch.Tensor, depths: torch.Tensor, *rest: Any
) -> torch.Tensor:
    """Wrong: a node's place in the tree is taken for its position."""
    return right_sliding_mask(visible, torch.arange(depths.shape[0]), *rest)


def sees_its_siblings(self: TokenTree) -> torch.Tensor:
    """Wrong: a causal mask over the tree's rows."""
    return torch.ones(len(self), len(self), dtype=torch.bool).tril()


right_sliding_mask = masks.sliding_mask
MISTAKES: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "commit": (TreeCache, "commit", keeps_the_first_rows),
    "window": (masks, "sliding_mask", window_counted_in_columns),
    "mask": (TokenTree, "ancestors", sees_its_siblings),
}


@pytest.mark.covers("cache-rows")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_cache_or_mask_changes_the_text(
    mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case("mistral")
    plain(case)  # what is right, before it is broken
    monkeypatch.setattr(*MISTAKES[mistake])
    with pytest.raises(AssertionError, match="differs"):
        assert_same_text(case, lambda case: speculative(case, "static"))


class FirstChild(Match):
    """Wrong: takes a child because it was drafted, once a round."""

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        if tree.nodes == 0:
            return super().judge(distributions, tree, rng)
        return Verdict((0, 1), distributions.argmax(1))


class CallOrder(Match):
    """Wrong: one uniform per call, as a generator would give, and not per position."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        self.calls += 1
        return super().judge(distributions, tree, rng.stream(str(self.calls)))


@pytest.mark.covers("shared-randomness")
@pytest.mark.parametrize(
    ("verifier", "options"), [(FirstChild, ()), (CallOrder, (("temperature", 0.7),))]
)
def test_a_wrong_verifier_changes_the_text(verifier: type[Match], options: Any) -> None:
    with pytest.raises(AssertionError):
        assert_same_text(
            Case("llama", options=options),
            lambda case: speculative(case, "search", "fixed", verifier()),
        )


@pytest.mark.covers("speculation-off")
def test_a_comparison_without_speculation_is_refused() -> None:
    from draftwood.core.generation import Pipeline

    case = Case("llama")
    result = Pipeline(case.target).generate(case.prompt, **case.asked)
    assert result.tokens == plain(case)
    with pytest.raises(AssertionError, match="no drafter"):
        speculated(result)
