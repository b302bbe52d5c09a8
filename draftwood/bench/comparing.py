"""Whether texts are plain decoding's, and by how little the target decided where they are not."""

from collections.abc import Mapping, Sequence

import torch
from attrs import frozen
from torch import Tensor

from draftwood.bench.contestants import Contestant
from draftwood.bench.measuring import Plan
from draftwood.bench.records import Record
from draftwood.core.interfaces import Target
from draftwood.core.tree import TokenTree

BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Margins below these are decided by rounding: a forward over a tree adds up in another order than
one over a token does. In half precisions any difference may be, and is only shown."""


@frozen
class Difference:
    """Where a text left plain decoding's.

    position: of the new token, from 0. margin: by how much the target preferred its most likely
    token there to the second, in logits; None above temperature 0, where tokens are drawn, and
    where one text only ended earlier. rounding: that margin is within what rounding explains.
    promised: the contestant is a pipeline whose tokens must be plain decoding's.
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
        """Whether this should not have happened."""
        return self.promised and not self.rounding


def differences(plan: Plan, records: Mapping[tuple[str, str, int], Record]) -> list[Difference]:
    """Every text that is not plain decoding's of the same prompt and repetition."""
    ids = plan.encoded()
    rows: dict[tuple[int, tuple[int, ...]], Tensor] = {}
    found = []
    for name, prompt, repetition in plan.order():
        each = plan.contestant(name)
        ours = records.get((name, prompt, repetition))
        plain = records.get((each.plain, prompt, repetition))
        if ours is None or plain is None or ours.tokens == plain.tokens:
            continue
        position = first_difference(ours.tokens, plain.tokens)
        before = (*ids[name, prompt], *plain.tokens[:position])
        key = (id(each.target), before)
        if key not in rows:  # every repetition of greedy text differs at one place
            rows[key] = _row(each.target, before)
        margin = None
        ended = position == min(len(ours.tokens), len(plain.tokens))
        if not ended and each.about["generation"]["temperature"] == 0.0:
            margin = _margin(rows[key])
        bound = BOUNDS.get(rows[key].dtype)
        found.append(
            Difference(
                name,
                prompt,
                repetition,
                position,
                margin,
                rounding=bound is None or (margin is not None and margin < bound),
                promised=each.parity and _is_ours(each),
            )
        )
    return found


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """The first index at which two texts differ, or at which one of them ends."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    shorter = min(len(ours), len(theirs))
    return next((position for position, (a, b) in pairs if a != b), shorter)


def _is_ours(contestant: Contestant) -> bool:
    return bool(contestant.about["kind"] != "baseline")


def _row(target: Target, before: Sequence[int]) -> Tensor:
    """(V,) logits after these ids. The last of them goes through a step of its own, as it did in
    plain decoding."""
    session = target.open()
    if len(before) == 1:
        return session.prefill(before).logits[-1]
    session.prefill(before[:-1])
    (forwarded,) = target.forward([(session, TokenTree.root(before[-1]))])
    return forwarded.logits[-1]


def _margin(row: Tensor) -> float:
    first, second = row.to(torch.float64).topk(2).values.tolist()
    return float(first - second)
