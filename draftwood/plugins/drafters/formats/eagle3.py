"""Writes config.json of an EAGLE-3 drafter in the original and the speculators layout.

The original layout is a plain decoder's config with a few more keys, and names its layer
`midlayer`. Both name tapped layers by the index of their outputs in `hidden_states`.
"""

from collections.abc import Mapping
from typing import Any

from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.eagle3.config import FLAGS, Eagle3Config
from draftwood.plugins.drafters.formats.dflash import OUTER, speculators_block


def as_speculators(
    data: Mapping[str, Any], old: Eagle3Config, target: str | None
) -> dict[str, Any]:
    drafter = _drafter_keys(old)
    inner = {
        key: value for key, value in data.items() if key not in (*OUTER, *drafter, "eagle_config")
    }
    return {
        "architectures": ["Eagle3DraftModel"],
        "dtype": data.get("dtype", data.get("torch_dtype")),
        "tie_word_embeddings": False,
        **drafter,
        **speculators_block("eagle3", 5, target),
        "transformer_layer_config": {**inner, "model_type": "qwen3" if old.head_norms else "llama"},
    }


def as_eagle(data: Mapping[str, Any], old: Eagle3Config) -> dict[str, Any]:
    if old.num_layers != 1:
        raise CheckpointError(
            f"the eagle layout cannot represent: {old.num_layers} layers, it has one"
        )
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "dtype": data.get("dtype"),
        **data["transformer_layer_config"],
        **_drafter_keys(old),
    }


def _drafter_keys(old: Eagle3Config) -> dict[str, Any]:
    """The keys about the drafter, not about the decoder inside it."""
    ids = old.target_layer_ids
    wider = old.target_hidden_size != old.hidden_size
    return {
        "draft_vocab_size": old.draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": None if ids is None else [tap + 1 for tap in ids],
        "target_hidden_size": old.target_hidden_size if wider else None,
        **{flag: getattr(old, flag) for flag in FLAGS},
    }
