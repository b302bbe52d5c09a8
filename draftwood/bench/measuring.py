"""Runs contestants beside each other, one prompt at a time, and keeps what each did."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import asdict, frozen

from draftwood.bench.contestants import Contestant
from draftwood.bench.decoding import Decoded
from draftwood.bench.journal import Journal
from draftwood.bench.memory import forget_peak, peak
from draftwood.bench.prompts import Prompt
from draftwood.bench.records import Record
from draftwood.bench.schedule import schedule
from draftwood.core.errors import RequestError
from draftwood.core.values import RoundStats

WARM_UP = 2
"""Prompts that each contestant decodes before anything is timed."""

DRAWN = 28
"""Most nodes of a tree that is drawn, if there is one so small."""

Draw = Callable[[RoundStats, Callable[[Sequence[int]], str]], str]
"""(a round, ids -> text) -> SVG."""


@frozen(eq=False)
class Plan:
    """What is measured: every contestant on every prompt, `repeat` times.

    seed: of repetition r it is seed + r, the same for all contestants.
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
        """The keys of all records, in the order of measuring."""
        names = [each.name for each in self.contestants]
        for repetition, prompt, name in schedule(names, len(self.prompts), self.repeat):
            yield name, self.prompts[prompt].id, repetition

    def header(self, machine: Mapping[str, Any]) -> dict[str, Any]:
        """What records must have in common to be compared. The number of repetitions is not part
        of it: a finished benchmark can be given more of them."""
        prompts = json.dumps([asdict(prompt) for prompt in self.prompts], sort_keys=True)
        return {
            "contestants": {each.name: dict(each.about) for each in self.contestants},
            "prompts": hashlib.sha256(prompts.encode()).hexdigest(),
            "seed": self.seed,
            "machine": dict(machine),
        }

    def encoded(self) -> dict[tuple[str, str], tuple[int, ...]]:
        """(contestant, prompt) -> ids. Raises RequestError for a prompt that cannot be encoded or
        leaves its target no room, before anything is measured."""
        ids: dict[tuple[str, str], tuple[int, ...]] = {}
        for each in self.contestants:
            limit = each.target.max_context
            for prompt in self.prompts:
                tokens = prompt.encode(each.tokenizer)
                if limit is not None and len(tokens) >= limit:
                    raise RequestError(
                        f"prompt {prompt.id}: {len(tokens)} tokens, and the target of {each.name} "
                        f"holds {limit}: there is no room for a new one"
                    )
                ids[each.name, prompt.id] = tokens
        return ids


def measure(
    plan: Plan, journal: Journal, *, draw: Draw | None = None, warm_up: int = WARM_UP
) -> Iterator[Record]:
    """Decode what the journal does not hold yet, and yield each record once it is kept.

    draw: makes the drawing of one tree per contestant. Stopping the iterator, or an interrupt,
    loses the request that is being decoded and nothing else.
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
        forget_peak()
        done = each.decode(prompt_ids, seed)
        drawing = None
        if draw is not None and prompt_id == first and repetition == 0:
            drawing = _drawing(done, each, draw)
        record = Record(
            contestant=name,
            prompt=prompt_id,
            group=groups[prompt_id],
            repetition=repetition,
            seed=seed,
            prompt_tokens=len(prompt_ids),
            tokens=list(done.tokens),
            text=None if each.tokenizer is None else each.tokenizer.decode(list(done.tokens)),
            finish_reason=done.finish_reason,
            seconds=done.seconds,
            first_seconds=done.first_seconds,
            first_tokens=done.first_tokens,
            peak_memory=peak(),
            timings=done.timings,
            rounds=done.rounds,
            speculation=done.speculation,
            drawing=drawing,
            kernels=done.kernels,
            near_ties=done.near_ties,
        )
        journal.append(record)
        yield record


def _drawing(done: Decoded, contestant: Contestant, draw: Draw) -> str | None:
    """The round that accepted most, of equal ones the largest tree, among those whose trees are
    not too large to look at."""
    drafted = [stats for stats in done.stats if stats.budget > 0]
    if not drafted or contestant.tokenizer is None:
        return None
    small = [stats for stats in drafted if stats.budget <= DRAWN]
    shown = small or [min(drafted, key=lambda stats: stats.budget)]
    return draw(max(shown, key=lambda s: (s.accepted, s.budget)), contestant.tokenizer.decode)
