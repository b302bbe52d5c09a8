"""What a DBlast checkpoint's config.json says: a DFlash config, and a `dblast_config` beside it.

Imports no torch: `check` reads it without loading weights.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from attrs import fields, frozen

from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.common.keys import Keys, read_config
from draftwood.plugins.drafters.dflash.config import DFlashConfig

SECTION = "dblast_config"


@frozen(kw_only=True)
class DBlastConfig(DFlashConfig):
    """A DFlash drafter whose output has K branches.

    branches: K; 1 is a plain DFlash drafter, with no parameters added. rank: r of the expander,
    0 for one branch. prior_temperatures: (target temperature, Z_T) pairs, temperatures rising;
    empty where none were tuned.
    """

    branches: int = 1
    rank: int = 0
    prior_temperatures: tuple[tuple[float, float], ...] = ()

    @classmethod
    def of(
        cls,
        base: DFlashConfig,
        branches: int = 1,
        rank: int = 0,
        prior_temperatures: Sequence[Sequence[float]] = (),
    ) -> "DBlastConfig":
        """`base` with branches. One branch has no expander, whatever `rank` says.

        Raises CheckpointError for a selector (DFlash 2), less than one branch, no rank for
        several, or a table of temperatures that is not one.
        """
        own = {name.name: getattr(base, name.name) for name in fields(DFlashConfig)}
        section = {
            "branches": branches,
            "rank": rank if branches > 1 else 0,
            "prior_temperatures": [list(pair) for pair in prior_temperatures],
        }
        return cls(**own, **_branches(section, base))

    @classmethod
    def from_file(cls, path: Path | str) -> "DBlastConfig":
        """Read config.json, or the one in a folder. Raises CheckpointError with file and key."""
        return cls.from_mapping(*read_config(path))

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any], source: str = "config.json") -> "DBlastConfig":
        """The same from parsed JSON; without a `dblast_config` there is one branch."""
        base = DFlashConfig.from_mapping(data, source)
        own = {name.name: getattr(base, name.name) for name in fields(DFlashConfig)}
        return cls(**own, **_branches(data.get(SECTION) or {}, base))

    def section(self) -> dict[str, Any]:
        """This drafter's `dblast_config`, for writing config.json."""
        found: dict[str, Any] = {"branches": self.branches, "rank": self.rank}
        if self.prior_temperatures:
            found["prior_temperatures"] = [list(pair) for pair in self.prior_temperatures]
        return found

    def prior_temperature(self, temperature: float) -> float:
        """Z_T for a target temperature; 1.0 where none were tuned."""
        return between(self.prior_temperatures, temperature) if self.prior_temperatures else 1.0


def between(table: Sequence[tuple[float, float]], temperature: float) -> float:
    """Z_T from (target temperature, Z_T) pairs, temperatures rising: on the line between two,
    beyond them the last one."""
    if temperature <= table[0][0]:
        return table[0][1]
    for (low, z_low), (high, z_high) in pairwise(table):
        if temperature <= high:
            return z_low + (z_high - z_low) * (temperature - low) / (high - low)
    return table[-1][1]


def _branches(section: Mapping[str, Any], base: DFlashConfig) -> dict[str, Any]:
    """The checked fields of a `dblast_config`."""
    if not isinstance(section, Mapping):
        raise CheckpointError(f"{base.source}: {SECTION}: an object is expected")
    keys = Keys([section], f"{base.source}: {SECTION}")
    branches = keys.integer("branches", 1, least=1)
    rank = keys.integer("rank", 0)
    if base.selector_rank:
        raise CheckpointError(
            f"{base.source}: selector_rank: a selector (DFlash 2) makes a token's "
            f"distribution depend on "
            "the token before it, and the branches of dblast are independent positions; use the "
            "drafter dflash for this checkpoint"
        )
    if branches > 1 and rank < 1:
        raise keys.fail("rank", f"{branches} branches need an expander of rank >= 1")
    if branches == 1 and rank:
        raise keys.fail("rank", "one branch has no expander: leave rank out")
    return {
        "branches": branches,
        "rank": rank,
        "prior_temperatures": _temperatures(keys),
    }


def _temperatures(keys: Keys) -> tuple[tuple[float, float], ...]:
    name, table = "prior_temperatures", keys.get("prior_temperatures", [])
    found = []
    for pair in table if isinstance(table, list) else [table]:
        if not (
            isinstance(pair, list)
            and len(pair) == 2
            and all(isinstance(x, int | float) and not isinstance(x, bool) for x in pair)
            and min(pair) >= 0
        ):
            raise keys.fail(name, f"[target temperature, Z_T] is expected, got {pair!r}")
        found.append((float(pair[0]), float(pair[1])))
    if any(low >= high for (low, _), (high, _) in pairwise(found)):
        raise keys.fail(name, "target temperatures must rise")
    return tuple(found)
