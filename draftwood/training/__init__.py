"""Training of drafters: the target's own text, its features, a drafter, an export.

Importing this imports no torch; `train` does.
"""

from collections.abc import Iterable
from pathlib import Path


def train(config_path: Path | str, *, set_options: Iterable[str] = (), resume: bool = True) -> Path:
    """Run every stage of a training file that is not done yet; returns the exported folder.

    set_options: "section.option=value". resume: continue from the last checkpoint of the drafter;
    False starts its training anew. Samples and features are kept either way, and refused if they
    were made with other settings. Raises ConfigError with every problem of the file.
    """
    from draftwood.training.config import load_training
    from draftwood.training.run import run

    return run(load_training(config_path, set_options), resume=resume)
