"""A substitute for CUDA graphs on a CPU, and kernels to capture.

`recorded` records the operations of a call with their arguments, and replays them into the same
memory. As in a graph, values that are not read from a tensor stay those of the recording, and a
synchronisation cannot be recorded.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from draftwood.core.kernels.launches import LAUNCHES

SYNCHRONISING = ("aten._local_scalar_dense", "aten.nonzero", "aten.equal")


class Recording(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, function, types, inputs=(), options=None):
        assert not str(function).startswith(SYNCHRONISING), f"{function} synchronises"
        result = function(*inputs, **(options or {}))
        self.operations.append((function, inputs, options or {}, result))
        return result


def recorded(launch, replayed):
    """`Capture` that records operations."""
    with Recording() as recording:
        scored = launch()

    def replay():
        for function, inputs, options, result in recording.operations:
            fresh = function(*inputs, **options)
            for before, after in zip(tree_leaves(result), tree_leaves(fresh), strict=True):
                if isinstance(before, torch.Tensor) and before.data_ptr() != after.data_ptr():
                    before.copy_(after)
        replayed()
        return scored

    return replay


class CapturableKernels:
    """Kernels in torch that read lengths and trees from tensors alone, over whole buffers."""

    @property
    def attended(self):
        return LAUNCHES.counts()["attend"]

    def ancestors(self, parents):
        nodes = torch.arange(len(parents))
        ancestor, seen = nodes, nodes[:, None] == nodes
        for _ in range(len(parents)):
            ancestor = torch.where(ancestor >= 0, parents[ancestor.clamp(min=0)], -1)
            seen = seen | (ancestor[:, None] == nodes)
        bits = torch.nn.functional.pad(seen, (0, -len(parents) % 32)).unflatten(1, (-1, 32))
        words = (bits.long() << torch.arange(32)).sum(-1)
        return torch.where(words >= 2**31, words - 2**32, words).int()

    def attend(self, query, keys, values, mask, *, scaling, window=None, softcap=None):
        LAUNCHES.add("attend")
        rows, capacity = query.shape[1], keys.shape[1]
        behind = torch.arange(capacity) - mask.context
        nodes = mask.first + rows
        node = behind.clamp(0, nodes - 1)
        depths = torch.arange(nodes) if mask.depths is None else mask.depths
        if mask.ancestors is None:
            own = node <= torch.arange(mask.first, nodes)[:, None]
        else:
            own = (mask.ancestors[:, node // 32] >> (node % 32) & 1).bool()
        if mask.causal:  # whatever the bits of later nodes are
            own = own & (node <= torch.arange(mask.first, nodes)[:, None])
        seen = (behind < 0) | (own & (behind < nodes))
        if window is not None:
            places = torch.where(behind < 0, behind, depths[node])
            seen = seen & (depths[mask.first :, None] - places < window)
        group, there = query.shape[0] // keys.shape[0], seen.any(0)[:, None]
        keys, values = (
            torch.where(there, part, 0.0).repeat_interleave(group, 0) for part in (keys, values)
        )
        probs = (query @ keys.mT * scaling).masked_fill(~seen, -torch.inf).softmax(-1)
        return (probs @ values).transpose(0, 1).contiguous()

    def compact(self, stacks, length, path):
        for stack in stacks:
            stack[:, :, :, length : length + len(path)] = stack[:, :, :, [length + i for i in path]]
