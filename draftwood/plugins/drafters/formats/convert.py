"""A drafter's checkpoint from one published layout to another: the same tensors, another config.

Tensors keep their bits. Where two layouts call them the same, files are copied; else they are
written anew under the other names, shard by shard.
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
from draftwood.plugins.drafters.common.config import read_config
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
"""What each algorithm has been published in."""

NAMES: Mapping[str, Mapping[str, str]] = {
    "transformers": {ours: theirs for theirs, ours in ENCODER.items()},
    "eagle": {"layers.0.": "midlayer."},
}
"""Where a layout calls tensors otherwise than speculators does."""


def convert(
    source: Path,
    folder: Path,
    to: Layout,
    target: str | None = None,
    taps: tuple[int, ...] | None = None,
) -> None:
    """Write the checkpoint in `source` to `folder` in layout `to`.

    target: what a speculators config names as the model it belongs to; for a checkpoint that
    does not say how large its vocabulary is, a folder with that model's config. taps: 0-based
    target layers, for an EAGLE-3 checkpoint that does not name them. Raises CheckpointError
    before anything is written if the source has problems or is no drafter, if it has that layout
    already, if the layout cannot say what it means, or if `folder` has files.
    """
    found = describe(source)
    if problems := [p for p in found.problems if not (taps and UNTAPPED in p)]:
        raise CheckpointError("\n".join(problems))
    layouts = LAYOUTS.get(found.algorithm)
    if layouts is None:
        raise CheckpointError(f"{source} is {found.algorithm}, which no other layout has")
    if to not in layouts:
        raise CheckpointError(
            f"{source} is {found.algorithm}, which is not published in the {to} layout; choices: "
            f"{', '.join(layouts)}"
        )
    if found.format == to:
        raise CheckpointError(f"{source} is in the {to} layout already")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(f"{folder} exists and is not an empty folder")
    data, name = read_config(source)
    if found.algorithm == "eagle3":
        new = _eagle3(data, name, to, target, taps)
    else:
        new = _dflash(data, name, to, target)
    _write(source, folder, new, _names(found.format, to))


def _dflash(data: Mapping[str, Any], name: str, to: Layout, target: str | None) -> dict[str, Any]:
    old = DFlashConfig.from_mapping(data, name)
    if to == "transformers":
        new = dflash.as_transformers(data, old)
        meant = evolve(old, vocab_size=0, draft_vocab_size=0)
    else:
        size = old.vocab_size or _vocabulary(target, to)
        zlab = to == "zlab"
        new = (
            dflash.as_zlab(data, old, size)
            if zlab
            else dflash.as_speculators(data, old, size, target)
        )
        meant = evolve(old, vocab_size=size, draft_vocab_size=old.draft_vocab_size or size)
    _check_meaning(meant, DFlashConfig.from_mapping(new, name), to)
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
    _check_meaning(old, Eagle3Config.from_mapping(new, name), to)
    return new


def _vocabulary(target: str | None, to: Layout) -> int:
    """The size of the target's vocabulary, from its folder."""
    place = None if target is None else resolve(target, "target")
    if place is None or not (Path(place) / "config.json").is_file():
        raise CheckpointError(
            f"the {to} layout says how large the vocabulary is, and this checkpoint does not; "
            "name the target's folder with --target"
        )
    data, name = read_config(place)
    size = {**data, **data.get("text_config", {})}.get("vocab_size")
    if not isinstance(size, int):
        raise CheckpointError(f"{name}: vocab_size: an integer is expected, got {size!r}")
    return size


def _check_meaning(old: Any, new: Any, to: Layout) -> None:
    before, after = asdict(old), asdict(new)
    changed = [
        f"{key} {before[key]} would be {after[key]}"
        for key in before
        if before[key] != after[key] and key not in ("source", "layout")
    ]
    if changed:
        raise CheckpointError(f"the {to} layout would mean something else: {'; '.join(changed)}")


def _names(before: str, to: str) -> dict[str, str]:
    """Prefixes of tensors' names that change, old to new."""
    from_here = {theirs: common for common, theirs in NAMES.get(before, {}).items()}
    return {**from_here, **NAMES.get(to, {})}


def _write(source: Path, folder: Path, config: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """All of it or nothing: a folder beside the wanted one takes its place when it is whole."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    if names:
        _renew(source, partial, names)
    else:
        for path in (*weight_files(source), source / INDEX):
            if path.is_file():
                shutil.copyfile(path, partial / path.name)
    _dump(partial / "config.json", config)
    if folder.exists():
        folder.rmdir()
    partial.replace(folder)


def _renew(source: Path, folder: Path, names: Mapping[str, str]) -> None:
    """Write the tensors and the index under other names."""
    for path in weight_files(source):
        tensors = {renamed(name, names): tensor for name, tensor in load_file(path).items()}
        save_file(tensors, folder / path.name, metadata={"format": "pt"})
    if (source / INDEX).is_file():
        index = json.loads((source / INDEX).read_text(encoding="utf-8"))
        places = index["weight_map"].items()
        index["weight_map"] = {renamed(name, names): shard for name, shard in places}
        _dump(folder / INDEX, index)


def _dump(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
