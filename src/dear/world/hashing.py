"""Counter-based random numbers: each is a hash of (seed, index, slot), on any device, in any order."""

import zlib
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

_WORD = 1 << 64
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def signed(value: int) -> int:
    """The integer modulo 2^64 as the signed number that an int64 tensor holds."""
    value %= _WORD
    return value - _WORD if value >= _WORD // 2 else value


def _shift(value: Int[Tensor, "*any"], bits: int) -> Int[Tensor, "*any"]:
    """Logical right shift; int64 only has the arithmetic one."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def splitmix64(value: Int[Tensor, "*any"]) -> Int[Tensor, "*any"]:
    """One step of splitmix64 (Steele et al., 2014): the output that follows the given state."""
    value = value + signed(_GOLDEN)
    value = (value ^ _shift(value, 30)) * signed(_FIRST)
    value = (value ^ _shift(value, 27)) * signed(_SECOND)
    return value ^ _shift(value, 31)


def slot_number(slot: str) -> int:
    """A named slot's number (CRC-32), so that adding a slot leaves all others unchanged."""
    return zlib.crc32(slot.encode())


@dataclass(frozen=True)
class Stream:
    """The random numbers of a batch of items: each is a pure function of (seed, index of the item, slot)."""

    seed: int
    index: Int[Tensor, "batch"]

    def bits(self, slot: str, columns: int = 1) -> Int[Tensor, "batch column"]:
        """64 random bits for each item and column: h(h(h(seed) + index) + slot + column)."""
        seed = torch.tensor(signed(self.seed), dtype=torch.int64, device=self.index.device)
        item = splitmix64(splitmix64(seed) + self.index.to(torch.int64))
        column = torch.arange(columns, device=self.index.device) + slot_number(slot)
        return splitmix64(item[:, None] + column)

    def uniforms(self, slot: str, columns: int) -> Float[Tensor, "batch column"]:
        """Uniform in [0, 1): the upper 24 bits, which float32 holds exactly."""
        return _shift(self.bits(slot, columns), 40).to(torch.float32) * 2.0**-24

    def uniform(self, slot: str, low: float = 0.0, high: float = 1.0) -> Float[Tensor, "batch"]:
        """Uniform in [low, high)."""
        return self.uniforms(slot, 1)[:, 0] * (high - low) + low

    def integers(self, slot: str, high: int, columns: int) -> Int[Tensor, "batch column"]:
        """Integers in [0, high), high below 2^31: the upper 32 bits scaled."""
        return (_shift(self.bits(slot, columns), 32) * high) >> 32

    def integer(self, slot: str, high: int) -> Int[Tensor, "batch"]:
        """One integer in [0, high) for each item."""
        return self.integers(slot, high, 1)[:, 0]

    def chance(self, slot: str, probability: float) -> Bool[Tensor, "batch"]:
        """True with the given probability."""
        return self.uniform(slot) < probability
