"""config.json of an EAGLE-3 drafter in the original and the speculators layout.

The original one is a plain decoder's config with a few keys more, and calls its one layer
`midlayer`. Both index tapped layers by their outputs in `hidden_states`.
"""

from collections.abc import Mapping
from typing import Any

from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.eagle3.config import Eagle3Config
from draftwood.plugins.drafters.formats.dflash import OUTER, speculators_block

FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
AROUND = ("draft_vocab_size", "target_hidden_size", "eagle_aux_hidden_state_layer_ids", *FLAGS)
"""Keys that are about the drafter, not about the decoder inside it."""


def as_speculators(
    data: Mapping[str, Any], old: Eagle3Config, target: str | None
) -> dict[str, Any]:
    inner = {key: value for key, value in data.items() if key not in (*OUTER, *AROUND)}
    return {
        "architectures": ["Eagle3DraftModel"],
        "dtype": data.get("dtype", data.get("torch_dtype")),
        "tie_word_embeddings": False,
        **_around(old),
        **speculators_block("eagle3", 5, target),
        "transformer_layer_config": {
            **inner,
            "model_type": "qwen3" if old.head_norms else "llama",
        },
    }


def as_eagle(data: Mapping[str, Any], old: Eagle3Config) -> dict[str, Any]:
    if old.num_layers != 1:
        raise CheckpointError(f"the eagle layout cannot say: {old.num_layers} layers, it has one")
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "dtype": data.get("dtype"),
        **data["transformer_layer_config"],
        **_around(old),
    }


def _around(old: Eagle3Config) -> dict[str, Any]:
    ids = old.target_layer_ids
    wider = old.target_hidden_size != old.hidden_size
    return {
        "draft_vocab_size": old.draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": None if ids is None else [tap + 1 for tap in ids],
        "target_hidden_size": old.target_hidden_size if wider else None,
        **{flag: getattr(old, flag) for flag in FLAGS},
    }
