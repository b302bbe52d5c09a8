"""Which models can be targets: what is refused before a forward, and what a forward must show."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from draftwood.core.errors import UnsupportedTarget
from draftwood.core.hf.masks import layer_kinds
from draftwood.core.hf.versions import accepts, text_config
from draftwood.core.kernels.protocol import Kernels
from draftwood.core.tree import TokenTree

if TYPE_CHECKING:
    from draftwood.core.hf.target import HFSession, HFTarget

ATTENTIONS = ("sdpa", "eager")
SUPPORTED_LAYERS = ("full_attention", "sliding_attention")
_RESIZING_ROPE = ("dynamic", "longrope")


def refuse_unsupported(model: Any) -> None:
    """Raise UnsupportedTarget for what the model's class and configuration already rule out."""
    config, name = text_config(model), type(model).__name__
    if model.config.is_encoder_decoder:
        raise UnsupportedTarget(f"{name} is an encoder-decoder; a target is a decoder alone")
    if getattr(model, "_is_stateful", False):
        raise UnsupportedTarget(
            f"{name} keeps a recurrent state, which cannot be rolled back to an accepted prefix"
        )
    other = sorted(set(layer_kinds(config)) - set(SUPPORTED_LAYERS))
    if other:
        raise UnsupportedTarget(
            f"{name} has layers of kind {', '.join(other)}; only {' and '.join(SUPPORTED_LAYERS)} "
            "can be rolled back and masked as trees"
        )
    if getattr(model.generation_config, "cache_implementation", None) == "quantized":
        raise UnsupportedTarget(
            f"{name} asks for a quantized cache, whose entries cannot be moved one by one"
        )
    if not accepts(model, "position_ids"):
        raise UnsupportedTarget(
            f"{name} takes no position_ids, so two branches of a tree cannot share a position"
        )
    attention = config._attn_implementation
    if attention not in ATTENTIONS:
        raise UnsupportedTarget(
            f"{name} uses {attention} attention, which takes no tree mask; choices: "
            f"{', '.join(ATTENTIONS)} (runtime.attention, or model.set_attn_implementation)"
        )
    if model.training:
        raise UnsupportedTarget(
            f"{name} is in training mode, in which dropout makes its distribution random; "
            f"call model.eval()"
        )


def position_limit(config: Any) -> int | None:
    """Most positions the model can hold, None if it does not say.

    Rotary embeddings that rescale themselves with the longest position seen are limited to the
    length up to which they do not: beyond it a draft would change what the target says.
    """
    limit = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = rope.get("rope_type") or rope.get("type")
    if kind in _RESIZING_ROPE:
        original = rope.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        return original or limit
    return limit


def eos_token_ids(model: Any) -> frozenset[int]:
    """Ids that end a text, from the generation config; none of its sampling settings are used."""
    ids = getattr(model.generation_config, "eos_token_id", None)
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)


@contextmanager
def refused_if_it_raises(
    name: str, how: str = "explicit 4-D mask, positions and a cache of ours"
) -> Iterator[None]:
    """What a model raises in its first forwards becomes the reason of an UnsupportedTarget."""
    try:
        yield
    except (TypeError, ValueError, RuntimeError, IndexError, KeyError, AttributeError) as error:
        raise UnsupportedTarget(
            f"{name} cannot score a tree ({how}): {type(error).__name__}: {error}"
        ) from error


def _tolerance(dtype: torch.dtype) -> float:
    """Largest difference, relative to the largest logit, that rounding explains. Models round
    their norms to float32 even in float64."""
    return 1e-3 if dtype in (torch.float64, torch.float32) else 6e-2


def self_check(target: "HFTarget") -> None:
    """Score a tiny tree and raise UnsupportedTarget unless its paths behave like texts.

    A node's logits must equal those of its path as a chain, must not move when a sibling's token
    changes, and must be right again after a branch was committed. Five forwards of at most four
    tokens.
    """
    size = min(target.vocab_size, target.vocab_limit or target.vocab_size)
    anchor, child, uncle, grandchild, after, other = (token % size for token in range(3, 9))

    def scores(session: "HFSession", tree: TokenTree) -> torch.Tensor:
        return target.forward([(session, tree)])[0].logits[:, :size].double().cpu()

    with refused_if_it_raises(target.name):
        session = target.open()
        session.prefill([1 % size, 2 % size])
        chain = TokenTree.of(
            [anchor, child, grandchild, after], [-1, 0, 1, 2], [0, 1, 2, 3], [0.0] * 4
        )
        straight = scores(session, chain)
        sibling = scores(session, _branching(anchor, child, other, grandchild))
        branch = scores(session, _branching(anchor, child, uncle, grandchild))
        session.commit([0, 1, 3])
        rolled = scores(session, TokenTree.root(after))
    limit = _tolerance(target.dtype) * float(straight.abs().max())
    failures = {
        "a path in a tree does not score like the same text": (branch[[0, 1, 3]], straight[:3]),
        "a sibling's token moves another branch": (sibling[[0, 1, 3]], branch[[0, 1, 3]]),
        "a committed branch does not continue like the same text": (rolled[-1], straight[-1]),
    }
    for what, (got, expected) in failures.items():
        difference = float((got - expected).abs().max())
        if not difference <= limit:
            raise UnsupportedTarget(
                f"{target.name} cannot be a target: {what} (logits differ by {difference:.3g}, "
                f"rounding explains {limit:.3g})"
            )


def kernel_check(target: "HFTarget", kernels: Kernels) -> None:
    """Score a tiny tree by the model's own attention and by a verifier's kernels, and raise
    UnsupportedTarget if they differ by more than rounding: the model has something in its
    attention that the kernels are not told of."""
    size = min(target.vocab_size, target.vocab_limit or target.vocab_size)
    tokens = [token % size for token in range(3, 7)]
    found = []
    how = "attention by the verifier's kernels"
    with refused_if_it_raises(target.name, how):
        for session in (target.open(), target.open(kernels=kernels)):
            first = session.prefill([1 % size, 2 % size]).logits
            tree = target.forward([(session, _branching(*tokens))])[0].logits
            found.append(torch.cat([first, tree])[:, :size].double().cpu())
    expected, got = found
    difference = float((got - expected).abs().max())
    limit = _tolerance(target.dtype) * float(expected.abs().max())
    if not difference <= limit:
        raise UnsupportedTarget(
            f"{target.name} cannot use {how}: its logits differ from those of its own attention "
            f"by {difference:.3g}, rounding explains {limit:.3g}; use a verifier without kernels "
            "of its own"
        )


def _branching(anchor: int, child: int, uncle: int, grandchild: int) -> TokenTree:
    """The anchor has two children; the first has a child that comes after its uncle."""
    tokens = [anchor, child, uncle, grandchild]
    return TokenTree.of(tokens, [-1, 0, 0, 1], [0, 1, 1, 2], [0.0] * 4)
