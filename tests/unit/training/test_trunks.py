"""Trunk outputs kept: in memory, where other groups make room; on disk, the same bits as without it."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from dear.backbone.clip import Clip, tensors_hash
from dear.data.fewshot import ClassSubset, Subset
from dear.data.images.photos import PhotoImages
from dear.errors import SettingsError
from dear.methods.dear.method import Dear
from dear.training.batches import Batches
from dear.training.devices import make_fabric
from dear.training.loop import train
from dear.training.settings import TrainSettings
from dear.training.trunks import TrunkCache, ViewCache, ViewFingerprint, origin
from tests.unit.training.world import Noise, few, numbers, small_dear

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
FACTS = ViewFingerprint("weights", "images", 11, 20, "auto", "float32 cpu")
ROOM = 10**7


def trunks(clip: Clip, seed: int, batch: int, epoch: int) -> dict[int, Tensor]:
    """The trunk output of each image's view."""
    settings = replace(SETTINGS, batch=batch)
    made = Batches(
        small_dear(clip), few(), settings, seed, make_fabric(torch.device("cpu"), "auto"), TrunkCache(0), None
    )
    found = ((batch.indices.tolist(), batch.trunk) for batch in made.load_epoch(epoch))
    return {item: row for items, rows in found for item, row in zip(items, rows, strict=True)}


class TestSharedViews:
    def test_they_depend_on_seed_epoch_and_image_alone(self, small_clip: Clip) -> None:
        one, other = trunks(small_clip, 1, 3, epoch=2), trunks(small_clip, 2, 5, epoch=2)
        later = trunks(small_clip, 1, 3, epoch=1)
        for item in range(7):
            torch.testing.assert_close(one[item], other[item], rtol=0, atol=1e-5)
            assert not torch.allclose(one[item], later[item], rtol=0, atol=1e-2)

    def test_an_image_is_known_by_its_place_in_the_whole_set(self) -> None:
        images = Noise([0, 1, 2, 0, 2, 1, 1])
        some = Subset(ClassSubset(images, [1, 2]), torch.tensor([4, 0, 2]))  # of images 1, 2, 4, 5, 6
        assert origin(some, torch.tensor([0, 2, 1])) == (images.identity, [6, 4, 1])
        assert origin(images, torch.tensor([3])) == (images.identity, [3])

    def test_pictures_of_another_folder_are_others(self, tmp_path: Path) -> None:
        """With the same names and sizes: a stranger's would stand for the user's own."""
        places = set()
        for folder in ("mine", "others"):
            (tmp_path / folder).mkdir()
            Image.new("RGB", (8, 8)).save(tmp_path / folder / "a.bmp")
            images = PhotoImages(tmp_path / folder, [("a.bmp", 0)])
            places.add(origin(Subset(images, torch.tensor([0])), torch.tensor([0]))[0])
        assert len(places) == 2
        (tmp_path / "link").symlink_to(tmp_path / "mine")
        images = PhotoImages(tmp_path / "link", [("a.bmp", 0)])
        assert origin(images, torch.tensor([0]))[0] in places


