"""Reading layer outputs without leaving anything on the user's model."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from draftwood.core.errors import PairingError, UnsupportedTarget


def decoder_of(model: Any) -> nn.Module:
    """The part of a causal LM below its head."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    if decoder is None or decoder is model:
        decoder = model.base_model
    return decoder


def layers_of(decoder: nn.Module, count: int) -> nn.ModuleList:
    """The decoder's layers: its first list of `count` modules."""
    for module in decoder.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise UnsupportedTarget(
        f"{type(decoder).__name__} has no list of {count} layers, so none can be tapped"
    )


class Taps:
    """Records outputs of some layers during our own forwards only.

    "After layer l" is hidden_states[l + 1]: for the last layer that is the state after the final
    norm, which the decoder returns, not the layer.

    Args:
        decoder: the model below its head.
        layers: 0-based.
        count: number of layers that the decoder has.

    Raises:
        PairingError: there is no such layer.
    """

    def __init__(self, decoder: nn.Module, layers: Sequence[int], count: int) -> None:
        for layer in layers:
            if not 0 <= layer < count:
                raise PairingError(
                    f"layer {layer} cannot be tapped: the target has layers 0 to {count - 1}"
                )
        self.layers = tuple(layers)
        if layers:
            blocks = layers_of(decoder, count)
            self._modules = [decoder if at == count - 1 else blocks[at] for at in layers]
        else:
            self._modules = []

    @contextmanager
    def recording(self) -> Iterator[list[Tensor]]:
        """Yield the list that the forward inside fills: (1, n, H) for each tap, in order."""
        found: list[Any] = [None] * len(self._modules)
        owner = threading.get_ident()

        def keep(place: int) -> Any:
            def hook(module: nn.Module, inputs: Any, output: Any) -> None:
                # Another thread may be running the same model meanwhile.
                if threading.get_ident() == owner:
                    found[place] = _hidden(module, output)

            return hook

        handles = [
            module.register_forward_hook(keep(place)) for place, module in enumerate(self._modules)
        ]
        try:
            yield found
        finally:
            for handle in handles:
                handle.remove()


def _hidden(module: nn.Module, output: Any) -> Tensor:
    """The (1, n, H) state in what a layer or the decoder returns."""
    state: Tensor = output if isinstance(output, Tensor) else output[0]
    if state.ndim != 3:
        raise UnsupportedTarget(
            f"{type(module).__name__} returns a tensor of shape {tuple(state.shape)}, not one "
            "state per token: "
            "this model's layers cannot be tapped"
        )
    return state


def side_by_side(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    """(1, n, H) outputs of each tap, whatever device its layer is on -> (n, taps * H) on
    `device`."""
    rows = [part[0].to(device) for part in parts]
    return rows[0] if len(rows) == 1 else torch.cat(rows, -1)
