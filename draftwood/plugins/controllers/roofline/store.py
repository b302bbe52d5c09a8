"""Measured cost models on disk, one file per machine and model.

A file that cannot be read, that was written for another identity or format, or that holds anything
but finite numbers counts as absent: the machine is measured again.
"""

import hashlib
import json
import logging
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftwood.core.storage import cache_folder
from draftwood.plugins.controllers.roofline.corrections import KNOTS, Corrections
from draftwood.plugins.controllers.roofline.cost_model import CostModel
from draftwood.plugins.controllers.roofline.measuring import Probe
from draftwood.plugins.controllers.roofline.roof import Roof

log = logging.getLogger("draftwood")

FORMAT = 2


def path_of(identity: Mapping[str, str]) -> Path:
    """The file of this identity."""
    key = json.dumps(dict(identity), sort_keys=True)
    return cache_folder() / "roofline" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def load(identity: Mapping[str, str]) -> CostModel | None:
    """The stored cost model of exactly this identity, or None."""
    path = path_of(identity)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT or data["identity"] != dict(identity):
            raise ValueError("written for another identity or format")
        if data["knots"] != list(KNOTS):
            raise ValueError("its knots differ from this version's")
        roof = Roof(_numbers(data["compute"], 5), _numbers(data["memory"], 5))  # type: ignore[arg-type]
        corrections = Corrections(_numbers(data["residuals"], len(KNOTS)))
        model = CostModel(roof, corrections, source="store")
        for probe in data["probes"]:
            if not min(_numbers(probe, 3)) > 0.0:
                raise ValueError("a measurement is not positive")
        if not min(model.forward(size, 1) for size in KNOTS) > 0.0:
            raise ValueError("a forward time is not positive")
        return model
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s cannot be used (%s); the machine is measured again", path, error)
        return None


def load_probes(identity: Mapping[str, str]) -> list[Probe]:
    """The measurements behind the stored cost model of this identity; empty without one."""
    if load(identity) is None:
        return []
    data = json.loads(path_of(identity).read_text(encoding="utf-8"))
    return [Probe(int(tokens), int(context), float(s)) for tokens, context, s in data["probes"]]


def save(identity: Mapping[str, str], model: CostModel, probes: Sequence[Probe]) -> bool:
    """Write a cost model and the measurements behind it, atomically.

    A folder that cannot be written is no error: the next pipeline measures again.

    Returns:
        Whether the file was written.
    """
    path = path_of(identity)
    assert isinstance(model.forward_model, Roof)
    data = {
        "format": FORMAT,
        "identity": dict(identity),
        "knots": KNOTS,
        "compute": model.forward_model.compute,
        "memory": model.forward_model.memory,
        "residuals": model.corrections.residuals,
        "probes": [(probe.tokens, probe.context, probe.seconds) for probe in probes],
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A temporary folder per process, so that two never write into one file.
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            written = Path(folder) / path.name
            written.write_text(json.dumps(data, indent=1), encoding="utf-8")
            written.replace(path)
    except OSError as error:
        log.warning("the measured times of this machine could not be stored (%s)", error)
        return False
    return True


def _numbers(values: Any, count: int) -> tuple[float, ...]:
    numbers = tuple(float(value) for value in values)
    if len(numbers) != count or not all(map(math.isfinite, numbers)):
        raise ValueError(f"{count} finite numbers expected")
    return numbers
