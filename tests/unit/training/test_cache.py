"""What is kept in memory, and what makes room for it; views that depend on a seed of their own."""

import shutil
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save
from torch import Tensor

from dear.backbone.clip import Clip
from dear.backbone.loading.load import load_clip
from dear.backbone.names import Precision
from dear.data.dataset import Images
from dear.data.fewshot import Subset
from dear.data.images.photos import PhotoImages
from dear.methods.base import Method
from dear.methods.zero_shot.method import ZeroShot
from dear.training import cache as cache_module
from dear.training.batches import Batches, training_images
from dear.training.cache import Cache, ReadoutStore
from dear.training.settings import TrainSettings
from tests.conftest import small_clip_of
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


class Reader(ZeroShot):
    """Reads three times the class feature."""

    def __init__(self, clip: Clip) -> None:
        super().__init__(clip)
        self.image_from, self.readout_key = 4, "three times"

    def read_out(self, trunk: Tensor) -> Tensor:
        return self.frozen_image(trunk).unsqueeze(1).expand(-1, 3, -1)


@pytest.fixture
def images(tmp_path: Path) -> PhotoImages:
    """Nineteen photographs, of which the last is a copy of the first."""
    draw = np.random.default_rng(0)
    for number in range(18):
        pixels = draw.integers(0, 256, (23, 29, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    shutil.copy(tmp_path / "0.png", tmp_path / "18.png")
    return PhotoImages(tmp_path, [(f"{number}.png", 0) for number in range(19)])


def read(folder: Path, method: Method, images: PhotoImages, *items: int) -> tuple[Tensor, int]:
    """What a new process reads of some images, by default of all, and how many of them it encodes."""
    readouts, indices = ReadoutStore(folder), torch.tensor(items or range(len(images)))
    return readouts.read(method, images, indices, "32-true"), len(readouts.encoded)


class TestReadouts:
    def test_they_are_the_same_whichever_are_known(self, images: PhotoImages, tmp_path: Path) -> None:
        """Bit for bit, by a CLIP whose matrices are large enough for last digits to depend on their rows."""
        method = ZeroShot(load_clip("tiny"))
        everything, encoded = read(tmp_path / "one", method, images)
        assert encoded == 18  # a copy is the same picture
        assert torch.equal(everything[18], everything[0])
        for items, new in (((3,), 1), ((5, 17, 3), 2), ((), 15), ((18, 2), 0)):
            part, encoded = read(tmp_path / "other", method, images, *items)
            assert torch.equal(part, everything[[*items] or [*range(19)]])
            assert encoded == new
        assert read(tmp_path / "one", method, images)[1] == 0

    def test_one_reading_keeps_the_class_token_too(
        self, small_clip: Clip, images: PhotoImages, tmp_path: Path
    ) -> None:
        first, encoded = read(tmp_path / "one", Reader(small_clip), images)
        assert (first.shape, encoded) == ((19, 3, small_clip.image.embed_dim), 18)
        token, encoded = read(tmp_path / "one", ZeroShot(small_clip), images)
        assert (token.shape, encoded) == ((19, 1, small_clip.image.width), 0)
        assert torch.equal(token, read(tmp_path / "other", ZeroShot(small_clip), images)[0])

    def test_they_are_of_what_encodes_them(
        self, small_clip: Clip, images: PhotoImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another backbone, preprocessing, precision, readout, short side or number of threads is another."""
        folder, view, everything = tmp_path / "cache", small_clip.preprocess, torch.arange(19)
        methods: list[Method] = [ZeroShot(small_clip), ZeroShot(small_clip_of(seed=1)), Reader(small_clip)]
        for method in methods:
            assert read(folder, method, images)[1] == 18
        rows = [(path, 0) for path in images.paths]
        assert read(folder, methods[0], PhotoImages(tmp_path, rows, short_side=21))[1] == 18
        readouts = ReadoutStore(folder)
        readouts.read(methods[0], images, everything, "bf16-mixed")
        assert len(readouts.encoded) == 18
        small_clip.preprocess = replace(view, interpolation="bilinear")
        assert read(folder, methods[0], images)[1] == 18
        small_clip.preprocess = view
        assert read(folder, methods[0], images)[1] == 0
        monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
        assert read(folder, methods[0], images)[1] == 18

    def test_random_views_are_others(self, small_clip: Clip, images: PhotoImages, tmp_path: Path) -> None:
        """By seed, number and crop: those of other methods with the same ones are known. Drawn by content
        they stay when images are added; copies have views of their own.
        """
        some, settings = Subset(images, torch.arange(5, 19)), TrainSettings(crop=0.5)
        assert read_views(tmp_path / "a", some, small_clip, settings, 0, 1)[1] == 2 * 14
        assert read_views(tmp_path / "a", some, small_clip, settings, 0, 1)[1] == 0
        assert read_views(tmp_path / "a", some, small_clip, settings, 2)[1] == 14
        assert read_views(tmp_path / "a", some, small_clip, replace(settings, crop=0.6), 2)[1] == 14
        assert read_views(tmp_path / "a", some, small_clip, replace(settings, view_seed=9), 2)[1] == 14
        by_content, encoded = read_views(tmp_path / "b", some, small_clip, settings, 0, by_content=True)
        grown, new = read_views(tmp_path / "b", images, small_clip, settings, 0, by_content=True)
        assert (encoded, new) == (14, 5)
        assert torch.equal(grown[5:18], by_content[:13])
        assert not torch.equal(grown[18], grown[0])

    @pytest.mark.parametrize("place", ["unwritable", "damaged"])
    def test_a_folder_that_fails_changes_no_number(
        self, place: str, small_clip: Clip, images: PhotoImages, tmp_path: Path
    ) -> None:
        """One warning, and nothing is encoded twice."""
        whole, _ = read(tmp_path / "whole", ZeroShot(small_clip), images)
        folder = tmp_path / place
        if place == "unwritable":
            folder.write_bytes(b"no folder")
        else:
            folder.mkdir()
            (folder / "features.sqlite").write_bytes(b"damaged")
        readouts, everything = ReadoutStore(folder), torch.arange(19)
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always")
            first = readouts.read(ZeroShot(small_clip), images, everything, "32-true")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(cache_module, "_encode", None)
                again = readouts.read(ZeroShot(small_clip), images, everything, "32-true")
        assert ["damaged" in str(note.message) for note in notes] == [place == "damaged"]
        assert torch.equal(first, whole)
        assert torch.equal(again, whole)

    def test_what_has_no_room_is_read_each_time(
        self, small_clip: Clip, images: PhotoImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first ones stay: else the oldest would be gone before each pass."""
        whole, _ = read(tmp_path / "whole", ZeroShot(small_clip), images)
        row = len(save({"": whole[0]}))
        monkeypatch.setattr(cache_module, "FEATURE_BYTES", 17 * row)
        for _ in range(2):
            part, encoded = read(tmp_path / "cache", ZeroShot(small_clip), images)
            assert torch.equal(part, whole)
            assert encoded in (18, 2)
        assert encoded == 2

    def test_images_without_content_have_none(self, small_clip: Clip, images: PhotoImages) -> None:
        """And methods that read much of each image."""
        cache = Cache(readouts=ReadoutStore(images.folder))
        assert cache.readouts_of(ZeroShot(small_clip), images) is cache.readouts
        assert cache.readouts_of(ZeroShot(small_clip), few()) is None
        assert cache.readouts_of(small_dear(small_clip), images) is None
        assert Cache().readouts_of(ZeroShot(small_clip), images) is None


def read_views(
    folder: Path, images: Images, clip: Clip, settings: TrainSettings, *numbers: int, by_content: bool = False
) -> tuple[Tensor, int]:
    """The last of some random views of images, and how many views were encoded."""
    encoded, encode = [0], cache_module._encode

    def count(methods: Sequence[Method], pixels: Tensor, precision: Precision) -> list[Tensor]:
        encoded[0] += len(pixels)
        return encode(methods, pixels, precision)

    cache = Cache(readouts=ReadoutStore(folder, draws_by_content=by_content))
    found = training_images(ZeroShot(clip), images, settings, 3, cache)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_module, "_encode", count)
        views = [found.view(number) for number in numbers]
    return views[-1], encoded[0]


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
