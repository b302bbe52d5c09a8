"""Models in GGUF files.

Quantised blocks are unpacked while they load: weights are plain tensors of one dtype, and the
forward is that of any other checkpoint of the architecture.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import GgufConfig

from draftwood.core.errors import CheckpointError

SUFFIX = ".gguf"
NEEDED = ("gguf", "accelerate")


def located(model: str | Path, file: str | None = None) -> tuple[str, dict[str, Any]]:
    """Find a model for `from_pretrained`.

    Args:
        model: a folder, a hub name, or the path of a GGUF file.
        file: the name of a GGUF file in `model`.

    Returns:
        The folder or hub name, and the keywords that name the GGUF file; {} without one.

    Raises:
        CheckpointError: there is no such file, or the packages that read it are not installed.
    """
    place = Path(model)
    if file is None and place.suffix == SUFFIX:
        place, file = place.parent, place.name
    elif file is None:
        return str(model), {}
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise CheckpointError(
            f"{file} is a GGUF file, and reading one needs {' and '.join(missing)}, which is not "
            "installed\n  pip install draftwood[gguf]"
        )
    if not place.is_dir() and place == Path(model):
        return str(model), {"gguf_file": file}  # on the hub
    path = place.resolve() / file
    if not path.is_file():
        found = ", ".join(names_in(place)) or "none"
        raise CheckpointError(f"{place / file} does not exist\n  GGUF files in {place}: {found}")
    # The whole path: of a bare name transformers would read a file in the current folder first.
    return str(place), {"gguf_file": str(path)}


def unpacked(keywords: dict[str, Any]) -> dict[str, Any]:
    """The keywords of `located` and, for a GGUF file, one that asks for plain tensors."""
    return keywords and {**keywords, "quantization_config": GgufConfig(dequantize=True)}


def names_in(folder: Path) -> list[str]:
    """The GGUF files of a folder."""
    return sorted(path.name for path in folder.glob(f"*{SUFFIX}"))


def hint(model: str | Path) -> str:
    """A hint for a folder of GGUF files that was loaded as another kind of checkpoint."""
    names = names_in(Path(model)) if Path(model).is_dir() else []
    if not names:
        return ""
    return f"\n  the folder holds {', '.join(names)}: name it in target.gguf_file"
