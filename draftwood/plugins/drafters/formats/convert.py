"""A DFlash checkpoint from one published layout to the other.

Both hold the same tensors under the same names, so weights are copied as files, bit for bit; what
differs is config.json. z-lab's counts target layers by their own index, speculators' by the index
of their output in `hidden_states`: one more.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from attrs import asdict

from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.common.headers import INDEX, weight_files
from draftwood.plugins.drafters.common.keys import read_config
from draftwood.plugins.drafters.dflash.config import DFlashConfig
from draftwood.plugins.drafters.formats.describe import describe

Layout = Literal["zlab", "speculators"]

OWN = ("mask_token_id", "target_layer_ids")
"""Keys of z-lab's `dflash_config`."""

OUTER = ("architectures", "auto_map", "dtype", "transformers_version")
"""Keys of a speculators config that are about the file, not about the decoder inside it."""

UNSPOKEN = {"final_logit_softcapping": None, "output_multiplier": 1.0, "input_embedding_scale": 1.0}
"""What speculators has no key for, with the value that says nothing."""


def convert(source: Path, folder: Path, to: Layout, target: str | None = None) -> None:
    """Write the checkpoint in `source` to `folder` in layout `to`.

    target: what a speculators config names as the model it belongs to. Raises CheckpointError
    before anything is written if the source has problems or is no DFlash checkpoint, if it
    already has that layout, if the layout cannot say what it means, or if `folder` has files.
    """
    found = describe(source)
    if found.problems:
        raise CheckpointError("\n".join(found.problems))
    if found.algorithm not in ("dflash", "dflash2"):
        raise CheckpointError(f"{source} is {found.algorithm}; only dflash has both layouts")
    if found.format == to:
        raise CheckpointError(f"{source} is in the {to} layout already")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(f"{folder} exists and is not an empty folder")
    data, name = read_config(source)
    old = DFlashConfig.from_mapping(data, name)
    new = _speculators(data, old, target) if to == "speculators" else _zlab(data, old)
    _check_meaning(old, DFlashConfig.from_mapping(new, str(folder)), to)
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for path in (*weight_files(source), source / INDEX):
        if path.is_file():
            shutil.copyfile(path, partial / path.name)
    text = json.dumps(new, indent=2) + "\n"
    (partial / "config.json").write_text(text, encoding="utf-8")
    if folder.exists():
        folder.rmdir()
    partial.replace(folder)


def _speculators(data: Mapping[str, Any], old: DFlashConfig, target: str | None) -> dict[str, Any]:
    unspoken = [
        key for key, nothing in UNSPOKEN.items() if getattr(old, key) not in (nothing, None)
    ]
    if old.conv_kernel_size or old.selector_rank:
        unspoken.append("the convolutions and selector of DFlash 2")
    both_ways = [window is None for window in old.windows]
    if any(causal and full for causal, full in zip(old.causal, both_ways, strict=True)):
        unspoken.append("is_causal with layers of full attention")
    if unspoken:
        raise CheckpointError(f"the speculators layout cannot say: {', '.join(unspoken)}")
    own = data.get("dflash_config") or {}
    outside = {*OUTER, *OWN, *UNSPOKEN, "dflash_config", "block_size", "is_causal"}
    decoder = {key: value for key, value in data.items() if key not in outside}
    decoder |= {key: own[key] for key in own if key not in outside}
    methods = [{"proposal_type": "greedy", "speculative_tokens": old.block_size - 1}]
    sliding = [causal for causal, full in zip(old.causal, both_ways, strict=True) if not full]
    wider = old.target_hidden_size != old.hidden_size
    return {
        "architectures": ["DFlashDraftModel"],
        "aux_hidden_state_layer_ids": [layer + 1 for layer in old.target_layer_ids],
        "block_size": old.block_size,
        "draft_vocab_size": old.draft_vocab_size,
        "dtype": data.get("dtype"),
        "mask_token_id": old.mask_token_id,
        "sample_from_anchor": False,
        "sliding_window_non_causal": bool(sliding) and not any(sliding),
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": methods,
            "verifier": {"architectures": [], "name_or_path": target},
        },
        "speculators_model_type": "dflash",
        "target_hidden_size": old.target_hidden_size if wider else None,
        "tie_word_embeddings": False,
        "transformer_layer_config": decoder,
    }


def _zlab(data: Mapping[str, Any], old: DFlashConfig) -> dict[str, Any]:
    new = {
        "architectures": ["DFlashDraftModel"],
        **data["transformer_layer_config"],
        "block_size": old.block_size,
        "dflash_config": {
            "mask_token_id": old.mask_token_id,
            "target_layer_ids": list(old.target_layer_ids),
        },
        "dtype": data.get("dtype"),
        "vocab_size": old.vocab_size,
        "tie_word_embeddings": False,
    }
    if data.get("sliding_window_non_causal"):
        new["is_causal"] = False
    if old.draft_vocab_size != old.vocab_size:
        new["draft_vocab_size"] = old.draft_vocab_size
    if old.target_hidden_size != old.hidden_size:
        new["target_hidden_size"] = old.target_hidden_size
    return new


def _check_meaning(old: DFlashConfig, new: DFlashConfig, to: Layout) -> None:
    if old == new:
        return
    before, after = asdict(old), asdict(new)
    changed = [
        f"{key} {before[key]} would be {after[key]}"
        for key in before
        if before[key] != after[key] and key != "source"
    ]
    raise CheckpointError(f"the {to} layout would mean something else: {'; '.join(changed)}")
