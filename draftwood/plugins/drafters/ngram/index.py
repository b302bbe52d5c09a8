"""What followed each context of a text so far, and how often that was right. Imports no torch.

Prediction by partial matching (Cleary and Witten 1984): the longest context that occurred before
comes first, and shorter ones share the probability that it leaves. That probability, its escape,
is learnt from how often contexts of its length were right (Bloom 1998). Adding a token and
looking a context up both cost a few dictionary look-ups, however long the text is.
"""

from collections.abc import Iterator, Sequence

from attrs import define, field

Gram = tuple[int, ...]

WIDTH = 8
"""Different tokens remembered after one context, the latest: no look-up grows with the text."""

FADE = 0.8
"""Weight of an occurrence once its context has occurred again: recent text counts more."""

MEMORY = 0.95
"""Weight of a trial once a context of its length was tried again: about twenty are remembered."""

PRIOR = 4.0
"""Trials that the prior counts for."""

FLOOR = 1e-3
"""Remaining probability below which shorter contexts are not read."""


@define
class HitRate:
    """How often the next token was among the followers of a kind of context.

    Attributes:
        hits: Decayed count of such tokens, the prior's included.
        trials: Decayed count of all tokens, the prior's included.
    """

    hits: float
    trials: float

    @classmethod
    def from_prior(cls, chance: float) -> "HitRate":
        return cls(chance * PRIOR, PRIOR)

    @property
    def chance(self) -> float:
        return self.hits / self.trials

    def add(self, hit: bool) -> None:
        self.hits = MEMORY * self.hits + hit
        self.trials = MEMORY * self.trials + 1.0

    def copy(self) -> "HitRate":
        return HitRate(self.hits, self.trials)


@define(eq=False)
class SuffixIndex:
    """Counts over contexts of `shortest` to `longest` tokens.

    ids: the text. followers: context -> the tokens that followed it with their faded counts, the
    latest last. leading: records of contexts by length, where they were the longest that occurred
    before; behind: where a longer one had spoken and its tokens did not come.
    """

    shortest: int
    longest: int
    confidence: float
    ids: list[int] = field(factory=list)
    followers: dict[Gram, dict[int, float]] = field(factory=dict)
    leading: dict[int, HitRate] = field(init=False)
    behind: dict[int, HitRate] = field(init=False)

    def __attrs_post_init__(self) -> None:
        lengths = range(self.shortest, self.longest + 1)
        self.leading = {n: HitRate.from_prior(self.confidence) for n in lengths}
        self.behind = {n: HitRate.from_prior(1.0 - self.confidence) for n in lengths}

    def add(self, token: int) -> None:
        """Append a token: update the hit rates of its contexts, then their followers."""
        context = tuple(self.ids[-self.longest :])
        for record, fresh in self._suffixes(context):
            record.add(hit := token in fresh)
            if hit:
                break
        for n in range(self.shortest, min(self.longest, len(context)) + 1):
            self._count(self.followers.setdefault(context[-n:], {}), token)
        self.ids.append(token)

    def following(self, context: Sequence[int], most: int) -> list[tuple[int, float]]:
        """(token, chance) of at most `most` tokens that may follow `context`, likeliest first,
        equal ones by token id. What the chances leave is for tokens never seen there."""
        left = 1.0
        found: dict[int, float] = {}
        for record, fresh in self._suffixes(tuple(context[-self.longest :])):
            share = left * record.chance / sum(fresh.values())
            found |= {token: share * count for token, count in fresh.items()}
            left *= 1.0 - record.chance
            if left < FLOOR:
                break
        return sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))[:most]

    def fork(self) -> "SuffixIndex":
        twin = SuffixIndex(self.shortest, self.longest, self.confidence, self.ids.copy())
        twin.followers = {gram: counts.copy() for gram, counts in self.followers.items()}
        twin.leading = {n: record.copy() for n, record in self.leading.items()}
        twin.behind = {n: record.copy() for n, record in self.behind.items()}
        return twin

    def _suffixes(self, context: Gram) -> Iterator[tuple[HitRate, dict[int, float]]]:
        """Of each suffix of `context` that occurred before, longest first: its record, and the
        counts of the followers that no longer one named. Suffixes that add none are left out."""
        named: dict[int, float] = {}
        records = self.leading
        for n in range(min(self.longest, len(context)), self.shortest - 1, -1):
            counts = self.followers.get(context[-n:])
            if counts is None:
                continue
            fresh = {t: c for t, c in counts.items() if t not in named} if named else counts
            if fresh:
                yield records[n], fresh
                named = {**named, **fresh}
                records = self.behind

    @staticmethod
    def _count(counts: dict[int, float], token: int) -> None:
        count = counts.pop(token, 0.0)
        for other in counts:
            counts[other] *= FADE
        counts[token] = FADE * count + 1.0
        if len(counts) > WIDTH:
            del counts[next(iter(counts))]
