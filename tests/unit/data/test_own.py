"""Own data: image folders, tables, zips, class names from files, our own split."""

import json
import os
import sys
import warnings
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from dear.data.dataset import fingerprint
from dear.data.images.photos import PhotoImages
from dear.data.loading import load_dataset, load_images
from dear.data.settings import DataSettings, checked_templates
from dear.data.sources.listing import Row
from dear.data.sources.splits import seeded_split
from dear.errors import DataError, SettingsError
from dear.limits import LimitError
from tests.unit.data.photos import COUNTS, class_folders, load, paths, picture, refused

COUNTS_BY_LABEL = dict(enumerate(COUNTS.values()))


class TestSplit:
    ROWS = tuple(
        Row(f"{label}/{number}.png", label) for label, count in ((0, 10), (1, 23)) for number in range(count)
    )

    def test_the_share_is_of_each_class_and_nothing_is_lost(self) -> None:
        """10: 7, 3. 23: 16.1 is rounded to 16, 7 are left. A quarter of 10: 7.5 is rounded to 8."""
        for share, train, test in ((0.3, (7, 16), (3, 7)), (0.25, (8, 17), (2, 6))):
            splits = seeded_split(self.ROWS, share, 1, 2)
            held = {part: Counter(row.label for row in rows) for part, rows in splits.items()}
            assert held == {"train": dict(enumerate(train)), "test": dict(enumerate(test))}
            assert Counter(row for rows in splits.values() for row in rows) == Counter(self.ROWS)

    def test_images_are_in_the_order_of_a_hash(self) -> None:
        """Of seed, a slash and the path: the same in any language."""
        names = sorted(("a.png", "b.png", "c.png"), key=lambda name: sha256(f"5/{name}".encode()).digest())
        splits = seeded_split([Row(name, 0) for name in ("a.png", "b.png", "c.png")], 0.4, 5, 1)
        assert [row.path for rows in splits.values() for row in rows] == names

    def test_a_class_is_split_alike_whatever_else_there_is_and_in_any_order(self) -> None:
        one = seeded_split(self.ROWS, 0.3, 1, 2)
        other = seeded_split([*reversed(self.ROWS[:10])], 0.3, 1, 1)
        for part, rows in other.items():
            assert rows == tuple(row for row in one[part] if row.label == 0)

    def test_seeds_differ(self) -> None:
        made = {seeded_split(self.ROWS, 0.3, seed, 2)["test"] for seed in range(7)}
        assert len(made) == 7

    def test_both_parts_get_an_image(self) -> None:
        rows = [Row("a/0.png", 0), *(Row(f"b/{number}.png", 1) for number in range(2))]
        for share in (0.01, 0.5, 0.99):
            splits = seeded_split(rows, share, 1, 2)
            assert [sorted(row.label for row in listed) for listed in splits.values()] == [[0, 1], [1]]


