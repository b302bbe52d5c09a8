"""The comparison as Markdown tables."""

from collections.abc import Mapping
from typing import Any

from studies.command_line import markdown_table
from studies.dblast.figures import DRAWN_COMPARISONS
from studies.dblast.methods import COMPARISONS


def markdown(report: Mapping[str, Any]) -> str:
    """All tables of a report."""
    parts = [
        "## DBlast compared with independent drafting\n",
        "Drafts accepted per round, the bonus token not counted, with 95% intervals over prompts; "
        "exact given the trees. Gains compare the same rounds under one rule. Trees have the nodes "
        "of the tree of greedy branches, round for round.\n",
    ]
    for cell in report["cells"]:
        head = f"{cell['title']}: {cell['prompts']} prompts, {cell['rounds']} rounds"
        parts.append(f"### {head}, entropy {cell['entropy']:.2f} bits\n")
        parts.append(
            markdown_table(("method", "rule", "accepted", "(95%)", "nodes"), _rows(cell)) + "\n"
        )
        gains = [(each["ours"], each["theirs"], *_percent(each["ratio"])) for each in cell["gains"]]
        parts.append(markdown_table(("gain of", "over", "gain", "(95%)"), gains) + "\n")
        parts.append(
            f"{_branch_sentence(cell['branches'])} {_first_token_sentence(cell['first_tokens'])}\n"
        )
    if report["by_entropy"]:
        parts.append("### Gains by the entropy of the target's next token\n")
        pairs = [COMPARISONS[index] for index in DRAWN_COMPARISONS]
        columns = ("bits", "rounds", *(f"{ours[0]} over {theirs[0]}" for ours, theirs in pairs))
        rows = [
            (
                f"{each['low']:g} to {each['high']:g}",
                str(each["rounds"]),
                *(" ".join(_percent(each["gains"][index]["ratio"])) for index in DRAWN_COMPARISONS),
            )
            for each in report["by_entropy"]
        ]
        parts.append(markdown_table(columns, rows) + "\n")
    return "\n".join(parts)


def _rows(cell: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (each["method"], each["rule"], *_interval(each["accepted"]), f"{each['nodes']:.1f}")
        for each in cell["methods"]
    ]


def _branch_sentence(branches: Mapping[str, Any]) -> str:
    usage = ", ".join(f"{share:.2f}" for share in branches["usage"])
    distinct = ", ".join(f"{count:.2f}" for count in branches["distinct"])
    return (
        f"Branches: usage {usage}; effective number {branches['effective']:.2f} over all rounds, "
        f"{branches['effective_in_a_round']:.2f} in a round; distinct greedy branches by depth: "
        f"{distinct}."
    )


def _first_token_sentence(first: Mapping[str, Any]) -> str:
    mass = ", ".join(f"{name} {share:.3f}" for name, share in first["mass"].items())
    return (
        f"First tokens: the greedy branches have {first['tokens']:.2f} distinct ones; "
        f"probability of as many tokens under the target: {mass}."
    )


def _interval(value: Mapping[str, Any]) -> tuple[str, str]:
    if value["low"] is None:
        return f"{value['value']:.3f}", "-"
    return f"{value['value']:.3f}", f"({value['low']:.3f} to {value['high']:.3f})"


def _percent(ratio: Mapping[str, Any]) -> tuple[str, str]:
    if ratio["low"] is None:
        return f"{ratio['value'] - 1:+.1%}", "-"
    return f"{ratio['value'] - 1:+.1%}", f"({ratio['low'] - 1:+.1%} to {ratio['high'] - 1:+.1%})"
