"""The trunk cache: room is made by forgetting other groups, the oldest first."""

import torch

from dear.training.trunks import TrunkCache

BYTES = 7 * 4


def ask(cache: TrunkCache, key: str) -> bool:
    """Whether a tensor of seven floats had to be computed."""
    computed: list[int] = []

    def compute() -> torch.Tensor:
        computed.append(1)
        return torch.zeros(7)

    cache.get(key, compute)
    return bool(computed)


def test_groups_make_room_for_each_other() -> None:
    cache = TrunkCache(3 * BYTES)
    cache.begin("one")
    assert ask(cache, "a")
    assert ask(cache, "b")
    cache.begin("two")
    assert ask(cache, "c")
    assert not ask(cache, "a")  # from another group
    assert ask(cache, "d")  # no room: group one goes
    assert not ask(cache, "c")
    assert cache.bytes == 2 * BYTES
    assert ask(cache, "a")
    assert ask(cache, "e")  # full of the current group: what is there stays
    assert ask(cache, "e")
    assert not any(ask(cache, key) for key in "acd")


def test_what_is_larger_than_the_limit_forgets_nothing() -> None:
    cache = TrunkCache(BYTES)
    cache.begin("one")
    ask(cache, "a")
    cache.begin("two")
    cache.get("large", lambda: torch.zeros(8))
    assert not ask(cache, "a")
    cache.clear()
    assert cache.bytes == 0
    assert ask(cache, "a")
