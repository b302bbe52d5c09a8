"""How a drafter of several branches does on held-out text: by verification rule, and whether its
branches are branches."""

from collections.abc import Sequence

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from draftwood.core.distributions import sampling_probs
from draftwood.core.options import Sampling
from draftwood.plugins.drafters.dblast.model import DBlastModel
from draftwood.plugins.verifiers.acceptance import accepted_along_text, probs_of
from draftwood.training.features import Features
from draftwood.training.packing import Packed, pack
from draftwood.training.sampling import Samples

ANCHORS = 8
"""Blocks judged in each text, evenly spaced over it."""

COLLAPSED = 1.5
"""Fewer branches than this in use, or different ones, are called collapsed."""


@frozen
class BranchAcceptance:
    """At one temperature, which is the target's and the branches' (Z_T as the checkpoint says).

    accepted: drafts accepted in a round, the bonus not counted, by `accepted_along_text`; blocks
    start at evenly spaced tokens. errors: standard errors of those over texts. usage: how much
    of the text each branch explains, sum 1. effective: exp entropy of that, of `branches`.
    choices: exp of the prior's mean entropy, branches in question at one place. distinct: per
    depth, how many different prefixes the greedy branches have. tied: per depth, by how many nats
    the mixture knows a text's first d tokens better than its own positions would apart, mean of
    log q(y_1..d) - sum_i log q_i(y_i): all that branches add to independent positions. nll:
    -log q(block), a token. Both of the untempered mixture. blocks: how many were judged.
    """

    temperature: float
    accepted: dict[str, float]
    errors: dict[str, float]
    usage: tuple[float, ...]
    effective: float
    choices: float
    distinct: tuple[float, ...]
    tied: tuple[float, ...]
    nll: float
    blocks: int

    @property
    def warning(self) -> str | None:
        """What has collapsed, if something has."""
        if (branches := len(self.usage)) == 1:
            return None
        if self.effective < COLLAPSED:
            return f"collapsed: {self.effective:.2f} of {branches} branches are in use"
        if self.distinct[-1] < COLLAPSED:
            return f"collapsed: {self.distinct[-1]:.2f} of {branches} greedy branches are distinct"
        return None

    def __str__(self) -> str:
        rules = ", ".join(f"{name} {value:.2f}" for name, value in self.accepted.items())
        words = f"T={self.temperature:g} nll {self.nll:.3f}, accepted drafts: {rules}"
        if len(self.usage) > 1:
            middle = self.distinct[(len(self.distinct) - 1) // 2]
            words += (
                f"; branches in use {self.effective:.2f}, in question {self.choices:.2f}, "
                f"distinct {self.distinct[0]:.2f} {middle:.2f} {self.distinct[-1]:.2f}, "
                f"tied by {self.tied[-1]:.2f} nats"
            )
        return words + (f"; warning: {self.warning}" if self.warning else "")


@frozen(eq=False)
class _Text:
    """Sums over the blocks of one text."""

    accepted: dict[str, float]
    usage: Tensor
    choices: float
    distinct: Tensor
    tied: Tensor
    nll: float
    blocks: int


@torch.inference_mode()
def judged(
    model: DBlastModel,
    samples: Samples,
    features: Features,
    states: np.ndarray,
    embedding: Tensor,
    head: Tensor,
) -> list[BranchAcceptance]:
    """One entry per temperature in the samples.

    states: (N, L, d) final-normed states of the target. embedding, head: its (V, d).
    """
    texts: dict[float, list[_Text]] = {}
    config, device = model.config, model.device
    for row in range(len(samples)):
        first, last = int(samples.starts[row]), int(samples.ends[row]) - config.block_size
        if last < first:
            continue
        anchors = np.unique(np.linspace(first, last, ANCHORS).astype(np.int64))[None]
        packed = pack(
            samples, features, np.array([row]), anchors, config.block_size, config.mask_token_id
        )
        hidden = _hidden(model, packed, embedding)
        places = anchors[0, :, None] + np.arange(config.block_size - 1)
        target = torch.from_numpy(states[row][places]).to(device) @ head.T
        heat, labels = float(samples.temperatures[row]), packed.labels[0].to(device)
        texts.setdefault(heat, []).append(_text(model, hidden, target, labels, head, heat))
    return [_summary(heat, texts[heat]) for heat in sorted(texts)]


def _hidden(model: DBlastModel, packed: Packed, embedding: Tensor) -> Tensor:
    """(A, B, d) of one text's blocks."""
    device, dtype = model.device, model.dtype
    embeds = embedding[packed.tokens.to(device)] * model.config.input_embedding_scale
    features = packed.features.to(device, dtype)
    return model.blocks(features, embeds.to(dtype), packed.anchors.to(device))[0]


def _text(
    model: DBlastModel, hidden: Tensor, target: Tensor, y: Tensor, head: Tensor, heat: float
) -> _Text:
    """hidden: (A, B, d). target: (A, D, V) logits along y (A, D)."""
    logits = model.branch_logits(hidden[:, 1:], head.to(model.dtype)).float().transpose(0, 1)
    prior = model.prior_logits(hidden[:, 0]).float()
    sampling = Sampling(temperature=heat)
    tempered = sampling_probs(prior, Sampling(model.config.prior_temperature(heat)))
    rules = accepted_along_text(
        sampling_probs(target, sampling), tempered, sampling_probs(logits, sampling), y
    )
    log_prior = prior.log_softmax(-1)
    said = probs_of(logits, y[:, None]).sub(logits.logsumexp(-1))  # A, K, D
    joint = log_prior + said.sum(-1)
    return _Text(
        accepted={name: value.sum().item() for name, value in rules.items()},
        usage=joint.softmax(-1).sum(0).cpu(),
        choices=-(log_prior.exp() * log_prior).sum().item(),
        distinct=_distinct(logits.argmax(-1)).sum(0).cpu(),
        tied=_tied(log_prior, said).sum(0).cpu(),
        nll=-joint.logsumexp(-1).sum().item() / y.shape[-1],
        blocks=len(y),
    )


def _distinct(greedy: Tensor) -> Tensor:
    """Greedy branches (A, K, D) -> (A, D), how many different prefixes of each length."""
    same = (greedy[:, :, None] == greedy[:, None]).int().cumprod(-1)  # A, K, K, D
    earlier = torch.ones(same.shape[1:3], device=greedy.device).tril(-1)[..., None]
    return ((same * earlier).sum(2) == 0).sum(1).float()


def _tied(log_prior: Tensor, said: Tensor) -> Tensor:
    """log q(z) (A, K) and log q_i(y_i | z) (A, K, D) -> (A, D), log q(y_1..d) less the log of what
    the mixture's marginals, taken as independent, give the same prefix."""
    together = (log_prior[..., None] + said.cumsum(-1)).logsumexp(1)
    apart = (log_prior[..., None] + said).logsumexp(1).cumsum(-1)
    return together - apart


def _summary(heat: float, texts: Sequence[_Text]) -> BranchAcceptance:
    blocks = sum(text.blocks for text in texts)
    counts = np.array([text.blocks for text in texts])
    accepted, errors = {}, {}
    for name in texts[0].accepted:
        sums = np.array([text.accepted[name] for text in texts])
        accepted[name] = float(sums.sum() / blocks)
        scatter = sums - accepted[name] * counts
        errors[name] = float(np.sqrt((scatter**2).sum()) / blocks)
    usage = torch.stack([text.usage for text in texts]).sum(0) / blocks
    distinct = torch.stack([text.distinct for text in texts]).sum(0) / blocks
    tied = torch.stack([text.tied for text in texts]).sum(0) / blocks
    return BranchAcceptance(
        temperature=heat,
        accepted=accepted,
        errors=errors,
        usage=tuple(usage.tolist()),
        effective=(-torch.xlogy(usage, usage).sum()).exp().item(),
        choices=float(np.exp(sum(text.choices for text in texts) / blocks)),
        distinct=tuple(distinct.tolist()),
        tied=tuple(tied.tolist()),
        nll=sum(text.nll for text in texts) / blocks,
        blocks=blocks,
    )
