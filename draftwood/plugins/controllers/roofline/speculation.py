"""Whether speculation pays against plain decoding: it is on, paused, or on trial after a pause."""

import math

from attrs import evolve, frozen

MIN_ROUNDS, TRIAL_ROUNDS = 6, 3
"""Rounds before speculation may be switched off: while on, and in a trial. While on, half of them
suffice where even the expected tokens are clearly too few."""

CLEAR_DEFICIT = 0.85
"""Share of plain decoding's tokens in the same time below which expected tokens are clearly too
few."""

STANDARD_ERRORS, TRIAL_STANDARD_ERRORS = 2.5, 1.0
"""Standard errors by which plain decoding must be ahead for speculation to be switched off: a run
of poor rounds of a good drafter is more common than a poor drafter, and a pause is long. A drafter
that never gains a token has no spread and is switched off soon."""

AVERAGED_ROUNDS = 32
"""Rounds that averages cover."""

MIN_PAUSE, MAX_PAUSE = 48, 192
"""Plain rounds before a trial; they double each time that speculation is switched off again."""

SETTLED_ROUNDS = 64
"""Rounds after which speculation that stays on starts over with the shortest pause."""

CLOSE_LEAD, MAX_PLAIN_AGE = 1.3, 24
"""A lead over plain decoding below CLOSE_LEAD depends on the price of a plain step: one is taken
when the last was MAX_PLAIN_AGE rounds ago."""


@frozen
class SpeculationState:
    """Speculation's record in one request. Averages are over rounds since it was switched on or a
    trial began.

    Attributes:
        rounds: Rounds with a draft since then.
        tokens: Average of committed tokens.
        squares: Average of their squares.
        expected: Average of the tokens that the verified trees were expected to commit.
        seconds: Average time of such a round.
        on: False from the round that switched it off until a trial pays.
        pause: Plain rounds of the last pause.
        wait: Plain rounds still to come.
        since_plain: Rounds since the last plain one.
        lost: (speculation, plain) tokens per second when last switched off; None for never.
    """

    rounds: int = 0
    tokens: float = 0.0
    squares: float = 0.0
    expected: float = 0.0
    seconds: float = 0.0
    on: bool = True
    pause: int = 0
    wait: int = 0
    since_plain: int = 0
    lost: tuple[float, float] | None = None

    @property
    def drafts(self) -> bool:
        """Whether the next round drafts."""
        return self.wait == 0

    def after_plain(self) -> "SpeculationState":
        """The state after a plain round."""
        return evolve(self, wait=max(0, self.wait - 1), since_plain=0)

    def after_draft(
        self, committed: int, expected: float, seconds: float, plain: float
    ) -> "SpeculationState":
        """The state after a round with a draft.

        Args:
            committed: Tokens that it committed.
            expected: Tokens that its verified tree was expected to commit.
            seconds: Predicted time of the round.
            plain: Tokens per second of plain decoding.
        """
        rounds = self.rounds + 1
        share = 1.0 / min(rounds, AVERAGED_ROUNDS)
        state = evolve(
            self,
            rounds=rounds,
            tokens=self.tokens + share * (committed - self.tokens),
            squares=self.squares + share * (committed**2 - self.squares),
            expected=self.expected + share * (expected - self.expected),
            seconds=self.seconds + share * (seconds - self.seconds),
        )
        min_rounds = MIN_ROUNDS if self.on else TRIAL_ROUNDS
        if self.on and state.expected < CLEAR_DEFICIT * plain * state.seconds:
            min_rounds //= 2
        if rounds < min_rounds:
            return state
        if state.competes_with(plain):
            close = state.tokens < CLOSE_LEAD * plain * state.seconds
            return evolve(
                state,
                on=True,
                pause=0 if rounds >= SETTLED_ROUNDS else self.pause,
                wait=int(close and self.since_plain >= MAX_PLAIN_AGE),
                since_plain=self.since_plain + 1,
            )
        pause = min(MAX_PAUSE, max(MIN_PAUSE, 2 * self.pause))
        lost = (state.tokens / state.seconds, plain)
        return SpeculationState(on=False, pause=pause, wait=pause, lost=lost)

    def competes_with(self, plain: float) -> bool:
        """Whether the average, within its standard error, reaches `plain` tokens per second. The
        variance has a prior, so that a few equal rounds are not taken for certainty."""
        variance = max(0.0, self.squares - self.tokens**2) + 0.5 / self.rounds
        error = math.sqrt(variance / min(self.rounds, AVERAGED_ROUNDS))
        errors = STANDARD_ERRORS if self.on else TRIAL_STANDARD_ERRORS
        return self.tokens + errors * error >= plain * self.seconds

    def explain(self) -> str | None:
        """Why speculation was off, if it was."""
        if self.lost is None:
            return None
        speculative, plain = self.lost
        now = "it was switched off for a while and then on again"
        if not self.on:
            now = f"it is off, and tried again every {self.pause} rounds"
        return (
            f"speculation did not pay: its rounds gave {speculative:.1f} tokens/s where plain "
            f"decoding gives {plain:.1f}; {now}"
        )