class TestTraining:
    def run(
        self, clip: Clip, views: ViewCache | None, images: Noise | None = None, **options: Any
    ) -> tuple[list[dict[str, Any]], str]:
        method = small_dear(clip, **options)
        history = numbers(train(method, images or few(), SETTINGS, seed=1, views=views))
        return history, tensors_hash(method.state_dict())

    def test_float32_changes_no_bit_and_saves_trunk_and_teacher(
        self, small_clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain, images = self.run(small_clip, None), few()
        assert self.run(small_clip, ViewCache(tmp_path, ROOM, torch.float32), images) == plain
        assert images.loads == 3 * 3
        monkeypatch.setattr(Dear, "frozen_image", lambda *_: pytest.fail("the teacher is known"))
        assert self.run(small_clip, ViewCache(tmp_path, ROOM, torch.float32), images) == plain
        assert images.loads == 3 * 3

    def test_files_are_read_ahead_in_a_thread(
        self, small_clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Never in the thread that computes, and once each: 3 epochs of 3 batches."""
        self.run(small_clip, ViewCache(tmp_path, ROOM))
        threads: list[tuple[str, bool]] = []
        for name in ("get", "frozen"):
            read = getattr(ViewCache, name)

            def counted(cache: ViewCache, epoch: int, items: Any, name: str = name, read: Any = read) -> Any:
                threads.append((name, threading.current_thread() is threading.main_thread()))
                return read(cache, epoch, items)

            monkeypatch.setattr(ViewCache, name, counted)
        self.run(small_clip, ViewCache(tmp_path, ROOM))
        assert sorted(threads) == [("frozen", False)] * 9 + [("get", False)] * 9

    def test_rounded_numbers_do_not_depend_on_what_was_there(self, small_clip: Clip, tmp_path: Path) -> None:
        cold, warm = (self.run(small_clip, ViewCache(tmp_path, ROOM)) for _ in range(2))
        assert cold == warm != self.run(small_clip, None)

    def test_a_span_that_begins_later_goes_on_from_float32(self, small_clip: Clip, tmp_path: Path) -> None:
        """From layer 5, where layer 4 is kept: the same bits; rounded ones are not gone on from."""
        plain = self.run(small_clip, None, first=12)
        for kind, loads in ((torch.float32, 0), (torch.bfloat16, 9)):
            folder, images = tmp_path / str(kind), few()
            self.run(small_clip, ViewCache(folder, ROOM, kind))
            later = self.run(small_clip, ViewCache(folder, ROOM, kind), images, first=12)
            assert images.loads == loads
            assert (later == plain) == (kind == torch.float32)

    def test_views_of_a_subset_are_kept_by_the_places_in_the_whole_set(
        self, small_clip: Clip, tmp_path: Path
    ) -> None:
        cache, items = ViewCache(tmp_path, ROOM), [2, 4, 5, 6]
        train(small_dear(small_clip), Subset(few(), torch.tensor(items)), SETTINGS, seed=1, views=cache)
        assert [item for item in range(7) if holds(cache, (item,))] == items
        assert [item for item in range(7) if cache.frozen(0, (item,)) is not None] == items

    def test_a_damaged_file_is_computed_again(self, small_clip: Clip, tmp_path: Path) -> None:
        cache = ViewCache(tmp_path, ROOM, torch.float32)
        want = self.run(small_clip, cache)
        files = sorted(tmp_path.rglob("*.view"))
        files[0].write_bytes(b"")
        files[1].write_bytes(files[1].read_bytes()[:-3])
        assert self.run(small_clip, cache) == want

    def test_it_needs_a_view_seed(self, small_clip: Clip, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match=r"--train\.view-seed"):
            train(small_dear(small_clip), few(), TrainSettings(), seed=1, views=ViewCache(tmp_path, ROOM))
        with pytest.raises(SettingsError, match=r"--train\.view-seed"):
            TrainSettings(view_cache=1.0)


def holds(cache: ViewCache, items: tuple[int, ...]) -> bool:
    return cache.get(0, items) is not None


class TestRoom:
    """Trunk outputs of 2 x 3 float32 numbers, 24 bytes, in files that are somewhat larger."""

    def put(self, cache: ViewCache, *items: int, epoch: int = 0) -> None:
        cache.put(epoch, items, torch.full((len(items), 2, 3), 0.5))

    def test_what_is_kept_comes_back(self, tmp_path: Path) -> None:
        cache = ViewCache(tmp_path, ROOM, torch.float32)
        cache.begin(FACTS, 4)
        values = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(1))
        cache.put(5, (7, 3), values)
        found = cache.get(5, (3, 7))
        assert found[0] == 4
        assert torch.equal(found[1], values.flip(0))
        assert cache.get(5, (3, 8)) is None
        assert cache.get(6, (3, 7)) is None
        assert cache.frozen(5, (3, 7)) is None

    def test_other_facts_are_kept_apart(self, tmp_path: Path) -> None:
        cache = ViewCache(tmp_path, ROOM)
        cache.begin(FACTS, 4)
        self.put(cache, 1)
        for name, value in vars(FACTS).items():
            cache.begin(replace(FACTS, **{name: value + type(value)(1)}), 4)
            assert not holds(cache, (1,))
        cache.begin(FACTS, 4)
        assert holds(cache, (1,))

    def test_other_folders_make_room_and_the_current_one_does_not(self, tmp_path: Path) -> None:
        cache = ViewCache(tmp_path, ROOM, torch.float32)
        cache.begin(FACTS, 4)
        self.put(cache, 1)
        size = sum(file.stat().st_size for file in tmp_path.rglob("*.view"))
        cache = ViewCache(tmp_path, 2 * size, torch.float32)
        other = replace(FACTS, view_seed=12)
        cache.begin(other, 4)
        self.put(cache, 2)
        assert holds(cache, (2,))
        self.put(cache, 3)  # in place of what the first facts had
        assert holds(cache, (2, 3))
        self.put(cache, 4)  # no room but that of the current ones
        assert not holds(cache, (4,))
        assert holds(cache, (2, 3))
        assert sum(file.stat().st_size for file in tmp_path.rglob("*.view")) <= 2 * size
        cache.begin(FACTS, 4)
        assert not holds(cache, (1,))


def test_what_numbers_depend_on() -> None:
    """Not on what only saves time or memory."""
    plain = TrainSettings()
    assert not {"view_cache", "view_cache_type", "text_chunk"} & plain.fingerprint_fields().keys()
    assert replace(plain, text_chunk=3).fingerprint_fields() == plain.fingerprint_fields()
    shared = replace(plain, view_seed=1)
    assert shared.fingerprint_fields() == plain.fingerprint_fields() | {"view_seed": 1}
    assert (
        replace(shared, view_cache=2.0, view_cache_type="float32").fingerprint_fields()
        == shared.fingerprint_fields()
    )
    assert replace(shared, view_cache=2.0).fingerprint_fields()["view_cache_type"] == "bfloat16"
