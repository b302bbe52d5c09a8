"""Tiny random models of every architecture that must work, and trees to score with them."""

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen3Config,
)

from draftwood.core.hf import HFTarget
from draftwood.core.tree import TokenTree

VOCAB, WINDOW, POSITIONS = 61, 7, 320
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_HYBRID = ["sliding_attention", "full_attention"] * 2
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**_SIZES),
    "qwen3": lambda: Qwen3Config(**_SIZES),
    "mistral": lambda: MistralConfig(**_SIZES, sliding_window=WINDOW),
    "gemma3": lambda: Gemma3TextConfig(**_SIZES, sliding_window=WINDOW, layer_types=_HYBRID),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCAB,
        n_embd=32,
        n_layer=4,
        n_head=4,
        n_positions=POSITIONS,
        bos_token_id=None,
        eos_token_id=None,
    ),
}
Tiny = Callable[..., Any]


@cache
def _model(name: str, attention: str, dtype: torch.dtype) -> Any:
    config = CONFIGS[name]()
    # Large, so that a wrong mask shows and texts vary; less so where rounding would show, too.
    config.initializer_range = 0.3 if dtype == torch.float64 else 0.1
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return model.to(dtype).eval()


@cache
def _target(name: str, attention: str, dtype: torch.dtype) -> HFTarget:
    return HFTarget(_model(name, attention, dtype))


@pytest.fixture(autouse=True)
def on_one_thread(one_thread: None) -> None:
    """Every test here runs on one thread."""


@pytest.fixture(params=list(CONFIGS))
def architecture(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["sdpa", "eager"])
def attention(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def tiny_model() -> Tiny:
    """tiny_model(name, attention="sdpa", dtype=float64): a model that tests must not change."""
    return lambda name, attention="sdpa", dtype=torch.float64: _model(name, attention, dtype)


@pytest.fixture
def tiny_target() -> Tiny:
    return lambda name, attention="sdpa", dtype=torch.float64: _target(name, attention, dtype)


@pytest.fixture
def fresh_model() -> Tiny:
    """fresh_model(name, **config changes): a float64 model of the test's own."""

    def build(name: str, attention: str = "sdpa", **changes: Any) -> Any:
        config = CONFIGS[name]()
        config.initializer_range = 0.3
        for key, value in changes.items():
            setattr(config, key, value)
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        return model.double().eval()

    return build


@pytest.fixture
def random_tree() -> Callable[[int, random.Random], TokenTree]:
    """random_tree(nodes, rng): any shape from a star to a chain."""

    def build(nodes: int, rng: random.Random) -> TokenTree:
        reach = rng.choice([1, 2, 4, nodes + 1])
        parents, depths = [-1], [0]
        for node in range(1, nodes + 1):
            parent = rng.randrange(max(0, node - reach), node)
            parents.append(parent)
            depths.append(depths[parent] + 1)
        tokens = [rng.randrange(VOCAB) for _ in parents]
        return TokenTree.from_lists(tokens, parents, depths, [0.0] * len(parents))

    return build


@pytest.fixture
def alone() -> Callable[..., torch.Tensor]:
    """alone(model, ids): (len(ids), V) logits by the model itself, without a cache of ours."""

    def run(model: Any, ids: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]

    return run
