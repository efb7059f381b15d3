"""WordNet ids as names of folders and labels take the names of ImageNet's classes."""

from pathlib import Path

import pytest

from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from tests.unit.data.photos import class_folders, load, picture


def test_folders(tmp_path: Path, settings: DataSettings) -> None:
    """tench and English springer by CoOp's list; n00007846 (person) is no class of ImageNet's 1000."""
    folder = class_folders(
        tmp_path / "mine", dict.fromkeys(("n01440764", "n02102040", "n00007846", "cat"), 3)
    )
    with pytest.warns(UserWarning, match=r"2 of its 4 classes are WordNet ids .* n01440764 is tench"):
        data = load_dataset(str(folder), settings)
    assert data.classnames == ("cat", "n00007846", "tench", "English Springer Spaniel")
    assert data.keys == ("cat", "n00007846", "n01440764", "n02102040")
    assert any("WordNet ids that are not among ImageNet's 1000" in note for note in data.notes)


def test_two_ids_of_one_name_stay_apart(tmp_path: Path, settings: DataSettings) -> None:
    """CoOp's list calls n04355933 and n04356056 both sunglasses."""
    folder = class_folders(tmp_path / "mine", {"n04355933": 3, "n04356056": 3})
    assert load(folder, settings).classnames == ("sunglasses (n04355933)", "sunglasses (n04356056)")
    assert load(class_folders(tmp_path / "one", {"n04355933": 3}), settings).classnames == ("sunglasses",)


def test_labels_of_a_table_and_names_of_the_users_own(tmp_path: Path, settings: DataSettings) -> None:
    rows = [f"{key}{n}.png,{key}" for key in ("n01440764", "n02102040") for n in range(3)]
    for n, row in enumerate(rows):
        picture(tmp_path / row.partition(",")[0], n)
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]))
    assert load(tmp_path / "list.csv", settings).classnames == ("tench", "English Springer Spaniel")
    (tmp_path / "names.json").write_text('{"n01440764": "carp", "n02102040": "dog"}')
    own = DataSettings(cache=settings.cache, classnames=tmp_path / "names.json")
    assert load(tmp_path / "list.csv", own).classnames == ("carp", "dog")
