"""What is kept of one prompt decoded once: plain values, which fit on a line of JSON."""

from collections.abc import Mapping
from typing import Any

from attrs import asdict, field, frozen

from draftwood.core.stats import STAGES


@frozen
class RoundColumns:
    """The rounds of one request by column: entry i of each list belongs to round i.

    Attributes:
        committed: Tokens committed.
        accepted: Draft tokens accepted.
        offered: As in `RoundStats`, like `grown` and `budget`.
        grown: Nodes grown.
        budget: Nodes verified.
        drafted: Whether the drafter ran.
        seconds: Of the whole round.
        forward: Seconds of the target's forward.
        expected_tokens: Predicted by the controller for the verified tree; None without forecast.
        expected_seconds: The same for the time.
        best: The budget up to the verified one with most committed tokens per predicted second,
            given what was accepted; None without forecast.
        passes: Forwards of the drafter's model.
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
class RequestRecord:
    """One prompt decoded once by one contestant.

    Fields that only draftwood's engine can fill are None for other decoders.

    Attributes:
        contestant: Its name.
        prompt: Id of the prompt.
        group: The prompt's task.
        repetition: From 0.
        seed: Of the request.
        prompt_tokens: Length of the prompt.
        tokens: Ids of the new tokens.
        text: The new tokens as text; None without a tokenizer.
        finish_reason: Why decoding ended.
        seconds: Wall time of the request.
        first_seconds: Wall time until the first tokens.
        first_tokens: How many those were.
        peak_memory: Bytes.
        timings: Seconds by stage.
        rounds: Of the request.
        speculation: Whether drafts were made; if not, why.
        drawing: SVG of one of its trees.
        kernels: Launches by name.
        near_ties: As in `RequestStats`.
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
    rounds: RoundColumns | None = None
    speculation: dict[str, Any] | None = None
    drawing: str | None = None
    kernels: dict[str, int] | None = None
    near_ties: int | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        """Unique in a benchmark."""
        return self.contestant, self.prompt, self.repetition

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "RequestRecord":
        """The inverse of `as_dict`.

        Raises:
            KeyError: For other JSON, like TypeError and ValueError.
        """
        rounds = data["rounds"]
        timings = data["timings"]
        if timings is not None and set(timings) != set(STAGES):
            raise ValueError(f"stages {sorted(timings)} are not {sorted(STAGES)}")
        return cls(**{**data, "rounds": None if rounds is None else RoundColumns(**rounds)})
