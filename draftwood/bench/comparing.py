"""Where texts differ from plain decoding's, with the target's margin there."""

from collections.abc import Mapping, Sequence

import torch
from attrs import frozen
from torch import Tensor

from draftwood.bench.measuring import Plan
from draftwood.bench.records import RequestRecord
from draftwood.core.interfaces import Target
from draftwood.core.tree import TokenTree

ROUNDING_MARGINS = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Smaller margins are decided by rounding: a forward over a tree sums in another order than one
over a token. In half precisions rounding can cause any difference, which is then only shown."""


@frozen
class TextDifference:
    """Where a text first differs from plain decoding's.

    Attributes:
        contestant: Its name.
        prompt: Id of the prompt.
        repetition: From 0.
        position: Of the new token, from 0.
        margin: Between the target's two best logits there; None above temperature 0, where tokens
            are drawn, and where one text only ended earlier.
        rounding: Whether rounding explains this margin.
        promised: Whether the contestant is a pipeline whose tokens must be plain decoding's.
    """

    contestant: str
    prompt: str
    repetition: int
    position: int
    margin: float | None
    rounding: bool
    promised: bool

    @property
    def broken(self) -> bool:
        """Whether it breaks what the contestant promises."""
        return self.promised and not self.rounding


def differences(
    plan: Plan, records: Mapping[tuple[str, str, int], RequestRecord]
) -> list[TextDifference]:
    """Every text that is not plain decoding's of the same prompt and repetition."""
    ids = plan.encoded()
    rows: dict[tuple[int, tuple[int, ...]], Tensor] = {}
    result = []
    for name, prompt, repetition in plan.order():
        contestant = plan.contestant(name)
        ours = records.get((name, prompt, repetition))
        plain = records.get((contestant.plain, prompt, repetition))
        if ours is None or plain is None or ours.tokens == plain.tokens:
            continue
        position = first_difference(ours.tokens, plain.tokens)
        before = (*ids[name, prompt], *plain.tokens[:position])
        key = (id(contestant.target), before)
        if key not in rows:  # repetitions of greedy text differ at the same place
            rows[key] = _row(contestant.target, before)
        margin = None
        ended = position == min(len(ours.tokens), len(plain.tokens))
        if not ended and contestant.about["generation"]["temperature"] == 0.0:
            first, second = rows[key].to(torch.float64).topk(2).values.tolist()
            margin = first - second
        bound = ROUNDING_MARGINS.get(rows[key].dtype)
        result.append(
            TextDifference(
                name,
                prompt,
                repetition,
                position,
                margin,
                rounding=bound is None or (margin is not None and margin < bound),
                promised=contestant.parity and contestant.about["kind"] != "baseline",
            )
        )
    return result


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """The first index at which two texts differ, or at which one of them ends."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    shorter = min(len(ours), len(theirs))
    return next((position for position, (a, b) in pairs if a != b), shorter)


def _row(target: Target, before: Sequence[int]) -> Tensor:
    """(V,) logits after these ids. The last id has its own forward, as in plain decoding."""
    session = target.open()
    if len(before) == 1:
        return session.prefill(before).logits[-1]
    session.prefill(before[:-1])
    (forwarded,) = target.forward([(session, TokenTree.root(before[-1]))])
    return forwarded.logits[-1]
