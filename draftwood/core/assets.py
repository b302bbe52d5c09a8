"""The models that come with draftwood: what `builtin` means as a model or checkpoint."""

from importlib.resources import files
from pathlib import Path
from typing import Literal

from draftwood.core.errors import CheckpointError

DEFAULT = "tiny-python"

Part = Literal["target", "drafter", "dblast", "independent", "eagle3", "draft"]
"""The parts of a bundled set of models: the target, a block drafter, a block drafter with branches,
the same with a single branch (for comparison), an EAGLE-3 drafter, and a small language model that
uses the target's tokenizer."""


def resolve(value: Path | str, part: Part) -> Path | str:
    """A folder for `builtin` and `builtin:NAME`; any other path or hub name unchanged.

    Raises:
        CheckpointError: There is no such bundled model; the message lists the choices.
    """
    if not isinstance(value, str) or value.partition(":")[0] != "builtin":
        return value
    name = value.partition(":")[2] or DEFAULT
    folder = Path(str(files("draftwood") / "assets"))
    if not (folder / name / part / "config.json").is_file():
        choices = sorted(path.parent.parent.name for path in folder.glob(f"*/{part}/config.json"))
        raise CheckpointError(
            f"no bundled {part} {name!r}\n  bundled: {', '.join(choices) or 'none in this build'}"
        )
    return folder / name / part
