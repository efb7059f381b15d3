"""Tables as people have them: of spreadsheets, of other systems, of `dear predict`."""

from dataclasses import replace
from pathlib import Path

import pytest

from dear.data.settings import DataSettings
from tests.unit.data.photos import load, picture, refused

NAME = "M\u00f6we"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a/0.png", "b/0.png"):
        picture(tmp_path / "d" / name)
    return tmp_path / "d"


def labels(folder: Path, text: str, settings: DataSettings, name: str = "list.csv") -> dict[str, str]:
    """The class of each image of a table, all of which are trained on."""
    (folder / name).write_text(text, encoding="utf-8")
    data = load(folder / name, replace(settings, test_share=0.0))
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
def test_columns_and_paths(folder: Path, settings: DataSettings, text: str) -> None:
    found = {path.removeprefix("./"): name for path, name in labels(folder, text, settings).items()}
    assert found == {"a/0.png": "ant", "b/0.png": "bee"}


def test_an_apostrophe_before_what_looks_like_a_formula(folder: Path, settings: DataSettings) -> None:
    """`dear predict` writes it, for spreadsheets."""
    assert labels(folder, "file,class\n./a/0.png,'-ant\nb/0.png,'t Hooft\n", settings) == {
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
    def test_only_corrected_and_checked_rows_are_labels(self, folder: Path, settings: DataSettings) -> None:
        (folder / "list.csv").write_text(PREDICTED)
        for name in ("a/1.png", "b/1.png"):
            picture(folder / name)
        data = load(folder / "list.csv", replace(settings, test_share=0.0))
        assert data.train.paths == ("a/1.png", "b/0.png")  # type: ignore[attr-defined]
        assert data.classnames == ("bee",)
        assert any("1 row with the label none_of_these" in note for note in data.notes)
        assert any("2 of its 5 rows" in note and "1 are corrected, 1 checked" in note for note in data.notes)

    @pytest.mark.parametrize(
        "header", ["file,class,probability", "file,class,predicted", "file,class,probability,predicted"]
    )
    def test_as_they_were_predicted(self, folder: Path, settings: DataSettings, header: str) -> None:
        cells = {"class": "ant", "probability": "0.9", "predicted": "ant"}
        row = ["a/0.png", *(cells[name] for name in header.split(",")[1:])]
        (folder / "list.csv").write_text(f"{header}\n{','.join(row)}\n")
        refused(folder / "list.csv", settings, "1 of its 1 rows are predictions that nobody checked")


def test_a_table_of_windows(folder: Path, settings: DataSettings) -> None:
    (folder / "list.csv").write_bytes(f"path,label\na/0.png,{NAME}\nb/0.png,bee\n".encode("cp1252"))
    refused(folder / "list.csv", settings, "not in UTF-8")
