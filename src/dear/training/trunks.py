"""Trunk outputs kept in memory for other runs, whose spans begin at the same layer."""

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from torch import Tensor

from dear.methods.base import Method
from dear.progress import Progress, silent

if TYPE_CHECKING:
    from dear.training.features import FeatureStore


class TrunkCache:
    """Tensors by key, up to a number of bytes; tensors that no longer fit are recomputed each time.

    Entries belong to the group that was begun last (a data set, for example). Other groups are evicted to
    make room, the oldest first, never the current one: with repeated passes over a group, evicting its oldest
    entries would never produce a hit.

    Attributes:
        progress: Called while the trunk outputs of all training images are computed.
        store: Takes the place of trunk outputs where it can.
    """

    def __init__(self, limit_bytes: int, store: "FeatureStore | None" = None) -> None:
        self.limit, self.bytes, self.store = limit_bytes, 0, store
        self.progress: Progress = silent
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


def trunk_facts(
    method: Method, precision: str = "auto", layer: int | None = None
) -> tuple[str, int, str, str, str]:
    """What trunk outputs depend on besides the images: weights, layer (by default the method's), precision
    and device.
    """
    like = method.clip.image.projection
    layer = method.image_from if layer is None else layer
    return method.clip.identity.sha256, layer, str(like.dtype), str(like.device), precision
