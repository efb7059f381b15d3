"""Tables of images: their columns, splits and separators, and what is refused."""

import csv
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dear.data.settings import DataSettings
from dear.data.sources import table, table_rows
from dear.data.sources.listing import refuse
from dear.data.sources.naming import read_names
from dear.data.sources.table import read_table
from dear.errors import DataError
from dear.limits import LimitError
from dear.reading import files
from dear.reading.plain import csv_rows
from tests.unit.data.photos import COUNTS, class_folders, load, paths, refused

COUNTS_BY_LABEL = dict(enumerate(COUNTS.values()))
SHARES = {"train": 0.5, "val": 0.2, "test": 0.3}


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
            "file,class,probability,class_2,probability_2\na/0.png,ant,0.7,bee,0.3\nb/0.png,bee,0.6,ant,0.4\n",
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

    def test_all_to_train_on(self, folder: Path, settings: DataSettings) -> None:
        data = load(self.write(folder, "path,label,split\na/0.png,ant,train\nb/0.png,bee,train\n"), settings)
        assert (len(data.train), len(data.test)) == (2, 0)
        assert data.notes == ("it lists no image to test on: it can only be trained on",)

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
        "spelling",
        ["{t}/a/0.png", "/{t}/./a/0.png", "{t}/b/../a/0.png", "{link}/a/0.png", "a/0.png/", "a/0.png/."],
    )
    def test_one_image_by_two_paths(
        self, folder: Path, settings: DataSettings, tmp_path: Path, spelling: str
    ) -> None:
        (tmp_path / "link").symlink_to(folder)
        absolute = spelling.format(t=folder, link=tmp_path / "link")
        self.write(folder, f"path,label,split\na/0.png,ant,train\n{absolute},ant,test\n")
        refused(tmp_path / "link/list.csv", settings, "line 3: the image .* is already in .*line 2")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "no column 'path'"),
            ("path,kind\na/0.png,ant\n", "no column 'label'"),
            ("path,label,label\na/0.png,ant,bee\n", "more than one column 'label'. Keep one"),
            ("path,label,split,split\na/0.png,ant,train,test\n", "more than one column 'split'"),
            ("path,label\n", "lists no images"),
            ("path,label\na/0.png,\n", "line 2 needs path, label"),
            ("path,label\n../x.png,ant\n", r"line 2: the path '../x.png' leads out"),
            ("path,label\na/0.png,0\na/1.png,-1\n", "line 3: label -1 is out of range; labels count"),
            ("path,label\na/0.png,0\na/1.png,2\n", "from 0 to 2, but no image has label 1"),
            ("path,label\na/0.png,0\na/1.png,01\n", "line 3: label '01' is not a plain whole number"),
            ("path,label\na/0.png,0\na/1.png,1000000000\n", "line 3: label '1000000000' is not a plain"),
            ("path,label\na/0.png,0\na/1.png,100000000\n", "from 0 to 100000000, but no image has label 1"),
            (f"path,label\na/0.png,0\na/1.png,{'9' * 5000}\n", "line 3: label '9999.* is not a plain whole"),
            ("path,label\na/0.png,ant\na/0.png,bee\n", "line 3: the image a/0.png is already in .*line 2"),
            ("path,label,split\na/0.png,ant,rest\n", "line 2: the split 'rest' is not train, val or test"),
            ("path,label,split\na/0.png,ant,val\n", "no image with split train, but some with split val"),
            ("path,label,split\na/0.png,ant,train\nb/7.png,ant,test\n", "1 of 1 images is missing, .*b/7"),
            (f"path,label\na/0.png,ant\n{'b' * 300},bee\n", "1 of 2 images is missing, the first bbb"),
            ("path,label\na/0.png,ant\nb/0.png,Ant\n", "have the same name"),
            (f'path,label\na/0.png,ant\nb/0.png,"bee\n{"x" * 131_073}', "line 3: .*limit.* a quotation mark"),
            ('path,label\na/0.png,ant\n"a/\n1.png",ant\n', "line 3 has a cell of several lines. Is"),
            ('path,label\na/0.png,"b\nx"\n', "line 2 has a cell of several lines"),
            ('path,label\na/0.png,"ant\na/1.png,ant\n', "line 2 has a cell of several lines"),
            ('"pa\nth",label\na/0.png,ant\n', "no column 'path'"),
            (f'path,"{"x" * 131_073}', "line 1: .*field limit.* Is there a quotation mark that is not"),
        ],
    )  # fmt: skip
    def test_refusals(self, folder: Path, settings: DataSettings, text: str, message: str) -> None:
        refused(self.write(folder, text), settings, message)

    def test_a_label_above_the_names(self, folder: Path, settings: DataSettings) -> None:
        (folder / "names.json").write_text('["ant", "bee"]')
        named = DataSettings(cache=settings.cache, classnames=folder / "names.json")
        refused(
            self.write(folder, "path,label\na/0.png,2\n"),
            named,
            "label 2 is out of range: .* 2 names",
        )

    def test_broken_json_lines(self, folder: Path, settings: DataSettings) -> None:
        refused(self.write(folder, '{"path": \n', "l.jsonl"), settings, "line 1: it is not readable JSON")
        refused(self.write(folder, "[3]\n", "l.jsonl"), settings, "line 1 needs path, label")
        refused(
            self.write(folder, f"path,label\n{'x' * 5000},a\n"), settings, "the path has 5,000 characters"
        )

    def test_a_file_that_is_no_image(self, folder: Path, settings: DataSettings) -> None:
        (folder / "a/0.txt").write_text("words")
        text = "path,label,split\na/0.txt,ant,train\nb/0.png,ant,test\n"
        data = load(self.write(folder, text), settings)
        with pytest.raises(
            DataError, match=r"a/0\.txt: it is not an image .*--dataset\.broken skip leaves them out"
        ):
            data.train.load(torch.tensor([0]))


