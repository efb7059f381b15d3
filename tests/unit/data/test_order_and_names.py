"""Which class has which number and which name: numbered folders, lists of names, forms of Unicode."""

import json
import unicodedata
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from dear.data.check import check_dataset
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError
from tests.helpers.errors import refuses
from tests.unit.data.photos import class_folders, load, paths, picture, refused

NAMES = ("bee", "ant", "cat", "dog", "elk", "fox", "gnu", "hen", "ibis", "jay", "koi", "lynx")
"""In the order of their numbers, 0 to 11, and not of the alphabet."""


@pytest.fixture
def numbered(tmp_path: Path) -> Path:
    """Folders 0 to 11, whose images say their class: of folder 10, image 3 is 10/3.png."""
    return class_folders(tmp_path / "d", {str(number): 4 for number in range(12)})


def named(path: Path, settings: DataSettings, names: Any) -> dict[str, str]:
    """The name of each key of a data set, by a JSON file of names."""
    (path.parent / "names.json").write_text(json.dumps(names))
    data = load(path, replace(settings, classnames=path.parent / "names.json"))
    for image, label in zip(data.train.paths, data.train.labels, strict=True):  # type: ignore[attr-defined]
        assert image.startswith(f"{data.keys[label]}/") or "/" not in image
    return dict(zip(data.keys, data.classnames, strict=True))


def test_numbered_folders_are_in_the_order_of_their_numbers(numbered: Path, settings: DataSettings) -> None:
    """The names went to 0, 1, 10, 11, 2: 10 of 12 were wrong, and a check said ok."""
    wanted = {str(number): name for number, name in enumerate(NAMES)}
    assert named(numbered, settings, [*NAMES]) == wanted
    assert named(numbered, settings, wanted) == wanted
    rows = "".join(f"{number}/{image}.png,{number}\n" for number in range(12) for image in range(4))
    (numbered / "list.csv").write_text(f"path,label\n{rows}")
    assert named(numbered / "list.csv", settings, [*NAMES]) == wanted
    for part in ("train", "test"):
        class_folders(numbered.parent / "parts" / part, {str(number): 2 for number in range(12)})
    assert load(numbered.parent / "parts", settings).keys == tuple(map(str, range(12)))
    for angle in ("0", "15", "100"):
        class_folders(numbered.parent / "domains" / angle, {"ant": 2, "bee": 2})
    assert (
        "0 (4 images), 15 (4 images), 100 (4 images)" in load(numbered.parent / "domains", settings).notes[0]
    )


@pytest.mark.parametrize(
    ("folders", "order"),
    [
        (("1", "02", "010"), ("1", "02", "010")),
        (("-10", "-9", "0.5", "10"), ("-10", "-9", "0.5", "10")),
        (("2", "10", "ten"), ("10", "2", "ten")),
    ],
)
def test_the_order_of_folders(
    folders: tuple[str, ...], order: tuple[str, ...], tmp_path: Path, settings: DataSettings
) -> None:
    assert load(class_folders(tmp_path / "d", dict.fromkeys(folders, 2)), settings).keys == order


def test_a_list_beside_other_folders_matches_by_name(tmp_path: Path, settings: DataSettings) -> None:
    folder = class_folders(tmp_path / "d", {"red_ant": 2, "Bee": 2})
    assert named(folder, settings, ["red ant", "bee"]) == {"Bee": "bee", "red_ant": "red ant"}
    refuses(DataError, "'Bee'", named, folder, settings, ["red ant", "wasp"])


@pytest.mark.parametrize(
    ("labels", "keys", "note"),
    [
        (["1", "2", "10"], ("1", "2", "10"), "its 3 labels are numbers from 1 to 10, with gaps"),
        (["1", "2", "3"], ("1", "2", "3"), "its 3 labels are numbers from 1 to 3: they are taken in their"),
        (["00", "01", "02"], ("00", "01", "02"), None),
        (["0", "1", "1.0"], ("0", "1"), None),
        (["0", "7000000000", "3"], ("0", "3", "7000000000"), "from 0 to 7000000000, with gaps"),
    ],
)
def test_labels_that_do_not_run_from_0(
    labels: list[str], keys: tuple[str, ...], note: str | None, tmp_path: Path, settings: DataSettings
) -> None:
    rows = [f"{label}-{n}.png,{label}" for label in labels for n in range(2)]
    for row in rows:
        picture(tmp_path / row.partition(",")[0])
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]))
    data = load(tmp_path / "list.csv", settings)
    assert data.keys == keys
    assert [note for note in data.notes if "labels" in note and "numbers from" in note] == (
        [] if note is None else [told for told in data.notes if note in told]
    )
    for image, label in zip(data.train.paths, data.train.labels, strict=True):  # type: ignore[attr-defined]
        assert float(image.partition("-")[0]) == float(data.keys[label])


