"""Converts a drafter's checkpoint between published layouts: the same tensors, another config.

Tensors keep their bits. Where two layouts name tensors alike, files are copied; else the tensors
are written under the other names, shard by shard.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from attrs import asdict, evolve
from safetensors.torch import load_file, save_file

from draftwood.core.assets import resolve
from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.common.config import read_config, target_vocab_size
from draftwood.plugins.drafters.common.headers import INDEX, weight_files
from draftwood.plugins.drafters.common.weights import renamed
from draftwood.plugins.drafters.dflash.config import DFlashConfig
from draftwood.plugins.drafters.dflash.model import ENCODER
from draftwood.plugins.drafters.eagle3.config import Eagle3Config
from draftwood.plugins.drafters.formats import dflash, eagle3
from draftwood.plugins.drafters.formats.describe import UNTAPPED, describe

Layout = Literal["zlab", "speculators", "eagle", "transformers"]

LAYOUTS: Mapping[str, tuple[Layout, ...]] = {
    "dflash": ("zlab", "speculators", "transformers"),
    "dflash2": ("zlab", "speculators"),
    "eagle3": ("eagle", "speculators"),
}
"""The published layouts of each algorithm."""

NAMES: Mapping[str, Mapping[str, str]] = {
    "transformers": {ours: theirs for theirs, ours in ENCODER.items()},
    "eagle": {"layers.0.": "midlayer."},
}
"""Prefixes of tensor names in speculators' layout, and in layouts where they differ."""


def convert(
    source: Path,
    folder: Path,
    to: Layout,
    target: str | None = None,
    taps: tuple[int, ...] | None = None,
) -> None:
    """Write the checkpoint in `source` to `folder` in layout `to`.

    Args:
        target: The target's name, which a speculators config has; for a checkpoint without a
            vocabulary size, a folder with the target's config.
        taps: 0-based target layers, for an EAGLE-3 checkpoint that does not name them.

    Raises:
        CheckpointError: Before anything is written: the source has problems, is no drafter, has
            this layout already or cannot be represented in it, or `folder` is not empty.
    """
    description = describe(source)
    algorithm = description.algorithm
    if problems := [p for p in description.problems if not (taps and UNTAPPED in p)]:
        raise CheckpointError("\n".join(problems))
    layouts = LAYOUTS.get(algorithm)
    if layouts is None:
        raise CheckpointError(f"{source} is {algorithm}, which has no other layout")
    if to not in layouts:
        raise CheckpointError(
            f"{source} is {algorithm}, which is not published in the {to} layout; choices: "
            f"{', '.join(layouts)}"
        )
    if description.format == to:
        raise CheckpointError(f"{source} is in the {to} layout already")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(f"{folder} exists and is not an empty folder")
    data, name = read_config(source)
    if algorithm == "eagle3":
        config = _eagle3(data, name, to, target, taps)
    else:
        config = _dflash(data, name, to, target)
    to_common = {theirs: common for common, theirs in NAMES.get(description.format, {}).items()}
    _write(source, folder, config, {**to_common, **NAMES.get(to, {})})


def _dflash(data: Mapping[str, Any], name: str, to: Layout, target: str | None) -> dict[str, Any]:
    old = DFlashConfig.from_mapping(data, name)
    if to == "transformers":
        new = dflash.as_transformers(data, old)
        expected = evolve(old, vocab_size=0, draft_vocab_size=0)
    else:
        size = old.vocab_size or _vocab_size(target, to)
        if to == "zlab":
            new = dflash.as_zlab(data, old, size)
        else:
            new = dflash.as_speculators(data, old, size, target)
        expected = evolve(old, vocab_size=size, draft_vocab_size=old.draft_vocab_size or size)
    _check_equal(expected, DFlashConfig.from_mapping(new, name), to)
    return new


def _eagle3(
    data: Mapping[str, Any],
    name: str,
    to: Layout,
    target: str | None,
    taps: tuple[int, ...] | None,
) -> dict[str, Any]:
    old = Eagle3Config.from_mapping(data, name)
    old = evolve(old, target_layer_ids=old.target_layer_ids or taps)
    new = eagle3.as_eagle(data, old) if to == "eagle" else eagle3.as_speculators(data, old, target)
    _check_equal(old, Eagle3Config.from_mapping(new, name), to)
    return new


def _vocab_size(target: str | None, to: Layout) -> int:
    """The size of the target's vocabulary, from its folder."""
    place = None if target is None else resolve(target, "target")
    if place is None or not (Path(place) / "config.json").is_file():
        raise CheckpointError(
            f"the {to} layout has the size of the vocabulary, and this checkpoint does not; pass "
            "the target's folder with --target"
        )
    return target_vocab_size(*read_config(place))


def _check_equal(old: Any, new: Any, to: Layout) -> None:
    before, after = asdict(old), asdict(new)
    changed = [
        f"{key} {before[key]} would be {after[key]}"
        for key in before
        if before[key] != after[key] and key not in ("source", "layout")
    ]
    if changed:
        raise CheckpointError(f"the {to} layout would change the drafter: {'; '.join(changed)}")


def _write(source: Path, folder: Path, config: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Write all or nothing: a partial folder is renamed once it is complete.

    names: Prefixes of tensor names to replace.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    files, index = weight_files(source), source / INDEX
    if not names:
        for path in (*files, index):
            if path.is_file():
                shutil.copyfile(path, partial / path.name)
    else:
        for path in files:
            tensors = {renamed(name, names): tensor for name, tensor in load_file(path).items()}
            save_file(tensors, partial / path.name, metadata={"format": "pt"})
        if index.is_file():
            data = json.loads(index.read_text(encoding="utf-8"))
            shards = data["weight_map"].items()
            data["weight_map"] = {renamed(name, names): shard for name, shard in shards}
            _dump(partial / INDEX, data)
    _dump(partial / "config.json", config)
    if folder.exists():
        folder.rmdir()
    partial.replace(folder)


def _dump(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
