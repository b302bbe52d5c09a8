"""How many drafts the target would accept, replayed on text that it wrote on held-out prompts."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from draftwood.plugins.drafters.dflash.model import DFlashModel
from draftwood.training.features import Features
from draftwood.training.packing import pack
from draftwood.training.sampling import Samples
from draftwood.training.vocabulary import draft_ids


@frozen
class Acceptance:
    """At one temperature. tau: mean tokens committed per round by a greedy chain, bonus included.
    conditional: per depth, how often a draft is right where all before it were. marginal: per
    depth, how often it is right at all, over every anchor (a selector is told the text's own token
    before it). rounds: how many were replayed."""

    temperature: float
    tau: float
    conditional: tuple[float, ...]
    marginal: tuple[float, ...]
    rounds: int

    def __str__(self) -> str:
        depths = " ".join(f"{value:.2f}" for value in self.conditional)
        return f"T={self.temperature:g} tau {self.tau:.2f} ({self.rounds} rounds; {depths})"


@torch.inference_mode()
def accepted(
    model: DFlashModel, samples: Samples, features: Features, embedding: Tensor, head: Tensor
) -> list[Acceptance]:
    """Of a block drafter."""
    depth = model.config.block_size - 1
    return replayed(
        samples,
        depth,
        lambda row, anchors: _hits(model, samples, features, row, anchors, embedding, head),
    )


Hits = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""The number of a text (1,) and anchors (1, A) in it -> (A, depth) bool, whether the likeliest
token of each depth is the text's own where all before it are given."""


def replayed(samples: Samples, depth: int, hits: Hits) -> list[Acceptance]:
    """One entry per temperature in the samples. The text is what the target wrote, so a draft
    counts as accepted exactly where `match` would accept it."""
    right: dict[float, list[np.ndarray]] = {}
    for row in range(len(samples)):
        first, end = int(samples.starts[row]), int(samples.ends[row])
        last = end - depth - 1  # whole drafts only, so that depths are comparable
        if last < first:
            continue
        found = hits(np.array([row]), np.arange(first, last + 1)[None])
        right.setdefault(float(samples.temperatures[row]), []).append(found)
    return [_replay(heat, right[heat]) for heat in sorted(right)]


def _hits(
    model: DFlashModel,
    samples: Samples,
    features: Features,
    rows: np.ndarray,
    anchors: np.ndarray,
    embedding: Tensor,
    head: Tensor,
) -> np.ndarray:
    """(A, B - 1) bool: whether the likeliest token of each slot is the target's."""
    config = model.config
    packed = pack(samples, features, rows, anchors, config.block_size, config.mask_token_id)
    device, dtype = model.device, model.dtype
    embeds = embedding[packed.tokens.to(device)] * config.input_embedding_scale
    hidden = model.blocks(
        packed.features.to(device, dtype), embeds.to(dtype), packed.anchors.to(device)
    )
    slots = hidden[0, :, 1:]
    logits = model.logits(slots, head.to(dtype))
    ids: Any = model.draft_to_target()
    if model.selector is None:
        best = logits.argmax(-1)
    else:
        previous = packed.previous[0].to(device)
        if ids is not None:
            previous = draft_ids(previous, ids, config.vocab_size)
        best = model.selector.likeliest(logits, slots, previous)
    return ((best if ids is None else ids[best]).cpu() == packed.labels[0]).numpy()


def _replay(temperature: float, texts: list[np.ndarray]) -> Acceptance:
    """Walk each text round by round, as decoding would."""
    depth = texts[0].shape[1]
    tried, passed, rounds, tokens = np.zeros(depth), np.zeros(depth), 0, 0
    for hits in texts:
        at = 0
        while at < len(hits):
            misses = np.flatnonzero(~hits[at])
            run = int(misses[0]) if len(misses) else depth
            tried[: run + 1] += 1
            passed[:run] += 1
            rounds, tokens, at = rounds + 1, tokens + run + 1, at + run + 1
    marginal = np.concatenate(texts).mean(0).tolist()
    conditional = (passed / np.maximum(tried, 1)).tolist()
    return Acceptance(temperature, tokens / rounds, tuple(conditional), tuple(marginal), rounds)
