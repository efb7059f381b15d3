"""Broken images skipped or fatal, views loaded ahead; views against Pillow's path."""

import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dear.backbone.preprocess import Preprocess
from dear.data.dataset import Dataset
from dear.data.images.decode import as_image, decode
from dear.data.images.transforms import prefetch_views
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError
from tests.helpers.errors import refuses
from tests.helpers.pictures import noise_pixels, save_picture
from tests.unit.data.photos import class_folders


def noise(path: Path, seed: int, width: int = 23, height: int = 17) -> Path:
    return save_picture(path, noise_pixels(seed, width, height))


class TestBroken:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """9 images of two classes; one is cut, one empty, one is a bomb, one no image."""
        folder = class_folders(tmp_path / "d/train", {"ant": 4, "bee": 2})
        class_folders(tmp_path / "d/test", {"ant": 3, "bee": 2})
        whole = noise(folder / "ant/0.png", 1, 97, 89).read_bytes()
        (folder / "ant/0.png").write_bytes(whole[: len(whole) // 2])
        (folder / "ant/1.png").write_bytes(b"")
        (folder / "ant/2.png").write_text("words")
        header = bytearray(noise(tmp_path / "d/test/ant/0.png", 2).read_bytes())
        header[16:24] = (40_000).to_bytes(4, "big") * 2  # the PNG's width and height
        header[29:33] = zlib.crc32(header[12:29]).to_bytes(4, "big")
        (tmp_path / "d/test/ant/0.png").write_bytes(header)
        return tmp_path / "d"

    def load(self, folder: Path, **options: Any) -> Dataset:
        return load_dataset(str(folder), DataSettings(cache=folder.parent / "cache", workers=2, **options))

    def test_skipped_and_counted(self, folder: Path) -> None:
        with pytest.warns(UserWarning, match="4 of 11 images cannot be read and are skipped") as caught:
            data = self.load(folder, broken="skip")
        assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 1, 1], [0, 0, 1, 1])
        assert sum("cannot be read" in str(one.message) for one in caught) == 1
        assert "ant/0.png" in data.notes[0]
        data.train.load(torch.arange(3))
        data.test.load(torch.arange(4))

    def test_a_class_with_nothing_left(self, folder: Path) -> None:
        (folder / "test/bee/0.png").write_bytes(b"")
        (folder / "test/bee/1.png").write_bytes(b"")
        refuses(DataError, ("1 (bee)", "test"), self.load, folder, broken="skip")


class Counted:
    """Pictures that carry their index, and a record of what was asked for and by whom."""

    identity = "counted"
    labels = torch.arange(13)

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.threads: set[int] = set()

    def __len__(self) -> int:
        return 13

    def load(self, indices: Tensor) -> Tensor:
        """Of the size of the view."""
        if 11 in indices:
            raise DataError("number 11 is broken")
        self.asked += indices.tolist()
        self.threads.add(threading.get_ident())
        return indices.to(torch.uint8)[:, None, None, None].expand(-1, 3, 5, 5)


def test_pictures_come_in_order_and_are_loaded_elsewhere() -> None:
    images = Counted()
    batches = [torch.tensor([2, 3]), torch.tensor([5]), torch.tensor([7, 1, 0]), torch.tensor([4])]
    loaded = [(255 * p[:, 0, 0, 0]).round().tolist() for p in prefetch_views(images, batches, Preprocess(5))]
    assert loaded == [batch.tolist() for batch in batches]
    assert threading.get_ident() not in images.threads


def test_an_error_comes_with_its_batch() -> None:
    ahead = prefetch_views(Counted(), torch.tensor([[1], [11], [3]]), Preprocess(5))
    assert 255 * next(ahead)[0, 0, 0, 0] == 1
    refuses(DataError, "number 11", next, ahead)


def test_test_images_are_never_reduced(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for name in ("ant", "bee"):
            noise(tmp_path / "d" / part / name / "0.png", 1, 97, 89)
    data = load_dataset(str(tmp_path / "d"), DataSettings(short_side=29, cache=tmp_path))
    assert data.train.load(torch.arange(1))[0].shape == (3, 29, 31)
    assert data.test.load(torch.arange(1))[0].shape == (3, 89, 97)


def test_of_a_line_of_pixels_the_middle_is_used(tmp_path: Path) -> None:
    """Three hundred of 224 x 65,535 took an index 6.3 GB."""
    across = torch.arange(3 * 1000).remainder(251).view(1, -1, 1).expand(3, 3 * 1000, 4).to(torch.uint8)
    for turned in (False, True):
        whole = across.transpose(1, 2) if turned else across
        as_image(whole).save(tmp_path / "line.png")
        picture = decode(tmp_path / "line.png", 224)
        middle = across[:, 1468:1532]  # 16 x 4 of 3,000 pixels
        assert torch.equal(picture, middle.transpose(1, 2) if turned else middle)
    as_image(across[:, :64]).save(tmp_path / "line.png")
    assert torch.equal(decode(tmp_path / "line.png", 224), across[:, :64])
