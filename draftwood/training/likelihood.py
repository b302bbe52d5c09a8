"""What the distribution that wrote a text gave each of its tokens, and the target's final states:
on disk.

Objectives that compare drafter and target need log p(y_t | y_<t) under the temperature at which y
was drawn. It is a function of the samples alone, so existing samples need no new ones. The final
states of held-out texts give the target's whole distribution at any temperature and filters when a
drafter is judged. Both are computed in float32, whatever the target wrote in."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwood.core.errors import UnsupportedTarget
from draftwood.core.hf.taps import decoder_of
from draftwood.core.hf.versions import text_config
from draftwood.core.options import GREEDY_BELOW
from draftwood.training.pace import Clock, Progress
from draftwood.training.sampling import Samples

BATCH = 16


def token_likelihoods(model: Any, samples: Samples, path: Path, clock: Clock) -> np.ndarray:
    """(N, L) float32, log p_T(y_t | y_<t) of every generated token; 0 in prompts and greedy text.

    T is the temperature of each text; nothing was filtered when it was drawn. Continues where an
    earlier call stopped.
    """

    def compute(rows: slice) -> np.ndarray:
        heat = samples.temperatures[rows]
        found = np.zeros(samples.tokens[rows].shape, np.float32)
        if (drawn := np.flatnonzero(heat >= GREEDY_BELOW)).size:
            tokens = _tokens(model, samples, rows)[drawn]
            hot = torch.from_numpy(heat[drawn]).to(tokens.device)
            found[drawn, 1:] = _log_p(model, tokens, hot).cpu().numpy()
        prompt = np.arange(samples.tokens.shape[1]) < samples.starts[rows][:, None]
        return np.where(prompt, 0.0, found)

    return _stage(path, samples.tokens.shape, compute, clock, "likelihoods")


def final_states(
    model: Any, head: Tensor, samples: Samples, path: Path, clock: Clock
) -> np.ndarray:
    """(N, L, d) float32, final-normed: `head` (V, d) times row t is the logits after token t.

    Raises UnsupportedTarget if that is not so, as under a soft cap.
    """
    decoder, width = decoder_of(model), text_config(model).hidden_size

    def compute(rows: slice) -> np.ndarray:
        tokens = _tokens(model, samples, rows)
        states = decoder(tokens, use_cache=False).last_hidden_state
        if rows.start == 0:
            _check(states[:1] @ head.T, model(tokens[:1], use_cache=False).logits)
        return states.cpu().numpy()

    return _stage(path, (*samples.tokens.shape, width), compute, clock, "final states")


def _stage(
    path: Path,
    shape: tuple[int, ...],
    compute: Callable[[slice], np.ndarray],
    clock: Clock,
    title: str,
) -> np.ndarray:
    """An array on disk, filled BATCH rows at a time; a marker beside it says how far it is."""
    marker = path.with_suffix(".json")
    done = json.loads(marker.read_text())["texts"] if marker.exists() else 0
    array = np.memmap(path, np.float32, "r+" if done else "w+", shape=shape)
    progress = Progress(title, clock)
    with torch.inference_mode():
        while done < shape[0]:
            clock.wait_while_paused()
            rows = slice(done, min(done + BATCH, shape[0]))
            array[rows] = compute(rows)
            done = rows.stop
            if done == shape[0] or clock.due("mark", 10):
                array.flush()
                marker.write_text(json.dumps({"texts": done}))
            progress.show(done / shape[0], f"{done}/{shape[0]} texts")
    return array


def _tokens(model: Any, samples: Samples, rows: slice) -> Tensor:
    return torch.from_numpy(samples.tokens[rows].astype(np.int64)).to(model.device)


def _log_p(model: Any, tokens: Tensor, heat: Tensor) -> Tensor:
    """(k, L - 1), of tokens 1 to L - 1 of k texts written at temperatures (k,)."""
    logits = model(tokens, use_cache=False).logits[:, :-1].float() / heat[:, None, None]
    return logits.gather(-1, tokens[:, 1:, None])[..., 0] - logits.logsumexp(-1)


def _check(made: Tensor, logits: Tensor) -> None:
    if not torch.allclose(made, logits.float(), atol=1e-2, rtol=1e-3):
        raise UnsupportedTarget(
            "the target's logits are not its head times its final states (a soft cap?); "
            "drafters of several branches are judged by distributions made from those states"
        )
