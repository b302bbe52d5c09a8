"""`drafter.algorithm: eagle3`: what it learns, how it is judged."""

from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwood.core.errors import UnsupportedTarget
from draftwood.core.hf.taps import decoder_of
from draftwood.core.hf.versions import text_config
from draftwood.core.options import GREEDY_BELOW
from draftwood.plugins.drafters.eagle3.config import Eagle3Config
from draftwood.plugins.drafters.eagle3.model import Eagle3Model
from draftwood.plugins.drafters.options import Eagle3Options
from draftwood.training.blocks import check_taps
from draftwood.training.config import Eagle3Shape, Eagle3Training, UnrollOptions
from draftwood.training.eagle.export import export
from draftwood.training.eagle.packing import draw, pack
from draftwood.training.eagle.unroll import at, unrolled
from draftwood.training.evaluation import Acceptance, replayed
from draftwood.training.inherited import final_norm, rope_theta
from draftwood.training.objectives import weighted_mean
from draftwood.training.trainable import Data, Trainable

DEPTH: Final[int] = attrs.fields_dict(Eagle3Options)["max_depth"].default  # type: ignore[assignment]
"""Tokens of a draft in evaluation: as many as the drafter proposes unless told otherwise."""


class TrainableEagle3(Trainable):
    """An EAGLE-3 drafter of one layer.

    embedding, head: the target's (V, d), frozen, in float32. target: how an exported checkpoint
    names it. layers: those the drafter reads, and the last one, from which the target's own
    distribution is made."""

    model: Eagle3Model

    def __init__(
        self,
        model: Eagle3Model,
        embedding: Tensor,
        head: Tensor,
        options: UnrollOptions,
        *,
        last: int,
        target: str | None = None,
    ) -> None:
        self.model, self.embedding, self.head, self.options = model, embedding, head, options
        self.last, self.target = last, target

    @classmethod
    def of(cls, config: Eagle3Training, target: Any, tokenizer: Any = None) -> "TrainableEagle3":
        """A new one for a loaded target. Raises PairingError for taps that it does not have,
        UnsupportedTarget if its distribution cannot be made from its states."""
        drafter = drafter_config(config.drafter, target.model)
        head = target.head_weight().detach().float()
        check_head(target.model, head)
        return cls(
            initialise(Eagle3Model(drafter), target.model).to(target.device),
            target.embedding_weight().detach().float(),
            head,
            config.train,
            last=text_config(target.model).num_hidden_layers - 1,
            target=config.target if isinstance(config.target, str) else None,
        )

    @property
    def layers(self) -> tuple[int, ...]:
        taps = self.model.config.target_layer_ids or ()
        return taps if self.last in taps else (*taps, self.last)

    def batch(self, data: Data, key: tuple[int, int]) -> tuple[Tensor, ...]:
        """Tokens, features, anchors, the ends of texts and the temperatures of labels."""
        options = self.options
        packed = draw(
            data.samples, data.features, key, batch=options.batch, anchors=options.anchors
        )
        if options.label_temperature is not None:
            packed.temperatures.fill_(options.label_temperature)
        return packed.to(self.model.device).parts()

    def loss(self, *batch: Tensor) -> Tensor:
        """Cross-entropy to the target's distribution, step t weighing decay ** t, over rows whose
        next token is inside the text."""
        tokens, features, anchors, ends, temperatures = batch
        losses, weights = list[Tensor](), list[Tensor]()
        with self._autocast():
            states, final = self._split(features.to(self.embedding.dtype))
            embeds = self.embedding[tokens]
            drafts = unrolled(self.model, states, embeds, anchors, self.options.unroll)
            for step, draft in enumerate(drafts):
                places = anchors + step
                probs = self._distribution(
                    at(final, places.clamp(max=tokens.shape[1] - 1)), temperatures
                )
                scores = self.model.logits(draft, self.head).float().log_softmax(-1)
                losses.append(-(probs * scores).sum(-1))
                weights.append(self.options.decay**step * (places + 1 < ends[:, None]))
        weight = torch.stack(weights)
        return weighted_mean(torch.stack(losses), weight)

    @torch.no_grad()
    def _distribution(self, final: Tensor, temperatures: Tensor) -> Tensor:
        """The target's, after its final-normed states (S, A, d) -> (S, A, V), float32.
        temperatures: (S,), 0 for all the weight on the likeliest."""
        logits = F.linear(final, self.head).float()
        heat = temperatures[:, None, None]
        tempered = (logits / heat.clamp_min(GREEDY_BELOW)).softmax(-1)
        best = logits.argmax(-1, keepdim=True)
        likeliest = best == torch.arange(logits.shape[-1], device=logits.device)
        return torch.where(heat < GREEDY_BELOW, likeliest.float(), tempered)

    def _split(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Features on disk (S, n, layers * H) -> what the drafter reads, and the final states."""
        width = self.embedding.shape[1]
        parts = features.split(width, -1)
        final = parts[self.layers.index(self.last)]
        return features[..., : width * self.model.config.taps], final

    def evaluate(self, data: Data) -> list[Acceptance]:
        def hits(row: np.ndarray, anchors: np.ndarray) -> np.ndarray:
            return self._hits(data, row, anchors)

        return replayed(data.heldout, DEPTH, hits)

    def _hits(self, data: Data, row: np.ndarray, anchors: np.ndarray) -> np.ndarray:
        packed = pack(data.heldout, data.heldout_features, row, anchors).to(self.model.device)
        tokens, features, places, *_ = packed.parts()
        with self._autocast():
            states, _ = self._split(features.to(self.embedding.dtype))
            drafts = unrolled(self.model, states, self.embedding[tokens], places, DEPTH)
            told = [tokens.gather(1, places + step) for step in range(1, DEPTH + 1)]
            right = [
                self.model.logits(draft, self.head).argmax(-1) == token
                for draft, token in zip(drafts, told, strict=True)
            ]
        return torch.stack(right, -1)[0].cpu().numpy()

    def _autocast(self) -> torch.autocast:
        device = self.embedding.device.type
        return torch.autocast(device, torch.bfloat16, enabled=self.options.autocast)

    def export(self, folder: Path) -> None:
        export(self.model, folder, target=self.target)


def drafter_config(shape: Eagle3Shape, model: Any) -> Eagle3Config:
    """The drafter's config for this target. Raises PairingError for taps that it does not have."""
    text = text_config(model)
    check_taps(shape.taps, text.num_hidden_layers)
    return Eagle3Config(
        hidden_size=text.hidden_size,
        num_layers=1,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate,
        vocab_size=text.vocab_size,
        draft_vocab_size=text.vocab_size,
        target_hidden_size=text.hidden_size,
        target_layer_ids=shape.taps,
        rope_theta=rope_theta(text),
        max_position_embeddings=text.max_position_embeddings,
        head_norms=shape.decoder == "qwen3",
        norm_before_residual=shape.norm_before_residual,
        norm_before_fc=shape.norm_before_fc,
        fc_norm=shape.fc_norm,
        norm_output=shape.norm_output,
        layout="speculators",
    )


@torch.inference_mode()
def check_head(model: Any, head: Tensor) -> None:
    """Raises UnsupportedTarget unless logits are the head (V, d) times the final-normed states,
    from which labels are made."""
    tokens = torch.arange(8, device=head.device)[None]
    states = decoder_of(model)(tokens, use_cache=False).last_hidden_state.float()
    logits = model(tokens, use_cache=False).logits.float()
    if not torch.allclose(F.linear(states, head), logits, atol=1e-2, rtol=1e-3):
        raise UnsupportedTarget(
            "the target's logits are not its head times its final states (a soft cap, a scale?), "
            "and an eagle3 drafter learns, and drafts, by that head; train dflash instead"
        )


def initialise(model: Eagle3Model, target: Any) -> Eagle3Model:
    """Sub-layers start silent (zero output projections), and the final norm starts as the
    target's, whose head reads it."""
    nn.init.zeros_(model.first.self_attn.o_proj.weight)
    nn.init.zeros_(model.first.mlp.down_proj.weight)
    scale = final_norm(target)
    if scale is not None:
        model.norm.weight.data.copy_(scale)
    return model
