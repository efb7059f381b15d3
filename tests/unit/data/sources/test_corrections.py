"""Corrections beside data: they are found by content, in every form of data, and merged into one table."""

import csv
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dear.adapters.labels import apply_labels
from dear.cli.main import main
from dear.data.check import check_dataset
from dear.data.dataset import Dataset
from dear.data.images.forms import file_hash
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.data.sources.corrections import REMOVE, Correction, merge_corrections, read_corrections
from dear.errors import DataError, OutputError
from dear.writing import locked
from tests.helpers.data import pack
from tests.helpers.errors import refuses
from tests.unit.data.photos import class_folders, load, paths, picture, refused

HEAD = "path,label,suggested,probability,other,reason,predicted,checked\n"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three classes of six images, all of other contents."""
    return class_folders(tmp_path / "photos", {"ant": 6, "bee": 6, "cat": 6})


def labels(data: Dataset) -> dict[str, str]:
    """The class of each image by its path."""
    parts = (data.train, data.test)
    return {
        path: data.classnames[label]
        for part in parts
        for path, label in zip(part.paths, part.labels.tolist(), strict=True)  # type: ignore[attr-defined]
    }


def apply(photos: Path, rows: str, settings: DataSettings, head: str = HEAD) -> tuple[str, ...]:
    """Apply a reviewed table; the notes."""
    (photos.parent / "review.csv").write_text(head + rows)
    return apply_labels(photos.parent / "review.csv", photos, dataset=settings).notes


@pytest.mark.parametrize("seed", range(3))
def test_corrected_data_is_what_corrected_folders_are(
    seed: int, photos: Path, settings: DataSettings
) -> None:
    """Each image is kept, corrected or left out at random; then those move to other folders and names."""
    draw, wanted, answered, rows = random.Random(seed), dict[bytes, str](), set[bytes](), ""
    for file in sorted(photos.rglob("*.png")):
        name, content = file.parent.name, file_hash(file)
        answer = draw.choice(["", "keep", "ant", "bee", "dog", "none", "none of these", "Remove"])
        rows += f"photos/{name}/{file.name},{answer or name},,,,,{name},\n"
        if answer in ("", "keep", "ant", "bee", "dog"):
            wanted[content] = name if answer in ("", "keep") else answer
        if answer not in ("", name):  # else nobody has changed or confirmed it
            answered.add(content)
    apply(photos, rows, settings)
    for _ in range(2):
        data = load(photos, settings)
        assert {file_hash(photos / path): name for path, name in labels(data).items()} == wanted
        assert data.classnames == tuple(sorted({*wanted.values()}))
        for number, file in enumerate(sorted(photos.rglob("*.png"))):
            if file_hash(file) in answered:
                file.rename(photos / draw.choice(["ant", "bee", "cat"]) / f"moved-{seed}-{number}.png")


@pytest.mark.parametrize("form", ["folder", "table", "zip", "zip inside", "splits", "wrapper"])
def test_every_form_of_data(form: str, photos: Path, tmp_path: Path, settings: DataSettings) -> None:
    wrong, source, shown = photos / "ant/0.png", photos, "ant/0.png"
    if form == "table":
        files = [file.relative_to(photos).as_posix() for file in sorted(photos.rglob("*.png"))]
        source = photos / "list.csv"
        source.write_text("path,label\n" + "".join(f"{file},{file[:3]}\n" for file in files))
    elif form.startswith("zip"):
        if form == "zip inside":
            apply(photos, "photos/ant/0.png,bee,bee,0.9,,,ant,\n", settings)
        (tmp_path / "elsewhere").mkdir()
        source = pack(tmp_path / "elsewhere" / "photos.zip", photos)
    elif form == "splits":
        for part in ("train", "test"):
            shutil.copytree(photos, tmp_path / "split" / part)
        source, shown = tmp_path / "split", "train/ant/0.png"
        for file in (source / "test").rglob("*.png"):
            picture(file, 100 + int(file.stem), (9, 9))
        wrong = source / shown
    elif form == "wrapper":
        source = tmp_path / "outer"
        shutil.copytree(photos, source / "inner")
        wrong = source / "inner/ant/0.png"
    if form == "zip":
        wrong = load(source, settings).train.folder / "ant/0.png"  # type: ignore[attr-defined]
    if form != "zip inside":
        (tmp_path / "t.csv").write_text(f"{HEAD}{wrong},bee,bee,0.9,,,ant,\n")
        apply_labels(tmp_path / "t.csv", source, dataset=settings)
        assert (source if source.is_dir() else source.parent).joinpath("corrections.csv").is_file()
    data = load(source, settings)
    assert labels(data)[shown] == "bee"
    assert sum(name == "ant" for name in labels(data).values()) == (11 if form == "splits" else 5)
    assert any("corrections.csv: 1 of 1 row used: 1 label changed" in note for note in data.notes)
    found = check_dataset(str(source), settings)
    assert any("1 label changed" in note for note in found.notes)
    assert sum(found.counts.values()) == (36 if form == "splits" else 18)


def test_images_that_only_corrections_label(tmp_path: Path, settings: DataSettings) -> None:
    """A folder of images without folders of classes: suggestions that were filled in say what they are."""
    for number in range(6):
        picture(tmp_path / "more" / f"{number}.png", number)
    refused(tmp_path / "more", settings, "more has no folders of classes")
    rows = "".join(f"more/{number}.png,{label},x,0.1,,\n" for number, label in enumerate("aabb"))
    (tmp_path / "next.csv").write_text("file,label,suggested,margin,none_of_these,new_class\n" + rows)
    done = apply_labels(tmp_path / "next.csv", tmp_path / "more", dataset=settings)
    assert (done.answers, done.unanswered) == (4, 0)
    (tmp_path / "more/0.png").rename(tmp_path / "more/9.png")
    assert labels(load(tmp_path / "more", settings)) == {
        "9.png": "a",
        "1.png": "a",
        "2.png": "b",
        "3.png": "b",
    }


def test_a_name_that_may_be_mistyped_is_asked_for(photos: Path, settings: DataSettings) -> None:
    """Before it becomes a class; nothing is written then. A name unlike all classes is a new one."""
    class_folders(photos, {"ewer": 2})
    rows = "photos/ant/0.png,{},bee,0.9,,,ant,\nphotos/ant/1.png,owl,bee,0.9,,,ant,\n"
    given = "line 2: 'ewr'", "'ewer'", "--new-classes ewr"
    refuses(DataError, given, apply, photos, rows.format("ewr"), settings)
    assert not (photos / "corrections.csv").exists()
    apply_labels(photos.parent / "review.csv", photos, new_classes=["Ewr"], dataset=settings)
    assert {row.label for row in read_corrections(photos / "corrections.csv")} == {"ewr", "owl"}
    apply(photos, rows.format("ewr"), settings)  # it is a class now
    # What the table itself has suggested is a class of the classifier.
    apply(photos, "photos/ant/2.png,bees,bees,0.9,,,ant,\n", settings)
    (photos.parent / "t.csv").write_text("path,label\nphotos/ant/2.png,cats\n")
    command = ["labels", "apply", str(photos.parent / "t.csv"), str(photos)]
    assert (main(command), main([*command, "--new-classes", "cats"])) == (2, 0)


def test_copies(photos: Path, settings: DataSettings) -> None:
    """A class holds for all copies; what is left out is that file, and its copies only once it is gone."""
    shutil.copy(photos / "ant/0.png", photos / "bee/copy.png")
    refuses(DataError, "several labels", lambda: load(photos, settings).require_single_labels())
    rows = "photos/bee/copy.png,{},ant,,,,bee,\nphotos/ant/0.png,{},,,,,ant,\n"
    refuses(DataError, ("line 3", "line 2"), apply, photos, rows.format("cat", "bee"), settings)
    assert not (photos / "corrections.csv").exists()
    apply(photos, rows.format("none", "cat"), settings)
    found = labels(load(photos, settings).require_single_labels())
    assert ("bee/copy.png" in found, found["ant/0.png"]) == (False, "cat")
    apply(photos, rows.format("none", "none"), settings)
    assert {"bee/copy.png", "ant/0.png"}.isdisjoint(labels(load(photos, settings)))
    (photos / "corrections.csv").unlink()
    apply(photos, "photos/bee/copy.png,none,,,,,bee,\n", settings)
    found = labels(load(photos, settings).require_single_labels())
    assert ("bee/copy.png" in found, found["ant/0.png"]) == (False, "ant")
    apply(photos, "photos/bee/copy.png,ant,,,,,bee,\n", settings)  # somebody thinks again
    found = labels(load(photos, settings).require_single_labels())
    assert (found["bee/copy.png"], found["ant/0.png"]) == ("ant", "ant")
    merge_corrections(
        photos / "corrections.csv",
        [Correction("gone.png", REMOVE, file_hash(photos / "cat/1.png"))],
        settings,
    )
    assert "cat/1.png" not in labels(load(photos, settings))


def test_a_class_that_loses_its_images_is_none(photos: Path, settings: DataSettings) -> None:
    (photos / "named only").mkdir()
    notes = apply(photos, "".join(f"photos/cat/{n}.png,bee,,,,,cat,\n" for n in range(6)), settings)
    data = load(photos, settings)
    assert data.classnames == ("ant", "bee", "named only")
    assert [note for note in notes if "'cat'" in note] == [
        "corrections.csv leaves 'cat' no image: it is no class"
    ]
    assert {*labels(data).values()} == {"ant", "bee"}


def test_a_class_called_as_an_answer_is_that_class(photos: Path, settings: DataSettings) -> None:
    (photos / "cat").rename(photos / "none")
    apply(photos, "photos/ant/0.png,none,,,,,ant,\nphotos/ant/1.png,remove,,,,,ant,\n", settings)
    found = labels(load(photos, settings))
    assert (found["ant/0.png"], "ant/1.png" in found) == ("none", False)
    (photos / "none").rename(photos / "remove")
    refuses(DataError, "rename the class", apply, photos, "photos/ant/0.png,none,,,,,ant,\n", settings)


def test_names_of_classes_become_folders(tmp_path: Path, settings: DataSettings) -> None:
    photos = class_folders(tmp_path / "photos", {"0": 3, "1": 3})
    (tmp_path / "names.json").write_text('{"0": "1", "1": "red"}')
    rows = "photos/0/0.png,red,,,,,1,\n"
    refuses(DataError, ("'red'", "--dataset.classnames"), apply, photos, rows, settings)
    apply(photos, rows + "photos/1/0.png,1,,,,,red,\n", replace(settings, classnames=tmp_path / "names.json"))
    found = labels(load(photos, settings))  # the folders, whose names are not given now
    assert (found["0/0.png"], found["1/0.png"]) == ("1", "0")


def test_a_mistyped_class_is_told(photos: Path, settings: DataSettings) -> None:
    """In corrections that somebody has edited."""
    (photos / "cat").rename(photos / "dalmatian")
    (photos / "corrections.csv").write_text("path,label\nant/0.png,dalmatain\n")
    notes = load(photos, settings).notes
    assert any("'dalmatain': is 'dalmatian' meant?" in note for note in notes)
    (photos / "ant/0.png").write_bytes(b"no image")
    (photos / "corrections.csv").write_text("path,label\nant/0.png,owl\nant/1.png,'=bee\n")
    skipping = replace(settings, broken="skip")
    assert load(photos, skipping).classnames == (
        "=bee",
        "ant",
        "bee",
        "dalmatian",
    )  # no owl: it cannot be read


def test_what_is_merged(photos: Path, settings: DataSettings) -> None:
    """The later answer counts, what others say stays, and faulty tables change nothing."""
    apply(photos, "photos/ant/0.png,bee,,,,,ant,\nphotos/ant/1.png,ant,,,,,ant,yes\n", settings)
    apply(photos, "photos/ant/0.png,cat,,,,,ant,\nphotos/ant/2.png,ant,,,,,ant,\n", settings)
    with (photos / "corrections.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [(row["path"], row["label"], bytes.fromhex(row["hash"])) for row in rows] == [
        ("ant/0.png", "cat", file_hash(photos / "ant/0.png")),
        ("ant/1.png", "ant", file_hash(photos / "ant/1.png")),
    ]
    before = (photos / "corrections.csv").read_bytes()
    for faulty, words in (
        ("photos/ant/0.png,ant,,,,,ant,\n", "nobody answered its rows"),
        ("photos/elsewhere.png,bee,,,,,ant,\n", "none of 1 images lies in"),
    ):
        refuses(DataError, words, apply, photos, faulty, settings)
    table, cache = photos / "corrections.csv", settings.cache_folder()
    with locked(table, cache), pytest.raises(OutputError, match="another process"), locked(table, cache):
        pass
    with locked(table, photos / "ant/0.png"):  # no folder: a cache is not needed
        assert (photos / "corrections.csv").read_bytes() == before
    assert [row.label for row in read_corrections(photos / "corrections.csv")] == ["cat", "ant"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("path,label,hash\nant/0.png,,\n", "line 2 needs a path and a label"),
        ("path,label,hash\nant/0.png,bee,xyz\n", "line 2: 'xyz' is no hash"),
        ("path,hash\nant/0.png,\n", "has no column 'label'"),
    ],
)
def test_a_faulty_table_is_refused(text: str, words: str, photos: Path, settings: DataSettings) -> None:
    (photos / "corrections.csv").write_text(text)
    refused(photos, settings, words)
    refuses(DataError, words, check_dataset, str(photos), settings)


def test_tables_that_dear_wrote_are_not_data(photos: Path, settings: DataSettings) -> None:
    """Nobody learns from predictions that nobody looked at; what was corrected is applied."""
    for head, row in (
        ("file,class,probability", "ant/0.png,ant,0.9"),
        ("file,class,predicted,checked", "ant/0.png,bee,ant,"),
        ("file,label,suggested", "ant/0.png,bee,ant"),
    ):
        (photos / "list.csv").write_text(f"{head}\n{row}\n")
        refused(photos / "list.csv", settings, r"dear labels apply .*list\.csv FOLDER")
        assert load(photos, settings).classnames == ("ant", "bee", "cat")
    (photos / "corrections.csv").write_text("path,label\nant/0.png,bee\n")
    refuses(DataError, "corrections.csv", load_dataset, [photos, photos / "corrections.csv"], settings)
    assert paths(load(photos, settings))
