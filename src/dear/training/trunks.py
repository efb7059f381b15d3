"""Trunk outputs in memory, shared by the methods and variants that begin their span at the same layer."""

from collections.abc import Callable, Hashable

from torch import Tensor


class TrunkCache:
    """Tensors by key, up to a number of bytes; tensors that no longer fit are recomputed each time.

    Entries belong to the group that was begun last (a data set, for example). Room is made by evicting other
    groups, the oldest first, never the current one: with repeated passes over a group, evicting its oldest
    entries would never produce a hit.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit, self.bytes = limit_bytes, 0
        self._groups: dict[Hashable, dict[Hashable, Tensor]] = {None: {}}
        self._current: dict[Hashable, Tensor] = self._groups[None]

    def begin(self, group: Hashable) -> None:
        """Start a group that new entries belong to; it becomes the youngest."""
        self._current = self._groups.pop(group, {})
        self._groups[group] = self._current

    def __contains__(self, key: Hashable) -> bool:
        return any(key in group for group in self._groups.values())

    def __getitem__(self, key: Hashable) -> Tensor:
        """The tensor of a cached key."""
        return next(group[key] for group in self._groups.values() if key in group)

    def get(self, key: Hashable, compute: Callable[[], Tensor]) -> Tensor:
        """The tensor of a key, computed if it is not cached."""
        if key in self:
            return self[key]
        tensor = compute()
        size = _bytes(tensor)
        if size > self.limit:
            return tensor
        while self.bytes + size > self.limit and len(self._groups) > 1:
            oldest = next(iter(self._groups))
            self.bytes -= sum(_bytes(entry) for entry in self._groups.pop(oldest).values())
        if self.bytes + size <= self.limit:
            self._current[key] = tensor
            self.bytes += size
        return tensor

    def clear(self) -> None:
        """Remove all tensors."""
        for group in self._groups.values():
            group.clear()
        self.bytes = 0


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
