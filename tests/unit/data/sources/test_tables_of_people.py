"""Tables as people have them: of spreadsheets, of other systems, of `dear predict`."""

import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest

from dear.data.settings import DataSettings
from tests.unit.data.photos import load, picture, refused

NAME = "M\u00f6we"
PLAIN = "path,label\na/0.png,ant\nb/0.png,bee\n"


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
        "sep=;\r\npath;label\r\na/0.png;ant\r\nb/0.png;bee\r\n",
        '"sep=;"\npath;label\na/0.png;ant\nb/0.png;bee\n',
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


@pytest.mark.parametrize("sign", ['"', "x"])
def test_separators_that_are_none(folder: Path, settings: DataSettings, sign: str) -> None:
    """Python's reader raises ValueError for some."""
    (folder / "list.csv").write_text(f"sep={sign}\npath,label\na/0.png,ant\n")
    refused(folder / "list.csv", settings, "has no column 'path'")


@pytest.mark.parametrize(("stored", "written"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_accents_apart_from_their_letters(
    folder: Path, settings: DataSettings, stored: str, written: str
) -> None:
    path = unicodedata.normalize(stored, f"{NAME}/0.png")  # type: ignore[arg-type]
    picture(folder / path)
    text = unicodedata.normalize(written, f"path,label\n{NAME}\\0.png,gull\n")  # type: ignore[arg-type]
    assert labels(folder, text, settings) == {path: "gull"}


def test_a_backslash_in_a_name_stays(folder: Path, settings: DataSettings) -> None:
    picture(folder / "a\\0.png")
    assert labels(folder, "path,label\na\\0.png,ant\n", settings) == {"a\\0.png": "ant"}


def test_one_image_by_two_spellings(folder: Path, settings: DataSettings) -> None:
    (folder / "list.csv").write_text("path,label,split\na/0.png,ant,train\na\\0.png,ant,test\n")
    refused(folder / "list.csv", settings, "line 3: the image a/0.png is already in .*line 2")


def test_paths_that_lead_out_when_they_are_rewritten(folder: Path, settings: DataSettings) -> None:
    for path in ("..\\d\\a\\0.png", "C:\\a\\0.png", "\\\\host\\share\\0.png"):
        (folder / "list.csv").write_text(f"path,label\n{path},ant\n")
        refused(folder / "list.csv", settings, "line 2: the path .* leads out of the image folder")


def test_an_apostrophe_before_what_looks_like_a_formula(folder: Path, settings: DataSettings) -> None:
    """`dear predict` writes it, for spreadsheets."""
    assert labels(folder, "file,class\n./a/0.png,'-ant\nb/0.png,'t Hooft\n", settings) == {
        "./a/0.png": "-ant",
        "b/0.png": "'t Hooft",
    }
