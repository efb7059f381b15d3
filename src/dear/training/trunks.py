"""Trunk outputs kept in memory, shared by the methods and variants that begin their span at the same
layer.
"""

from collections.abc import Callable, Hashable

from torch import Tensor


class TrunkCache:
    """Tensors by key, up to a number of bytes; what does not fit any more is computed again each time."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit, self.held = limit_bytes, 0
        self._kept: dict[Hashable, Tensor] = {}

    def get(self, key: Hashable, compute: Callable[[], Tensor]) -> Tensor:
        """The tensor of a key, computed if it is not held."""
        if key in self._kept:
            return self._kept[key]
        tensor = compute()
        size = tensor.numel() * tensor.element_size()
        if self.held + size <= self.limit:
            self._kept[key] = tensor
            self.held += size
        return tensor

    def clear(self) -> None:
        """Forget everything, as when going on to the next data set."""
        self._kept.clear()
        self.held = 0
