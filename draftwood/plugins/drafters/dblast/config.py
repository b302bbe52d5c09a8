"""config.json of a DBlast checkpoint: a DFlash config with a `dblast_config`. Imports no torch."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Self

from attrs import fields, frozen

from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.common.config import ConfigReader
from draftwood.plugins.drafters.dflash.config import DFlashConfig

SECTION = "dblast_config"


@frozen(kw_only=True)
class DBlastConfig(DFlashConfig):
    """Config of a DFlash drafter whose output has K branches.

    Attributes:
        branches: K; 1 is a plain DFlash drafter, without additional parameters.
        rank: Rank r of the expander; 0 for one branch.
        prior_temperatures: (target temperature, Z_T) pairs, by rising temperature; empty where
            none were tuned.
    """

    branches: int = 1
    rank: int = 0
    prior_temperatures: tuple[tuple[float, float], ...] = ()

    @classmethod
    def from_dflash(
        cls,
        base: DFlashConfig,
        branches: int = 1,
        rank: int = 0,
        prior_temperatures: Sequence[Sequence[float]] = (),
    ) -> Self:
        """`base` with branches. One branch has no expander, so `rank` is ignored for it.

        Raises:
            CheckpointError: `base` has a selector (DFlash 2), there are fewer than one branch or
                several without a rank, or the table of temperatures is malformed.
        """
        section = {
            "branches": branches,
            "rank": rank if branches > 1 else 0,
            "prior_temperatures": [list(pair) for pair in prior_temperatures],
        }
        return cls(**_all_fields(section, base))

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any], source: str = "config.json") -> Self:
        base = DFlashConfig.from_mapping(data, source)
        section = data.get(SECTION) or {}
        return cls(**_all_fields(section, base))

    def section(self) -> dict[str, Any]:
        """This drafter's `dblast_config`, for writing config.json."""
        section: dict[str, Any] = {"branches": self.branches, "rank": self.rank}
        if self.prior_temperatures:
            section["prior_temperatures"] = [list(pair) for pair in self.prior_temperatures]
        return section

    def prior_temperature(self, temperature: float) -> float:
        """Z_T for a target temperature; 1.0 where none were tuned."""
        table = self.prior_temperatures
        return interpolate(table, temperature) if table else 1.0


def interpolate(table: Sequence[tuple[float, float]], temperature: float) -> float:
    """Z_T by linear interpolation in (target temperature, Z_T) pairs, constant outside them."""
    if temperature <= table[0][0]:
        return table[0][1]
    for (low, z_low), (high, z_high) in pairwise(table):
        if temperature <= high:
            return z_low + (z_high - z_low) * (temperature - low) / (high - low)
    return table[-1][1]


def _all_fields(section: Mapping[str, Any], base: DFlashConfig) -> dict[str, Any]:
    """The fields of `base`, and those of a `dblast_config`, checked."""
    if not isinstance(section, Mapping):
        raise CheckpointError(f"{base.source}: {SECTION}: an object is expected")
    if base.selector_rank:
        raise CheckpointError(
            f"{base.source}: selector_rank: with a selector (DFlash 2) each distribution depends "
            "on the token before it, and branches of dblast have independent positions; use the "
            "drafter dflash for this checkpoint"
        )
    reader = ConfigReader([section], f"{base.source}: {SECTION}")
    reader.refuse_unread({"branches", "rank", "prior_temperatures"})
    branches, rank = reader.integer("branches", 1, least=1), reader.integer("rank", 0)
    if branches > 1 and rank < 1:
        raise reader.error("rank", f"{branches} branches need an expander of rank >= 1")
    if branches == 1 and rank:
        raise reader.error("rank", "one branch has no expander: remove rank")
    return {
        **{name.name: getattr(base, name.name) for name in fields(DFlashConfig)},
        "branches": branches,
        "rank": rank,
        "prior_temperatures": _temperatures(reader),
    }


def _temperatures(reader: ConfigReader) -> tuple[tuple[float, float], ...]:
    key = "prior_temperatures"
    table = reader.get(key, [])
    pairs = []
    for pair in table if isinstance(table, list) else [table]:
        if not (
            isinstance(pair, list)
            and len(pair) == 2
            and all(isinstance(x, int | float) and not isinstance(x, bool) for x in pair)
            and min(pair) >= 0
        ):
            raise reader.error(key, f"[target temperature, Z_T] is expected, got {pair!r}")
        pairs.append((float(pair[0]), float(pair[1])))
    if any(low >= high for (low, _), (high, _) in pairwise(pairs)):
        raise reader.error(key, "target temperatures must rise")
    return tuple(pairs)