COLORS = ("black", "blue", "green", "red")


def table(folder: Path, name: str, labels: list[str], header: str = "path,label", more: str = "") -> Path:
    """A table of an image for each label, which says it: black-1.png."""
    lines = [f"{name}-{number}.png,{label}{more}" for number, label in enumerate(labels)]
    for number in range(len(labels)):
        picture(folder / f"{name}-{number}.png", number)
    (folder / f"{name}.csv").write_text("\n".join([header, *lines]))
    return folder / f"{name}.csv"


def classes_of(sources: list[Path], settings: DataSettings, names: Any) -> tuple[dict[str, str], list[str]]:
    """The name of each image that is trained on, and the keys and names of the classes."""
    (sources[0].parent / "names.json").write_text(json.dumps(names))
    chosen = replace(settings, test_share=0.0, classnames=sources[0].parent / "names.json" if names else None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = load_dataset(sources, chosen)
    named = [data.classnames[label] for label in data.train.labels]
    pairs = [f"{key}={name}" for key, name in zip(data.keys, data.classnames, strict=True)]
    return dict(zip(data.train.paths, named, strict=True)), pairs  # type: ignore[attr-defined]


def test_a_list_of_names_is_matched_once_to_the_labels_of_all_sources(
    tmp_path: Path, settings: DataSettings
) -> None:
    """Labels 1 to 4, and 1 to 3 in the second table: those of 2 and 3 were given the names of 3 and 4."""
    first = table(tmp_path, "first", ["1", "2", "3", "4"])
    second = table(tmp_path, "second", ["3", "01", "2"])
    found, pairs = classes_of([first, second], settings, COLORS)
    assert pairs == ["1=black", "2=blue", "3=green", "4=red"]
    assert [found[f"second-{number}.png"] for number in range(3)] == ["green", "black", "blue"]


def test_a_list_that_fits_numbers_in_two_ways_is_not_used(tmp_path: Path, settings: DataSettings) -> None:
    """1 to 3 of four names may count from 0 or from 1; 0 or 4 among them decides it."""
    part = table(tmp_path, "part", ["1", "2", "3"])
    refuses(DataError, "1 to 3", classes_of, [part], settings, COLORS)
    faults = check_dataset(str(part), replace(settings, classnames=tmp_path / "names.json")).faults
    assert "count from 0 or from 1" in faults[0]
    for name, labels, wanted in (
        ("low", ["0", "2"], ["0=black", "2=green"]),
        ("high", ["2", "4"], ["2=blue", "4=red"]),
        ("gaps", ["10", "20", "30", "40"], ["10=black", "20=blue", "30=green", "40=red"]),
    ):
        assert classes_of([table(tmp_path, name, labels)], settings, COLORS)[1] == wanted


def test_wordnet_ids_of_all_sources_are_named_together(tmp_path: Path, settings: DataSettings) -> None:
    """The second alone would be sunglasses, a third class."""
    both = table(tmp_path, "both", ["n04355933", "n04356056"])
    found, pairs = classes_of([both, table(tmp_path, "one", ["n04355933"])], settings, None)
    assert len(pairs) == 2
    assert found["one-0.png"] == "sunglasses (n04355933)"


def test_numbers_of_one_value_are_one_class(tmp_path: Path, settings: DataSettings) -> None:
    """01 and 1, which a spreadsheet makes of it: refused in one source, as A and a are; the same in two."""
    message = "the classes '01' and '1' have the same name"
    refused(class_folders(tmp_path / "d", {"01": 2, "1": 2}), settings, message)
    refused(table(tmp_path, "both", ["01", "1"]), settings, message)
    files = [str(tmp_path / f"both-{n}.png") for n in range(2)]
    refuses(DataError, message, load_dataset, (files, ["01", "1"]), settings)
    found, pairs = classes_of([class_folders(tmp_path / "e", {"01": 1, "2": 1}), table(tmp_path, "f", ["1"])],
                              settings, None)  # fmt: skip
    assert (found["f-0.png"], pairs) == ("01", ["01=01", "2=2"])


def test_names_in_camel_case_are_words(tmp_path: Path, settings: DataSettings) -> None:
    folders = dict.fromkeys(("AnnualCrop", "McDonald", "iPhone", "Leaf_BlackSpot", "Sea Lake", "SeaLake"), 2)
    del folders["Sea Lake"]
    data = load(class_folders(tmp_path / "d", folders), settings)
    assert data.classnames == ("Annual Crop", "Leaf Black Spot", "McDonald", "Sea Lake", "iPhone")
    assert data.keys == ("AnnualCrop", "Leaf_BlackSpot", "McDonald", "SeaLake", "iPhone")
    assert any("AnnualCrop is Annual Crop, Leaf_BlackSpot is Leaf_Black Spot" in note for note in data.notes)
    apart = load(class_folders(tmp_path / "e", {"Sea Lake": 2, "SeaLake": 2}), settings)
    assert apart.classnames == ("Sea Lake", "SeaLake")


FORMS: tuple[Literal["NFC", "NFD"], ...] = ("NFC", "NFD")


def test_the_split_does_not_depend_on_the_form_of_unicode(tmp_path: Path, settings: DataSettings) -> None:
    """macOS and Linux had 4 of 9 test images in common."""
    data = {}
    for form in FORMS:
        for name in ("Möwe", "Äsche", "zebra"):
            for number in range(9):
                picture(tmp_path / form / "d" / unicodedata.normalize(form, f"{name}/é{number}.png"), number)
        data[form] = load(tmp_path / form / "d", settings)
    composed = [
        {part: {unicodedata.normalize("NFC", path) for path in found} for part, found in paths(each).items()}
        for each in data.values()
    ]
    assert composed[0] == composed[1]
    assert data["NFC"].identity == data["NFD"].identity
    assert data["NFC"].keys == data["NFD"].keys == ("Möwe", "zebra", "Äsche")
    assert (data["NFC"].train.labels == data["NFD"].train.labels).all()


@pytest.mark.parametrize("within", ["dataset", "a/b/dataset"])
def test_a_folder_around_the_data_set(within: str, tmp_path: Path, settings: DataSettings) -> None:
    """It was one class, dataset, with an accuracy of 100%."""
    for part in ("train", "test"):
        class_folders(tmp_path / "x" / within / part, {"ant": 2, "bee": 3})
    (tmp_path / "x" / "README.txt").write_text("x")
    data = load(tmp_path / "x", settings)
    assert (data.name, data.classnames, len(data.train), len(data.test)) == ("x", ("ant", "bee"), 5, 5)
    assert data.notes[0] == f"all of it is in {within}/"
    as_class = load(tmp_path / "x", replace(settings, layout="classes"))
    assert len(as_class.classnames) == 1


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl"])
def test_the_metadata_of_hugging_face(name: str, tmp_path: Path, settings: DataSettings) -> None:
    """Images and their table in one folder: https://huggingface.co/docs/datasets/image_dataset."""
    for number in range(4):
        picture(tmp_path / "d" / f"{number}.png", number)
    rows = [(f"{number}.png", ("ant", "bee")[number % 2]) for number in range(4)]
    text = "file_name,label\n" + "".join(f"{path},{label}\n" for path, label in rows)
    if name.endswith("jsonl"):
        text = "".join(json.dumps({"file_name": path, "label": label}) + "\n" for path, label in rows)
    (tmp_path / "d" / name).write_text(text)
    for path in (tmp_path / "d" / name, tmp_path / "d"):
        data = load(path, replace(settings, test_share=0.0))
        assert (data.classnames, data.train.labels.tolist()) == (("ant", "bee"), [0, 1, 0, 1])
    assert data.name == "d"


def test_wordnet_ids_take_the_names_of_imagenet(tmp_path: Path, settings: DataSettings) -> None:
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
