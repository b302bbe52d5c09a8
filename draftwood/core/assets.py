"""The models that come with draftwood: what `builtin` means as a model or checkpoint."""

from importlib.resources import files
from pathlib import Path
from typing import Literal

from draftwood.core.errors import CheckpointError

DEFAULT = "tiny-python"

Part = Literal["target", "drafter", "dblast", "independent", "eagle3", "draft"]
"""What a bundled set of models has: the target, and for it a block drafter, one with branches, one
of a single branch that was trained as that was (to compare with), an EAGLE-3 drafter and a small
language model, whose tokenizer lies with the target alone."""


def resolve(value: Path | str, part: Part) -> Path | str:
    """A folder for `builtin` and `builtin:NAME`; any other path or hub name as it is.

    Raises CheckpointError naming the choices if there is no such bundled model.
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