def test_columns_of_a_table_are_those_of_csvs_own_reader() -> None:
    """Short and long rows, empty lines, quotes, another column twice: csv.DictReader is the reference."""
    text = 'x,label,path,x,y\n1,cup,a.png,mug,7\n\n2,"a, b",c.png\n3\n4,e,f.png,"g\nh",i,j,k\n'
    reference = [
        {name: row[name] for name in ("label", "path") if row[name] is not None}
        for row in csv.DictReader(text.splitlines(keepends=True))
    ]
    lines = [row for _, row in table_rows._csv_lines(Path("t.csv"), text)]
    assert lines == reference


def test_a_wide_table_costs_no_more_than_its_rows() -> None:
    """A head of 5,000 columns, where csv.DictReader makes as many entries for each row."""
    text = "path,label" + "," * 4_998 + "\n" + "0.png,a\n" * 1000
    assert {len(row) for _, row in table_rows._csv_lines(Path("t.csv"), text)} == {2}


@pytest.mark.parametrize("name", ["list.csv", "names.csv"])
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("path,label" + ",Ā" * 4_999, 1),
        ("a,b\n" + "c," * 5_000, 2),
        ("a,b\n" + '"\n",' * 5_000, 2),  # a row of many lines
    ],
)
def test_a_row_of_many_cells_is_refused_before_it_is_split(
    tmp_path: Path, name: str, text: str, line: int
) -> None:
    """A header of 134 MB with 44.7 million cells took 4.3 GB."""
    (tmp_path / name).write_text(text.replace("a,b", "path,label"))
    with pytest.raises(DataError, match=rf"{name}, line {line}: it has more than 5,000 cells\. .*quotation"):
        read_names(tmp_path / name) if "names" in name else read_table(tmp_path / name, DataSettings())
    tracemalloc.start()
    with pytest.raises(DataError, match="more than 5,000 cells"):
        [*csv_rows("Ā," * 3_000_000, name)]
    assert tracemalloc.get_traced_memory()[1] < 50_000_000  # three million cells would take 250 MB
    tracemalloc.stop()


@pytest.mark.parametrize(("name", "sign"), [("names.csv", ","), ("names.txt", " ")])
def test_names_are_counted_as_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, sign: str
) -> None:
    """4,990,000 lines took 2.96 GB before they were counted."""
    (tmp_path / name).write_text("".join(f"n{number}{sign}cat {number}\n" for number in range(7)))
    monkeypatch.setenv("DEAR_LIMIT_CLASSES", "7")
    assert len(read_names(tmp_path / name)) == 7
    monkeypatch.setenv("DEAR_LIMIT_CLASSES", "5")
    with pytest.raises(LimitError, match=f"{name}: 6 class names, above the limit of 5"):
        read_names(tmp_path / name)


@pytest.mark.parametrize("name", ["list.csv", "list.jsonl", "split_zhou_Mine.json"])
def test_levels_of_a_path_are_bounded(tmp_path: Path, name: str) -> None:
    """Each folder beside a list of paths of 2,040 levels was asked for each: a zip of 500 kB took 52 s."""
    for levels, why in ((64, "missing|none of the"), (65, "65 levels of folders")):
        path, content = "a/" * levels + "b.png", f"path,label\n{'a/' * levels}b.png,ant\n"
        if name.endswith("jsonl"):
            content = json.dumps({"path": path, "label": "ant"})
        elif name.endswith("json"):
            content = json.dumps({"train": [[path, 0, "ant"]], "test": [["c.png", 0, "ant"]]})
        (tmp_path / name).write_text(content)
        with pytest.raises(DataError, match=why):
            load(tmp_path if name.endswith("json") else tmp_path / name, DataSettings(cache=tmp_path / "c"))


def test_a_row_does_not_repeat_the_path_of_its_table(tmp_path: Path) -> None:
    """600,000 rows took 9.3 GB below folders with long names, in a zip of 1.3 MB."""
    (tmp_path / "list.csv").write_text("path,label\na.png,ant\nb.png,bee\n")
    first, second = table._entries(tmp_path / "list.csv", True, refuse)
    assert first.source is second.source
    assert second.where == f"{tmp_path / 'list.csv'}, line 3"


def test_a_row_takes_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its line, path, normal path and part of the split list were alive together, for 2,000,000 rows."""
    rows = 20_000
    lines = (f".//\U0001f600{row:07}.png,class {row % 10}\n" for row in range(rows))
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(lines))
    settings = DataSettings(cache=tmp_path / "cache")
    monkeypatch.setenv("DEAR_LIMIT_TEXT_BYTES", "1000000")  # so much room is made to read
    monkeypatch.setattr(files, "BLOCK", 2**10)
    tracemalloc.start()
    assert read_table(tmp_path / "list.csv", settings).files == rows
    assert tracemalloc.get_traced_memory()[1] < 600 * rows  # once 790
    tracemalloc.stop()


@pytest.mark.parametrize("name", ["list.csv", "list.tsv", "list.jsonl", "names.csv", "names.txt"])
def test_short_lines_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Blank ones too: each takes memory."""
    monkeypatch.setenv("DEAR_LIMIT_TEXT_LINES", "5")
    (tmp_path / name).write_text("path,label\n" + "\n" * 5)
    with pytest.raises(LimitError, match=f"{name}: 6 lines of a text file, above the limit of 5"):
        read_names(tmp_path / name) if "names" in name else read_table(tmp_path / name, DataSettings())
