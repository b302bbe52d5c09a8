"""Where a drafter's checkpoint lies: bundled, in a folder, or on the hub. Torch-free."""

from pathlib import Path

from draftwood.core.assets import Part, resolve
from draftwood.core.errors import CheckpointError

WEIGHTS = ["*.json", "*.safetensors"]
PICKLES = ["*.bin", "*.pt", "*.pth"]


def config_file(
    checkpoint: Path | str, revision: str | None = None, *, part: Part = "drafter"
) -> Path | None:
    """The checkpoint's config.json if this machine has it; never downloads.

    part: which of the bundled models `builtin` means. Raises CheckpointError if the checkpoint is
    a folder without one.
    """
    place = resolve(checkpoint, part)
    folder = Path(place)
    if folder.is_dir():
        path = folder / "config.json"
        if not path.is_file():
            raise CheckpointError(f"{folder} has no config.json: it is not a drafter checkpoint")
        return path
    if isinstance(place, Path):
        raise CheckpointError(f"no such folder: {place}")
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(place, "config.json", revision=revision)
    return Path(cached) if isinstance(cached, str) else None


def fetch(
    checkpoint: Path | str,
    revision: str | None = None,
    *,
    pickles: bool = False,
    part: Part = "drafter",
) -> Path:
    """The checkpoint's folder, downloaded from the hub if it is a hub name.

    pickles: also fetch weights that are not safetensors. part: which of the bundled models
    `builtin` means. Raises CheckpointError if it is neither a folder nor to be had from the hub,
    saying which was tried.
    """
    place = resolve(checkpoint, part)
    if Path(place).is_dir():
        return Path(place)
    if isinstance(place, Path):
        raise CheckpointError(f"no such folder: {place}")
    from huggingface_hub import snapshot_download

    try:
        patterns = WEIGHTS + (PICKLES if pickles else [])
        return Path(snapshot_download(place, revision=revision, allow_patterns=patterns))
    except Exception as error:
        raise CheckpointError(
            f"checkpoint {place!r} is no folder here and could not be fetched from the hub "
            f"({type(error).__name__}: {error})"
        ) from error
