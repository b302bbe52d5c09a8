"""Training-time test: many drafts of a few texts, unrolled step by step over the drafter's own
states, as decoding will run them.

Row t of the draft at anchor a stands for token a + t. Row 0 reads the target's feature of position
a - 1; each later one reads the state of the row before it, which is all that a drafter has past
its anchor. A row sees the text's rows up to a, made of the target's features, and its own draft's.
Letters in shapes: S texts, n tokens, A anchors, T steps, d hidden size, W tapped states.
"""

import torch
from attrs import define
from torch import Tensor

from draftwood.plugins.drafters.common.layers import CosSin
from draftwood.plugins.drafters.eagle3.layers import Attention
from draftwood.plugins.drafters.eagle3.model import Eagle3Model


def unrolled(
    model: Eagle3Model, states: Tensor, embeds: Tensor, anchors: Tensor, steps: int
) -> list[Tensor]:
    """What `Eagle3Model.run` returns at each row: (S, A, d), for each of T steps.

    states: (S, n, W) of the target. embeds: (S, n, d) of the text's tokens. anchors: (S, A)
    positions from 1. Of a draft that runs past the text, rows past its end mean nothing. For
    drafters of one layer.
    """
    attention, first = model.first.self_attn, model.first
    n = states.shape[1]
    model.rotary.reserve(n + steps)
    tokens = torch.arange(1, n, device=states.device)  # token 0 has no feature before it
    fused = model.fuse(states[:, :-1])
    both, _ = first.inputs(embeds[:, 1:], fused)
    keys, values = attention.keys_values(both, model.rotary(tokens, embeds.dtype))
    past = Past(keys, values, tokens <= anchors[..., None], [], [])
    feature, found = at(fused, anchors - 1), list[Tensor]()
    for step in range(steps):
        positions = anchors + step
        both, residual = first.inputs(at(embeds, positions.clamp(max=n - 1)), feature)
        attended = _attend(attention, both, model.rotary(positions, embeds.dtype), past, step > 0)
        x = first.finish(residual, attended)
        feature = model.norm(x) if model.config.norm_output else x
        found.append(feature)
    return found


def at(x: Tensor, positions: Tensor) -> Tensor:
    """x (S, n, d) at positions (S, A) -> (S, A, d)."""
    return x.gather(1, positions[..., None].expand(-1, -1, x.shape[-1]))


@define(eq=False)  # torch.compile cannot build frozen ones
class Past:
    """What rows see. keys, values: (S, n - 1, kv_heads, head_dim) of the text's rows, of tokens
    1 to n - 1. seen: (S, A, n - 1), which of them a draft sees. own_keys, own_values: of the
    drafts' rows from the second on, (S, A, kv_heads, head_dim) each."""

    keys: Tensor
    values: Tensor
    seen: Tensor
    own_keys: list[Tensor]
    own_values: list[Tensor]


def _attend(attention: Attention, both: Tensor, cos_sin: CosSin, past: Past, own: bool) -> Tensor:
    """One row of every draft (S, A, 2d) -> (S, A, d).

    own: its keys and values are added to the past; those of a draft's first row are the text's.
    Scores of text and draft are made apart, since a draft sees its own rows alone but all drafts
    share a text, and meet in one softmax.
    """
    groups = (attention.kv_heads, attention.groups)
    q = attention.queries(both, cos_sin).unflatten(-2, groups) * attention.head_dim**-0.5
    q = q.permute(0, 2, 3, 1, 4)  # S, kv_heads, groups, A, head_dim
    if own:
        k, v = attention.keys_values(both, cos_sin)
        past.own_keys.append(k)
        past.own_values.append(v)
    keys, values = (part.transpose(1, 2) for part in (past.keys, past.values))
    scores = (q.flatten(2, 3) @ keys.mT).unflatten(2, q.shape[2:4])
    scores = scores.masked_fill(~past.seen[:, None, None], -torch.inf)
    if past.own_keys:
        drafted = torch.stack(past.own_keys, 3).permute(0, 2, 1, 3, 4)[:, :, None]
        scores = torch.cat((scores, (q[..., None, :] * drafted).sum(-1)), -1)
    weights = scores.softmax(-1).to(values.dtype)
    text, draft = weights.split((keys.shape[2], len(past.own_keys)), -1)
    out = (text.flatten(2, 3) @ values).view(q.shape)
    if past.own_keys:
        drafted = torch.stack(past.own_values, 3).permute(0, 2, 1, 3, 4)[:, :, None]
        out = out + (draft[..., None] * drafted).sum(-2)
    return attention.o_proj(out.permute(0, 3, 1, 2, 4).flatten(2))
