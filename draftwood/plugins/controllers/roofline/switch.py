"""Whether speculation pays at all: on, off, or being tried again."""

from attrs import evolve, frozen

PATIENCE, TRIAL = 8, 4
"""Rounds that speculation is given before it may be switched off: when on, and in a trial."""

CLEAR, SOONER = 0.9, 2
"""What is expected to give less than this share of plain decoding is given only a part of those
rounds: patience is for drafters that might pay, and each round of it is paid for."""

SHORTEST, LONGEST = 48, 192
"""Plain rounds before a trial; each time it is switched off again they double."""

SETTLED = 64
"""Rounds after which speculation that stays on has its earlier pauses forgotten."""

SMOOTHING, TRIAL_SMOOTHING = 0.15, 0.4
"""Weight of the latest round: on, a few poor trees must not end speculation; in a trial the first
rounds still believe too much."""


CLOSE, STALE = 1.3, 24
"""A lead below CLOSE over plain decoding rests on the price of a plain step: one is taken when the
last is STALE rounds ago."""


@frozen
class Switch:
    """rounds: drafted since it was switched on or a trial began. tokens, seconds: averages over
    them of what the best tree was expected to give and take. on: False from the round that
    switched it off to the trial that proves itself. pause: plain rounds of the last pause. wait:
    of which still to come. unplain: rounds since the last plain one. lost: (speculation, plain)
    tokens per second when it was last switched off, None if it never was.
    """

    rounds: int = 0
    tokens: float = 0.0
    seconds: float = 0.0
    on: bool = True
    pause: int = 0
    wait: int = 0
    unplain: int = 0
    lost: tuple[float, float] | None = None

    @property
    def drafts(self) -> bool:
        """Whether this round should draft: no pause, and no plain step to check the price of."""
        return self.wait == 0

    def after_plain(self) -> "Switch":
        return evolve(self, wait=max(0, self.wait - 1), unplain=0)

    def after_draft(self, tokens: float, seconds: float, plain: float) -> "Switch":
        """After a round whose best tree was worth `tokens` for `seconds`; plain: tokens per
        second without speculation."""
        rounds = self.rounds + 1
        share = max(1.0 / rounds, SMOOTHING if self.on else TRIAL_SMOOTHING)
        tokens = self.tokens + share * (tokens - self.tokens)
        seconds = self.seconds + share * (seconds - self.seconds)
        patience = PATIENCE if self.on else TRIAL
        if tokens < CLEAR * plain * seconds:
            patience //= SOONER
        if rounds < patience:
            return evolve(self, rounds=rounds, tokens=tokens, seconds=seconds)
        if tokens >= plain * seconds:
            close = tokens < CLOSE * plain * seconds
            return Switch(
                rounds,
                tokens,
                seconds,
                pause=0 if rounds >= SETTLED else self.pause,
                wait=int(close and self.unplain >= STALE),
                unplain=self.unplain + 1,
                lost=self.lost,
            )
        pause = min(LONGEST, max(SHORTEST, 2 * self.pause))
        return Switch(on=False, pause=pause, wait=pause, lost=(tokens / seconds, plain))

    def explain(self) -> str | None:
        """Why speculation was off, if it was."""
        if self.lost is None:
            return None
        ours, plain = self.lost
        return (
            f"speculation did not pay: its best tree was predicted to give {ours:.1f} tokens/s and "
            f"plain decoding {plain:.1f}; "
            + (
                "it was switched off for a while and then on again"
                if self.on
                else f"it is off, and tried again every {self.pause} rounds"
            )
        )
