"""Tables of images: their columns, splits and separators, and what is refused."""

import json
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from dear.data.check import check_dataset
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import SettingsError
from tests.helpers.data import pack
from tests.helpers.errors import refuses
from tests.unit.data.photos import class_folders, load, paths, picture, refused


def test_an_image_without_a_label_is_told_by_its_line(tmp_path: Path, settings: DataSettings) -> None:
    class_folders(tmp_path, {"a": 2})
    for label in ("null", '""', '"  "'):
        text = f'{{"path": "a/0.png", "label": "ant"}}\n{{"path": "a/1.png", "label": {label}}}\n'
        (tmp_path / "list.jsonl").write_text(text)
        refused(tmp_path / "list.jsonl", settings, r"line 2: a/1\.png has no label")


class TestTable:
    ROWS = (
        ("a/0.png", "ant", "train"),
        ("a/1.png", "ant", "test"),
        ("b/0.png", "bee", "train"),
        ("b/1.png", "bee", "test"),
    )

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return class_folders(tmp_path / "t", {"a": 2, "b": 2})

    def write(self, folder: Path, text: str, name: str = "list.csv") -> Path:
        (folder / name).write_text(text)
        return folder / name

    @pytest.mark.parametrize("form", ["csv", "tsv", "jsonl"])
    def test_forms(self, folder: Path, settings: DataSettings, form: str) -> None:
        sign = "\t" if form == "tsv" else ","
        names = ("path", "label", "split")
        text = "\n".join(sign.join(row) for row in (names, *self.ROWS))
        if form == "jsonl":
            text = "\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in self.ROWS)
        data = load(self.write(folder, text, f"list.{form}"), settings)
        assert (data.name, data.classnames) == ("list", ("ant", "bee"))
        assert paths(data) == {"train": {"a/0.png", "b/0.png"}, "test": {"a/1.png", "b/1.png"}}
        assert data.test.labels.tolist() == [0, 1]

    @pytest.mark.parametrize(
        "text",
        [
            "file,class,checked\na/0.png,ant,yes\nb/0.png,bee,x\n",
            "class,file,path,label\nno,no,a/0.png,ant\nno,no,b/0.png,bee\n",  # path and label first
            "path;label\na/0.png;ant\nb/0.png;bee\n",  # of a spreadsheet in Germany
            '{"file": "a/0.png", "class": "ant"}\n{"image": "b/0.png", "label": "bee"}\n',
        ],
    )
    def test_columns_as_predictions_and_data_frames_have_them(
        self, folder: Path, settings: DataSettings, text: str
    ) -> None:
        file = self.write(folder, text, "l.jsonl" if text.startswith("{") else "l.csv")
        data = load(file, replace(settings, test_share=0.0))
        assert dict(zip(data.train.paths, data.train.labels.tolist(), strict=True)) == {  # type: ignore[attr-defined]
            "a/0.png": 0,
            "b/0.png": 1,
        }
        assert data.classnames == ("ant", "bee")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "no column 'path'"),
            ("path,label,label\na/0.png,ant,bee\n", "more than one column 'label'"),
            ("path,label\n", "lists no images"),
            ("filename,ant,bee\na/0.png,1,0\nb/0.png,1,1\n", "line 3: the label '.ant, bee.' looks like"),
            ("filename,ant,bee\na/0.png,0,0\nb/0.png,1,1\n", "but a column for each of ant, bee: an ima"),
            ("path,label\na/0.png,ant\na/1.png,x\nb/0.png,ant|x\n", "line 4: the label 'ant|x' looks like"),
            ('path,label\na/0.png,"[""x"", ""y""]"\n', "line 2: the label .* looks like several"),
            ("path,label\na/0.png,\n", "line 2: a/0.png has no label"),
            ("path,label\na/0.png,0\na/1.png,-1\n", "line 3: label -1 is out of range; labels count"),
            ("path,label\na/0.png,ant\na/0.png,bee\n", "line 3: the image a/0.png is already in .*line 2"),
            ("path,label,split\na/0.png,ant,val\n", "no image with split train, but some with split val"),
            ('path,label\na/0.png,"ant\na/1.png,ant\n', "line 2: .* a quotation mark"),
        ],
    )  # fmt: skip
    def test_refusals(self, folder: Path, settings: DataSettings, text: str, message: str) -> None:
        refused(self.write(folder, text), settings, message)


