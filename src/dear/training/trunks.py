"""Trunk outputs kept for other runs: in memory, for methods and variants whose spans begin at the same layer;
and on disk, those of augmented views for all runs with the same views, whatever their method or seed.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from dear.data.dataset import Images
from dear.data.fewshot import Subset
from dear.data.settings import DataSettings
from dear.errors import OutputError
from dear.methods.base import Method
from dear.progress import Progress, silent
from dear.training.settings import TrainOptions, TrainSettings
from dear.writing import atomic_write

if TYPE_CHECKING:
    from dear.training.features import FeatureStore

VERSION = 3
"""Version of the files of views: increase it when views or trunk outputs change for the same fingerprint."""
TRUNK, FROZEN = "trunk", "frozen"


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


@dataclass(frozen=True)
class ViewFingerprint:
    """What views and their trunk outputs depend on, apart from the epoch, the image and the layer."""

    weights: str
    images: str
    view_seed: int
    size: int
    precision: str
    computed: str
    crop: float = 0.5


class ViewCache:
    """Tensors of views on disk, one file each, up to a number of bytes.

    A folder holds the tensors of one fingerprint and layer. Other folders are removed to make room, the least
    recently begun first, never the current one; tensors that do not fit are recomputed each time. Tensors are
    rounded to ``kind`` when they are stored, so that results do not depend on the state of the cache; those
    stored in float32 also serve spans that begin later. Files are renamed into place, so that processes may
    share a cache.
    """

    def __init__(self, folder: Path, limit_bytes: int, kind: torch.dtype = torch.bfloat16) -> None:
        self.folder, self.limit, self.kind = folder / f"v{VERSION}", limit_bytes, kind
        self._layers: list[int] = []
        self._group = self._current = self.folder
        self._bytes = 0

    def begin(self, fingerprint: ViewFingerprint, layer: int) -> None:
        """Start or reopen the folder of a fingerprint and layer, which becomes the youngest. Raises
        OutputError if it cannot be written.
        """
        text = json.dumps([asdict(fingerprint), str(self.kind)], sort_keys=True)
        self._group = self.folder / hashlib.sha256(text.encode()).hexdigest()[:16]
        self._current = self._at(layer)
        try:
            self._current.mkdir(parents=True, exist_ok=True)
            os.utime(self._current)
        except OSError as error:
            raise self._unwritable(error) from error
        cached = [int(folder.name) for folder in self._group.iterdir() if folder.name.isdigit()]
        # Continuing from a rounded earlier layer would make results depend on the state of the cache.
        exact = self.kind != torch.bfloat16
        self._layers = sorted((at for at in cached if at == layer or (exact and at < layer)), reverse=True)
        self._bytes = sum(map(_size, self._folders()))

    def get(self, epoch: int, items: Sequence[int]) -> tuple[int, Float[Tensor, "item token width"]] | None:
        """The nearest cached layer (the current one or earlier) and the trunk outputs there; None if one is
        missing or damaged.
        """
        for layer in self._layers:
            tokens = _read(self._at(layer), TRUNK, epoch, items)
            if tokens is not None:
                return layer, tokens
        return None

    def put(
        self, epoch: int, items: Sequence[int], trunk: Float[Tensor, "item token width"]
    ) -> Float[Tensor, "item token width"]:
        """Store trunk outputs of the current layer if there is room; returns them as rounded for storage.
        Raises OutputError.
        """
        rounded = trunk.to(self.kind)
        self._write(TRUNK, epoch, items, rounded)
        return rounded.to(trunk)

    def frozen(self, epoch: int, items: Sequence[int]) -> Float[Tensor, "item embed"] | None:
        """The frozen CLIP's features of the images, as stored beside trunk outputs of the current layer."""
        return _read(self._current, FROZEN, epoch, items)

    def put_frozen(self, epoch: int, items: Sequence[int], features: Float[Tensor, "item embed"]) -> None:
        """Store the frozen CLIP's features, unrounded, if there is room. Raises OutputError."""
        self._write(FROZEN, epoch, items, features)

    def _at(self, layer: int) -> Path:
        return self._group / f"{layer:03}"

    def _write(self, kind: str, epoch: int, items: Sequence[int], tensors: Tensor) -> None:
        """Write all tensors or none, so that a batch is never stored partly."""
        contents = [save({kind: tensor}) for tensor in tensors.cpu().contiguous()]
        size = sum(map(len, contents))
        if not self._make_room(size):
            return
        try:
            for item, content in zip(items, contents, strict=True):
                with atomic_write(_path(self._current, kind, epoch, item), shared=True) as file:
                    file.write(content)
        except FileNotFoundError:  # another process has just made room by removing the folder
            return
        except OSError as error:
            raise self._unwritable(error) from error
        self._bytes += size

    def _make_room(self, size: int) -> bool:
        """Remove other folders until so many bytes fit; False if they never do."""
        if self._bytes + size > self.limit:  # other processes may have removed or added files
            self._bytes = sum(map(_size, self._folders()))
            for folder in sorted(self._folders(), key=_begun):
                if self._bytes + size <= self.limit:
                    break
                if folder != self._current:
                    self._bytes -= _size(folder)
                    shutil.rmtree(folder, ignore_errors=True)
        return self._bytes + size <= self.limit

    def _folders(self) -> list[Path]:
        """The folders of all fingerprints and layers."""
        return [folder for folder in self.folder.glob("*/*") if folder.is_dir()]

    def _unwritable(self, error: OSError) -> OutputError:
        return OutputError(
            f"cannot write the view cache {self.folder}: {error}. "
            "Choose another folder with --dataset.cache, or omit --train.view-cache."
        )


