"""Rotary embeddings that change with the length of the text."""

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

_RESCALING = ("dynamic", "longrope", "su")  # "su" is what Phi-3 first called longrope


@frozen
class PositionLimit:
    """The largest number of positions that a target can hold.

    Attributes:
        positions: None if the configuration does not say.
        reason: why it is less than the model's own context, for errors; empty if it is not.
    """

    positions: int | None
    reason: str = ""


def position_limit(config: Any) -> PositionLimit:
    """Read the limit from a text configuration, in every published form of rope settings.

    `dynamic` and `longrope` embeddings rescale all positions once the longest position passes a
    length. A rejected draft may pass it where the committed text does not, and keys cached before
    the switch keep the old scale, so a target is limited to the length up to which nothing
    changes. Settings may lie at the top level, per kind of layer, under `rope_parameters` or, in
    older checkpoints, `rope_scaling` with `type`.
    """
    own = getattr(config, "max_position_embeddings", None)
    limit = PositionLimit(own)
    for rope in _rope_settings(config):
        kind = str(rope.get("rope_type") or rope.get("type") or "")
        if not any(name in kind for name in _RESCALING):
            continue
        switch = rope.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        switch = switch or own
        if switch is not None and (limit.positions is None or switch < limit.positions):
            reason = f"its {kind} rotary embedding rescales all positions past {switch}"
            limit = PositionLimit(int(switch), reason)
    return limit


def _rope_settings(config: Any) -> Iterator[Mapping[str, Any]]:
    """Each mapping that describes a rotary embedding: one, or one for each kind of layer."""
    for name in ("rope_parameters", "rope_scaling"):
        settings = getattr(config, name, None)
        if isinstance(settings, Mapping):
            yield settings
            yield from (each for each in settings.values() if isinstance(each, Mapping))