@pytest.mark.parametrize("header", ["filename, Ant, bee ", "bee,filename,Ant"])
def test_a_column_for_each_class(header: str, tmp_path: Path, settings: DataSettings) -> None:
    """Roboflow's _classes.csv in the folder of each split; its columns may come in another order."""
    for part, count in {"train": 3, "valid": 1, "test": 2}.items():
        rows = [header]
        for number in range(2 * count):
            picture(tmp_path / "d" / part / f"{part}.{number}.png", number)
            cells = {"Ant": str(1 - number % 2), "bee": str(number % 2), "filename": f"{part}.{number}.png"}
            rows.append(", ".join(cells[name.strip()] for name in header.split(",")))
        (tmp_path / "d" / part / "_classes.csv").write_text("\n".join(rows))
    data = load(tmp_path / "d", settings)
    assert data.classnames == ("Ant", "bee")
    assert data.val is not None
    assert [len(part) for part in (data.train, data.val, data.test)] == [6, 2, 4]
    for part in (data.train, data.val, data.test):
        for path, label in zip(part.paths, part.labels.tolist(), strict=True):  # type: ignore[attr-defined]
            assert int(path.split(".")[1]) % 2 == label
    lone = load(tmp_path / "d" / "valid", settings)
    assert sorted(lone.classnames) == ["Ant", "bee"]
    told = check_dataset(str(tmp_path / "d" / "valid" / "_classes.csv"), settings).notes
    assert any(note.endswith("its classes, by the one that has a 1: Ant, bee") for note in told)


@pytest.fixture
def two(tmp_path: Path) -> Path:
    for name in ("a/0.png", "b/0.png"):
        picture(tmp_path / "d" / name)
    return tmp_path / "d"


def labels(two: Path, text: str, settings: DataSettings, name: str = "list.csv") -> dict[str, str]:
    """The class of each image of a table, all of which are trained on."""
    (two / name).write_text(text, encoding="utf-8")
    data = load(two / name, replace(settings, test_share=0.0))
    named = [data.classnames[label] for label in data.train.labels]
    return dict(zip(data.train.paths, named, strict=True))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "text",
    [
        "Path,LABEL\na/0.png,ant\nb/0.png,bee\n",
        "path, label\na/0.png, ant\nb/0.png, bee\n",
        "path ,label\na/0.png ,ant\nb/0.png ,bee\n",
        "path;label\r\na/0.png;ant\r\nb/0.png;bee\r\n",
        "\ufeffpath;label\na/0.png;ant\nb/0.png;bee\n;\n;\n",
        "path;label;note, or remark\na/0.png;ant;x, y\nb/0.png;bee;\n",
        "sep=;\npath;label\na/0.png;ant\nb/0.png;bee\n",  # as Excel writes and reads
        '\ufeff"sep=;"\r\npath;label;"x,y,z"\r\na/0.png;ant;\r\nb/0.png;bee;\r\n',
        "SEP=\t\npath\tlabel\na/0.png\tant\nb/0.png\tbee\n",
        "sep=|\npath|label\na/0.png|ant\nb/0.png|bee\n",
        "path\tlabel\na/0.png\tant\nb/0.png\tbee\n",
        "path,label\na\\0.png,ant\nb\\0.png,bee\n",
        "path,label\n.\\a\\0.png,ant\nb\\0.png ,bee\n",
    ],
)
def test_columns_and_paths(two: Path, settings: DataSettings, text: str) -> None:
    found = {path.removeprefix("./"): name for path, name in labels(two, text, settings).items()}
    assert found == {"a/0.png": "ant", "b/0.png": "bee"}


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (("ant", "ant\u200b"), "'ant' in 2 ways"),
        (("sea lion", "sea\u00a0 lion"), "'sea lion' in 2 ways"),
        (("caf\u00e9", "cafe\u0301"), "'caf\u00e9' in 2 ways"),
        (("ant", " ant "), ""),  # which every reader of tables drops
        (("ant", "Ant-2"), ""),
    ],
)
def test_labels_that_look_the_same_are_told(
    two: Path, settings: DataSettings, labels: tuple[str, str], told: str
) -> None:
    rows = [f"a/{number}.png,{label}" for number, label in enumerate(labels)]
    for number in range(2):
        picture(two / "a" / f"{number}.png", 50 * number)
    (two / "list.csv").write_text("\n".join(["path,label", *rows, "b/0.png,bee"]), encoding="utf-8")
    data = load(two / "list.csv", replace(settings, test_share=0.0))
    pairs = [(two / "a/0.png", labels[0]), (two / "a/1.png", labels[1]), (two / "b/0.png", "bee")]
    paths, names = zip(*pairs, strict=True)
    of_objects = load(([*paths], [*names]), replace(settings, test_share=0.0))
    for found in (data, of_objects):
        notes = [note for note in found.notes if "look the same" in note]
        assert [told in note for note in notes] == ([True] if told else [])
        assert len(found.classnames) == (2 if told or labels[0] == labels[1].strip() else 3)


