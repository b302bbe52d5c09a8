"""Where draftwood keeps what it measured on this machine."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """$DRAFTWOOD_CACHE, else `draftwood` in the XDG cache folder. It is not created here."""
    if own := os.environ.get("DRAFTWOOD_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "draftwood"
