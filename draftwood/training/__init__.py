"""Training of drafters: the target's own text, its features, a drafter, an export.

Importing this imports no torch; `train` does.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from draftwood.core.registry.registry import Registry


def train(
    config_path: Path | str,
    *,
    set_options: Iterable[str] = (),
    resume: bool = True,
    registry: "Registry | None" = None,
) -> Path:
    """Run every stage of a training file that is not done yet.

    Samples and features of an earlier run are kept, and refused if they were made with other
    settings.

    Args:
        config_path: The training file.
        set_options: "section.option=value".
        resume: Continue from the last checkpoint of the drafter; False starts its training anew.
        registry: The plugins to choose the algorithm from; the installed ones if None.

    Returns:
        The exported folder.

    Raises:
        ConfigError: With every problem of the file.
        DraftwoodError: The work folder holds a run with another configuration, or the export
            would replace what is not this run's.
    """
    from draftwood.training.config import load_training
    from draftwood.training.run import run

    config = load_training(config_path, set_options, registry)
    run(config, resume=resume, registry=registry)
    return config.export