class TestFolder:
    def test_without_a_split_one_is_made_recorded_and_said_aloud(
        self, tmp_path: Path, settings: DataSettings
    ) -> None:
        folder = class_folders(tmp_path / "mine", COUNTS)
        with pytest.warns(UserWarning, match=r"mine: .* no split: .* 30% for testing \(seed 1; list: /"):
            data = load_dataset(str(folder), settings)
        assert (data.name, data.classnames) == ("mine", ("ant", "sea horse"))
        assert data.templates == ("a photo of a {}.",)
        assert Counter(data.train.labels.tolist()) == {0: 5, 1: 8}  # 7 x 0.7 = 4.9, 11 x 0.7 = 7.7
        assert Counter(data.test.labels.tolist()) == {0: 2, 1: 3}
        (record,) = (tmp_path / "cache" / "splits").iterdir()
        listed = json.loads(record.read_text())
        assert record.read_text() == json.dumps(listed, indent=0)
        assert record.stem == f"split_dear_mine-{fingerprint(record.read_text())}"
        assert {path for path, _, _ in listed["test"]} == paths(data)["test"]
        assert {name for _, _, name in listed["train"]} == {"ant", "sea_horse"}
        assert load(folder, settings).identity == data.identity
        other = load(folder, DataSettings(cache=settings.cache, split_seed=2))
        assert paths(other)["test"] != paths(data)["test"]

    def test_the_list_of_a_long_name_is_recorded(self, tmp_path: Path, settings: DataSettings) -> None:
        load(class_folders(tmp_path / ("\u6c34" * 80), COUNTS), settings)
        (record,) = (tmp_path / "cache" / "splits").iterdir()
        assert record.name.startswith("split_dear_" + "\u6c34" * 50 + "-")

    def test_all_images_are_for_testing_if_asked(self, tmp_path: Path, settings: DataSettings) -> None:
        data = load(class_folders(tmp_path / "mine", COUNTS), replace(settings, test_share=1.0))
        assert (len(data.train), Counter(data.test.labels.tolist())) == (0, COUNTS_BY_LABEL)
        assert not (tmp_path / "cache" / "splits").exists()

    def test_all_images_are_for_training_if_asked(self, tmp_path: Path, settings: DataSettings) -> None:
        data = load(class_folders(tmp_path / "mine", COUNTS), replace(settings, test_share=0.0))
        assert (Counter(data.train.labels.tolist()), len(data.test)) == (COUNTS_BY_LABEL, 0)
        assert data.notes == ("the data has no split: all its images are for training",)

    def test_two_folders_of_one_split(self, tmp_path: Path, settings: DataSettings) -> None:
        """The last one replaced the others: 8 of 100 images were left."""
        for part in ("train", "Training", "test"):
            class_folders(tmp_path / "mine" / part, COUNTS)
        with pytest.raises(DataError, match="Training and train are both the train split: merge them"):
            load(tmp_path / "mine", settings)

    def test_a_folder_of_one_split(self, tmp_path: Path, settings: DataSettings) -> None:
        tested = load(class_folders(tmp_path / "one" / "test", COUNTS).parent, settings)
        assert (tested.name, tested.classnames) == ("one", ("ant", "sea horse"))
        assert (len(tested.train), len(tested.test)) == (0, 18)
        trained = load(class_folders(tmp_path / "two" / "train", COUNTS).parent, settings)
        assert (trained.classnames, len(trained.train), len(trained.test)) == (("ant", "sea horse"), 13, 5)

    def test_the_recorded_list_can_be_used_as_coops(self, tmp_path: Path, settings: DataSettings) -> None:
        folder = class_folders(tmp_path / "mine", COUNTS)
        data = load(folder, settings)
        (record,) = (tmp_path / "cache" / "splits").iterdir()
        record.rename(folder / "split_zhou_Mine.json")
        assert paths(load(folder, settings)) == paths(data)

    def test_a_plain_folder_where_no_labels_are_needed(self, tmp_path: Path, settings: DataSettings) -> None:
        """Only its own files, all of them; any other place is as `load_dataset` reads it."""
        plain = tmp_path / "plain"
        for number in range(3):
            picture(plain / f"{number}.png", number)
        (plain / "readme.txt").write_text("x")
        data = load_images(str(plain), settings)
        assert (data.name, data.classnames, data.train.labels.tolist()) == ("plain", (), [0, 0, 0])
        assert (len(data.test), data.val) == (0, None)
        assert [int(p[0, 0, 0]) for p in data.train.load(torch.tensor([2, 1]))] == [2, 1]
        with pytest.raises(DataError, match="has no folders of classes"):
            load_dataset(str(plain), settings)
        folder = class_folders(tmp_path / "mine", COUNTS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert load_images(str(folder), settings).identity == load(folder, settings).identity
        (tmp_path / "empty").mkdir()
        with pytest.raises(DataError, match="no files with an image suffix"):
            load_images(str(tmp_path / "empty"), settings)

    def test_train_and_test_folders(self, tmp_path: Path, settings: DataSettings) -> None:
        class_folders(tmp_path / "d" / "train", COUNTS)
        class_folders(tmp_path / "d" / "test", {"ant": 2, "sea_horse": 3})
        data = load(tmp_path / "d", settings)
        assert (len(data.train), len(data.test), data.val, data.notes) == (18, 5, None, ())
        assert data.test.labels.tolist() == [0, 0, 1, 1, 1]
        assert [int(p[0, 0, 0]) for p in data.test.load(torch.tensor([1, 4]))] == [1, 2]

    def test_val_stands_for_a_missing_test_folder(self, tmp_path: Path, settings: DataSettings) -> None:
        class_folders(tmp_path / "d" / "train", COUNTS)
        class_folders(tmp_path / "d" / "val", COUNTS)
        data = load(tmp_path / "d", settings)
        assert "val is used for testing" in data.notes[0]
        assert data.val is None

    def test_other_files_are_left_out_and_counted(self, tmp_path: Path, settings: DataSettings) -> None:
        class_folders(tmp_path / "d", COUNTS)
        (tmp_path / "d/ant/readme.txt").write_text("x")
        (tmp_path / "d/ant/.hidden.png").write_text("x")
        picture(tmp_path / "d/ant/deeper/9.PNG")
        data = load(tmp_path / "d", settings)
        assert len(data.train) + len(data.test) == 19
        assert data.notes[-1] == "1 file has no image suffix and is left out: ant/readme.txt"

    def test_a_class_of_one_image_is_trained_on_with_a_notice(
        self, tmp_path: Path, settings: DataSettings
    ) -> None:
        class_folders(tmp_path / "d", COUNTS | {"owl": 1})
        data = load(tmp_path / "d", settings)
        owl = data.classnames.index("owl")
        assert (data.train.labels == owl).sum() == 1
        assert owl not in data.test.labels
        assert "owl has one image, which is trained on" in data.notes[1]
        (tmp_path / "list.csv").write_text("path,label\nd/owl/0.png,owl\nd/ant/0.png,ant\nd/ant/1.png,ant\n")
        assert "owl has one image" in load(tmp_path / "list.csv", settings).notes[1]

    def test_refusals(self, tmp_path: Path, settings: DataSettings) -> None:
        refused(tmp_path / "nowhere", settings, r"the folder .*nowhere does not exist")
        (tmp_path / "empty").mkdir()
        refused(tmp_path / "empty", settings, "has no folders of classes")
        class_folders(tmp_path / "d", COUNTS)
        (tmp_path / "d/bee").mkdir()
        refused(tmp_path / "d", settings, "the class 'bee' has no images in ")
        class_folders(tmp_path / "d", {"bee": 2, "Sea horse": 2})
        refused(tmp_path / "d", settings, "the classes 'Sea horse' and 'sea_horse' have the same name")
        class_folders(tmp_path / "e" / "train", COUNTS)
        class_folders(tmp_path / "e" / "test", {"ant": 1, "sea_horse": 1, "owl": 1})
        refused(tmp_path / "e", settings, "owl is a class that is not in .*train")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_no_permission(self, tmp_path: Path, settings: DataSettings) -> None:
        class_folders(tmp_path / "d", COUNTS)
        (tmp_path / "d/ant").chmod(0)
        refused(tmp_path / "d", settings, "cannot read the folder .*ant: Permission denied")
        (tmp_path / "d/ant").chmod(0o700)

    def test_an_empty_file(self, tmp_path: Path, settings: DataSettings) -> None:
        class_folders(tmp_path / "d", COUNTS)
        (tmp_path / "d/ant/0.png").write_bytes(b"")
        refused(
            tmp_path / "d",
            settings,
            r"d: 1 of \d+ images is empty .*the first ant/0.png.*broken skip",
        )

    def test_both_kinds_of_faults_at_once(self, tmp_path: Path) -> None:
        class_folders(tmp_path, {"ant": 3})
        (tmp_path / "ant/2.png").write_bytes(b"")
        names = ["ant/0.png", "ant/7.png", "ant/2.png", "ant/8.png"]
        wanted = r": 2 of 4 images are missing, the first ant/7\.png; 1 of 4 images is empty .* ant/2\.png\."
        with pytest.raises(DataError, match=wanted):
            PhotoImages(tmp_path, [(name, 0) for name in names])

    @pytest.mark.skipif(sys.platform == "darwin", reason="its file system takes UTF-8 only")
    def test_a_class_that_is_not_in_utf_8(self, tmp_path: Path, settings: DataSettings) -> None:
        class_folders(tmp_path / "d", {"ant": 2, "ol\udce9": 2})
        refused(tmp_path / "d", settings, r"the class name 'ol\\udce9' is not in UTF-8\. Rename it")

    @pytest.mark.skipif(sys.platform == "darwin", reason="its file system takes UTF-8 only")
    def test_names_of_files_that_are_not_in_utf_8(self, tmp_path: Path, settings: DataSettings) -> None:
        """The data set's name is written into files, so it is in UTF-8; the split list names the images."""
        folder = class_folders(tmp_path / "d\udce9", COUNTS)
        for name in COUNTS:
            (folder / name / "1.png").rename(folder / name / "caf\udce9.png")
        data = load(folder, settings)
        assert data.name == "d?"
        (record,) = (tmp_path / "cache" / "splits").iterdir()
        record.rename(folder / "split_zhou_Mine.json")
        again = load(folder, settings)
        assert paths(again) == paths(data)
        assert "ant/caf\udce9.png" in paths(again)["train"] | paths(again)["test"]


class TestNames:
    @pytest.mark.parametrize(
        ("file", "text"),
        [
            ("names.json", '{"ant": "red ant", "sea_horse": "a fish"}'),
            ("names.csv", "ant,red ant\nsea_horse,a fish\n"),
            ("names.csv", "Folder;Name\nant;red ant\nsea_horse;a fish\n"),
            ("classnames.txt", "ant red ant\nsea_horse a fish\n"),
        ],
    )
    def test_forms(self, tmp_path: Path, settings: DataSettings, file: str, text: str) -> None:
        class_folders(tmp_path / "d", COUNTS)
        (tmp_path / file).write_text(text)
        named = DataSettings(cache=settings.cache, classnames=tmp_path / file)
        assert load(tmp_path / "d", named).classnames == ("red ant", "a fish")

    @pytest.mark.parametrize(
        ("file", "text", "message"),
        [
            ("n.json", "{", "is not readable JSON"),
            ("n.json", '{"ant": 3}', "needs a list of class names"),
            ("n.json", '{"ant": "x"}', "has no name for 1 classes; the first is 'sea_horse'"),
            ("n.json", '["x"]', "has 1 names for 2 classes"),
            (
                "n.json",
                '["red ant", "a fish"]',
                "is a list of names, which says nothing of the class 'ant': give",
            ),
            (
                "n.json",
                '{"ant": "x", "sea_horse": "X"}',
                "the classes 'ant' and 'sea_horse' have the same name",
            ),
            ("n.csv", "ant,x\nant,y\n", "names a folder twice: 'ant'"),
            ("n.csv", f'ant,"{"x" * 131_073}', "field limit.* Is there a quotation mark that is not closed?"),
            ("n.csv", 'ant,"x\nsea_horse,y\n', "n.csv: .* Is there a quotation mark that is not closed"),
            (
                "n.json",
                '{"ant": "ol\xe9", "sea_horse": "ole\u0301"}',
                "the classes 'ant' and 'sea_horse' have the same name",
            ),
            ("n.txt", "ant\n", "'ant' is not a folder and a class name"),
        ],
    )
    def test_refusals(
        self, tmp_path: Path, settings: DataSettings, file: str, text: str, message: str
    ) -> None:
        class_folders(tmp_path / "d", COUNTS)
        (tmp_path / file).write_text(text)
        refused(tmp_path / "d", DataSettings(cache=settings.cache, classnames=tmp_path / file), message)
        refused(
            tmp_path / "d",
            DataSettings(cache=settings.cache, classnames=tmp_path / "gone.txt"),
            "cannot read the class names",
        )

    def test_classes_that_differ_in_case_alone(self, tmp_path: Path, settings: DataSettings) -> None:
        """As letters do: they have one name each only by a file."""
        class_folders(tmp_path / "d", {"A": 2, "a": 2})
        refused(
            tmp_path / "d", settings, "the classes 'A' and 'a' have the same name, .*--dataset.classnames"
        )
        (tmp_path / "n.json").write_text('{"A": "capital a", "a": "small a"}')
        data = load(tmp_path / "d", replace(settings, classnames=tmp_path / "n.json"))
        assert (data.keys, data.classnames) == (("A", "a"), ("capital a", "small a"))

    def test_a_folder_called_like_a_table(self, tmp_path: Path, settings: DataSettings) -> None:
        class_folders(tmp_path / "d.csv", COUNTS)
        (tmp_path / "n.json").write_text('{"ant": "red ant", "sea_horse": "a fish"}')
        named = replace(settings, classnames=tmp_path / "n.json")
        assert load(tmp_path / "d.csv", named).classnames == ("red ant", "a fish")


class TestTemplates:
    def test_several(self, tmp_path: Path, settings: DataSettings) -> None:
        class_folders(tmp_path / "d", COUNTS)
        (tmp_path / "t.txt").write_text("a {}, alive.\n\nno {}.\n")
        for text in ("a {}, alive. | no {}.", str(tmp_path / "t.txt")):
            data = load(tmp_path / "d", DataSettings(cache=settings.cache, template=text))
            assert data.templates == ("a {}, alive.", "no {}.")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a photo", "has no {} for the class name and is not a text file"),
            ("a {} and a {}", "needs exactly one {}"),
            ("a {name}", "needs exactly one {}"),
            ("a {", "needs exactly one {}"),
            ("a {:>1000000000}", "needs exactly one {}"),
            ("a {!r}", "needs exactly one {}"),
        ],
    )
    def test_refusals(self, tmp_path: Path, settings: DataSettings, text: str, message: str) -> None:
        class_folders(tmp_path / "d", COUNTS)
        refused(tmp_path / "d", DataSettings(cache=settings.cache, template=text), message)

    def test_too_much_is_asked_for(self) -> None:
        with pytest.raises(LimitError, match="1,004 characters of a class name or a template"):
            checked_templates(["a {}" + 1000 * "b"], "templates")

    def test_settings_out_of_range(self) -> None:
        odd = [
            {"test_share": 1.1},
            {"test_share": -0.1},
            {"short_side": 0},
            {"workers": -1},
            {"workers": 257},
        ]
        for wrong in odd:
            with pytest.raises(SettingsError, match=next(iter(wrong))):
                DataSettings(**wrong)  # type: ignore[arg-type]


def test_a_file_of_another_kind(tmp_path: Path, settings: DataSettings) -> None:
    (tmp_path / "x.tar").write_text("x")
    refused(tmp_path / "x.tar", settings, r"is not a supported file.*\.csv, \.tsv, \.jsonl or \.zip")
    refused(tmp_path / "gone.csv", settings, "the file .*gone.csv does not exist")
