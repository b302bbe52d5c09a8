"""Whether speculation pays at all: on, off, or being tried again."""

import math

from attrs import evolve, frozen

PATIENCE, TRIAL = 6, 3
"""Rounds that speculation is given before it may be switched off: when on, and in a trial. When on,
only half of them where even what the drafter promises is clearly too little."""

CLEAR = 0.85
"""Share of what plain decoding gives in the same time that a promise falls short of clearly."""

DOUBT, DOUBT_IN_TRIAL = 2.5, 1.0
"""Standard errors that plain decoding must lie above what rounds gave, for speculation to be
switched off: a good drafter's run of poor rounds is commoner than a poor drafter, and a pause is
long. What never gives anything has no spread, and is found out soon."""

ROUNDS = 32
"""Rounds that what was given is averaged over."""

SHORTEST, LONGEST = 48, 192
"""Plain rounds before a trial; each time it is switched off again they double."""

SETTLED = 64
"""Rounds after which speculation that stays on has its earlier pauses forgotten."""

CLOSE, STALE = 1.3, 24
"""A lead below CLOSE over plain decoding rests on the price of a plain step: one is taken when the
last is STALE rounds ago."""


@frozen
class Switch:
    """rounds: drafted since it was switched on or a trial began. given, squares, promised, seconds:
    averages over them of the tokens committed, of their squares, of the tokens that the verified
    trees were expected to give, and of what such a round costs. on: False
    from the round that switched it off to the trial that proves itself. pause: plain rounds of the
    last pause. wait: of which still to come. unplain: rounds since the last plain one. lost:
    (speculation, plain) tokens per second when it was last switched off, None if it never was.
    """

    rounds: int = 0
    given: float = 0.0
    squares: float = 0.0
    promised: float = 0.0
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

    def after_draft(
        self, committed: int, promised: float, seconds: float, plain: float
    ) -> "Switch":
        """After a round that committed `committed` tokens, of `promised` expected ones, and costs
        `seconds`; plain: tokens per second without speculation."""
        rounds = self.rounds + 1
        share = 1.0 / min(rounds, ROUNDS)
        known = evolve(
            self,
            rounds=rounds,
            given=self.given + share * (committed - self.given),
            squares=self.squares + share * (committed**2 - self.squares),
            promised=self.promised + share * (promised - self.promised),
            seconds=self.seconds + share * (seconds - self.seconds),
        )
        patience = PATIENCE if self.on else TRIAL
        if self.on and known.promised < CLEAR * plain * known.seconds:
            patience //= 2
        if rounds < patience:
            return known
        if known.may_pay(plain):
            close = known.given < CLOSE * plain * known.seconds
            return evolve(
                known,
                on=True,
                pause=0 if rounds >= SETTLED else self.pause,
                wait=int(close and self.unplain >= STALE),
                unplain=self.unplain + 1,
            )
        pause = min(LONGEST, max(SHORTEST, 2 * self.pause))
        lost = (known.given / known.seconds, plain)
        return Switch(on=False, pause=pause, wait=pause, lost=lost)

    def may_pay(self, plain: float) -> bool:
        """Whether what rounds gave leaves it open that they are worth what plain decoding gives in
        their time. A few rounds that gave the same are not held to be all there is."""
        variance = max(0.0, self.squares - self.given**2) + 0.5 / self.rounds
        error = math.sqrt(variance / min(self.rounds, ROUNDS))
        doubt = DOUBT if self.on else DOUBT_IN_TRIAL
        return self.given + doubt * error >= plain * self.seconds

    def explain(self) -> str | None:
        """Why speculation was off, if it was."""
        if self.lost is None:
            return None
        ours, plain = self.lost
        return (
            f"speculation did not pay: its rounds gave {ours:.1f} tokens/s where plain decoding "
            f"gives {plain:.1f}; "
            + (
                "it was switched off for a while and then on again"
                if self.on
                else f"it is off, and tried again every {self.pause} rounds"
            )
        )
