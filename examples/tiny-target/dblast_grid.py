"""What K, the objective and its variants are worth: short trainings that differ in one thing each.

    python dblast_grid.py --work ./work --init ./work/export/drafter-b16

Every cell is one `draftwood train dblast.yaml` with other settings, from the same samples and
features. A finished cell is not run again, and an interrupted one goes on from its checkpoint, so
the command can be given again, with more cells or more time. Results: work/grid/results.json, and
an exported drafter in each cell's folder for `draftwood ablate dblast`.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

CACHED = ["samples-*", "features-*", "likelihoods-*", "states-*"]
"""What cells share, from the work folder: text, the target's features and what it says of them."""


EARLY = {"train.objective": "nll_weighted", "train.gamma": 2.0}
"""Likelihood of a block's first tokens above all: what is accepted is decided there."""


ADAM = {"al": 0.005}
"""Adam's rate, of the expander and the prior, by objective, where it is not the file's: with that
`al` makes the prior certain before branches are worth choosing between."""


def cells() -> dict[str, dict[str, object]]:
    """Settings by name, in the order in which they are worth running. drafter.init: another
    cell's name starts from what that one exported, None from nothing."""

    def main(branches: int, objective: str, seed: int = 0) -> tuple[str, dict[str, object]]:
        name = f"k{branches}-{objective}" + (f"-seed{seed}" if seed else "")
        rate = {"train.adam_lr": ADAM[objective]} if objective in ADAM else {}
        return name, {
            "drafter.branches": branches,
            "train.seed": seed,
            **(EARLY if objective == "early" else {"train.objective": objective}),
            **rate,
        }

    def after(branches: int, first: str, seed: int = 0) -> tuple[str, dict[str, object]]:
        """A second phase of the same length, with `al`."""
        end = f"-seed{seed}" if seed else ""
        cell = main(branches, "al", seed)[1] | {"drafter.init": f"k{branches}-{first}{end}"}
        return f"k{branches}-{first}-al{end}", cell

    warm = [main(k, name) for name in ("al", "nll", "dpace", "early") for k in (4, 1, 2, 8)]
    phases = [after(k, "early") for k in (4, 1, 2, 8)]
    seeds = [
        each
        for seed in (1, 2)
        for each in (
            *(main(k, name, seed) for name in ("al", "nll", "early") for k in (4, 1)),
            *(after(k, "early", seed) for k in (4, 1)),
        )
    ]
    al = main(4, "al")[1]
    variants = [
        *(
            (f"k4-al-{kind}", al | {"train.al.retained": kind})
            for kind in ("all_retained", "whole_block", "one_prefix")
        ),
        ("k4-al-token", al | {"train.al.rule": "token"}),
        *((f"k4-al-tau{tau}", al | {"train.al.threshold": tau}) for tau in (0.01, 0.3)),
        *(
            (f"k4-early-rank{rank}", main(4, "early")[1] | {"drafter.rank": rank})
            for rank in (8, 4)
        ),
        *((f"k4-al-spread{spread}", al | {"drafter.spread": spread}) for spread in (0.08, 3.0)),
        ("k4-al-unbalanced", al | {"train.balance": 0.0}),
        *(
            (f"k{k}-al-tempered", al | {"drafter.branches": k, "train.tempered": True})
            for k in (4, 1)
        ),
        *(
            (
                f"k{k}-{objective}-cold",
                main(k, objective)[1] | {"drafter.init": None},
            )
            for objective in ("al", "nll")
            for k in (4, 1)
        ),
    ]
    return dict([*warm, *phases, *seeds, *variants])


def settings(cell: dict[str, object], arguments: argparse.Namespace, folder: Path) -> list[str]:
    """As `--set` takes them."""
    chosen: dict[str, object] = {
        "work": folder,
        "export": folder / "export",
        "drafter.init": arguments.init,
        "train.steps": arguments.steps,
        "train.cool_down": 0.5,
        "pace.evaluate_minutes": 1000,
        "pace.export_minutes": 1000,
    } | cell
    if chosen["drafter.init"] in cells():
        chosen["drafter.init"] = folder.with_name(str(chosen["drafter.init"])) / "export"
    published = {"retained": "threshold", "threshold": 0.1}
    al = published if chosen["train.objective"] == "al" else None
    chosen = {"train.al": al, "train.gamma": None} | chosen
    if chosen["drafter.branches"] == 1:
        chosen["train.balance"] = 0.0
    return [
        f"{key}={json.dumps(value, default=str)}" for key, value in chosen.items()
    ] + arguments.set


