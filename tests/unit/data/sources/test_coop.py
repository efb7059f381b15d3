"""CoOp's layout: what is read, what is refused and in which words; image files of many kinds."""

import json
from collections import Counter
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
from dear.data.sources.splits import read_coop
from dear.errors import DataError

CALTECH = Path(__file__).parents[4] / "../shared/data/caltech-101"
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
        assert [split.labels.tolist() for split in (data.train, data.val, data.test)] == [
            [0, 1, 0],
            [2],
            [2, 0],
        ]
        assert [len(data.train), len(data.val), len(data.test)] == [3, 1, 2]
        assert level(data.train, 2, 0, 2) == [2, 0, 2]
        assert level(data.test, 0, 1) == [4, 5]
        assert [tuple(picture.shape) for picture in data.train.load(torch.tensor([1, 2]))] == [
            (3, 6, 7),
            (3, 7, 7),
        ]

    def test_an_unknown_name_gets_the_default_template(self, tmp_path: Path) -> None:
        assert load_coop(write(tmp_path, name="Mine")).templates == ("a photo of a {}.",)

    def test_paths_may_start_at_the_folder_itself(self, tmp_path: Path) -> None:
        assert level(load_coop(write(tmp_path, images=".")).train, 1) == [1]

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

    def test_no_list(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"has no split_zhou_\*\.json"):
            read_coop(tmp_path)

    def test_two_lists(self, tmp_path: Path) -> None:
        write(write(tmp_path), name="Other")
        with pytest.raises(
            DataError, match=r"2 split lists .*split_zhou_Other.json, split_zhou_OxfordPets.json"
        ):
            load_coop(tmp_path)

    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            ("{", "split_zhou_OxfordPets.json: it is not readable JSON"),
            ("[]", 'json needs a list "train"'),
            ({"train": ROWS["train"]}, 'json needs a list "test"'),
            ({**ROWS, "train": []}, 'json needs a list "train"'),
            ({**ROWS, "val": 3}, 'json needs a list "val"'),
            (
                changed("test", 1, ["ant/3.png", "0", "ant"]),
                r"json, test\[1\] is \['ant/3.png', '0', 'ant'\]",
            ),
            (changed("val", 0, "emu/1.png"), r"val\[0\] is 'emu/1.png', not \[path, label, class name\]"),
            (
                changed("train", 1, ["sea_horse/1.png", True, "sea_horse"]),
                r"train\[1\] is \['sea_horse/1.png', True, 'sea_horse'\], not",
            ),
            ({**ROWS, "test": [*ROWS["test"], ROWS["train"][0]]}, "the image .* is in both train and test"),
            (
                changed("train", 0, ["ant/1.png", -1, "ant"]),
                r"train\[0\]: label -1 of ant/1.png is out of range",
            ),
            (
                changed("train", 1, ["sea_horse/1.png", 1, "ANT"]),
                "the classes '0' and '1' have the same name, 'ANT'",
            ),
            (
                changed("train", 1, ["sea_horse/1.png", 0, "sea_horse"]),
                "0 has two names, 'ant' and 'sea_horse'",
            ),
        ],
    )
    def test_malformed_lists(self, tmp_path: Path, rows: Any, message: str) -> None:
        with pytest.raises(DataError, match=message):
            load_coop(write(tmp_path, rows))

    @pytest.mark.parametrize(
        "path", ["../x.png", "a/../../x.png", "/x.png", "C:\\x.png", "a\\..\\x.png", "a\0b"]
    )
    def test_paths_that_climb_out(self, tmp_path: Path, path: str) -> None:
        write(tmp_path, changed("test", 0, [path, 2, "emu"]))
        Image.new("RGB", (7, 5)).save(tmp_path / "x.png")
        with pytest.raises(DataError, match=r"test\[0\]: the path .* leads out of the image folder"):
            load_coop(tmp_path)

    @pytest.mark.parametrize(
        ("path", "message"),
        [
            ("\ud800.png", r"split_zhou_OxfordPets\.json: .*surrogates"),
            ("x" * 4097, r"1 of 2 images is missing, the first xxx"),
        ],
    )
    def test_paths_that_no_file_has(self, tmp_path: Path, path: str, message: str) -> None:
        write(tmp_path, files=True)
        write(tmp_path, changed("test", 0, [path, 2, "emu"]), files=False)
        with pytest.raises(DataError, match=message):
            load_coop(tmp_path)

    def test_missing_images_are_counted(self, tmp_path: Path) -> None:
        write(tmp_path)
        for name in ("sea_horse/1.png", "ant/2.png"):
            (tmp_path / "images" / name).unlink()
        with pytest.raises(DataError, match=r"images: 2 of 3 images are missing, the first sea_horse/1.png"):
            load_coop(tmp_path)

    def test_no_valid_row(self, tmp_path: Path) -> None:
        write(tmp_path, {"train": ["x"], "test": ["x"]})
        with pytest.raises(DataError, match="has no valid row"):
            read_coop(tmp_path, report=lambda _: None)

    def test_no_images_at_all(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"none of the 6 images .* the first is ant/1.png.*\(images\)"):
            load_coop(write(tmp_path, files=False))

    def test_two_image_folders(self, tmp_path: Path) -> None:
        write(write(tmp_path), images="copy")
        with pytest.raises(DataError, match="more than one folder: copy, images"):
            load_coop(tmp_path)


