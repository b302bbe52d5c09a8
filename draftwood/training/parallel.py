"""One run on several devices: the processes that torchrun or `accelerate launch` started.

Every process draws the same batch and takes its share of the texts; gradients are averaged, so that
two processes with half of a batch do what one does with all of it. The first process alone writes.
In a single process everything here does nothing.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from draftwood.core.errors import DraftwoodError

TIMEOUT = timedelta(hours=24)
"""How long a process waits for the first one, which samples and evaluates for all."""


@contextmanager
def joined(device: str) -> Iterator[str]:
    """Inside, this process works with the others of its launch, if it was started with some.

    device: of the training file. Yields this process's own: its GPU where each has one.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield device
        return
    on_gpu = torch.device(device).type == "cuda"
    if on_gpu:
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=TIMEOUT)
    try:
        yield device
    finally:
        dist.destroy_process_group()


def rank() -> int:
    """0 for the first process, the one that writes."""
    return dist.get_rank() if dist.is_initialized() else 0


def size() -> int:
    """How many processes share a batch."""
    return dist.get_world_size() if dist.is_initialized() else 1


def check_batch(batch: int) -> None:
    """Raises DraftwoodError unless the processes can share a batch evenly."""
    if batch % size():
        raise DraftwoodError(
            f"train.batch: {batch} sequences cannot be shared by {size()} processes; "
            f"take a multiple of {size()}"
        )


def share(rows: np.ndarray) -> np.ndarray:
    """This process's rows of what all have drawn."""
    return rows[rank() :: size()]


@contextmanager
def first_goes_first() -> Iterator[None]:
    """The first process runs the body, then the others run it and find its files."""
    if rank() > 0:
        dist.barrier()
    yield
    if rank() == 0 and size() > 1:
        dist.barrier()


def summed(value: Tensor) -> Tensor:
    """The sum over processes, without a gradient."""
    return _exchanged(value.detach().clone()) if size() > 1 else value.detach()


@torch.compiler.disable  # a compiled graph is left for an exchange only where there is one
def _exchanged(value: Tensor) -> Tensor:
    dist.all_reduce(value)
    return value


def agreed(value: float, device: torch.device) -> float:
    """The first process's value on every process: clocks differ, decisions must not."""
    if size() == 1:
        return value
    received = torch.tensor(value, dtype=torch.float64, device=device)
    dist.broadcast(received, 0)
    return received.item()


def average_gradients(params: Iterable[nn.Parameter]) -> None:
    """Replace every gradient by its mean over the processes, in one exchange per dtype."""
    if size() == 1:
        return
    grads = [p.grad for p in params if p.grad is not None]
    for dtype in sorted({g.dtype for g in grads}, key=str):
        group = [g for g in grads if g.dtype == dtype]
        flat = torch.cat([g.flatten() for g in group])
        dist.all_reduce(flat)
        flat /= size()
        for grad, part in zip(group, flat.split([g.numel() for g in group]), strict=True):
            grad.copy_(part.view_as(grad))
