"""What a useless drafter costs: `python benchmarks/useless_drafter.py [--out DIR]`.

Copies the bundled block drafter with its weights shuffled, so that it costs what it did and knows
nothing, and runs `draftwood bench` on a pipeline with it: bastion must find out and decode plainly,
while a fixed budget goes on paying. What bastion's share of plain decoding lacks to one is what
finding out costs, request by request.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import yaml
from safetensors.torch import load_file, save_file

from draftwood.core.assets import resolve


def shuffled(folder: Path, seed: int = 0) -> Path:
    """A copy of the bundled drafter whose matrices have their elements in another order."""
    source = Path(resolve("builtin", "drafter"))
    copy = Path(shutil.copytree(source, folder / "useless"))
    generator = torch.Generator().manual_seed(seed)
    weights = load_file(copy / "model.safetensors")
    for name, weight in weights.items():
        if weight.dim() > 1:
            order = torch.randperm(weight.numel(), generator=generator)
            weights[name] = weight.flatten()[order].view(weight.shape).contiguous()
    save_file(weights, copy / "model.safetensors")
    return copy


def pipelines(folder: Path) -> list[str]:
    """bastion and a fixed budget of sixteen nodes, both with the useless drafter."""
    drafter = {"use": "dflash", "checkpoint": str(shuffled(folder))}
    files = []
    for base in ("bastion", "tree-16"):
        path = folder / f"useless-{base}.yaml"
        path.write_text(yaml.safe_dump({"extends": base, "drafter": drafter}), encoding="utf-8")
        files.append(str(path))
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=int, default=10, help="prompts of each set")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--out", help="folder for the reports")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = ["bench", *pipelines(Path(folder)), "--tokens", str(arguments.tokens)]
        command += ["--prompts", "builtin:code", "--prompts", "builtin:open"]
        command += ["--limit", str(arguments.limit)]
        command += ["--out", arguments.out] if arguments.out else []
        subprocess.run([sys.executable, "-m", "draftwood", *command], check=True)


if __name__ == "__main__":
    main()
