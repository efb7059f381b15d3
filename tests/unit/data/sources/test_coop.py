"""CoOp's layout: what is read, what is refused and in which words; image files of many kinds."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dear.data.dataset import Dataset, Images
from dear.data.images.decode import decode
from dear.data.images.photos import PhotoImages
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError
from tests.helpers.errors import refuses

ROWS: dict[str, list[list[Any]]] = {
    "train": [["ant/1.png", 0, "ant"], ["sea_horse/1.png", 1, "sea_horse"], ["ant/2.png", 0, "ant"]],
    "val": [["emu/1.png", 2, "emu"]],
    "test": [["emu/2.png", 2, "emu"], ["ant/3.png", 0, "ant"]],
}


def load_coop(folder: Path, short_side: int = 256) -> Dataset:
    """A folder read as any user's, whatever its list."""
    return load_dataset(str(folder), DataSettings(short_side=short_side))


def write(
    root: Path, rows: Any = ROWS, name: str = "OxfordPets", images: str = "images", *, files: bool = True
) -> Path:
    """A data set in a folder; image k of the list has 5 + k rows, 7 columns and the level k everywhere."""
    (root / images).mkdir(parents=True, exist_ok=True)
    (root / f"split_zhou_{name}.json").write_text(rows if isinstance(rows, str) else json.dumps(rows))
    if files:
        for k, row in enumerate(row for part in ROWS.values() for row in part):
            path = root / images / row[0]
            path.parent.mkdir(exist_ok=True)
            Image.new("RGB", (7, 5 + k), (k, k, k)).save(path)
    return root


def changed(part: str, index: int, row: Any) -> dict[str, list[Any]]:
    rows = {name: [*listed] for name, listed in ROWS.items()}
    rows[part][index] = row
    return rows


def level(images: Images, *indices: int) -> list[int]:
    return [int(picture[0, 0, 0]) for picture in images.load(torch.tensor(indices))]


class TestLayout:
    def test_splits_names_and_template(self, tmp_path: Path) -> None:
        data = load_coop(write(tmp_path))
        assert (data.name, data.title) == ("OxfordPets", "OxfordPets")
        assert data.classnames == ("ant", "sea horse", "emu")
        assert data.templates == ("a photo of a {}, a type of pet.",)
        assert data.val is not None
        labels = [split.labels.tolist() for split in (data.train, data.val, data.test)]
        assert labels == [[0, 1, 0], [2], [2, 0]]
        assert level(data.train, 2, 0, 2) == [2, 0, 2]
        assert level(data.test, 0, 1) == [4, 5]
        shapes = [tuple(picture.shape) for picture in data.train.load(torch.tensor([1, 2]))]
        assert shapes == [(3, 6, 7), (3, 7, 7)]

    @pytest.mark.parametrize("rows", [{**ROWS, "val": []}, {"train": ROWS["train"], "test": ROWS["test"]}])
    def test_validation_images_may_be_absent(self, tmp_path: Path, rows: Any) -> None:
        assert load_coop(write(tmp_path, rows)).val is None

    def test_the_identity_follows_paths_labels_sizes_and_resolution(self, tmp_path: Path) -> None:
        first = load_coop(write(tmp_path / "a"))
        assert load_coop(write(tmp_path / "b")).identity == first.identity
        swapped = changed("train", 0, ["ant/2.png", 0, "ant"])
        swapped["train"][2] = ["ant/1.png", 0, "ant"]
        others = [
            load_coop(write(tmp_path / "c", swapped)),
            load_coop(write(tmp_path / "d", changed("train", 2, ["ant/2.png", 2, "emu"]))),
            load_coop(tmp_path / "a", short_side=5),
        ]
        Image.new("RGB", (700, 500)).save(tmp_path / "b/images/ant/1.png")
        others.append(load_coop(tmp_path / "b"))
        assert len({first.train.identity, *(data.train.identity for data in others)}) == 5
        assert {first.test.identity, *(data.test.identity for data in others[:2])} == {first.test.identity}


def test_labels_with_gaps_are_taken_in_their_order(tmp_path: Path) -> None:
    data = load_coop(write(tmp_path, changed("train", 1, ["sea_horse/1.png", 7, "sea_horse"]), name="Mine"))
    assert data.classnames == ("ant", "emu", "sea horse")
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 2, 0], [1, 0])
    assert data.notes == ("its 3 labels are numbers from 0 to 7, with gaps: they are taken in their order",)


class TestRefusals:
    """Each with the file and the reason."""

    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            ({"train": ROWS["train"]}, 'json needs a list "test"'),
            (changed("test", 1, ["ant/3.png", "0", "ant"]), "test[1]"),
            (changed("train", 0, ["ant/1.png", -1, "ant"]), "train[0]: label -1 of ant/1.png"),
            (changed("train", 1, ["sea_horse/1.png", 1, "ANT"]), "'0' and '1' have the same name, 'ANT'"),
            (changed("train", 1, ["sea_horse/1.png", 0, "x"]), "0 has two names, 'ant' and 'x'"),
        ],
    )
    def test_malformed_lists(self, tmp_path: Path, rows: Any, message: str) -> None:
        refuses(DataError, message, load_coop, write(tmp_path, rows))


class TestDecode:
    @pytest.mark.parametrize(
        ("size", "short_side", "shape"),
        [((90, 60), 30, (3, 30, 45)), ((60, 90), 31, (3, 46, 31)), ((90, 60), 60, (3, 60, 90))],
    )
    def test_large_pictures_come_down_to_the_short_side(
        self, tmp_path: Path, size: tuple[int, int], short_side: int, shape: tuple[int, ...]
    ) -> None:
        Image.new("RGB", size, (10, 20, 30)).save(tmp_path / "a.png")
        picture = decode(tmp_path / "a.png", short_side)
        assert picture.shape == shape
        assert picture.flatten(1).unique(dim=1).flatten().tolist() == [10, 20, 30]

    def test_reduction_is_antialiased(self, tmp_path: Path) -> None:
        """Stripes of one pixel turn into their mean, not into one of the stripes."""
        stripes = np.zeros((64, 64, 3), dtype=np.uint8)
        stripes[:, ::2] = 255
        Image.fromarray(stripes).save(tmp_path / "a.png")
        inner = decode(tmp_path / "a.png", 16)[:, :, 2:-2].float()
        assert (inner - 127.5).abs().max() < 8


class TestPhotoImages:
    def test_pictures_stay_while_there_is_room(self, tmp_path: Path) -> None:
        """Two pictures of 3 x 5 x 7 = 105 bytes fit into 250: the third is read from its file each time."""
        names = [f"{k}.png" for k in range(3)]
        for name in names:
            Image.new("RGB", (7, 5), "red").save(tmp_path / name)
        photos = PhotoImages(tmp_path, [(name, 0) for name in names], cache_bytes=250)
        first = photos.load(torch.arange(3))
        again = photos.load(torch.arange(3))
        assert [one is other for one, other in zip(first, again, strict=True)] == [True, True, False]
        for name in names:
            (tmp_path / name).unlink()
        assert torch.equal(photos.load(torch.tensor([1]))[0], first[1])
        refuses(DataError, "2.png", photos.load, torch.tensor([2]))
