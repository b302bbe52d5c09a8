"""The chunked head of K branches against the plain formula, values and gradients."""

import pytest
import torch

from draftwood.plugins.drafters.dblast.config import DBlastConfig
from draftwood.plugins.drafters.dblast.model import DBlastModel
from draftwood.training import branch_head
from draftwood.training.branch_head import label_log_probs

V, D = 37, 3


def model_of(branches: int) -> DBlastModel:
    torch.manual_seed(0)
    config = DBlastConfig(
        hidden_size=8,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        intermediate_size=8,
        vocab_size=V,
        draft_vocab_size=V,
        block_size=D + 1,
        mask_token_id=0,
        target_layer_ids=(0,),
        target_hidden_size=8,
        causal=(False,),
        windows=(None,),
        branches=branches,
        rank=2 if branches > 1 else 0,
    )
    model = DBlastModel(config)
    model.initialise_branches(0)
    if model.branches is not None:
        torch.nn.init.normal_(model.branches.expand)
    return model


def plain(model, hidden, labels, head, temperatures=None):
    logits = model.branch_logits(hidden, head).float()
    if temperatures is not None:
        logits = logits / temperatures[None, :, None, None]
    logits = logits.log_softmax(-1)
    at = labels.expand(len(logits), -1, -1)[..., None]
    return logits.gather(-1, at)[..., 0].transpose(0, 1)


@pytest.mark.parametrize("branches", [1, 4])
@pytest.mark.parametrize("tempered", [False, True])
@pytest.mark.parametrize("chunk", [1, 2 * 4 * V, 10**9])
def test_values_and_gradients_are_those_of_the_plain_formula(
    branches, chunk, tempered, monkeypatch
):
    """Chunks of one row, of two with a rest, and all at once."""
    heat = torch.tensor([0.5, 1.0, 1.5, 0.7, 2.0]) if tempered else None
    monkeypatch.setitem(branch_head.CHUNK, "cpu", chunk)
    model = model_of(branches)
    head, labels = torch.randn(V, 8), torch.randint(0, V, (5, D))
    weigh = torch.randn(5, branches, D)
    found = []
    for compute in (label_log_probs, plain):
        hidden = torch.randn(5, D, 8, generator=torch.Generator().manual_seed(1))
        hidden.requires_grad_()
        model.zero_grad()
        values = compute(model, hidden, labels, head, heat)
        (values * weigh).sum().backward()
        grads = [hidden.grad]
        if model.branches is not None:
            grads += [model.branches.reduce.weight.grad, model.branches.expand.grad]
        found.append((values.detach(), *(grad.clone() for grad in grads)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_half_precision_is_close_and_log_probabilities_stay_below_zero():
    """A label's logit and the normaliser come from the same rounded numbers."""
    model, head = model_of(4), torch.randn(V, 8)
    hidden = 6 * torch.randn(64, D, 8)
    labels = (hidden @ head.T).argmax(-1)
    with torch.no_grad():
        exact = label_log_probs(model, hidden, labels, head)
        with torch.autocast("cpu", torch.bfloat16):
            rough = label_log_probs(model, hidden, labels, head)
    assert rough.max() <= 0
    assert (rough - exact).abs().median() < 0.02