class TestDecode:
    def test_exif_orientation(self, tmp_path: Path) -> None:
        """Orientation 6: stored on its side, its first row is the right column."""
        image, exif = Image.new("RGB", (48, 32), "white"), Image.Exif()
        image.paste("black", (0, 0, 48, 8))
        exif[0x0112] = 6
        image.save(tmp_path / "a.jpg", exif=exif, quality=95)
        picture = decode(tmp_path / "a.jpg", 256)
        assert picture.shape == (3, 48, 32)
        assert picture[:, :, 24:].max() < 10
        assert picture[:, :, :24].min() > 245

    @pytest.mark.parametrize(
        ("mode", "colour", "kind", "expected"),
        [
            ("L", 51, "png", (51, 51, 51)),
            ("1", 1, "png", (255, 255, 255)),
            ("RGB", (10, 20, 30), "bmp", (10, 20, 30)),
            ("CMYK", (0, 255, 255, 0), "tiff", (255, 0, 0)),
            ("RGBA", (10, 20, 30, 255), "png", (10, 20, 30)),
            ("RGBA", (0, 0, 0, 0), "png", (255, 255, 255)),
            (
                "RGBA",
                (0, 100, 255, 51),
                "png",
                (204, 224, 255),
            ),  # a fifth of the colour, four fifths of white
            ("LA", (0, 0), "png", (255, 255, 255)),
            ("RGB", (10, 20, 30), "webp", None),
        ],
    )
    def test_modes(self, tmp_path: Path, mode: str, colour: Any, kind: str, expected: Any) -> None:
        Image.new(mode, (5, 3), colour).save(tmp_path / f"a.{kind}")
        picture = decode(tmp_path / f"a.{kind}", 256)
        assert picture.shape == (3, 3, 5)
        assert picture.dtype == torch.uint8
        if expected is not None:
            assert picture.flatten(1).unique(dim=1).flatten().tolist() == list(expected)

    def test_cmyk_jpeg(self, tmp_path: Path) -> None:
        Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=100)
        assert (decode(tmp_path / "a.jpg", 256)[:, 8, 8] - torch.tensor([255, 0, 0])).abs().max() < 8

    def test_palette_with_transparency(self, tmp_path: Path) -> None:
        image = Image.new("P", (4, 2), 1)
        image.putpalette([0, 0, 0, 10, 20, 30])
        image.paste(0, (0, 0, 2, 2))
        image.save(tmp_path / "a.png", transparency=0)
        picture = decode(tmp_path / "a.png", 256)
        assert picture[:, 0, 0].tolist() == [255, 255, 255]
        assert picture[:, 0, 3].tolist() == [10, 20, 30]

    @pytest.mark.parametrize("kind", ["png", "tiff"])
    def test_16_bits(self, tmp_path: Path, kind: str) -> None:
        """65535 / 257 = 255, 25700 / 257 = 100, 25700 + 129 rounds up to 101."""
        levels = np.array([[0, 65535, 25700], [25829, 257, 128]], dtype=np.uint16)
        Image.fromarray(levels).save(tmp_path / f"a.{kind}")
        picture = decode(tmp_path / f"a.{kind}", 256)
        assert picture[1].tolist() == [[0, 255, 100], [101, 1, 0]]
        assert torch.equal(picture[0], picture[2])

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

    def test_broken_files_are_named(self, tmp_path: Path) -> None:
        whole = tmp_path / "whole.jpg"
        Image.effect_noise((64, 64), 50).save(whole)
        (tmp_path / "cut.jpg").write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
        (tmp_path / "empty.jpg").touch()
        (tmp_path / "text.jpg").write_text("not an image")
        for name in ("cut.jpg", "empty.jpg", "text.jpg", "absent.jpg"):
            with pytest.raises(DataError, match=f"cannot read the image .*{name}"):
                decode(tmp_path / name, 256)

    def test_floating_point_pixels_are_refused(self, tmp_path: Path) -> None:
        Image.new("F", (5, 3), 0.5).save(tmp_path / "a.tiff")
        with pytest.raises(DataError, match=r"a\.tiff: floating-point pixels"):
            decode(tmp_path / "a.tiff", 256)


