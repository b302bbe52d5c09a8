"""What forwards of a target cost on this machine: timings, and operation and byte counts."""

import hashlib
import os
import platform
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from draftwood.core.hf.graphs import SIZES, Graphs
from draftwood.core.hf.scorer import TreeScorer
from draftwood.core.hf.session import HFSession
from draftwood.core.hf.versions import VERSION
from draftwood.core.kernels.protocol import Kernels
from draftwood.core.processes import broadcast_from_rank0
from draftwood.core.tree import TokenTree

PEAK_SECONDS = 0.1
"""Seconds for each of the two measurements of `HFCosts.peaks`."""


class HFCosts:
    """The `CostProbe` of a Hugging Face scorer.

    Args:
        open_session: opens the session that is timed; it is used for nothing else.
        clock: seconds; what `seconds` is measured with.
        kernels: those that forwards will attend by.
        graphs: captures the forwards at fixed sizes, None where nothing is captured.
    """

    def __init__(
        self,
        scorer: TreeScorer,
        open_session: Callable[[], HFSession],
        clock: Callable[[], float],
        kernels: Kernels | None = None,
        graphs: Graphs | None = None,
    ) -> None:
        self.scorer, self.clock = scorer, clock
        self._open_session, self._graphs = open_session, graphs
        self.identity: Mapping[str, str] = _identity(scorer, kernels, graphs is not None)
        self._warm: set[tuple[int, int]] = set()

    @property
    def sizes(self) -> tuple[int, ...]:
        captured = self._graphs is not None and self._graphs.off is None
        return SIZES if captured else ()

    @cached_property
    def _session(self) -> HFSession:
        return self._open_session()

    def seconds(self, tokens: int, context: int) -> float:
        """Time one forward of a chain of `tokens` nodes. The session holds `context` rows of
        zeros: the time depends on their number alone."""
        session, tree = self._session, chain_tree(tokens)
        with torch.inference_mode():
            session.cache.pretend(context)
        # A shape's first forward also chooses and builds kernels, or is captured on its buffers.
        shape = (tokens, session.cache.capacity if self.sizes else 0)
        if shape not in self._warm:
            session.forward(tree)
            self._warm.add(shape)
        _synchronize(self.scorer.device)
        start = self.clock()
        session.forward(tree)
        _synchronize(self.scorer.device)
        # Processes that share the target must not each budget by a time of their own.
        return broadcast_from_rank0([self.clock() - start])[0]

    def flops(self, tokens: int, context: int) -> float:
        """Two operations per active weight and token, four per head, channel, query and key."""
        total = 2.0 * self._active * tokens
        for queries, window in self._attention:
            total += 4.0 * queries * tokens * _visible_keys(tokens, context, window)
        return total

    def bytes(self, tokens: int, context: int) -> float:
        """Weights once, K/V read and written, and the activations of the tokens."""
        item = self.scorer.dtype.itemsize
        total = float(self._active * item)
        for shape in self.scorer.layout:
            row = shape.heads * (shape.key_dim + shape.value_dim) * shape.dtype.itemsize
            total += row * (_visible_keys(tokens, context, shape.window) + tokens)
        hidden, inner = self.scorer.config.hidden_size, self._inner
        layer = 6 * hidden + 3 * inner
        return total + item * tokens * (layer * self.scorer.layers + self.scorer.vocab_size)

    @cached_property
    def _inner(self) -> int:
        config = self.scorer.config
        return getattr(config, "intermediate_size", None) or 4 * config.hidden_size

    @cached_property
    def _active(self) -> float:
        """Number of weights that take part in a token's forward: without embeddings that are only
        looked up, and with the share of experts that a token is routed to."""
        model, config = self.scorer.model, self.scorer.config
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        looked_up = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
        looked_up.discard(id(head.weight) if head is not None else None)
        looked_up.discard(id(embedding.weight) if head is None else None)
        experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
        routed = getattr(config, "num_experts_per_tok", None)
        share = routed / experts if experts and routed else 1.0
        return sum(
            weight.numel() * (share if ".experts." in name else 1.0)
            for name, weight in model.named_parameters()
            if id(weight) not in looked_up
        )

    @cached_property
    def _attention(self) -> list[tuple[float, int | None]]:
        """Per layer: query heads times the mean width of keys and values, and the window."""
        heads = self.scorer.config.num_attention_heads
        return [
            (heads * (shape.key_dim + shape.value_dim) / 2, shape.window)
            for shape in self.scorer.layout
        ]

    def peaks(self) -> tuple[float, float]:
        device, dtype = self.scorer.device, self.scorer.dtype
        with torch.inference_mode():
            rates = broadcast_from_rank0([_matmul_rate(device, dtype), _copy_rate(device)])
        return rates[0], rates[1]


def _identity(scorer: TreeScorer, kernels: Kernels | None, captured: bool) -> dict[str, str]:
    """What measured times hold for. The configuration's hash distinguishes models of one name."""
    device = scorer.device
    config = scorer.config.to_json_string(use_diff=False)
    shared = {"processes": os.environ.get("WORLD_SIZE", "1")} if scorer.split else {}
    return {
        **shared,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "dtype": str(scorer.dtype).removeprefix("torch."),
        "model": scorer.name,
        "config": hashlib.sha256(config.encode()).hexdigest()[:16],
        "attention": type(kernels).__name__ if kernels else scorer.config._attn_implementation,
        **({"graphs": "captured"} if captured else {}),
        "torch": torch.__version__,
        "transformers": VERSION,
        "threads": str(torch.get_num_threads()),
    }


def chain_tree(tokens: int) -> TokenTree:
    """A chain of `tokens` nodes."""
    return TokenTree.chain([1] * tokens)


def _visible_keys(tokens: int, context: int, window: int | None) -> int:
    """Number of keys that a layer's attention reads."""
    return tokens + (context if window is None else min(context, window - 1))


def _rate(work: Callable[[], Any], amount: float, device: torch.device) -> float:
    """amount per second, the best of as many runs as fit into PEAK_SECONDS, at least three."""
    best, end = float("inf"), time.perf_counter() + PEAK_SECONDS
    runs = 0
    while runs < 3 or time.perf_counter() < end:
        before = time.perf_counter()
        work()
        _synchronize(device)
        best, runs = min(best, time.perf_counter() - before), runs + 1
    return amount / best


def _matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a square matrix product that takes at least a twentieth of PEAK_SECONDS."""
    size, took = 128, 0.0
    while size < 8192 and took < PEAK_SECONDS / 20:
        size *= 2
        square = torch.randn(size, size, device=device).to(dtype)
        _synchronize(device)
        before = time.perf_counter()
        torch.mm(square, square)
        _synchronize(device)
        took = time.perf_counter() - before
    return _rate(lambda: torch.mm(square, square), 2.0 * size**3, device)


def _copy_rate(device: torch.device) -> float:
    """bytes/s of a copy that is larger than a processor's caches; reads and writes count."""
    size = (256 if device.type == "cuda" else 32) * 2**20
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    into = torch.empty_like(source)
    return _rate(lambda: into.copy_(source), 2.0 * size, device)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _processor() -> str:
    """The processor's name: `platform` may give the architecture only, /proc gives the name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
