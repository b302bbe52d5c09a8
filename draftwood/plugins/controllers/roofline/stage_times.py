"""Recent times of a round's stages other than the target's forward."""

from attrs import evolve, frozen

from draftwood.core.values import Timings

WINDOW = 9
"""Rounds in a running median: one spike changes nothing, a slower machine shows after 5."""

DRAFT, GROW, OTHER = 0.15, 0.02, 0.05
"""Defaults before anything was measured, as shares of a plain forward."""

LEVEL_DECAY = 0.9
"""Factor on the price of a level for each round that grew none: it falls until levels are tried
again."""

Window = tuple[float, ...]


@frozen
class StageTimes:
    """Recent seconds of each stage, oldest first.

    Attributes:
        draft: Drafting, in rounds that ran the drafter's model.
        grow: Growing, in rounds that ran it once.
        level: One more level, where each level runs the model again, over the draft time of the
            same round. A ratio, because levels that are not grown are not seen to get slower.
        lookup: Drafting and growing, in rounds that drafted without the model.
        other: Judging, committing and the rest of a round with a draft.
        plain: Everything but the forward in rounds without a draft.
    """

    draft: Window = ()
    grow: Window = ()
    level: Window = ()
    lookup: Window = ()
    other: Window = ()
    plain: Window = ()

    @property
    def measured(self) -> bool:
        """Whether a round with one forward of the drafter's model was measured."""
        return bool(self.draft and self.grow and self.other)

    def overhead(self, passes: int, forward: float) -> float:
        """Seconds of a round with a draft, the target's forward excluded.

        Args:
            passes: Forward passes of the drafter's model.
            forward: Seconds of a plain target forward, for stages that were not measured.
        """
        other = lower_median(self.other, OTHER * forward)
        if not passes:
            return other + lower_median(self.lookup, GROW * forward)
        growing = lower_median(self.grow, GROW * forward) if passes == 1 else 0.0
        draft = lower_median(self.draft, DRAFT * forward)
        return other + draft + growing + (passes - 1) * lower_median(self.level, 1.0) * draft

    def plain_overhead(self, forward: float) -> float:
        """Seconds of a round without a draft, its forward of `forward` seconds excluded."""
        return lower_median(self.plain, lower_median(self.other, OTHER * forward))

    def learn(self, timings: Timings, drafted: bool, caught_up: bool, passes: int) -> "StageTimes":
        """Times after a round; arguments as in `CostModel.learn`."""
        other = timings.judge + timings.commit + timings.other
        if not drafted:
            return evolve(self, plain=_append(self.plain, other))
        changes = {"other": _append(self.other, other)} if caught_up else {}
        if passes == 0:
            changes["lookup"] = _append(self.lookup, timings.draft + timings.grow)
            return evolve(self, **changes)
        changes["draft"] = _append(self.draft, timings.draft)
        if passes == 1:
            changes["grow"] = _append(self.grow, timings.grow)
            if self.level:
                decayed = LEVEL_DECAY * lower_median(self.level, 1.0)
                changes["level"] = _append(self.level, decayed)
        elif timings.draft > 0.0:
            ratio = timings.grow / (passes - 1) / timings.draft
            changes["level"] = _append(self.level, ratio)
        return evolve(self, **changes)


def lower_median(window: Window, default: float) -> float:
    """The lower median, so that the second round replaces the first one's warm-up."""
    return sorted(window)[(len(window) - 1) // 2] if window else default


def _append(window: Window, value: float) -> Window:
    return (*window[1 - WINDOW :], value)