def run(name: str, cell: dict[str, object], arguments: argparse.Namespace) -> dict[str, object]:
    folder = arguments.work / "grid" / name
    report = folder / "drafter-report.json"
    if not report.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for pattern in CACHED:
            for path in sorted(arguments.work.glob(pattern)):
                link = folder / path.name
                if not link.exists():
                    link.symlink_to(path.resolve())
        command = [sys.executable, "-m", "draftwood", "train", str(arguments.file)]
        for setting in settings(cell, arguments, folder):
            command += ["--set", setting]
        subprocess.run(command, check=True)
    return {"settings": cell, **json.loads(report.read_text())}


RULES = {
    "mixture_ratio": "drawn, ratio",
    "branch_ratio": "lottery, ratio",
    "likeliest_match": "likeliest, match",
    "tree_match": "tree, match",
}
SHOWN = 0.8
"""The temperature at which branches are looked at."""


def table(results: dict[str, dict]) -> str:
    """What each cell accepts on held-out text at each temperature, and what its branches are,
    Markdown. Cells that differ in their seed are one row: the mean, and the largest distance from
    it of any seed where there are several."""
    rows: dict[str, list[dict]] = {}
    for name, result in results.items():
        for each in result["acceptance"]:
            each["temperature"] = round(each["temperature"], 6)  # as float32 they were written
        rows.setdefault(re.sub(r"-seed\d+$", "", name), []).append(result)
    heats = sorted({each["temperature"] for run in results.values() for each in run["acceptance"]})
    heads = [
        *(f"{said} at T = {', '.join(f'{heat:g}' for heat in heats)}" for said in RULES.values()),
        *(f"{what} (T = {SHOWN:g})" for what in ("in use", "in question", "distinct", "tied")),
    ]
    lines = [f"| cell | seeds | {' | '.join(heads)} |", "|---" * (len(heads) + 2) + "|"]
    for name, runs in rows.items():
        at = [{each["temperature"]: each for each in run["acceptance"]} for run in runs]
        accepted = [
            ", ".join(_shown([seed[heat]["accepted"][rule] for seed in at]) for heat in heats)
            for rule in RULES
        ]
        branches = [
            _shown([read(seed[SHOWN]) for seed in at])
            for read in (
                lambda each: each["effective"],
                lambda each: each["choices"],
                lambda each: each["distinct"][-1],
                lambda each: each["tied"][-1] if "tied" in each else float("nan"),
            )
        ]
        lines.append(f"| {name} | {len(runs)} | {' | '.join([*accepted, *branches])} |")
    return "\n".join(lines)


def _shown(values: list[float]) -> str:
    mean = sum(values) / len(values)
    apart = max(abs(value - mean) for value in values)
    return f"{mean:.2f}" + (f" ± {apart:.2f}" if len(values) > 1 else "")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, default=Path(__file__).with_name("dblast.yaml"))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--init", type=Path, required=True, help="DFlash checkpoint, warm start")
    parser.add_argument("--steps", type=int, default=240, help="of every cell")
    parser.add_argument("--only", nargs="*", default=None, help="names of cells")
    parser.add_argument("--minutes", type=float, default=None, help="begin no cell after this")
    parser.add_argument("--set", action="append", default=[], help="of every cell, as draftwood's")
    parser.add_argument("--table", action="store_true", help="print what there is and stop")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    arguments.work, arguments.init = arguments.work.resolve(), arguments.init.resolve()
    store = arguments.work / "grid" / "results.json"
    results = json.loads(store.read_text()) if store.exists() else {}
    if arguments.table:
        print(table(results))
        return
    began = time.monotonic()
    for name, cell in cells().items():
        if arguments.only is not None and name not in arguments.only:
            continue
        if arguments.minutes and time.monotonic() - began > 60 * arguments.minutes:
            print(f"out of time: {name} and what follows is left for another call")
            break
        results[name] = run(name, cell, arguments)
        partial = store.with_suffix(".partial")
        partial.write_text(json.dumps(results, indent=1) + "\n")
        partial.replace(store)
    print(table(results))


if __name__ == "__main__":
    main()
