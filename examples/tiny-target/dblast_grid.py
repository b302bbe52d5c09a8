"""What K, the objective and its variants are worth: short trainings that differ in one thing each.

    python dblast_grid.py --work ./work --init ./work/export/drafter-b16

Every cell is one `draftwood train dblast.yaml` with other settings, from the same samples and
features. A finished cell is not run again, and an interrupted one goes on from its checkpoint, so
the command can be given again, with more cells or more time. Results: work/grid/results.json, and
an exported drafter in each cell's folder for `draftwood ablate dblast`.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

CACHED = ["samples-*", "features-*", "likelihoods-*", "states-*"]
"""What cells share, from the work folder: text, the target's features and what it says of them."""


def cells() -> dict[str, dict[str, object]]:
    """Settings by name, in the order in which they are worth running. drafter.init: another
    cell's name starts from what that one exported, None from nothing."""

    def main(branches: int, objective: str, seed: int = 0) -> tuple[str, dict[str, object]]:
        name = f"k{branches}-{objective}" + (f"-seed{seed}" if seed else "")
        return name, {
            "drafter.branches": branches,
            "train.objective": objective,
            "train.seed": seed,
        }

    first = [main(k, name) for name in ("al", "nll") for k in (4, 1)]
    rest = [main(k, name) for k in (2, 8) for name in ("al", "nll")]
    rest += [main(k, "dpace") for k in (1, 4, 2, 8)]
    al = {"drafter.branches": 4, "train.objective": "al"}
    variants = [
        ("k4-al-token", al | {"train.al.rule": "token"}),
        *(
            (f"k4-al-{kind}", al | {"train.al.retained": kind})
            for kind in ("whole_block", "one_prefix", "all_retained")
        ),
        *((f"k4-al-tau{tau}", al | {"train.al.threshold": tau}) for tau in (0.01, 0.3)),
        ("k4-al-unbalanced", al | {"train.balance": 0.0}),
        *(
            (f"k{k}-al-tempered", al | {"drafter.branches": k, "train.tempered": True})
            for k in (4, 1)
        ),
        ("k4-al-parted", al | {"drafter.init": "k4-nll"}),
        ("k4-al-cold", al | {"drafter.init": None}),
        ("k1-al-cold", al | {"drafter.branches": 1, "drafter.init": None}),
        ("k4-nll-cold", {"train.objective": "nll", "drafter.init": None, "drafter.branches": 4}),
        ("k1-nll-cold", {"train.objective": "nll", "drafter.init": None, "drafter.branches": 1}),
    ]
    seeds = [main(k, name, seed) for seed in (1, 2) for name in ("al", "nll") for k in (4, 1)]
    return dict([*first, *rest, *variants, *seeds])


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
    chosen = {"train.al": published if chosen["train.objective"] == "al" else None} | chosen
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


def table(results: dict[str, dict]) -> str:
    """Accepted drafts of a round by rule and temperature, Markdown."""
    rules = ["mixture_ratio", "mixture_block", "branch_ratio", "likeliest_match", "tree_match"]
    lines = [
        f"| cell | T | {' | '.join(rules)} | in use | distinct (first, last) |",
        "|---" * (len(rules) + 4) + "|",
    ]
    for name, result in results.items():
        for entry in result["acceptance"]:
            values = " | ".join(
                f"{entry['accepted'][rule]:.2f} ± {2 * entry['errors'][rule]:.2f}" for rule in rules
            )
            distinct = f"{entry['distinct'][0]:.2f}, {entry['distinct'][-1]:.2f}"
            lines.append(
                f"| {name} | {entry['temperature']:g} | {values} | {entry['effective']:.2f} | "
                f"{distinct} |"
            )
    return "\n".join(lines)


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
