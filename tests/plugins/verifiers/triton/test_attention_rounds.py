"""Pipelines with Triton kernels give the text of plain decoding with the model's own attention."""

import random
from functools import cache

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
)

from draftwood.core.build import build_component
from draftwood.core.generation import Pipeline
from draftwood.core.hf import HFTarget
from draftwood.core.kernels.launches import LAUNCHES
from draftwood.core.options import Sampling
from draftwood.core.proposals import FactorizedProposal, Vocabulary
from draftwood.core.registry.plugin import Kind
from draftwood.testing import OracleDrafter

pytestmark = pytest.mark.usefixtures("one_thread")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCAB, WINDOW, NEW = 61, 24, 26
LAYERS = 2
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 320,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "initializer_range": 0.4,
    "tie_word_embeddings": False,
}
_HYBRID = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
CONFIGS = {
    "llama": ("sdpa", lambda: LlamaConfig(**_SIZES)),
    "mistral": ("sdpa", lambda: MistralConfig(**_SIZES, sliding_window=WINDOW)),
    "gemma3": ("sdpa", lambda: Gemma3TextConfig(**_SIZES, **_HYBRID)),
    "gemma2": ("eager", lambda: Gemma2Config(**_SIZES, **_HYBRID, attn_logit_softcapping=2.0)),
}
PROMPT = tuple(random.Random(7020).randrange(VOCAB) for _ in range(20))


@cache
def target_of(name, **change):
    attention, config = CONFIGS[name][0], CONFIGS[name][1]()
    for key, value in change.items():
        setattr(config, key, value)
    torch.manual_seed(3)  # texts vary enough to show a wrong window or cap
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return HFTarget(model.float().eval().to(DEVICE), prefill_chunk=16)


@cache
def plain(name):
    return Pipeline(target_of(name)).generate(PROMPT, max_new_tokens=NEW).tokens


def drafter(text, depth=5):
    """Proposes the text; each third token is the second most likely, which only a tree has."""
    logits = torch.randn(len(text) + depth, VOCAB, generator=torch.Generator().manual_seed(1))
    for position, token in enumerate(text):
        best, second = ((token + 1) % VOCAB, token) if position % 3 == 0 else (token, token - 1)
        logits[position, second], logits[position, best] = 6.0, 7.0

    def propose(prefix: tuple[int, ...], sampling: Sampling) -> FactorizedProposal:
        rows = logits[len(prefix) : len(prefix) + depth].to(DEVICE)
        return FactorizedProposal(rows, sampling, Vocabulary(VOCAB))

    return OracleDrafter(propose)


@pytest.mark.parametrize("name", list(CONFIGS))
def test_trees_with_triton_kernels_give_the_text_of_plain_decoding(name):
    target, before = target_of(name), LAUNCHES.counts()
    pipeline = Pipeline(
        target,
        drafter((*PROMPT, *plain(name))),
        build_component(Kind.TREE, "best_first", max_nodes=12),
        build_component(Kind.CONTROLLER, "fixed", nodes=12),
        kernels="triton",
    )
    result = pipeline.generate(PROMPT, max_new_tokens=NEW)
    assert result.tokens == plain(name)
    assert len(set(result.tokens)) > 10
    assert result.stats.accepted > NEW / 2
    ran = {kernel: count - before.get(kernel, 0) for kernel, count in LAUNCHES.counts().items()}
    assert ran["tree_attention"] >= LAYERS * (2 + result.stats.rounds)  # two chunks of prompt


def test_plain_decoding_can_use_triton_kernels():
    name = "gemma3"
    target, before = target_of(name), LAUNCHES.counts().get("tree_attention", 0)
    result = Pipeline(target, kernels="triton").generate(PROMPT, max_new_tokens=9)
    assert result.tokens == plain(name)[:9]
    assert LAUNCHES.counts()["tree_attention"] - before >= LAYERS * 10


@pytest.mark.parametrize(
    ("name", "change"),
    [("mistral", {"sliding_window": WINDOW - 1}), ("gemma2", {"attn_logit_softcapping": 3.0})],
)
def test_another_window_or_cap_changes_the_text(name, change):
    other = Pipeline(target_of(name, **change)).generate(PROMPT, max_new_tokens=NEW)
    assert other.tokens != plain(name)
