"""Tables of images: their columns, splits and separators, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dear.data.settings import DataSettings
from dear.errors import DataError
from tests.unit.data.photos import class_folders, load, paths, refused


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
        text = "\n".join(sign.join(row) for row in (("path", "label", "split"), *self.ROWS))
        if form == "jsonl":
            text = "\n".join(
                json.dumps(dict(zip(("path", "label", "split"), row, strict=True))) for row in self.ROWS
            )
        data = load(self.write(folder, text, f"list.{form}"), settings)
        assert (data.name, data.classnames) == ("list", ("ant", "bee"))
        assert paths(data) == {"train": {"a/0.png", "b/0.png"}, "test": {"a/1.png", "b/1.png"}}
        assert data.test.labels.tolist() == [0, 1]

    def test_without_splits(self, folder: Path, settings: DataSettings) -> None:
        text = "path,label\n" + "".join(f"{path},{label}\n" for path, label, _ in self.ROWS)
        data = load(self.write(folder, text), settings)
        assert (len(data.train), len(data.test)) == (2, 2)
        assert "the data has no split" in data.notes[0]

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

    def test_numbers_take_names_from_a_list(self, folder: Path, settings: DataSettings) -> None:
        names = folder / "names.json"
        names.write_text('["bee", "ant"]')
        rows = (("a/0.png", 1, "train"), ("b/0.png", 0, "test"))
        text = "\n".join(json.dumps({"path": p, "label": n, "split": part}) for p, n, part in rows)
        data = load(self.write(folder, text, "l.jsonl"), DataSettings(cache=settings.cache, classnames=names))
        assert data.classnames == ("bee", "ant")
        assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([1], [0])

    def test_absolute_paths(self, folder: Path, settings: DataSettings, tmp_path: Path) -> None:
        text = "path,label,split\n" + "".join(
            f"{folder / p},{label},{split}\n" for p, label, split in self.ROWS
        )
        (tmp_path / "elsewhere").mkdir()
        assert len(load(self.write(tmp_path / "elsewhere", text), settings).train) == 2

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "no column 'path'"),
            ("path,kind\na/0.png,ant\n", "no column 'label'"),
            ("path,label,label\na/0.png,ant,bee\n", "more than one column 'label'. Keep one"),
            ("path,label\n", "lists no images"),
            ("path,label\na/0.png,\n", "line 2: a/0.png has no label"),
            ("path,label\na/0.png,0\na/1.png,-1\n", "line 3: label -1 is out of range; labels count"),
            ("path,label\na/0.png,ant\na/0.png,bee\n", "line 3: the image a/0.png is already in .*line 2"),
            ("path,label,split\na/0.png,ant,rest\n", "line 2: the split 'rest' is not train, val or test"),
            ("path,label,split\na/0.png,ant,val\n", "no image with split train, but some with split val"),
            ("path,label,split\na/0.png,ant,train\nb/7.png,ant,test\n", "1 of 1 images is missing, .*b/7"),
            ("path,label\na/0.png,ant\nb/0.png,Ant\n", "have the same name"),
            ('path,label\na/0.png,"ant\na/1.png,ant\n', "line 2: .* a quotation mark"),
        ],
    )  # fmt: skip
    def test_refusals(self, folder: Path, settings: DataSettings, text: str, message: str) -> None:
        refused(self.write(folder, text), settings, message)

    def test_a_file_that_is_no_image(self, folder: Path, settings: DataSettings) -> None:
        (folder / "a/0.txt").write_text("words")
        text = "path,label,split\na/0.txt,ant,train\nb/0.png,ant,test\n"
        data = load(self.write(folder, text), settings)
        with pytest.raises(DataError, match=r"a/0\.txt: it is not an image .*--dataset\.broken skip"):
            data.train.load(torch.tensor([0]))
