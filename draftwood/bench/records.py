"""What is kept of one prompt decoded once: plain values, so that a line of JSON holds it."""

from collections.abc import Mapping
from typing import Any

from attrs import asdict, field, frozen

from draftwood.core.stats import STAGES


@frozen
class Rounds:
    """The rounds of one request, a column each, in order.

    committed, accepted, offered, grown, budget: counts as in `RoundStats`. drafted: whether the
    drafter was asked; passes: how often its model ran. seconds: of the whole round; forward: of the
    target's forward. expected_tokens,
    expected_seconds: what the controller predicted for the tree that was verified, None where it
    predicts nothing.
    best: of the verified budgets, the one that would have given most tokens per predicted
    second, known what was accepted.
    """

    committed: list[int] = field(factory=list)
    accepted: list[int] = field(factory=list)
    offered: list[int] = field(factory=list)
    grown: list[int] = field(factory=list)
    budget: list[int] = field(factory=list)
    drafted: list[bool] = field(factory=list)
    seconds: list[float] = field(factory=list)
    forward: list[float] = field(factory=list)
    expected_tokens: list[float | None] = field(factory=list)
    expected_seconds: list[float | None] = field(factory=list)
    best: list[int | None] = field(factory=list)
    passes: list[int] = field(factory=list)

    def __len__(self) -> int:
        return len(self.committed)


@frozen
class Record:
    """One prompt decoded once by one contestant.

    contestant, prompt: names. group: the prompt's task. prompt_tokens: its length. tokens: ids of
    the new ones. seconds: wall time of the request. first_seconds, first_tokens: of which until
    the first tokens were there, and how many those were. timings: seconds by stage, and rounds:
    None where it was not draftwood that decoded. peak_memory: bytes. speculation: whether drafts
    were made, and why not. drawing: an SVG of one of its trees. kernels, near_ties: as in
    `RequestStats`, None where it was not draftwood that decoded.
    """

    contestant: str
    prompt: str
    group: str
    repetition: int
    seed: int
    prompt_tokens: int
    tokens: list[int]
    text: str | None
    finish_reason: str | None
    seconds: float
    first_seconds: float
    first_tokens: int
    peak_memory: int | None = None
    timings: dict[str, float] | None = None
    rounds: Rounds | None = None
    speculation: dict[str, Any] | None = None
    drawing: str | None = None
    kernels: dict[str, int] | None = None
    near_ties: int | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        """What there is only one record of."""
        return self.contestant, self.prompt, self.repetition

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Record":
        """The inverse of `as_dict`. Raises KeyError, TypeError or ValueError for anything else."""
        rounds = data["rounds"]
        timings = data["timings"]
        if timings is not None and set(timings) != set(STAGES):
            raise ValueError(f"stages {sorted(timings)} are not {sorted(STAGES)}")
        return cls(**{**data, "rounds": None if rounds is None else Rounds(**rounds)})
