"""Which images of a data set cannot be read, and why."""

from pathlib import Path

import pytest
from torch import Tensor

from dear.data import image_check
from dear.data.check import check_dataset
from dear.data.images.formats import FORMATS
from dear.data.settings import DataSettings
from dear.data.sources.listing import Listing, Row
from dear.errors import DataError
from tests.unit.data.photos import class_folders


def test_a_reason_names_the_path_without_its_folder(tmp_path: Path, settings: DataSettings) -> None:
    """Below folders of long names, 300,000 reasons took 1.16 GB in the cache."""
    folder = class_folders(tmp_path / "long", {"a": 2, "b": 2})
    (folder / "a" / "0.png").write_bytes(b"no image")
    (folder / "list.csv").write_text("path,label\na/0.png,a\na/gone.png,a\nb/0.png,b\nb/1.png,b\n")
    broken = check_dataset(str(folder / "list.csv"), settings).broken
    assert broken == {
        "a/0.png": f"cannot read the image a/0.png: it is not an image of a supported format: {FORMATS}.",
        "a/gone.png": "the image a/gone.png does not exist",
    }


def test_an_image_that_could_not_be_read_is_tried_again(
    tmp_path: Path, settings: DataSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cause may be gone without a trace in the file: a permission, a disk, memory, an older version."""
    folder = class_folders(tmp_path / "d", {"a": 3, "caf\udce9": 2})
    read, tried = image_check.decode, list[str]()

    def failing(file: Path) -> Tensor:
        tried.append(file.name)
        if is_down and file.name == "1.png":
            raise DataError(f"cannot read the image {file}: Input/output error.")
        return read(file)

    monkeypatch.setattr(image_check, "decode", failing)
    images = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))
    rows = tuple(Row(path, 0) for path in images)
    listing = Listing("d", folder, ("a",), ("a",), {"test": rows}, "none")
    is_down, failed = True, [path for path in images if path.endswith("/1.png")]
    broken = {path: f"cannot read the image {path}: Input/output error." for path in failed}
    assert image_check.broken_images(listing, settings) == broken
    is_down = False
    tried.clear()
    assert image_check.broken_images(listing, settings) == {}
    assert tried == ["1.png", "1.png"]  # the others are known to be fine
    tried.clear()
    assert image_check.broken_images(listing, settings) == {}
    assert tried == []
