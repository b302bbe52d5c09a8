"""The one table at the end: what was measured, by part, and what failed."""

from collections.abc import Iterator
from typing import Any

HEADER = ("part", "case", "contestant", "ms", "quartiles", "remark")
Line = tuple[str, str, str, str, str, str]


def table(report: dict[str, Any]) -> str:
    """Of a whole report, as text."""
    lines: list[Line] = [HEADER]
    makers = {"kernels": _tests, "attention": _attention, "judge": _judge, "rounds": _rounds}
    for part, result in report["parts"].items():
        for row in result["rows"]:
            lines += makers[part](row)
        if result["error"]:
            lines.append((part, "FAILED", "", "", "", " ".join(result["error"].split())[:160]))
    widths = [max(len(line[at]) for line in lines) for at in range(len(HEADER))]
    title = _title(report)
    shown = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in lines]
    return "\n".join([title, *(line.rstrip() for line in shown)])


def _title(report: dict[str, Any]) -> str:
    machines = [part["machine"] for part in report["parts"].values() if part.get("machine")]
    known = machines[0] if machines else {}
    parts = (known.get("device"), *(f"{n} {known[n]}" for n in ("torch", "triton") if n in known))
    warning = "DRY RUN on the CPU, in the interpreter: its times mean nothing. "
    return (warning if report["dry_run"] else "") + ", ".join(str(part) for part in parts if part)


def _tests(row: dict[str, Any]) -> Iterator[Line]:
    remark = f"{row['passed']} passed, {len(row['failed'])} failed, {row['skipped']} skipped"
    remark += ", stopped: no time was left" if row["stopped"] else ""
    yield ("kernels", row["case"], "", f"{1e3 * row['seconds']:.0f}", "", remark)


def _attention(row: dict[str, Any]) -> Iterator[Line]:
    shape = row["shape"]
    case = f"{shape['model']}, N {shape['nodes']}, context {shape['context']}"
    for name, timed in row["times"].items():
        remark = ""
        if name == "tree attention" and row["of_bandwidth"]:
            remark = f"{100 * row['of_bandwidth']:.0f}% of the bandwidth limit"
            remark += f", {100 * row['of_roofline']:.0f}% of the roofline"
            if row["speedup"]:
                remark += f", {row['speedup']:.2f}x the fastest sdpa"
        if row["wrong"] and name == "tree attention":
            remark = f"WRONG: {row['wrong']}"
        yield ("attention", case, name, *_time(timed), remark or _how(timed))
    limit = max(row["memory_limit"], row["compute_limit"])
    remark = (
        f"bandwidth {1e3 * row['memory_limit']:.4f}, arithmetic {1e3 * row['compute_limit']:.4f}"
    )
    yield ("attention", case, "limit", f"{1e3 * limit:.4f}", "", remark)


def _judge(row: dict[str, Any]) -> Iterator[Line]:
    for name, timed in row["times"].items():
        remark = _how(timed)
        if name == "kernels" and row["speedup"]:
            remark = f"{row['speedup']:.2f}x torch"
        if name == "kernels" and row["wrong"]:
            remark = f"WRONG: {row['wrong']}"
        yield ("judge", row["case"], name, *_time(timed), remark)


def _rounds(row: dict[str, Any]) -> Iterator[Line]:
    mode = row["mode"]
    if why := row.get("error") or row.get("absent"):
        yield ("rounds", f"{row['case']}, {row['kind']}", mode, "-", "", why)
    elif row["kind"] == "round":
        split = ", ".join(f"{name} {1e3 * s:.3f}" for name, s in row["stages"].items())
        share = f"judge + commit {100 * row['judge_and_commit']:.1f}%"
        tokens = f"{row['tokens_per_round']:.1f} tokens a round"
        case = f"{row['case']}, N {row['nodes']}, context {row['context']}"
        yield (
            "rounds",
            case,
            mode,
            f"{1e3 * row['seconds']:.3f}",
            "",
            f"{share}; {tokens}; {split}",
        )
    else:
        for point in row["points"]:
            case = f"{row['case']}, T_v of {point['tokens']} tokens, context {point['context']}"
            yield ("rounds", case, mode, *_time(point), "")
        if "median_error" in row:
            misses = f"{100 * row['median_error']:.1f}%, at most {100 * row['largest_error']:.1f}%"
            remark = f"off by {misses}"
            yield ("rounds", f"{row['case']}, roofline fit of T_v", mode, "", "", remark)


def _time(timed: dict[str, Any]) -> tuple[str, str]:
    """Milliseconds, and their quartiles."""
    if not timed["seconds"]:
        return "-", ""
    low, middle, high = (1e3 * timed[name] for name in ("low", "seconds", "high"))
    return f"{middle:.4f}", f"{low:.4f}..{high:.4f}"


def _how(timed: dict[str, Any]) -> str:
    return " ".join((timed["error"] or f"by {timed['how']}").split())[:160]
