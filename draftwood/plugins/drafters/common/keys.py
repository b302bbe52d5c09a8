"""Reading config.json so that whatever is wrong is told with file and key. Imports no torch."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from draftwood.core.errors import CheckpointError

ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")


def read_config(path: Path | str) -> tuple[dict[str, Any], str]:
    """A config.json, or the one in a folder, parsed; and its path, for errors.

    Raises CheckpointError if it cannot be read or is no JSON object.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "config.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON ({error})") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: a JSON object is expected")
    return data, str(path)


@frozen
class Llama3Scaling:
    """Rotary frequencies of Llama 3.1: those slower than the context it was trained on are
    divided by `factor`, the fast ones stay, and between the two the change is gradual."""

    factor: float
    low: float
    high: float
    original: int


class Keys:
    """Look-ups that name file and key when they fail. levels: the first that has a key wins;
    null is not having it."""

    def __init__(self, levels: Sequence[Mapping[str, Any]], source: str) -> None:
        self.levels, self.source = levels, source

    def fail(self, key: str, message: str) -> CheckpointError:
        return CheckpointError(f"{self.source}: {key}: {message}")

    def get(self, key: str, default: Any = None) -> Any:
        for level in self.levels:
            if level.get(key) is not None:
                return level[key]
        return default

    def integer(self, key: str, default: int | None = None, least: int = 0) -> int:
        value = self.get(key, default)
        if value is None:
            raise self.fail(key, "missing; without it the drafter cannot be run")
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.fail(key, f"an integer >= {least} is expected, got {value!r}")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(key, f"a number is expected, got {value!r}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.fail(key, f"true or false is expected, got {value!r}")
        return value

    def activation(self) -> str:
        value: str = self.get("hidden_act", "silu")
        if value not in ACTIVATIONS:
            raise self.fail("hidden_act", f"{value!r} is not one of {', '.join(ACTIVATIONS)}")
        return value

    def rope(self, scaled: bool = False) -> tuple[float, Llama3Scaling | None]:
        """Theta and scaling, from `rope_parameters`, `rope_scaling` or the top level.

        scaled: whether the drafter can run with Llama 3.1's scaling; no other is understood.
        """
        rope = self.get("rope_parameters") or self.get("rope_scaling") or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        known = ("default", "llama3") if scaled else ("default",)
        if kind not in known:
            raise self.fail(
                "rope_parameters", f"rope_type {kind!r} is not supported, only {', '.join(known)}"
            )
        theta = rope.get("rope_theta", self.get("rope_theta"))
        if theta is None:
            raise self.fail("rope_theta", "missing, at the top level and in rope_parameters")
        if kind == "default":
            return float(theta), None
        inner = Keys([rope], self.source)
        return float(theta), Llama3Scaling(
            inner.number("factor", 8.0),
            inner.number("low_freq_factor", 1.0),
            inner.number("high_freq_factor", 4.0),
            inner.integer("original_max_position_embeddings", least=1),
        )