class TestPhotoImages:
    def test_pictures_stay_while_there_is_room(self, tmp_path: Path) -> None:
        """Two pictures of 3 x 5 x 7 = 105 bytes fit into 250: the third is read from its file each time."""
        names = [f"{k}.png" for k in range(3)]
        for name in names:
            Image.new("RGB", (7, 5), "red").save(tmp_path / name)
        photos = PhotoImages(tmp_path, names, torch.arange(3), cache_bytes=250)
        first = photos.load(torch.arange(3))
        again = photos.load(torch.arange(3))
        assert [one is other for one, other in zip(first, again, strict=True)] == [True, True, False]
        for name in names:
            (tmp_path / name).unlink()
        assert torch.equal(photos.load(torch.tensor([1]))[0], first[1])
        with pytest.raises(DataError, match=r"2\.png"):
            photos.load(torch.tensor([2]))

    def test_files_are_opened_only_when_asked_for(self, tmp_path: Path) -> None:
        (tmp_path / "broken.png").write_text("x")
        photos = PhotoImages(tmp_path, ["broken.png"], torch.tensor([0]))
        assert len(photos) == 1
        with pytest.raises(DataError, match=r"broken\.png"):
            photos.load(torch.tensor([0]))


@pytest.mark.skipif(not CALTECH.is_dir(), reason="the shared Caltech-101 subset is not here")
class TestCaltech:
    def test_classes_and_counts(self) -> None:
        data = load_coop(CALTECH)
        assert data.name == "Caltech101"
        assert len(data.classnames) == 100
        assert (data.classnames[0], data.classnames[18], data.classnames[99]) == (
            "face",
            "car side",
            "yin yang",
        )
        assert data.val is not None
        for split, count in ((data.train, 16), (data.val, 2), (data.test, 6)):
            assert Counter(split.labels.tolist()) == dict.fromkeys(range(100), count)

    def test_pictures(self) -> None:
        data = load_coop(CALTECH, short_side=100)
        pictures = data.train.load(torch.arange(0, 1600, 271))
        assert all(min(picture.shape[1:]) == 100 for picture in pictures)
        assert all(picture.float().std() > 10 for picture in pictures)
