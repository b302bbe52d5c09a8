"""Stage 4: the drafter as a checkpoint in z-lab's layout, which `dflash` reads."""

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from draftwood.plugins.drafters.dblast.config import SECTION, DBlastConfig
from draftwood.plugins.drafters.dflash.config import FULL, SLIDING, DFlashConfig
from draftwood.plugins.drafters.dflash.model import DFlashModel
from draftwood.plugins.drafters.formats.dflash import ZLAB_ONLY


def export(
    model: DFlashModel,
    folder: Path,
    dtype: torch.dtype = torch.bfloat16,
    *,
    head: Tensor | None = None,
) -> None:
    """Write a DFlash or DBlast drafter in z-lab's layout, weights rounded to dtype.

    Args:
        model: The drafter.
        folder: Where config.json and model.safetensors are written.
        dtype: Of the stored weights.
        head: (V_draft, d), which a checkpoint with a reduced vocabulary contains.
    """
    state = model.published_state()
    if head is not None:
        state["lm_head.weight"] = head
    write_checkpoint(state, as_published(model.config, dtype), folder, dtype)


def write_checkpoint(
    state: Mapping[str, Tensor], published: Mapping[str, Any], folder: Path, dtype: torch.dtype
) -> None:
    """Write config.json and model.safetensors, each replaced at once, floats rounded to dtype."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = {
        name: (tensor.to(dtype) if tensor.is_floating_point() else tensor).cpu().contiguous()
        for name, tensor in state.items()
    }
    weights = folder / "model.safetensors.partial"
    save_file(stored, weights, metadata={"format": "pt"})
    config = folder / "config.json.partial"
    config.write_text(json.dumps(published, indent=2) + "\n")
    for part in (weights, config):
        part.replace(part.with_suffix(""))


def replace_export(
    write: Callable[[Path], None], folder: Path, before_replacing: Callable[[Path], None]
) -> None:
    """Write a checkpoint beside `folder` and put it in its place when it is complete.

    Args:
        write: Writes the checkpoint into the folder that it is given.
        folder: Where the checkpoint shall be; an earlier one is replaced.
        before_replacing: Called with the folder of the complete checkpoint; may refuse by raising.
    """
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    written, earlier, replaced = scratch / "new", scratch / "earlier", False
    try:
        write(written)
        before_replacing(written)
        # No rename replaces a folder that has files. After a crash between the two renames the
        # earlier export is `earlier` in the scratch folder, whole, beside the new one.
        if folder.exists():
            folder.rename(earlier)
        written.rename(folder)
        replaced = True
    finally:
        if earlier.exists() and not replaced:
            earlier.rename(folder)
        shutil.rmtree(scratch, ignore_errors=True)


def as_published(config: DFlashConfig, dtype: torch.dtype) -> dict[str, Any]:
    """config.json of a drafter without convolutions; of several branches, with a
    `dblast_config`."""
    published = _as_dflash(config, dtype)
    if config.selector_rank:
        published["architectures"] = ["DFlash2DraftModel"]
        published["dflash_config"] |= {
            "conv_kernel_size": config.conv_kernel_size,
            "conv_group_size": config.conv_group_size,
            "selector_rank": config.selector_rank,
            "selector_top_k": config.selector_top_k,
        }
    if config.draft_vocab_size != config.vocab_size:
        published["draft_vocab_size"] = config.draft_vocab_size
    for key, neutral in ZLAB_ONLY.items():
        if (value := getattr(config, key)) != neutral:
            published[key] = value
    if config.target_hidden_size != config.hidden_size:
        published["target_hidden_size"] = config.target_hidden_size
    if config.causal != tuple(window is not None for window in config.windows):
        published["is_causal"] = all(config.causal)  # one flag for all layers
    if isinstance(config, DBlastConfig) and config.branches > 1:
        published[SECTION] = config.section()
    return published


def _as_dflash(config: DFlashConfig, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": str(dtype).removeprefix("torch."),
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "hidden_act": config.activation,
        "attention_bias": config.attention_bias,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default"},
        "layer_types": [FULL if window is None else SLIDING for window in config.windows],
        "sliding_window": next((w for w in config.windows if w is not None), None),
        "tie_word_embeddings": False,
        "num_target_layers": config.num_target_layers,
        "block_size": config.block_size,
        "dflash_config": {
            "mask_token_id": config.mask_token_id,
            "target_layer_ids": list(config.target_layer_ids),
        },
    }
