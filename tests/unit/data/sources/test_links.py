"""Lists of a data set that are links: a message would quote the file of a user that they lead to."""

from dataclasses import replace
from pathlib import Path

import pytest

from dear.data.settings import DataSettings
from dear.data.sources import benchmarks as rows
from dear.data.sources.benchmarks import benchmarks
from dear.data.sources.readers import READERS, Source
from dear.errors import DataError
from tests.unit.data.photos import class_folders, load, picture, refused


@pytest.mark.parametrize(
    ("reader", "name"),
    [
        ("pets", "annotations/trainval.txt"), ("pets", "annotations"), ("aircraft", "variants.txt"),
        ("sun", "ClassName.txt"), ("ucf", "ucfTrainTestlist/classInd.txt"),
        ("flowers", "imagelabels.mat"), ("numbered-folders", "classnames.txt"),
        ("wnid-test-folders", "classnames.txt"),
    ],
)  # fmt: skip
def test_no_list_behind_a_link(reader: str, name: str, tmp_path: Path) -> None:
    """Of a stranger's folder: a message would quote what a file of the user holds."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for keys in ("0", "n01"):
        class_folders(home / "images", {keys: 1})
    (home / name).parent.mkdir(exist_ok=True)
    if name == "annotations":
        elsewhere.mkdir()
    (elsewhere / "trainval.txt" if elsewhere.is_dir() else elsewhere).write_text("my secret")
    (home / name).symlink_to(elsewhere)
    with pytest.raises(DataError, match="it is a link") as caught:
        READERS[reader](Source("mine", home, home / "images", ("ant",), ("n01",), ()))
    assert "secret" not in str(caught.value)


def test_the_folders_themselves_may_be_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another disk: that of the data set, and that of its images."""
    small = replace(benchmarks()["OxfordPets"], classes=3)
    monkeypatch.setattr(rows, "benchmarks", lambda: {"OxfordPets": small})
    monkeypatch.setattr(rows, "packaged_names", lambda _: ("ant", "bee", "emu"))
    for name in ("ant", "bee", "emu"):
        for number in range(3):
            picture(tmp_path / f"disk/{name}_{number}.jpg")
    (tmp_path / "other/annotations").mkdir(parents=True)
    (tmp_path / "other/images").symlink_to(tmp_path / "disk")
    (tmp_path / "oxford_pets").symlink_to(tmp_path / "other")
    for part, numbers in (("trainval", (0, 1)), ("test", (2,))):
        (tmp_path / f"other/annotations/{part}.txt").write_text(
            "".join(f"{n}_{i} {k} 1 1\n" for k, n in enumerate(("ant", "bee", "emu"), 1) for i in numbers)
        )
    data = load("OxfordPets", DataSettings(root=tmp_path, cache=tmp_path / "cache"))
    assert [*data.test.paths] == ["ant_2.jpg", "bee_2.jpg", "emu_2.jpg"]


def test_a_list_of_splits_that_is_a_link(tmp_path: Path, settings: DataSettings) -> None:
    """A message would quote what a file of the user holds."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "secret").write_text('{"splits": {"key": "hidden"}}')
    (tmp_path / "mine/dataset_dict.json").symlink_to(tmp_path / "secret")
    refused(tmp_path / "mine", settings, "dataset_dict.json: it is a link.")
