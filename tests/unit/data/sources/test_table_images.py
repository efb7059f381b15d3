"""The images that a table names, in folders beside it too and whatever their labels."""

from dataclasses import replace
from pathlib import Path

import pytest

from dear.data.settings import DataSettings
from dear.data.sources.objects import each_image
from dear.data.sources.shards import find_images
from dear.errors import DataError
from tests.helpers.errors import refuses
from tests.unit.data.photos import class_folders, load, picture


def test_names_in_a_folder_beside_the_table(tmp_path: Path, settings: DataSettings) -> None:
    """As competitions have them, of two folders and with an empty answer; none that two folders have."""
    folder = class_folders(tmp_path / "c", {"train_images": 4, "test_images": 2, "more_images": 1})
    for number in range(4):
        (folder / f"train_images/{number}.png").rename(folder / f"train_images/id{number}.png")
    (folder / "more_images/0.png").rename(folder / "more_images/other.png")
    rows = [("id0", "ant"), ("id1.png", "bee"), (" id2", "ant"), ("other.png", "bee")]
    (folder / "train.csv").write_text("image_id,label\n" + "".join(f"{name},{of}\n" for name, of in rows))
    (folder / "test.csv").write_text("image_id\n0\n1.png\n")
    (folder / "sample_submission.csv").write_text("image_id,label\n0,ant\n1,ant\n")
    for source in (folder, folder / "train.csv"):
        data = load(source, replace(settings, test_share=0))
        stored = {f"train_images/id{number}.png" for number in range(3)} | {"more_images/other.png"}
        assert ({*data.train.paths}, data.classnames) == (stored, ("ant", "bee"))
    answers = [folder / "test_images/0.png", folder / "test_images/1.png"]
    assert find_images(folder / "test.csv", settings) == answers
    picture(folder / "train_images/1.png", 77)
    assert find_images(folder / "test.csv", settings)[1] == folder / "1.png"


class TestImagesOfATable:
    """What commands take that read images without labels."""

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("a.csv", "date;image\n1;b/0.png\n2;a/1.png\n3;b/0.png\n"),
            ("b.jsonl", '{"path": "b/0.png", "label": ["x"]}\n\n{"path": "a/1.png"}\n'),
            ("c.tsv", "path\tlabel\nb/0.png\t\na/1.png\tant\n"),
            ("d.csv", "predicted,probability,class,file\nant,1,ant,{folder}/b/0.png\n,,,a/1.png\n"),
        ],
    )
    def test_are_listed_in_order_whatever_their_labels(self, tmp_path: Path, name: str, text: str) -> None:
        folder = class_folders(tmp_path / "t", {"a": 2, "b": 1})
        (folder / name).write_text(text.replace("{folder}", str(folder)))
        wanted = [folder / "b/0.png", folder / "a/1.png"]
        assert find_images(folder / name, DataSettings()) == wanted
        assert [*each_image(str(folder / name))] == wanted

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("label\nant\n", "has no column 'path'; it has label"),
            ("path,label\n", "lists no images"),
            ("path,label\n,ant\n", "line 2 needs the path of an image"),
            ("path\n../secret.png\n", "line 2"),
        ],
    )
    def test_are_refused_by_line(self, tmp_path: Path, text: str, told: str) -> None:
        (tmp_path / "list.csv").write_text(text)
        refuses(DataError, told, find_images, tmp_path / "list.csv", DataSettings())
