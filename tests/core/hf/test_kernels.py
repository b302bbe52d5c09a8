"""A verifier's own attention runs in its sessions' forwards and nowhere else."""

import torch
from attrs import frozen
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from draftwood.core.hf import HFTarget
from draftwood.core.values import TokenTree

calls = []


def counted(module, query, key, value, attention_mask, **options):
    calls.append(None if attention_mask is None else tuple(attention_mask.shape))
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)


AttentionInterface.register("draftwood-test-attention", counted)


@frozen
class Own:
    attention: str = "draftwood-test-attention"

    def launches(self):
        return {}


def test_only_sessions_opened_with_kernels_use_them(fresh_model):
    model = fresh_model("llama")
    target = HFTarget(model)
    tree = TokenTree.of([3, 4, 5], [-1, 0, 0], [0, 1, 1], [0.0] * 3)
    plain, own = target.open(), target.open(kernels=Own())
    expected = [plain.prefill([1, 2]).logits, target.forward([(plain, tree)])[0].logits]
    assert calls == []
    found = [own.prefill([1, 2]).logits, target.forward([(own, tree)])[0].logits]
    assert calls == [(1, 1, 2, 2)] * 4 + [(1, 1, 3, 5)] * 4
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    own.commit([0, 2])
    target.forward([(own.fork(), TokenTree.root(6))])
    assert len(calls) == 12
    assert model.config._attn_implementation == "sdpa"
