"""Trunk outputs kept in memory, where other groups make room; views that depend on a seed of their own."""

from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from dear.backbone.clip import Clip
from dear.data.fewshot import Subset
from dear.data.images.photos import PhotoImages
from dear.training.batches import Batches
from dear.training.settings import TrainSettings
from dear.training.trunks import TrunkCache, full_identity
from tests.unit.training.world import few, small_dear

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


SETTINGS = TrainSettings(epochs=3, batch=3, lr=1e-2, view_seed=11)


def trunks(clip: Clip, seed: int, batch: int, epoch: int) -> dict[int, Tensor]:
    """The trunk output of each image's view."""
    settings = replace(SETTINGS, batch=batch)
    made = Batches(small_dear(clip), few(), settings, seed, TrunkCache(0))
    found = ((batch.indices.tolist(), batch.trunk) for batch in made.load_epoch(epoch))
    return {item: row for items, rows in found for item, row in zip(items, rows, strict=True)}


class TestSharedViews:
    def test_they_depend_on_seed_epoch_and_image_alone(self, small_clip: Clip) -> None:
        one, other = trunks(small_clip, 1, 3, epoch=2), trunks(small_clip, 2, 5, epoch=2)
        later = trunks(small_clip, 1, 3, epoch=1)
        for item in range(7):
            torch.testing.assert_close(one[item], other[item], rtol=0, atol=1e-5)
            assert not torch.allclose(one[item], later[item], rtol=0, atol=1e-2)

    def test_pictures_of_another_folder_are_others(self, tmp_path: Path) -> None:
        """With the same names and sizes: a stranger's would stand for the user's own."""
        places = set()
        for folder in ("mine", "others"):
            (tmp_path / folder).mkdir()
            Image.new("RGB", (8, 8)).save(tmp_path / folder / "a.bmp")
            images = PhotoImages(tmp_path / folder, [("a.bmp", 0)])
            places.add(full_identity(Subset(images, torch.tensor([0]))))
        assert len(places) == 2
        (tmp_path / "link").symlink_to(tmp_path / "mine")
        images = PhotoImages(tmp_path / "link", [("a.bmp", 0)])
        assert full_identity(images) in places


def test_what_numbers_depend_on() -> None:
    """Not on what only saves time or memory."""
    plain = TrainSettings()
    assert replace(plain, text_chunk=3).fingerprint_fields() == plain.fingerprint_fields()
    assert replace(plain, view_seed=1).fingerprint_fields() == {"view_seed": 1}
