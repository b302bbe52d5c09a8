"""Measured prices on disk, one file per machine and model. Never trusted blindly.

A file that cannot be read, that was written for another identity or another version of this
format, or that holds anything but finite numbers, counts as absent: the machine is measured again.
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
from draftwood.plugins.controllers.roofline.prices import KNOTS, Prices, Roof
from draftwood.plugins.controllers.roofline.probing import Probe

log = logging.getLogger("draftwood")

FORMAT = 2


def path_of(identity: Mapping[str, str]) -> Path:
    """Where prices of this identity are kept."""
    key = json.dumps(dict(identity), sort_keys=True)
    return cache_folder() / "roofline" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def load(identity: Mapping[str, str]) -> Prices | None:
    """Stored prices of exactly this identity, or None."""
    path = path_of(identity)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT or data["identity"] != dict(identity):
            raise ValueError("written for another identity or format")
        if data["knots"] != list(KNOTS):
            raise ValueError("its sizes are not this version's")
        roof = Roof(_numbers(data["compute"], 5), _numbers(data["memory"], 5))  # type: ignore[arg-type]
        prices = Prices(roof, _numbers(data["residuals"], len(KNOTS)), source="store")
        for probe in data["probes"]:
            if not min(_numbers(probe, 3)) > 0.0:
                raise ValueError("a measurement that is none")
        if not min(prices.forward(size, 1) for size in KNOTS) > 0.0:
            raise ValueError("a forward that takes no time")
        return prices
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s cannot be used (%s); the machine is measured again", path, error)
        return None


def load_probes(identity: Mapping[str, str]) -> list[Probe]:
    """The measurements that the stored prices of exactly this identity were fitted to; none if
    there are no such prices."""
    if load(identity) is None:
        return []
    data = json.loads(path_of(identity).read_text(encoding="utf-8"))
    return [Probe(int(tokens), int(context), float(s)) for tokens, context, s in data["probes"]]


def save(identity: Mapping[str, str], prices: Prices, probes: Sequence[Probe]) -> bool:
    """Write prices, and the measurements that they come from, whole or not at all.

    A folder that cannot be written is no error: the next pipeline measures again. Returns whether
    they were written.
    """
    path = path_of(identity)
    assert isinstance(prices.roof, Roof)
    data = {
        "format": FORMAT,
        "identity": dict(identity),
        "knots": KNOTS,
        "compute": prices.roof.compute,
        "memory": prices.roof.memory,
        "residuals": prices.residuals,
        "probes": [(probe.tokens, probe.context, probe.seconds) for probe in probes],
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A name of its own, so that two processes never write into one file.
        with tempfile.TemporaryDirectory(dir=path.parent) as own:
            written = Path(own) / path.name
            written.write_text(json.dumps(data, indent=1), encoding="utf-8")
            written.replace(path)
    except OSError as error:
        log.warning("prices of this machine could not be kept (%s)", error)
        return False
    return True


def _numbers(values: Any, count: int) -> tuple[float, ...]:
    numbers = tuple(float(value) for value in values)
    if len(numbers) != count or not all(map(math.isfinite, numbers)):
        raise ValueError(f"{count} finite numbers expected")
    return numbers
