"""What is kept in memory, and what makes room for it; views that depend on a seed of their own."""

from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from dear.backbone.clip import Clip
from dear.data.images.photos import PhotoImages
from dear.methods.optional import HasReadout
from dear.methods.zero_shot.method import ZeroShot
from dear.training.batches import Batches
from dear.training.cache import Cache
from dear.training.settings import TrainSettings
from tests.helpers.data import few
from tests.helpers.methods import small_dear

BYTES = 7 * 4


def ask(cache: Cache, key: str) -> bool:
    """Whether a tensor of seven floats had to be computed."""
    computed: list[int] = []

    def compute() -> torch.Tensor:
        computed.append(1)
        return torch.zeros(7)

    cache.get("trunk", key, compute)
    return bool(computed)


def test_groups_make_room_for_each_other() -> None:
    cache = Cache(3 * BYTES)
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
    cache = Cache(BYTES)
    cache.begin("one")
    ask(cache, "a")
    cache.begin("two")
    cache.get("trunk", "large", lambda: torch.zeros(8))
    assert not ask(cache, "a")


def test_parts_share_one_bound() -> None:
    cache = Cache(2 * BYTES)
    for part in ("trunk", "target", "text"):
        cache.get(part, "a", lambda: torch.ones(7))
    found = [cache.find(part, "a") is not None for part in ("trunk", "target", "text")]
    assert (found, cache.bytes) == ([True, True, False], 2 * BYTES)


def test_all_make_room_for_what_is_read_of_images(small_clip: Clip, tmp_path: Path) -> None:
    """Two photographs with three readouts each fit beside nothing else: the class token of 21 numbers after
    the last layer, and 3 x 17 numbers of each by a method that reads those.
    """

    class Reader(ZeroShot, HasReadout):
        readout_key = "three times the class feature"

        def __init__(self, clip: Clip) -> None:
            super().__init__(clip)
            self.image_from = 4

        def read_out(self, trunk: Tensor) -> Tensor:
            return self.frozen_image(trunk).unsqueeze(1).expand(-1, 3, -1)

    for number in range(3):
        Image.new("RGB", (29, 23), (90 * number, 50, 0)).save(tmp_path / f"{number}.png")
    images = PhotoImages(tmp_path, [(f"{number}.png", 0) for number in range(3)])
    method, width, embed = Reader(small_clip), small_clip.image.width, small_clip.image.embed_dim
    cache = Cache(2 * 4 * (width + 3 * embed), readouts={})
    assert cache.keeps_readouts_of(method, images)
    assert not Cache().keeps_readouts_of(method, images)
    assert [ask(cache, "a"), ask(cache, "a")] == [True, False]
    first = cache.read_images(method, images, torch.arange(2), "32-true")
    assert first.shape == (2, 3, embed)
    assert cache.bytes == cache.limit
    assert [ask(cache, "a"), ask(cache, "a")] == [True, True]
    everything = cache.read_images(method, images, torch.arange(3), "32-true")
    assert torch.equal(everything[:2], first)
    assert len(cache.encoded) == len(cache.images) == 3
    saved = cache.used_readouts()
    assert sorted(len(rows) for name, rows in saved.items() if not name.endswith(".items")) == [2, 2]
    again = Cache(readouts=saved)
    torch.testing.assert_close(again.read_images(method, images, torch.arange(3), "32-true"), everything)
    assert len(again.encoded) == 1


SETTINGS = TrainSettings(epochs=3, batch=3, lr=1e-2, view_seed=11)


def trunks(clip: Clip, seed: int, batch: int, epoch: int) -> dict[int, Tensor]:
    """The trunk output of each image's view."""
    settings = replace(SETTINGS, batch=batch)
    made = Batches(small_dear(clip), few(), settings, seed, Cache(0))
    found = ((batch.indices.tolist(), batch.trunk) for batch in made.load_epoch(epoch))
    return {item: row for items, rows in found for item, row in zip(items, rows, strict=True)}


class TestSharedViews:
    def test_they_depend_on_seed_epoch_and_image_alone(self, small_clip: Clip) -> None:
        one, other = trunks(small_clip, 1, 3, epoch=2), trunks(small_clip, 2, 5, epoch=2)
        later = trunks(small_clip, 1, 3, epoch=1)
        for item in range(7):
            torch.testing.assert_close(one[item], other[item], rtol=0, atol=1e-5)
            assert not torch.allclose(one[item], later[item], rtol=0, atol=1e-2)


def test_what_numbers_depend_on() -> None:
    """Not on what only saves time or memory."""
    plain = TrainSettings()
    assert replace(plain, text_chunk=3).fingerprint_fields() == plain.fingerprint_fields()
    assert replace(plain, view_seed=1).fingerprint_fields() == plain.fingerprint_fields() | {"view_seed": 1}
