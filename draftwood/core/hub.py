"""Whether a model on the hub can be had, decided once and within seconds. Torch-free.

transformers and huggingface_hub try each file of a model five times with growing pauses, which is
a minute without a network.
"""

import threading
from pathlib import Path
from typing import Any

from draftwood.core.errors import CheckpointError

SECONDS = 8.0
"""How long the hub may take to answer. Resolving its name has no limit of its own."""


def cached_only(name: str, revision: str | None = None, *, file: str = "config.json") -> bool:
    """Whether to read a model from the hub's cache alone, since the hub cannot be reached.

    Args:
        name: A hub name.
        revision: A branch, tag or commit.
        file: The file that the cache must have, if the hub cannot be reached.

    Raises:
        CheckpointError: The hub has no such model, or cannot be reached and the cache lacks it.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    cached = cached_file(name, revision, file)
    failure: BaseException | str | None = "HF_HUB_OFFLINE is set"
    if not constants.HF_HUB_OFFLINE:
        failure = _failure(name, revision)
    if failure is None:
        return False
    if isinstance(failure, RevisionNotFoundError):
        raise CheckpointError(f"{name!r} has no revision {revision!r} on the hub")
    if isinstance(failure, RepositoryNotFoundError):
        raise CheckpointError(
            f"{name!r} is no folder here, and the hub has no such model, or it is private\n"
            "  pass an existing folder, or log in with `hf auth login`"
        )
    if cached is not None:
        return True
    reason = failure if isinstance(failure, str) else f"{type(failure).__name__}: {failure}"
    raise CheckpointError(
        f"{name!r} is no folder here, is not in the hub's cache, and the hub cannot be reached "
        f"({' '.join(reason.split())[:300]})\n"
        "  pass an existing folder, or download it first: hf download " + name
    )


def cached_file(name: str, revision: str | None = None, file: str = "config.json") -> Path | None:
    """A file of a hub name in the hub's cache; None if it is not there.

    Raises:
        CheckpointError: The name can be no hub name.
    """
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
        cached = try_to_load_from_cache(name, file, revision=revision)
    except (HFValidationError, ValueError, OSError) as error:
        message = f"{name[:200]!r} cannot be loaded: no folder here, and not a hub name either"
        raise CheckpointError(message) from error
    return Path(cached) if isinstance(cached, str) else None


def _failure(name: str, revision: str | None) -> BaseException | None:
    """Why the hub does not describe a model; None if it does."""
    from huggingface_hub import HfApi

    answer: list[Any] = []

    def request() -> None:
        try:
            HfApi().model_info(name, revision=revision, timeout=SECONDS / 2)
            answer.append(None)
        except Exception as error:  # noqa: BLE001 - whatever is wrong is the reason
            answer.append(error)

    thread = threading.Thread(target=request, daemon=True)
    thread.start()
    thread.join(SECONDS)
    failure: BaseException | None = answer[0] if answer else TimeoutError(f"after {SECONDS:g} s")
    return failure
