"""The drafter as a checkpoint in the speculators layout, which says what every flag is."""

from pathlib import Path
from typing import Any

import torch

from draftwood.plugins.drafters.eagle3.config import Eagle3Config
from draftwood.plugins.drafters.eagle3.model import Eagle3Model
from draftwood.training.export import write_checkpoint


def export(
    model: Eagle3Model,
    folder: Path,
    *,
    target: str | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write an EAGLE-3 drafter, weights rounded to dtype.

    Args:
        model: The drafter.
        folder: Where config.json and model.safetensors are written.
        target: Hub name of the model that the drafter belongs to.
        dtype: Of the stored weights.
    """
    published = as_published(model.config, dtype, target)
    write_checkpoint(model.published_state(), published, folder, dtype)


def as_published(
    config: Eagle3Config, dtype: torch.dtype, target: str | None = None
) -> dict[str, Any]:
    """config.json of a drafter whose embedding and head are the target's.

    speculators counts taps by their place in `hidden_states`, one more than the layer's.
    """
    wider = config.target_hidden_size != config.hidden_size
    return {
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": config.draft_vocab_size,
        "dtype": str(dtype).removeprefix("torch."),
        "eagle_aux_hidden_state_layer_ids": [tap + 1 for tap in config.target_layer_ids or ()],
        "fc_norm": config.fc_norm,
        "norm_before_fc": config.norm_before_fc,
        "norm_before_residual": config.norm_before_residual,
        "norm_output": config.norm_output,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "verifier": {"architectures": [], "name_or_path": target},
        },
        "speculators_model_type": "eagle3",
        "target_hidden_size": config.target_hidden_size if wider else None,
        "tie_word_embeddings": False,
        "transformer_layer_config": {
            "model_type": "qwen3" if config.head_norms else "llama",
            "hidden_size": config.hidden_size,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "intermediate_size": config.intermediate_size,
            "hidden_act": config.activation,
            "attention_bias": config.attention_bias,
            "mlp_bias": config.mlp_bias,
            "vocab_size": config.vocab_size,
            "max_position_embeddings": config.max_position_embeddings,
            "rms_norm_eps": config.rms_norm_eps,
            "rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default"},
        },
    }
