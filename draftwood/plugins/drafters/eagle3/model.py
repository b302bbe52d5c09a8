"""The network of an EAGLE-3 drafter, one request at a time.

A row stands for one token and knows the feature of the position before it: the target's own states
mixed by `fc` for committed tokens, the drafter's output at the parent for drafted ones. Letters in
shapes: n rows, d hidden size, W tapped states side by side.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.common.cache import ContextCache
from draftwood.plugins.drafters.common.layers import Rotary
from draftwood.plugins.drafters.common.weights import fit, read_weights, target_ids
from draftwood.plugins.drafters.eagle3.config import Eagle3Config
from draftwood.plugins.drafters.eagle3.layers import FirstLayer, Layer

POSITIONS = 4096
"""Of the rotary table to begin with."""

COPIES = ("verifier_norm.", "verifier_lm_head.", "t2d")
"""Parameters that repeat the target's, or that follow from others."""


class Eagle3Model(nn.Module):
    """Tokens and features in, a state per row out, from which `logits` gives its distribution.

    layers, kv_heads, head_dim: what a cache of its rows must hold. embed_tokens, lm_head: the
    checkpoint's own, None where it uses the target's. ids: (V_draft,) target ids of the draft
    vocabulary, None if the two are the same.
    """

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.config = config
        self.layers, self.kv_heads = config.num_layers, config.num_kv_heads
        self.head_dim = config.head_dim
        d, eps = config.hidden_size, config.rms_norm_eps
        width = config.taps * config.target_hidden_size
        self.input_norm = nn.RMSNorm(width, eps) if config.norm_before_fc else None
        each = (nn.RMSNorm(config.target_hidden_size, eps) for _ in range(config.taps))
        self.fc_norm = nn.ModuleList(each) if config.fc_norm else None
        self.fc = nn.Linear(width, d, bias=False)
        self.first = FirstLayer(config)
        self.later = nn.ModuleList(Layer(config) for _ in range(config.num_layers - 1))
        self.norm = nn.RMSNorm(d, eps)
        self.embed_tokens: nn.Embedding | None = None
        self.lm_head: nn.Linear | None = None
        self.register_buffer("ids", None)
        # Grown as texts need it: of what a config allows, few use much.
        positions = min(POSITIONS, config.max_position_embeddings)
        self.rotary = Rotary(config.head_dim, config.rope_theta, positions, config.rope_scaling)

    @classmethod
    def from_folder(cls, folder: Path | str, allow_pickle: bool = False) -> "Eagle3Model":
        """Config and weights of a checkpoint, in the weights' own dtype, on the CPU.

        Raises CheckpointError naming every missing or unexpected parameter.
        """
        folder = Path(folder)
        with torch.device("meta"):
            model = cls(Eagle3Config.from_file(folder))
        model.take(read_weights(folder, allow_pickle), folder)
        return model.eval()

    def take(self, published: Mapping[str, Tensor], folder: Path | str) -> None:
        """Take these parameters, by their published names. Raises CheckpointError, naming
        `folder`, if they do not fit."""
        config = self.config
        names = _names(config)
        found = {
            _renamed(name, names): tensor
            for name, tensor in published.items()
            if not name.startswith(COPIES)
        }
        reduced = config.draft_vocab_size < config.vocab_size
        if reduced and not {"lm_head.weight", "d2t"} <= found.keys():
            raise CheckpointError(
                f"{folder}: a draft vocabulary of {config.draft_vocab_size} of "
                f"{config.vocab_size} tokens needs its own lm_head.weight and d2t"
            )
        d, vocabulary = config.hidden_size, config.draft_vocab_size
        with torch.device("meta"):
            if "embed_tokens.weight" in found:
                self.embed_tokens = nn.Embedding(config.vocab_size, d)
            if "lm_head.weight" in found:
                self.lm_head = nn.Linear(d, vocabulary, bias=False)
            if "d2t" in found:
                self.ids = torch.empty(vocabulary, dtype=torch.long)
                found["ids"] = target_ids(found.pop("d2t"), config.vocab_size, folder)
        back = {ours: theirs for theirs, ours in names.items()} | {"ids": "d2t"}
        fit(self, found, folder, lambda name: _renamed(name, back))

    def published_state(self) -> dict[str, Tensor]:
        """Parameters under their published names, each in its own memory. For a model that uses
        the target's vocabulary; `d2t` is not among them."""
        back = {ours: theirs for theirs, ours in _names(self.config).items()}
        return {
            _renamed(name, back): parameter.detach().clone()
            for name, parameter in self.named_parameters()
        }

    @property
    def dtype(self) -> torch.dtype:
        return self.fc.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.fc.weight.device

    def fuse(self, states: Tensor) -> Tensor:
        """Tapped states of committed tokens (n, W) -> their features (n, d)."""
        if self.input_norm is not None:
            states = self.input_norm(states)
        if self.fc_norm is not None:
            parts = states.chunk(len(self.fc_norm), -1)
            normed = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
            states = torch.cat(normed, -1)
        return self.fc(states)

    def run(
        self,
        embeds: Tensor,
        features: Tensor,
        positions: Tensor,
        cache: ContextCache,
        seen: Tensor | None,
    ) -> Tensor:
        """One pass over n rows -> (n, d), what the next rows get as their feature.

        embeds, features: (n, d), of each token and of the position before it. positions: (n,)
        int64. seen: (n, length + n) bool, which of the rows that `cache` holds and of these each
        one sees; None for all. The rows' K/V are held afterwards.
        """
        rows = embeds.shape[0]
        cache.reserve(rows)
        self.rotary.reserve(cache.length + rows + 1)  # a row's position is never past its place + 1
        turn = self.rotary(positions, embeds.dtype)
        x = self.first.join(embeds, features, turn, cache, seen)
        for at, layer in enumerate(self.later, 1):
            x = layer(x, turn, cache, at, seen)
        cache.extend(rows)
        return self.norm(x) if self.config.norm_output else x

    def logits(self, states: Tensor, head: Tensor | None = None) -> Tensor:
        """States of `run` (..., d) -> (..., V_draft). head: the target's (V, d) output weight,
        for a checkpoint without its own."""
        normed = states if self.config.norm_output else self.norm(states)
        weight = self.lm_head.weight if self.lm_head is not None else head
        if weight is None:
            raise CheckpointError("the checkpoint has no head of its own: pass the target's")
        return F.linear(normed, weight)


def _names(config: Eagle3Config) -> dict[str, str]:
    """Published prefixes of layers, and ours."""
    if config.layout == "eagle":
        return {"midlayer.": "first."}
    later = {f"layers.{at}.": f"later.{at - 1}." for at in range(1, config.num_layers)}
    return {"layers.0.": "first.", **later}


def _renamed(name: str, prefixes: dict[str, str]) -> str:
    for old, new in prefixes.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name
