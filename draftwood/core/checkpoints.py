"""Where a drafter's checkpoint is: bundled, in a folder, or on the hub. Torch-free."""

import json
from pathlib import Path
from typing import Any

from draftwood.core.assets import Part, resolve
from draftwood.core.errors import CheckpointError
from draftwood.core.hub import cached_file, cached_only

WEIGHTS = ["*.json", "*.safetensors"]
PICKLES = ["*.bin", "*.pt", "*.pth"]
MAX_CONFIG_BYTES = 1 << 26


def config_file(
    checkpoint: Path | str, revision: str | None = None, *, part: Part = "drafter"
) -> Path | None:
    """The checkpoint's config.json if it is on this machine; nothing is downloaded.

    Args:
        checkpoint: A folder, a hub name, or `builtin`.
        revision: Of a hub name.
        part: The bundled model that `builtin` means.

    Raises:
        CheckpointError: The checkpoint is a folder that does not exist or has no config.json.
    """
    location = _folder_or_name(checkpoint, part)
    if isinstance(location, Path):
        path = location / "config.json"
        if not path.is_file():
            raise CheckpointError(f"{location} has no config.json: it is not a drafter checkpoint")
        return path
    return cached_file(location, revision)


def read_config(path: Path) -> dict[str, Any]:
    """The values of a config.json.

    Raises:
        CheckpointError: It cannot be read, is not JSON, or is not an object.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
        if len(content) > MAX_CONFIG_BYTES:
            raise CheckpointError(f"{path}: larger than {MAX_CONFIG_BYTES} bytes")
        values = json.loads(content.decode("utf-8-sig"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON ({error})") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: a JSON object is expected")
    return values


def fetch(
    checkpoint: Path | str,
    revision: str | None = None,
    *,
    pickles: bool = False,
    part: Part = "drafter",
) -> Path:
    """The checkpoint's folder, downloaded from the hub if it is a hub name.

    Args:
        checkpoint: A folder, a hub name, or `builtin`.
        revision: Of a hub name.
        pickles: Also download weights that are not safetensors.
        part: The bundled model that `builtin` means.

    Raises:
        CheckpointError: The folder does not exist, or the download failed.
    """
    location = _folder_or_name(checkpoint, part)
    if isinstance(location, Path):
        return location
    from huggingface_hub import snapshot_download

    offline = cached_only(location, revision)
    patterns = WEIGHTS + (PICKLES if pickles else [])
    try:
        return Path(
            snapshot_download(
                location, revision=revision, allow_patterns=patterns, local_files_only=offline
            )
        )
    except Exception as error:
        raise CheckpointError(
            f"checkpoint {location!r} is no folder here and could not be fetched from the hub "
            f"({type(error).__name__}: {error})"
        ) from error


def _folder_or_name(checkpoint: Path | str, part: Part) -> Path | str:
    """An existing folder, or a hub name."""
    location = resolve(checkpoint, part)
    try:
        if Path(location).is_dir():
            return Path(location)
    except (OSError, ValueError) as error:  # a name that no file can have
        raise CheckpointError(f"no such folder: {str(location)[:200]!r}") from error
    if isinstance(location, Path):
        raise CheckpointError(f"no such folder: {location}")
    return location