def test_an_apostrophe_before_what_looks_like_a_formula(two: Path, settings: DataSettings) -> None:
    """`dear predict` writes it, for spreadsheets."""
    assert labels(two, "file,class\n./a/0.png,'-ant\nb/0.png,'t Hooft\n", settings) == {
        "./a/0.png": "-ant",
        "b/0.png": "'t Hooft",
    }


def test_ids_and_the_uploads_of_label_studio(two: Path, settings: DataSettings) -> None:
    """Its export calls b/c.png, which was imported as c.png, /data/upload/3/0a1b2c3d-c.png."""
    for level, name in enumerate(("c.png", "b/00003.png", "images/0a1b2c3d-e.png"), start=1):
        picture(two / name, level)
    text = "id,image,choice\n1,a/0,ant\n2,b/00003,bee\n3,/data/upload/3/0a1b2c3d-c.png,ant\n"
    found = labels(two, f"{text}4,/data/upload/3/0a1b2c3d-e.png,bee\n", settings)
    wanted = {"a/0.png": "ant", "b/00003.png": "bee", "c.png": "ant", "images/0a1b2c3d-e.png": "bee"}
    assert found == wanted
    picture(two / "a" / "0.jpg", 4)  # which is meant?
    refused(two / "list.csv", settings, "is missing, the first a/0")


def test_a_comma_in_the_name_of_a_class(two: Path, settings: DataSettings) -> None:
    text = 'path,label\na/0.png,"salt, pepper"\nb/0.png,salt\n'
    assert {*labels(two, text, settings).values()} == {"salt, pepper", "salt"}


def test_a_table_of_windows(two: Path, settings: DataSettings) -> None:
    (two / "list.csv").write_bytes("path,label\na/0.png,M\u00f6we\nb/0.png,bee\n".encode("cp1252"))
    refused(two / "list.csv", settings, "not in UTF-8")


