"""All randomness of a decode, keyed by what it decides and never by call order.

A draw is a pure function of (seed, stream, absolute position, draw index). So the token at a
position uses the same uniform whatever tree or budget led there: sampling with `match` gives the
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
    def categorical(self, law: Tensor, position: int, draw: int = 0) -> int:
        """An index drawn from `law` (V,), non-negative with a positive sum (not necessarily 1)."""

    @abstractmethod
    def accept(self, probability: float, position: int, draw: int = 0) -> bool:
        """True with this probability; never at 0, always at 1 or above."""


@frozen
class Seeded(Randomness):
    """Draws from a hash of the key (BLAKE2b, 53 bits), so any draw can be made in any order.

    seed: 64-bit. name: path of the stream.
    """

    seed: int
    name: str = ""

    def stream(self, name: str) -> "Seeded":
        return Seeded(self.seed, f"{self.name}/{name}")

    def uniform(self, position: int, draw: int = 0) -> float:
        """U[0, 1): what device verifiers take up front, and both methods below are made of."""
        key = struct.pack("<Qqq", self.seed & (2**64 - 1), position, draw)
        digest = hashlib.blake2b(key, digest_size=8, person=self._person()).digest()
        return (int.from_bytes(digest, "little") >> 11) * 2.0**-53

    def _person(self) -> bytes:
        # BLAKE2b's personalisation field is 16 bytes: short names as they are, long ones hashed.
        name = self.name.encode()
        return name if len(name) <= 16 else hashlib.blake2b(name, digest_size=16).digest()

    def categorical(self, law: Tensor, position: int, draw: int = 0) -> int:
        return inverse_cdf(law, self.uniform(position, draw))

    def accept(self, probability: float, position: int, draw: int = 0) -> bool:
        return self.uniform(position, draw) < probability


def inverse_cdf(law: Tensor, u: float) -> int:
    """The first index whose cumulative law exceeds u times the sum; never one of probability 0.

    law: (V,), summed in float64, so that a large vocabulary does not lose its tail to rounding.
    """
    cumulative = law.double().cumsum(0)
    total = cumulative[-1]
    index = int(torch.searchsorted(cumulative, u * total, right=True))
    if index >= law.shape[0]:  # u * total rounded up to the total
        index = int(law.nonzero()[-1])
    return index
