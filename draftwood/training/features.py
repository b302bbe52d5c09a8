"""Stage 2: the outputs of the target's tapped layers for every token of the samples, on disk.

A file holds one row of taps * H numbers for each token, two bytes a number, in the order of the
samples; it is mapped, not read, so it may be larger than memory.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from draftwood.core.hf.taps import Taps, decoder_of
from draftwood.core.hf.versions import text_config
from draftwood.training.pace import Clock, Progress
from draftwood.training.sampling import Samples

BATCH = 16


class Features:
    """Rows of one file. path: of the file. shape: (texts, length, taps * H)."""

    def __init__(self, path: Path, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
        self.path, self.shape, self.dtype = path, shape, dtype
        mode: Literal["r+", "w+"] = "r+" if path.exists() else "w+"
        # numpy has no bfloat16; the bits pass through it as integers.
        self._bits = np.memmap(path, np.int16, mode, shape=shape)

    def __setitem__(self, rows: slice, value: Tensor) -> None:
        self._bits[rows] = value.to(self.dtype).cpu().contiguous().view(torch.int16).numpy()

    def __getitem__(self, rows: "np.ndarray | slice") -> Tensor:
        """(k, length, taps * H) in the dtype on disk."""
        return torch.from_numpy(np.ascontiguousarray(self._bits[rows])).view(self.dtype)

    def flush(self) -> None:
        self._bits.flush()

    def sizes(self, texts: int = 64) -> Tensor:
        """(taps * H,) float32 root mean squares over some texts, evenly spaced; none is 0."""
        rows = np.unique(np.linspace(0, self.shape[0] - 1, texts).astype(np.int64))
        squares = [self[np.array([row])].float().square().mean((0, 1)) for row in rows]
        return torch.stack(squares).mean(0).sqrt().clamp_min(1e-6)


@torch.inference_mode()
def extract(
    model: Any,
    samples: Samples,
    taps: Sequence[int],
    path: Path,
    *,
    dtype: torch.dtype,
    autocast: bool,
    clock: Clock,
    title: str,
) -> Features:
    """Run the target over the samples once; continues where an earlier call stopped.

    taps: 0-based layers; "after layer l" is hidden_states[l + 1], for the last layer the state
    after the final norm.
    """
    config = text_config(model)
    count, length = samples.tokens.shape
    shape = (count, length, len(taps) * config.hidden_size)
    features = Features(path, shape, dtype)
    marker = path.with_suffix(".json")
    done = json.loads(marker.read_text())["texts"] if marker.exists() else 0
    decoder = decoder_of(model)
    recorder, progress = Taps(decoder, taps, config.num_hidden_layers), Progress(title, clock)
    began, first = clock.spent, done
    while done < count:
        clock.wait_while_paused()
        rows = slice(done, min(done + BATCH, count))
        ids = torch.from_numpy(samples.tokens[rows].astype(np.int64)).to(model.device)
        with (
            torch.autocast(model.device.type, torch.bfloat16, enabled=autocast),
            recorder.recording() as parts,
        ):
            decoder(ids, use_cache=False)
        features[rows] = torch.cat([part.float() for part in parts], -1)
        done = rows.stop
        if done == count or clock.due("mark", 10):
            features.flush()
            marker.write_text(json.dumps({"texts": done}))
        speed = (done - first) * length / max(clock.spent - began, 1e-9)
        progress.show(done / count, f"{done}/{count} texts, {speed:,.0f} tokens/s")
    return features
