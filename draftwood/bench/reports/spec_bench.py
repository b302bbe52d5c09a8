"""report.jsonl: answers in the shape that Spec-Bench's evaluation reads."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from draftwood.bench.records import RequestRecord


def spec_bench(report: Mapping[str, Any], records: Sequence[RequestRecord]) -> str:
    """A line per contestant and prompt, a choice per repetition, each of one turn.

    new_tokens, wall_time (seconds) and decoding_steps are lists over turns; accept_lengths are the
    tokens that each step committed, bonus included. Another's loop has no steps: none are listed.
    """
    choices: dict[tuple[str, str], list[RequestRecord]] = {}
    for record in records:
        choices.setdefault((record.contestant, record.prompt), []).append(record)
    order = {name: rank for rank, name in enumerate(report["contestants"])}
    lines = []
    for (name, prompt), repetitions in sorted(choices.items(), key=lambda x: order[x[0][0]]):
        repetitions.sort(key=lambda record: record.repetition)
        lines.append(
            {
                "question_id": prompt,
                "category": repetitions[0].group,
                "model_id": name,
                "choices": [_choice(record) for record in repetitions],
            }
        )
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def _choice(record: RequestRecord) -> dict[str, Any]:
    lengths = record.rounds.committed if record.rounds else []
    return {
        "index": record.repetition,
        "seed": record.seed,
        "turns": [record.text],
        "decoding_steps": [len(lengths)] if record.rounds else [],
        "new_tokens": [len(record.tokens)],
        "wall_time": [record.seconds],
        "accept_lengths": lengths,
    }
