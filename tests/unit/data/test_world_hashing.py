"""Counter-based random numbers against splitmix64 in plain Python integers."""

import zlib

import torch

from dear.data.world.hashing import Stream, signed, splitmix64

MASK = (1 << 64) - 1


def slow_splitmix64(state: int) -> int:
    state = (state + 0x9E3779B97F4A7C15) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def slow_bits(seed: int, index: int, slot: str, column: int) -> int:
    item = slow_splitmix64((slow_splitmix64(seed & MASK) + index) & MASK)
    return slow_splitmix64((item + zlib.crc32(slot.encode()) + column) & MASK)


def test_splitmix64_is_the_published_one():
    # The first outputs of splitmix64 from state 1234567, as in the Rosetta Code task on it.
    state = torch.tensor([1234567])
    outputs = [int(splitmix64(state + signed(step * 0x9E3779B97F4A7C15))) & MASK for step in range(3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_bits_uniforms_and_integers_equal_plain_integers():
    seed, index = -3, torch.tensor([0, 5, 1 << 40])
    stream = Stream(seed, index)
    for row, number in enumerate(index.tolist()):
        for column in range(2):
            bits = slow_bits(seed, number, "a slot", column)
            assert int(stream.bits("a slot", 2)[row, column]) & MASK == bits
            assert float(stream.uniforms("a slot", 2)[row, column]) == (bits >> 40) / 2**24
            assert int(stream.integers("a slot", 7, 2)[row, column]) == ((bits >> 32) * 7) >> 32
