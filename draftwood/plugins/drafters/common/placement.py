"""Copies of a network on its target's device and in its target's dtype."""

import copy
from typing import TypeVar

from torch import Tensor, nn

Network = TypeVar("Network", bound=nn.Module)


def placed_like(network: Network, reference: Tensor) -> Network:
    """Return `network` on the device and in the dtype of `reference`.

    Args:
        network: Left as it is. Its integer buffers keep their dtype.
        reference: Floating-point tensor of the target, such as its embedding.

    Returns:
        A copy whose tensors were copied to the device one by one, so that no second copy of the
        weights is made where they were loaded. Tensors that need no conversion are shared.
    """

    def moved(tensor: Tensor) -> Tensor:
        dtype = reference.dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.detach().to(device=reference.device, dtype=dtype)

    memo: dict[int, object] = {id(buffer): moved(buffer) for buffer in network.buffers()}
    for parameter in network.parameters():
        memo[id(parameter)] = nn.Parameter(moved(parameter), requires_grad=parameter.requires_grad)
    return copy.deepcopy(network, memo)
