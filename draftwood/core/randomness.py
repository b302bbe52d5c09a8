"""All randomness of a decode, keyed by what it decides and never by call order.

A draw is a pure function of (seed, stream, absolute position, draw index). So the token at a
position uses the same noise whatever tree or budget led there: sampling with `match` gives the
tokens of plain decoding with the same seed. Drafter and verifier use different streams; sharing
one would bias the output.
"""

import hashlib
import struct
from abc import ABC, abstractmethod

import torch
from attrs import frozen
from torch import Tensor


class Randomness(ABC):
    """A stream of keyed draws. The testing kit implements it by enumeration."""

    @abstractmethod
    def stream(self, name: str) -> "Randomness":
        """An independent stream below this one."""

    @abstractmethod
    def categorical(self, probs: Tensor, position: int, draw: int = 0) -> int:
        """An index drawn from `probs`.

        Args:
            probs: (V,), non-negative with a positive sum, which need not be 1.
            position: Absolute position of the token that is decided.
            draw: Index among the draws of this position.
        """

    @abstractmethod
    def accept(self, probability: float, position: int, draw: int = 0) -> bool:
        """True with this probability; never at 0, always from 1 up."""


@frozen
class Seeded(Randomness):
    """Draws from a hash of the key, so that draws can be made in any order.

    Attributes:
        seed: 64 bits.
        name: Path of the stream.
    """

    seed: int
    name: str = ""

    def stream(self, name: str) -> "Seeded":
        return Seeded(self.seed, f"{self.name}/{name}")

    def uniform(self, position: int, draw: int = 0) -> float:
        """U[0, 1) of 53 bits; `accept` compares with it."""
        return (self.key(position, draw) >> 11) * 2.0**-53

    def exponentials(
        self, size: int, position: int, draw: int = 0, device: torch.device | str = "cpu"
    ) -> Tensor:
        """(size,) float64 Exp(1) numbers, one for each token, for `race`."""
        return -_uniforms(self.key(position, draw), size, device).log()

    def categorical(self, probs: Tensor, position: int, draw: int = 0) -> int:
        return int(self.race(probs, position, draw).argmax())

    def race(self, probs: Tensor, position: int, draw: int = 0) -> Tensor:
        """(V,) float64 `probs` / Exp(1): its argmax is a draw from `probs` (Gumbel-max trick).

        Comparing a uniform number with the cumulative distribution would be cheaper, but rounding
        moves every step of that distribution, and a large vocabulary has a step near any number.
        Here rounding can only swap two tokens that nearly tie, as at temperature 0, so that one
        seed gives one text in low precision too.
        """
        return probs.double() / self.exponentials(probs.shape[0], position, draw, probs.device)

    def accept(self, probability: float, position: int, draw: int = 0) -> bool:
        return self.uniform(position, draw) < probability

    def key(self, position: int, draw: int = 0) -> int:
        """The 64 bits of this draw, from a BLAKE2b hash; the draw is a function of them."""
        # BLAKE2b's personalisation field is 16 bytes: short names as they are, long ones hashed.
        name = self.name.encode()
        person = name if len(name) <= 16 else hashlib.blake2b(name, digest_size=16).digest()
        key = struct.pack("<Qqq", self.seed & (2**64 - 1), position, draw)
        return int.from_bytes(hashlib.blake2b(key, digest_size=8, person=person).digest(), "little")


def _uniforms(key: int, size: int, device: torch.device | str) -> Tensor:
    """(size,) float64 in (0, 1): SplitMix64 (Steele et al. 2014) counting from `key`.

    It uses integers only, which overflow alike on every device, so the numbers are the same.
    """
    counter = torch.arange(1, size + 1, device=device)
    z = counter * _signed(0x9E3779B97F4A7C15) + _signed(key)
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    z = z ^ _shifted(z, 31)
    return (_shifted(z, 11).double() + 0.5) * 2.0**-53


def _shifted(z: Tensor, bits: int) -> Tensor:
    """A logical right shift; torch's own operator keeps the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """The same 64 bits as a signed integer."""
    return value - 2**64 if value >= 2**63 else value
