"""Tables of images: their columns, splits and separators, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dear.data.settings import DataSettings
from tests.unit.data.photos import class_folders, load, paths, picture, refused


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
            "file,class,probability,checked\na/0.png,ant,0.7,yes\nb/0.png,bee,0.6,x\n",
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
            ("path,label\na/0.png,\n", "line 2: a/0.png has no label"),
            ("path,label\na/0.png,0\na/1.png,-1\n", "line 3: label -1 is out of range; labels count"),
            ("path,label\na/0.png,ant\na/0.png,bee\n", "line 3: the image a/0.png is already in .*line 2"),
            ("path,label,split\na/0.png,ant,val\n", "no image with split train, but some with split val"),
            ('path,label\na/0.png,"ant\na/1.png,ant\n', "line 2: .* a quotation mark"),
        ],
    )  # fmt: skip
    def test_refusals(self, folder: Path, settings: DataSettings, text: str, message: str) -> None:
        refused(self.write(folder, text), settings, message)


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
        "path\tlabel\na/0.png\tant\nb/0.png\tbee\n",
        "path,label\na\\0.png,ant\nb\\0.png,bee\n",
        "path,label\n.\\a\\0.png,ant\nb\\0.png ,bee\n",
    ],
)
def test_columns_and_paths(two: Path, settings: DataSettings, text: str) -> None:
    found = {path.removeprefix("./"): name for path, name in labels(two, text, settings).items()}
    assert found == {"a/0.png": "ant", "b/0.png": "bee"}


def test_an_apostrophe_before_what_looks_like_a_formula(two: Path, settings: DataSettings) -> None:
    """`dear predict` writes it, for spreadsheets."""
    assert labels(two, "file,class\n./a/0.png,'-ant\nb/0.png,'t Hooft\n", settings) == {
        "./a/0.png": "-ant",
        "b/0.png": "'t Hooft",
    }


PREDICTED = """file,class,probability,predicted,checked
a/0.png,ant,0.9,ant,
a/1.png,bee,0.5,ant,
b/0.png,bee,0.8,bee,yes
b/1.png,'-x,0.4,'-x,
b/2.png,none of these,0.4,bee,
"""


class TestPredictions:
    def test_only_corrected_and_checked_rows_are_labels(self, two: Path, settings: DataSettings) -> None:
        (two / "list.csv").write_text(PREDICTED)
        for name in ("a/1.png", "b/1.png"):
            picture(two / name)
        data = load(two / "list.csv", replace(settings, test_share=0.0))
        assert data.train.paths == ("a/1.png", "b/0.png")  # type: ignore[attr-defined]
        assert data.classnames == ("bee",)
        assert any("1 row with the label none_of_these" in note for note in data.notes)
        assert any("2 of its 5 rows" in note and "1 are corrected, 1 checked" in note for note in data.notes)

    @pytest.mark.parametrize(
        "header", ["file,class,probability", "file,class,predicted", "file,class,probability,predicted"]
    )
    def test_as_they_were_predicted(self, two: Path, settings: DataSettings, header: str) -> None:
        cells = {"class": "ant", "probability": "0.9", "predicted": "ant"}
        row = ["a/0.png", *(cells[name] for name in header.split(",")[1:])]
        (two / "list.csv").write_text(f"{header}\n{','.join(row)}\n")
        refused(two / "list.csv", settings, "1 of its 1 rows are predictions that nobody checked")


def test_a_table_of_windows(two: Path, settings: DataSettings) -> None:
    (two / "list.csv").write_bytes("path,label\na/0.png,M\u00f6we\nb/0.png,bee\n".encode("cp1252"))
    refused(two / "list.csv", settings, "not in UTF-8")