class TestBesideFolders:
    """By the path of its folder, by its own and in a zip a table is one data set."""

    LABELS = ("black", "blue", "green", "red")

    def grow(self, root: Path) -> str:
        """Seven images of each label, in two folders that say nothing of it; returns the table's rows."""
        rows = []
        for label, number in product(self.LABELS, range(7)):
            path = f"part_{number % 2}/{label[:3]}{number}.png"
            picture(root / path, 10 * self.LABELS.index(label) + number)
            rows.append(f"{path},{label}")
        return "\n".join(rows)

    @pytest.mark.parametrize("columns", ["path,label", "file_name,labels"])
    def test_it_says_what_the_classes_are(self, columns: str, tmp_path: Path, settings: DataSettings) -> None:
        rows = self.grow(folder := tmp_path / "d")
        (folder / "labels.csv").write_text(f"{columns}\n{rows}\n")
        (folder / "predictions.csv").write_text("file,class,probability\npart_0/bla0.png,x,0.5\n")
        (folder / "other.csv").write_text("path,label\nelsewhere/0.png,x\n")
        found = [
            load(source, settings)
            for source in (folder, folder / "labels.csv", pack(tmp_path / "d.zip", folder))
        ]
        for data in found:
            assert (data.classnames, data.identity) == (self.LABELS, found[0].identity)
            assert len(data.train) + len(data.test) == 28
        for data in found[::2]:
            assert any("labels.csv says what its classes are, not its folders" in note for note in data.notes)
            assert "left out: other.csv, predictions.csv" in data.notes
        by_folder = load(folder, replace(settings, layout="classes"))
        assert by_folder.classnames == ("part 0", "part 1")
        assert "left out: labels.csv, other.csv, predictions.csv" in by_folder.notes

    @pytest.mark.parametrize("packed", [False, True])
    @pytest.mark.parametrize(
        "tables",
        [
            {"train/metadata.csv": "train", "test/metadata.csv": "test"},  # as the library datasets has it
            {"train/metadata.jsonl": "train", "validation/metadata.jsonl": "test"},
            {"train.csv": "train", "test.csv": "test"},
            {"metadata.csv": "both"},
        ],
    )
    def test_of_splits(
        self, tables: dict[str, str], packed: bool, tmp_path: Path, settings: DataSettings
    ) -> None:
        folder, expected = tmp_path / "d", dict[str, set[str]](train=set(), test=set())
        parts = ("train", "validation" if "validation/metadata.jsonl" in tables else "test")
        lines = dict[str, list[str]]()
        for part, (label, number) in product(parts, product(("ant", "bee"), range(3))):
            path = f"{part}/{label}{number}.png"
            picture(folder / path, number)
            expected["train" if part == "train" else "test"].add(path)
            (table,) = [
                name for name in tables if tables[name] in ("both", "train" if part == "train" else "test")
            ]
            name = Path(path).name if "/" in table else path
            is_csv = table.endswith(".csv")
            row = f"{name},{label}" if is_csv else json.dumps({"file_name": name, "label": label})
            lines.setdefault(table, ["file_name,label"] * is_csv).append(row)
        for table, rows in lines.items():
            (folder / table).write_text("\n".join(rows))
        data = load(pack(tmp_path / "d.zip", folder) if packed else folder, settings)
        assert (data.name, data.classnames, paths(data)) == ("d", ("ant", "bee"), expected)

    def test_images_to_test_on_may_lack_labels(self, tmp_path: Path, settings: DataSettings) -> None:
        for number in range(5):
            picture(tmp_path / f"d/train/{number}.png", number)
        picture(tmp_path / "d/test/9.png")
        rows = "".join(f"{number}.png,{'ant' if number < 3 else 'bee'}\n" for number in range(5))
        (tmp_path / "d/train/metadata.csv").write_text(f"file_name,label\n{rows}")
        (tmp_path / "d/test/metadata.csv").write_text("file_name\n9.png\n")
        data = load(tmp_path / "d", settings)
        assert (len(data.train), len(data.test)) == (3, 2)  # of 3 and of 2, at least one is to test on
        assert "left out: test/" in data.notes

    def test_paths_that_lack_one_of_two_folders_are_told(
        self, tmp_path: Path, settings: DataSettings
    ) -> None:
        """A single folder beside the table is no class."""
        for folder, number in product(("images", "same"), range(4)):
            picture(tmp_path / f"d/{folder}/{number}.png", number)
        (tmp_path / "d/train.csv").write_text("image_id,label\n0.png,ant\n1.png,bee\n2.png,ant\n3.png,bee\n")
        refused(tmp_path / "d/train.csv", settings, r"2 of 2 images are missing, the first \d.png")
        shutil.rmtree(tmp_path / "d/same")
        assert load(tmp_path / "d", settings).classnames == ("ant", "bee")
        (tmp_path / "d/train.csv").write_text("image_id,width\n0.png,4\n")
        assert load(tmp_path / "d", settings).classnames == ("images",)

    def test_two_are_refused(self, tmp_path: Path, settings: DataSettings) -> None:
        rows = self.grow(tmp_path / "d")
        for name in ("a.csv", "b.csv"):
            (tmp_path / "d" / name).write_text(f"path,label\n{rows}\n")
        refused(tmp_path / "d", settings, "has 2 tables of its images: a.csv, b.csv. Leave one")
        refused(tmp_path / "d", settings, "call them train, val and test")


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_columns_by_other_names(suffix: str, two: Path, settings: DataSettings) -> None:
    text = "Image,Species,label\na/0.png,ant,x\nb/0.png,bee,y\n"
    if suffix == "jsonl":
        text = "".join(
            json.dumps({"Image": f"{name}/0.png", "Species": kind, "label": "x"}) + "\n"
            for name, kind in (("a", "ant"), ("b", "bee"))
        )
    table = two / f"list.{suffix}"
    table.write_text(text)
    named = replace(settings, columns="path=Image,label=Species", test_share=0)
    for source in (table, two):
        assert load_dataset(source, named).classnames == ("ant", "bee")
    (two / "list.csv").write_text("Image,Species\na/0.png,ant\n")
    refused(two / "list.csv", settings, "it has image, Species.* --dataset.columns path=Image,label=Species")
    for columns in ("path", "color=x", "path="):
        refuses(SettingsError, "path=Image,label=Species", DataSettings, columns=columns)
    (two / "list.csv").write_text("image_id,label\na/0,ant\nb/0,bee\n")
    assert load_dataset(two / "list.csv", replace(settings, test_share=0)).classnames == ("ant", "bee")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("path,label\na/0.png,crab;wet\nb/0.png,bee\n", "look like several labels each .crab;wet."),
        ("path,label\na/0.png,1.5\nb/0.png,1.87\nb/1.png,2.25\n", "look like numbers .1.5, 1.87, 2.25."),
        ("path,label,xmin\na/0.png,ant,1\nb/0.png,bee,2\n", "column xmin is of boxes"),
    ],
)
def test_what_is_no_classification_is_told(two: Path, settings: DataSettings, text: str, told: str) -> None:
    picture(two / "b/1.png")
    (two / "list.csv").write_text(text)
    with pytest.warns(UserWarning, match=f"{told}.*docs/purpose.md"):
        load_dataset(two / "list.csv", replace(settings, test_share=0))
    found = check_dataset(str(two / "list.csv"), settings)
    assert any("docs/purpose.md" in line for line in (*found.notes, *found.warnings))