def view_cache(settings: TrainSettings | TrainOptions, folder: Path | None = None) -> ViewCache | None:
    """The view cache that settings ask for, in the given cache folder or the default one."""
    if not settings.view_cache:
        return None
    kind = torch.float32 if settings.view_cache_type == "float32" else torch.bfloat16
    return ViewCache(
        (folder or DataSettings().cache_folder()) / "views", int(settings.view_cache * 2**30), kind
    )


def origin(images: Images, indices: Int[Tensor, "item"]) -> tuple[str, list[int]]:
    """The full set that the images belong to, and their indices in it: the same in every few-shot pick.

    The set is named by its identity and its location: another set may have files of the same names and sizes.
    """
    while isinstance(images, Subset):
        indices, images = images.indices[indices], images.images
    return f"{images.identity} {getattr(images, 'location', '')}".rstrip(), indices.tolist()


def trunk_facts(
    method: Method, precision: str = "auto", layer: int | None = None
) -> tuple[str, int, str, str, str]:
    """What trunk outputs depend on besides the images: weights, layer (by default the method's), precision
    and device.
    """
    like = method.clip.image.projection
    layer = method.image_from if layer is None else layer
    return method.clip.identity.sha256, layer, str(like.dtype), str(like.device), precision


def _path(folder: Path, kind: str, epoch: int, item: int) -> Path:
    return folder / f"{kind}-{epoch}" / f"{item}.view"


def _read(folder: Path, kind: str, epoch: int, items: Sequence[int]) -> Tensor | None:
    try:
        return torch.stack([load_file(_path(folder, kind, epoch, item))[kind] for item in items])
    except (OSError, SafetensorError, KeyError, RuntimeError):  # missing, damaged, or of another shape
        return None


def _begun(folder: Path) -> float:
    """When a folder was last begun; a folder that another process has just removed sorts first."""
    with suppress(OSError):
        return folder.stat().st_mtime
    return 0.0


def _size(folder: Path) -> int:
    """Bytes of the files in a folder. Files that are being removed do not count."""
    total = 0
    with suppress(OSError):
        for file in folder.glob("*/*"):
            with suppress(OSError):
                total += file.stat().st_size
    return total
