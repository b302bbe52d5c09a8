"""Tiny random targets of five architectures, and what they say without draftwood."""

import random
from functools import cache
from typing import Any

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

VOCAB, WINDOW, POSITIONS = 97, 24, 320
ATTENTIONS = ("sdpa", "eager")
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    # Large and untied, so that greedy text wanders instead of repeating one token.
    "initializer_range": 0.4,
    "tie_word_embeddings": False,
}
_HYBRID = ["sliding_attention", "full_attention", "sliding_attention"]
_GPT2: dict[str, Any] = {
    "vocab_size": VOCAB,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": POSITIONS,
    "initializer_range": 0.4,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
}
CONFIGS = {
    "llama": lambda: LlamaConfig(**_SIZES),
    "qwen3": lambda: Qwen3Config(**_SIZES),
    "mistral": lambda: MistralConfig(**_SIZES, sliding_window=WINDOW),
    "gemma3": lambda: Gemma3TextConfig(**_SIZES, sliding_window=WINDOW, layer_types=_HYBRID),
    "gpt2": lambda: GPT2Config(**_GPT2),
}
ARCHITECTURES = tuple(CONFIGS)
WINDOWED = ("mistral", "gemma3")
_SEEDS = {10: 1010, 20: 7020, 24: 7024, 40: 7040}
"""By length of the prompt: seeds after which no architecture falls into repeating itself."""


def prompt_of(length: int) -> tuple[int, ...]:
    """A prompt of 10, 20, 24 or 40 tokens: shorter than the window, so near it that the first
    blocks straddle it, equal to it, and longer."""
    rng = random.Random(_SEEDS[length])
    return tuple(rng.randrange(VOCAB) for _ in range(length))


@cache
def model_of(name: str, attention: str = "sdpa", dtype: torch.dtype = torch.float64) -> Any:
    """A model that no test may change."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name](), attn_implementation=attention)
    return model.to(dtype).eval()


@cache
def target_of(
    name: str,
    attention: str = "sdpa",
    dtype: torch.dtype = torch.float64,
    prefill_chunk: int = 1024,
) -> HFTarget:
    return HFTarget(model_of(name, attention, dtype), prefill_chunk=prefill_chunk)


def generated(name: str, attention: str, prompt: tuple[int, ...], **options: Any) -> list[int]:
    """New tokens of Hugging Face's own `generate`, float64."""
    ids = torch.tensor([prompt])
    options = {"do_sample": False, "pad_token_id": 0, **options}
    with torch.inference_mode():
        # Without a mask it would take every token 0 of the prompt for padding.
        everything = torch.ones_like(ids)
        ids = model_of(name, attention).generate(ids, attention_mask=everything, **options)
    return ids[0, len(prompt) :].tolist()


def logits_along(target: HFTarget, prompt: tuple[int, ...], tokens: list[int]) -> torch.Tensor:
    """(len(tokens), V) float64: what each of `tokens` was chosen from, in one forward without a
    cache of ours."""
    ids = torch.tensor([[*prompt, *tokens]])
    with torch.inference_mode():
        rows = target.model(input_ids=ids, use_cache=False).logits[0]
    return rows[len(prompt) - 1 : -1].double()
