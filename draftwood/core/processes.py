"""Several processes that decode one text in step, each with a part of the model.

Every process makes every decision itself, from the same logits and the same seed. Only measured
times differ between processes, and budgets that depend on them would give forward passes of
different sizes, which wait for each other forever. So a time that a decision may depend on is
taken from process 0: by `now` and `broadcast_from_rank0`. Torch is imported only if there are
several processes.
"""

import os
import time
from collections.abc import Sequence
from typing import Any, TypeVar

Number = TypeVar("Number", int, float)

_group: Any = None
"""The processes that share a model: one group per interpreter, like torch's process group."""


def join(group: Any) -> None:
    """Decide together with the processes of `group` from now on.

    Args:
        group: A torch process group for messages on the host (gloo); None to decide alone again.
    """
    global _group  # noqa: PLW0603 - a process belongs to one group
    _group = group


def is_distributed() -> bool:
    """Whether this process decides together with others."""
    return _group is not None


def rank() -> int:
    """This process among those that a launcher (torchrun) started; 0 if it was started alone."""
    return int(os.environ.get("RANK", "0"))


def now() -> float:
    """Seconds of a monotonic clock: process 0's."""
    return broadcast_from_rank0([time.perf_counter()])[0]


def broadcast_from_rank0(values: Sequence[Number]) -> list[Number]:
    """Process 0's values, in every process; all processes call this at the same point.

    A process that is alone gets its own values. Integers stay integers if all are.
    """
    if _group is None:
        return list(values)
    import torch
    import torch.distributed as dist

    whole = all(isinstance(value, int) for value in values)
    sent = torch.tensor(values, dtype=torch.int64 if whole else torch.float64)
    dist.broadcast(sent, group=_group, group_src=0)
    received: list[Number] = sent.tolist()
    return received


def same_on_all_ranks(values: Sequence[int]) -> bool:
    """Whether all processes call this with the same integers; all get the same answer."""
    if _group is None:
        return True
    import torch
    import torch.distributed as dist

    digest = hash(tuple(values)) >> 2  # of integers: the same in every process
    extremes = torch.tensor([digest, -digest])
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=_group)
    largest, smallest = extremes.tolist()
    return bool(largest == -smallest)
