"""The cost of a useless drafter: `python benchmarks/useless_drafter.py [--out DIR]`.

Copies the bundled block drafter with its weights shuffled, so that it costs the same and predicts
nothing, and runs `draftwood bench` on pipelines with it. bastion must switch speculation off and
decode plainly, while a fixed budget keeps drafting. The loss of bastion against plain decoding is
the cost of the rounds before it switches off, in each request.
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
    """A copy of the bundled drafter with the elements of each matrix shuffled."""
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
