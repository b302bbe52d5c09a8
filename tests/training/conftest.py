"""One random target for all that learns from one."""

from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=61,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        eos_token_id=0,
        initializer_range=0.3,
    )
    folder = tmp_path_factory.mktemp("target")
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder
