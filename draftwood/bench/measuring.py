"""Runs contestants beside each other, one prompt at a time, and keeps their records."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import asdict, frozen

from draftwood.bench.contestants import Contestant
from draftwood.bench.decoding import Decoded
from draftwood.bench.journal import Journal
from draftwood.bench.memory import peak_memory, reset_peak_memory
from draftwood.bench.prompts import Prompt
from draftwood.bench.records import RequestRecord
from draftwood.bench.schedule import schedule
from draftwood.core.errors import RequestError
from draftwood.core.values import RoundStats

WARM_UP = 2
"""Prompts that each contestant decodes before anything is timed."""

MAX_DRAWN_NODES = 28
"""Larger trees are drawn only if there is no smaller one."""

Draw = Callable[[RoundStats, Callable[[Sequence[int]], str]], str]
"""(a round, ids -> text) -> SVG."""


@frozen(eq=False)
class Plan:
    """What is measured: every contestant on every prompt, `repeat` times.

    Attributes:
        contestants: What decodes.
        prompts: What is decoded.
        repeat: Number of repetitions.
        seed: Repetition r has seed + r, the same for all contestants.
    """

    contestants: Sequence[Contestant]
    prompts: Sequence[Prompt]
    repeat: int = 1
    seed: int = 0

    def contestant(self, name: str) -> Contestant:
        return next(each for each in self.contestants if each.name == name)

    def __len__(self) -> int:
        return len(self.contestants) * len(self.prompts) * self.repeat

    def order(self) -> Iterator[tuple[str, str, int]]:
        """The keys of all records, in the order in which they are measured."""
        names = [each.name for each in self.contestants]
        for repetition, prompt, name in schedule(names, len(self.prompts), self.repeat):
            yield name, self.prompts[prompt].id, repetition

    def header(self, machine: Mapping[str, Any]) -> dict[str, Any]:
        """What records must share to be compared.

        The number of repetitions is left out, so that it can be increased later.
        """
        prompts = json.dumps([asdict(prompt) for prompt in self.prompts], sort_keys=True)
        return {
            "contestants": {each.name: dict(each.about) for each in self.contestants},
            "prompts": hashlib.sha256(prompts.encode()).hexdigest(),
            "seed": self.seed,
            "machine": dict(machine),
        }

    def encoded(self) -> dict[tuple[str, str], tuple[int, ...]]:
        """Token ids by (contestant, prompt).

        Raises:
            RequestError: A prompt cannot be encoded, or leaves no room in its target's context.
        """
        ids: dict[tuple[str, str], tuple[int, ...]] = {}
        for each in self.contestants:
            limit = each.target.max_context
            for prompt in self.prompts:
                tokens = prompt.encode(each.tokenizer)
                if limit is not None and len(tokens) >= limit:
                    raise RequestError(
                        f"prompt {prompt.id}: {len(tokens)} tokens, and the target of {each.name} "
                        f"holds {limit}: no room for a new token"
                    )
                ids[each.name, prompt.id] = tokens
        return ids


def measure(
    plan: Plan, journal: Journal, *, draw: Draw | None = None, warm_up: int = WARM_UP
) -> Iterator[RequestRecord]:
    """Decode what the journal does not hold yet, and yield each record once it is kept.

    An interrupt, or the end of the iteration, loses only the request that is being decoded.

    Args:
        plan: What to measure.
        journal: Keeps the records.
        draw: Draws one tree per contestant.
        warm_up: Prompts that each contestant decodes before anything is timed.
    """
    ids = plan.encoded()
    groups = {prompt.id: prompt.group for prompt in plan.prompts}
    todo = [key for key in plan.order() if key not in journal.records]
    first = plan.prompts[0].id
    for each in plan.contestants if todo else ():
        for prompt in plan.prompts[:warm_up]:
            each.decode(ids[each.name, prompt.id], plan.seed)
    for name, prompt_id, repetition in todo:
        each, prompt_ids, seed = plan.contestant(name), ids[name, prompt_id], plan.seed + repetition
        reset_peak_memory()
        decoded = each.decode(prompt_ids, seed)
        drawing = None
        if draw is not None and prompt_id == first and repetition == 0:
            drawing = _drawing(decoded, each, draw)
        record = RequestRecord(
            contestant=name,
            prompt=prompt_id,
            group=groups[prompt_id],
            repetition=repetition,
            seed=seed,
            prompt_tokens=len(prompt_ids),
            tokens=list(decoded.tokens),
            text=None if each.tokenizer is None else each.tokenizer.decode(list(decoded.tokens)),
            peak_memory=peak_memory(),
            drawing=drawing,
            finish_reason=decoded.finish_reason,
            seconds=decoded.seconds,
            first_seconds=decoded.first_seconds,
            first_tokens=decoded.first_tokens,
            timings=decoded.timings,
            rounds=decoded.rounds,
            speculation=decoded.speculation,
            kernels=decoded.kernels,
            near_ties=decoded.near_ties,
        )
        journal.append(record)
        yield record


def _drawing(decoded: Decoded, contestant: Contestant, draw: Draw) -> str | None:
    """Draw the round that accepted most, of those with small trees; of equal ones the largest."""
    drafted = [stats for stats in decoded.stats if stats.budget > 0]
    if not drafted or contestant.tokenizer is None:
        return None
    small = [stats for stats in drafted if stats.budget <= MAX_DRAWN_NODES]
    candidates = small or [min(drafted, key=lambda stats: stats.budget)]
    return draw(max(candidates, key=lambda s: (s.accepted, s.budget)), contestant.tokenizer.decode)
