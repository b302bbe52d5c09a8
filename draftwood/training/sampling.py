"""Stage 1: the target writes the text that its drafter will learn from.

A drafter must predict what the target generates, not what people wrote, so labels are sampled from
the target itself, at several temperatures. Decoding is batched: at batch 1 it would take days.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from draftwood.core.errors import DraftwoodError
from draftwood.core.options import GREEDY_BELOW
from draftwood.training.batched import BatchCache, grouped_attention
from draftwood.training.config import SampleOptions
from draftwood.training.pace import Clock, Progress


@frozen(eq=False)
class Samples:
    """Texts of equal length. tokens: (N, L) int32. starts: (N,), length of each one's prompt.
    ends: (N,), tokens up to the end-of-text token included, or L. temperatures: (N,)."""

    tokens: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    temperatures: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def joined(cls, parts: "list[Samples]") -> "Samples":
        rows = [[getattr(part, name) for part in parts] for name in cls._names()]
        return cls(*(np.concatenate(row) for row in rows))

    @classmethod
    def _names(cls) -> tuple[str, ...]:
        return ("tokens", "starts", "ends", "temperatures")

    @classmethod
    def load(cls, path: Path) -> "Samples":
        with np.load(path) as data:
            return cls(*(data[name] for name in cls._names()))

    def save(self, path: Path) -> None:
        partial = path.with_suffix(".partial.npz")
        np.savez(partial, **{name: getattr(self, name) for name in self._names()})
        partial.replace(path)


class Prompts:
    """Prompts of a given length from a .npy token array or a .jsonl file of texts."""

    def __init__(self, path: Path, tokenizer: Any) -> None:
        self.path = path
        if path.suffix == ".npy":
            self.stream, self.texts = np.load(path, mmap_mode="r"), None
        elif path.suffix == ".jsonl":
            lines = path.read_text(encoding="utf-8").splitlines()
            self.texts = [tokenizer(json.loads(line)["text"])["input_ids"] for line in lines]
        else:
            raise DraftwoodError(f"{path}: prompts are read from .npy or .jsonl files")

    def counts(self, size: int) -> np.ndarray:
        """(size,) how often each token occurs in all of the prompts' text."""
        if self.texts is None:
            return np.bincount(self.stream, minlength=size)
        return np.bincount(np.concatenate(self.texts), minlength=size)

    def draw(self, count: int, length: int, rng: np.random.Generator) -> np.ndarray:
        """(count, length) int64 token ids. Raises DraftwoodError if no text is that long."""
        if self.texts is None:
            starts = rng.integers(0, len(self.stream) - length, count)
            return np.stack([self.stream[s : s + length] for s in starts]).astype(np.int64)
        long_enough = [text for text in self.texts if len(text) >= length]
        if not long_enough:
            raise DraftwoodError(f"{self.path}: no text has {length} tokens; lower prompt_tokens")
        return np.stack([long_enough[i][:length] for i in rng.integers(0, len(long_enough), count)])


@torch.inference_mode()
def write(model: Any, prompts: Tensor, temperatures: Tensor, length: int, seed: int) -> Tensor:
    """Continue prompts (N, n) to (N, length) tokens, all rows in step.

    temperatures: (N,), 0 for greedy. Rows go on after an end-of-text token: what follows is to be
    cut by the caller.
    """
    generator = torch.Generator(prompts.device).manual_seed(seed)
    rows, n = prompts.shape
    tokens = torch.empty((rows, length), dtype=torch.long, device=prompts.device)
    tokens[:, :n] = prompts
    with grouped_attention(model):
        cache = BatchCache(model, length)
        fed = prompts
        for at in range(n, length):
            positions = torch.arange(at - fed.shape[1], at, device=prompts.device)[None]
            logits = model(fed, position_ids=positions, logits_to_keep=1, **cache.argument())
            tokens[:, at] = _drawn(logits.logits[:, -1], temperatures, generator)
            fed = tokens[:, at : at + 1]
    return tokens


def _drawn(logits: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
    """(N,) one token for each row of (N, V). Noise is made for the rows that need it alone: over
    a large vocabulary it costs as much as the model."""
    tokens = logits.argmax(-1)
    hot = torch.nonzero(temperatures >= GREEDY_BELOW)[:, 0]
    if len(hot):
        scores = logits[hot].float() / temperatures[hot, None]
        # Dividing a softmax by exponentials and taking the argmax draws from it (Gumbel).
        noise = torch.empty_like(scores).exponential_(generator=generator).log_()
        tokens[hot] = (scores - noise).argmax(-1)
    return tokens


def text_ends(tokens: np.ndarray, starts: np.ndarray, eos: frozenset[int]) -> np.ndarray:
    """(N,), one past the first end-of-text token that was generated, or the length."""
    found = np.isin(tokens, sorted(eos)) & (np.arange(tokens.shape[1]) >= starts[:, None])
    return np.where(found.any(1), found.argmax(1) + 1, tokens.shape[1])


def sample(
    model: Any,
    prompts: Prompts,
    options: SampleOptions,
    count: int,
    folder: Path,
    *,
    seed: int,
    eos: frozenset[int],
    clock: Clock,
    title: str,
) -> Samples:
    """`count` texts, cached batch by batch under `folder`; finished batches are read back.

    A batch depends on the seed, its number and its size alone, so an interrupted run continues
    where it was.
    """
    whole = folder.with_suffix(".npz")
    if whole.exists():
        return Samples.load(whole)
    folder.mkdir(parents=True, exist_ok=True)
    progress, parts, done = Progress(title, clock), list[Samples](), 0
    began = clock.spent
    while done < count:
        path = folder / f"{len(parts):05d}.npz"
        if not path.exists():
            clock.wait_while_paused()
            if options.minutes and parts and clock.spent - began > 60 * options.minutes:
                progress.say(f"out of time with {done} of {count} texts")
                break
            rows = min(options.batch, count - done)
            _batch(model, prompts, options, rows, (seed, len(parts)), eos).save(path)
        parts.append(Samples.load(path))
        done += len(parts[-1])
        speed = done * options.length / max(clock.spent - began, 1e-9)
        progress.show(done / count, f"{done}/{count} texts, {speed:,.0f} tokens/s")
    samples = Samples.joined(parts)
    samples.save(whole)
    return samples


def _batch(
    model: Any,
    prompts: Prompts,
    options: SampleOptions,
    rows: int,
    key: tuple[int, int],
    eos: frozenset[int],
) -> Samples:
    rng = np.random.default_rng(key)
    shortest, longest = options.prompt_tokens
    n = int(rng.integers(shortest, longest + 1))
    starts = np.full(rows, n)
    temperatures = rng.choice(options.temperatures, rows).astype(np.float32)
    ids = torch.from_numpy(prompts.draw(rows, n, rng)).to(model.device)
    heat = torch.from_numpy(temperatures).to(model.device)
    tokens = write(model, ids, heat, options.length, int(rng.integers(2**31)))
    host = tokens.cpu().numpy().astype(np.int32)
    return Samples(host, starts, text_ends(host, starts, eos), temperatures)
