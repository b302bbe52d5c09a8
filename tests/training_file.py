"""Training files for tests: the same few samples of the same prompts, whatever learns from them."""

from pathlib import Path

import numpy as np

LENGTH, BLOCK = 24, 5
"""Of the texts, and of the blocks, of `training_file`."""


def written(
    path: Path, target: Path, length: int, rest: str, *, sequences: int = 12, batch: int = 6
) -> Path:
    """A training file at `path`, and its prompts beside it. rest: its sections after the samples,
    which are `length` tokens long."""
    path.parent.mkdir(exist_ok=True)
    prompts = np.random.default_rng(0).integers(1, 60, 500).astype(np.uint16)
    np.save(path.parent / "prompts.npy", prompts)
    path.write_text(
        f"""
target: {target}
work: work
export: out
sample: {{prompts: prompts.npy, heldout: prompts.npy, sequences: {sequences}, heldout_sequences: 4,
         length: {length}, prompt_tokens: [3, 6], batch: {batch}, temperatures: [0, 1.0]}}
{rest.strip()}
"""
    )
    return path


def training_file(folder: Path, target_folder: Path, extra: str = "") -> Path:
    """One of a block drafter."""
    return written(
        folder / "drafter.yaml",
        target_folder,
        LENGTH,
        f"""
drafter: {{taps: [0, 2], block_size: {BLOCK}, mask_token: 60, heads: 2, kv_heads: 1,
          head_dim: 16, intermediate: 48}}
train: {{steps: 6, batch: 2, anchors: 4, autocast: false}}
{extra}
""",
    )
