"""The main gains against entropy, drawn by matplotlib."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftwood.core.errors import DraftwoodError
from studies.dblast.methods import COMPARISONS

DRAWN_COMPARISONS = (3, 1, 6)
"""Indices in COMPARISONS."""


def draw_gains(report: Mapping[str, Any], path: Path) -> bool:
    """Draw gains against the entropy of the target's next token into `path`.

    Returns:
        Whether there was something to draw: at least two bins of entropy.

    Raises:
        DraftwoodError: matplotlib is not installed, or `path` cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DraftwoodError(
            f"{path.name} needs matplotlib: pip install 'draftwood[plots]'"
        ) from error
    bins = report["by_entropy"]
    if len(bins) < 2:
        return False
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(
        xlabel="entropy of the target's next token, bits", ylabel="ratio of accepted drafts"
    )
    for index in DRAWN_COMPARISONS:
        ours, theirs = (method[0] for method in COMPARISONS[index])
        ratios = [each["gains"][index]["ratio"]["value"] for each in bins]
        axes.plot([each["mean"] for each in bins], ratios, "o-", label=f"{ours} over {theirs}")
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path)
    except OSError as error:
        raise DraftwoodError(f"{path}: {error.strerror}") from error
    return True
