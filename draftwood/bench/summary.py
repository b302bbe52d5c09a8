"""The numbers of a report, from records: per contestant, for each group of prompts and for all.

`summarise` gives the content of report.json; the other reports are views of it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from attrs import asdict

from draftwood.bench.comparing import TextDifference
from draftwood.bench.contestants import Contestant
from draftwood.bench.measuring import Plan
from draftwood.bench.records import RequestRecord, RoundColumns
from draftwood.bench.statistics import LEVEL, RESAMPLES, Ratio, rate, speedup, spread
from draftwood.core.stats import STAGES
from draftwood.plugins.controllers.roofline.roof import Roof, evaluate

OVERALL = "overall"

FORMULAS = {
    "tokens_per_second": "sum of new tokens / sum of wall seconds, over prompts and repetitions; "
    "wall seconds cover the whole request, with the prompt",
    "ms_per_token": "per request 1000 (seconds - first_seconds) / (tokens - first_tokens): time "
    "per output token after the first ones; median and quartiles over requests",
    "speedup_over_plain": "tokens_per_second / that of plain decoding by the same engine, over "
    "requests that both have finished",
    "speedup_over_hf": "the same over Hugging Face's generate",
    "speedup_over_reference": "the same over the contestant called `reference`, of --against",
    "speedup_by_prompt": "median and quartiles over prompts of the speedup over plain",
    "interval": f"percentile bootstrap over prompts, drawn in pairs, {RESAMPLES} resamples, "
    f"{LEVEL:.0%}; a prompt's repetitions stay together",
    "accepted_length.pooled": "sum of tokens committed by rounds / sum of rounds (tau, with the "
    "bonus token of each round; the first token comes from the prefill, not from a round)",
    "accepted_length.by_request": "mean over requests of their own tokens / rounds",
    "accepted_length.pooled_without_bonus": "sum of accepted draft tokens / sum of rounds",
    "acceptance_by_depth": "for depth d: rounds that accepted at least d draft tokens / rounds "
    "whose verified tree allowed the accepted path to reach depth d",
    "budget.histogram": "rounds by the number of draft nodes verified",
    "timings": "seconds by stage, over all requests; share: of their sum",
    "passes": "forwards of the drafter's model, levels of a tree included / rounds",
    "kernels": "launches by kernel / sum of rounds; launches for prompts are included",
    "near_ties": "decisions that rounding could have changed, over all requests, if the verifier "
    "counts them",
    "peak_memory": "largest of any request, bytes: on an accelerator its tensors, else the process",
    "forecast.seconds_error": "median over rounds of |expected - measured| / measured seconds",
    "forecast.tokens": "mean tokens a round: expected by the controller, and committed",
    "forecast.budget": "mean budget chosen, and mean of the best up to it in hindsight: most "
    "committed tokens per expected second",
}


def summarise(
    plan: Plan,
    records: Mapping[tuple[str, str, int], RequestRecord],
    differences: Iterable[TextDifference],
    *,
    machine: Mapping[str, Any],
    command: str,
    reference: str | None = None,
) -> dict[str, Any]:
    """The content of report.json.

    Args:
        plan: What is measured.
        records: Those that exist so far, by key.
        differences: Between texts and plain decoding's.
        machine: What was measured on.
        command: That was run.
        reference: Name of a contestant that all are compared with, besides plain decoding.
    """
    groups = list(dict.fromkeys(prompt.group for prompt in plan.prompts))
    differences = list(differences)
    finished = [records[key] for key in plan.order() if key in records]
    results: dict[str, Any] = {}
    for each in plan.contestants:
        view = _ContestantView(each, plan, finished, differences, reference)
        results[each.name] = {OVERALL: view.numbers(None)}
        if len(groups) > 1:
            results[each.name] |= {group: view.numbers(group) for group in groups}
    return {
        "partial": len(finished) < len(plan),
        "done": len(finished),
        "planned": len(plan),
        "command": command,
        "reference": reference,
        "machine": dict(machine),
        "prompts": [{"id": prompt.id, "group": prompt.group} for prompt in plan.prompts],
        "groups": groups,
        "repeat": plan.repeat,
        "seed": plan.seed,
        "contestants": {
            each.name: {
                "plain": each.plain,
                "hf": each.hf,
                "same_tokens_promised": each.parity,
                **each.about,
            }
            for each in plan.contestants
        },
        "results": results,
        "rooflines": {
            each.name: roofline
            for each in plan.contestants
            if (roofline := _roofline(each, [r for r in finished if r.contestant == each.name]))
        },
        "differences": [asdict(each) for each in differences],
        "formulas": FORMULAS,
    }


class _ContestantView:
    """The records of one contestant, and of those that it is compared with."""

    def __init__(
        self,
        contestant: Contestant,
        plan: Plan,
        records: Sequence[RequestRecord],
        differences: Sequence[TextDifference],
        reference: str | None,
    ) -> None:
        self.contestant, self.seed, self.reference = contestant, plan.seed, reference
        self.by_name: dict[str, dict[tuple[str, int], RequestRecord]] = {}
        for record in records:
            by_request = self.by_name.setdefault(record.contestant, {})
            by_request[record.prompt, record.repetition] = record
        self.differences = [each for each in differences if each.contestant == contestant.name]

    def numbers(self, group: str | None) -> dict[str, Any]:
        """The results in one group, or overall."""
        by_request = self._requests(self.contestant.name, group)
        records = list(by_request.values())
        sums = list(_sums(records, "prompt").values())
        tokens, seconds = [pair[0] for pair in sums], [pair[1] for pair in sums]
        repetitions = sorted(_sums(records, "repetition").items())
        return {
            "requests": len(records),
            "tokens": sum(len(record.tokens) for record in records),
            "tokens_per_second": asdict(rate(tokens, seconds, self.seed)) if sums else None,
            "tokens_per_second_by_repetition": [n / s for _, (n, s) in repetitions],
            "ms_per_token": _asdict(spread(_milliseconds(records))),
            "speedup_over_plain": self._speedup(self.contestant.plain, group),
            "speedup_over_hf": self.contestant.hf and self._speedup(self.contestant.hf, group),
            "speedup_over_reference": self.reference and self._speedup(self.reference, group),
            "speedup_by_prompt": self._by_prompt(group),
            "accepted_length": _accepted_length(records),
            "acceptance_by_depth": _by_depth(records),
            "budget": _budget(records),
            "passes": _passes(records),
            "timings": _timings(records),
            "peak_memory": max((r.peak_memory for r in records if r.peak_memory), default=None),
            "kernels": _kernels(records),
            "near_ties": sum(record.near_ties or 0 for record in records),
            "same_tokens": self._same(by_request, group),
            "forecast": _forecast(records),
        }

    def _requests(self, name: str, group: str | None) -> dict[tuple[str, int], RequestRecord]:
        records = self.by_name.get(name, {})
        return {key: r for key, r in records.items() if group is None or r.group == group}

    def _pairs(self, other: str, group: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """(tokens, seconds) by prompt, ours and theirs, over the requests that both finished."""
        ours, theirs = self._requests(self.contestant.name, group), self._requests(other, group)
        both = [key for key in ours if key in theirs]
        return (
            _sums([ours[key] for key in both], "prompt"),
            _sums([theirs[key] for key in both], "prompt"),
        )

    def _speedup(self, other: str, group: str | None) -> dict[str, Any] | None:
        ours, theirs = self._pairs(other, group)
        if not ours:
            return None
        if other == self.contestant.name:
            return asdict(Ratio(1.0, None, None))
        return asdict(speedup(list(ours.values()), list(theirs.values()), self.seed))

    def _by_prompt(self, group: str | None) -> dict[str, Any] | None:
        ours, theirs = self._pairs(self.contestant.plain, group)
        ratios = [
            (ours[p][0] / ours[p][1]) / (theirs[p][0] / theirs[p][1]) for p in ours if theirs[p][0]
        ]
        return _asdict(spread(ratios))

    def _same(
        self, records: Mapping[tuple[str, int], RequestRecord], group: str | None
    ) -> dict[str, Any]:
        plain = self._requests(self.contestant.plain, group)
        compared = [key for key in records if key in plain]
        different = [d for d in self.differences if (d.prompt, d.repetition) in records]
        margins = [d.margin for d in different if d.margin is not None]
        return {
            "promised": self.contestant.parity,
            "compared": len(compared),
            "same": len(compared) - len(different),
            "largest_margin": max(margins, default=None),
        }


def _roofline(contestant: Contestant, records: Sequence[RequestRecord]) -> dict[str, Any] | None:
    """Forward times that the controller expects at the median context, and measured ones by size.

    None for a controller without two roofs, or without rounds.
    """
    costs, rounds = contestant.machine(), _rounds(records)
    sizes = [budget + 1 for each in rounds for budget in each.budget]
    seconds = [forward for each in rounds for forward in each.forward]
    roof = getattr(costs, "forward_model", None)
    if not isinstance(roof, Roof) or len(seconds) != len(sizes) or not sizes:
        return None
    contexts = [
        record.prompt_tokens + len(record.tokens) // 2 for record in records if record.rounds
    ]
    context = int(np.median(contexts))
    tokens = list(range(1, max(sizes) + 1))
    by_size: dict[int, list[float]] = {}
    for size, forward in zip(sizes, seconds, strict=True):
        by_size.setdefault(size, []).append(forward)
    return {
        "context": context,
        "tokens": tokens,
        "compute": [evaluate(roof.compute, n, context) for n in tokens],
        "memory": [evaluate(roof.memory, n, context) for n in tokens],
        "expected": [float(s) for s in costs.forward(np.array(tokens, dtype=float), context)],
        "rounds": [
            {"tokens": size, "count": len(times), "seconds": float(np.median(times))}
            for size, times in sorted(by_size.items())
        ],
    }


def _sums(
    records: Iterable[RequestRecord], field: Literal["prompt", "repetition"]
) -> dict[Any, tuple[float, float]]:
    """Sums of (tokens, seconds) by a field of the records."""
    sums: dict[Any, tuple[float, float]] = {}
    for record in records:
        key = getattr(record, field)
        tokens, seconds = sums.get(key, (0.0, 0.0))
        sums[key] = (tokens + len(record.tokens), seconds + record.seconds)
    return sums


def _milliseconds(records: Iterable[RequestRecord]) -> list[float]:
    return [
        1000 * (r.seconds - r.first_seconds) / (len(r.tokens) - r.first_tokens)
        for r in records
        if len(r.tokens) > r.first_tokens
    ]


def _rounds(records: Iterable[RequestRecord]) -> list[RoundColumns]:
    """The rounds of all requests that have any."""
    return [record.rounds for record in records if record.rounds]


def _accepted_length(records: Iterable[RequestRecord]) -> dict[str, float] | None:
    requests = _rounds(records)
    if not requests:
        return None

    def mean(column: Callable[[RoundColumns], list[int]]) -> tuple[float, float]:
        pooled = sum(sum(column(r)) for r in requests) / sum(map(len, requests))
        return pooled, sum(sum(column(r)) / len(r) for r in requests) / len(requests)

    (pooled, by_request) = mean(lambda rounds: rounds.committed)
    (drafts, drafts_by_request) = mean(lambda rounds: rounds.accepted)
    return {
        "pooled": pooled,
        "pooled_without_bonus": drafts,
        "by_request": by_request,
        "by_request_without_bonus": drafts_by_request,
    }


def _by_depth(records: Iterable[RequestRecord]) -> list[dict[str, Any]]:
    offered = Counter(n for rounds in _rounds(records) for n in rounds.offered)
    accepted = Counter(n for rounds in _rounds(records) for n in rounds.accepted)
    rows = []
    for depth in range(1, max(offered, default=0) + 1):
        reached = sum(count for n, count in offered.items() if n >= depth)
        taken = sum(count for n, count in accepted.items() if n >= depth)
        rows.append({"depth": depth, "rounds": reached, "share": taken / reached})
    return rows


def _budget(records: Iterable[RequestRecord]) -> dict[str, Any] | None:
    budgets = [n for rounds in _rounds(records) for n in rounds.budget]
    if not budgets:
        return None
    histogram = {str(n): count for n, count in sorted(Counter(budgets).items())}
    return {"mean": sum(budgets) / len(budgets), "max": max(budgets), "histogram": histogram}


def _timings(records: Iterable[RequestRecord]) -> dict[str, Any] | None:
    timings = [record.timings for record in records if record.timings]
    if not timings:
        return None
    seconds = {stage: sum(each[stage] for each in timings) for stage in STAGES}
    total = sum(seconds.values())
    return {
        stage: {"seconds": value, "share": value / total if total else 0.0}
        for stage, value in seconds.items()
    }


def _passes(records: Iterable[RequestRecord]) -> float | None:
    passes = [n for rounds in _rounds(records) for n in rounds.passes]
    return sum(passes) / len(passes) if passes else None


def _kernels(records: Iterable[RequestRecord]) -> dict[str, dict[str, float]]:
    """Launches by name; empty without kernels."""
    records = list(records)
    launches: Counter[str] = Counter()
    for record in records:
        launches.update(record.kernels or {})
    rounds = sum(map(len, _rounds(records)))
    return {
        name: {"launches": count, "per_round": count / rounds}
        for name, count in sorted(launches.items())
        if rounds
    }


def _forecast(records: Iterable[RequestRecord]) -> dict[str, Any] | None:
    """Errors of the controller's forecasts, over the rounds that have one."""
    rows = [
        row
        for rounds in _rounds(records)
        for row in zip(
            rounds.expected_seconds,
            rounds.seconds,
            rounds.expected_tokens,
            rounds.committed,
            rounds.budget,
            rounds.best,
            strict=True,
        )
        if row[0] is not None and row[1] > 0
    ]
    if not rows:
        return None
    expected, seconds, tokens, committed, budget, best = np.array(rows, dtype=float).T
    return {
        "rounds": len(rows),
        "seconds_error": float(np.median(np.abs(expected - seconds) / seconds)),
        "expected_tokens": float(tokens.mean()),
        "committed_tokens": float(committed.mean()),
        "chosen_budget": float(budget.mean()),
        "best_budget": float(best.mean()),
    }


def _asdict(value: Any) -> dict[str, Any] | None:
    return None if value is None else asdict(value)
