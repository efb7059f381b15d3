"""Own data: the split that is made, class names from files, prompts."""

from collections import Counter
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from dear.data.check import check_dataset
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings, checked_templates
from dear.data.sources.listing import Row
from dear.data.sources.splits import seeded_split
from dear.errors import DataError, SettingsError
from dear.limits import LimitError
from tests.helpers.errors import refuses
from tests.helpers.pictures import noise_pixels, save_picture
from tests.unit.data.photos import COUNTS, class_folders, load, refused


class TestSplit:
    ROWS = tuple(
        Row(f"{label}/{number}.png", label) for label, count in ((0, 10), (1, 23)) for number in range(count)
    )

    def test_the_share_is_of_each_class_and_nothing_is_lost(self) -> None:
        """10: 7, 3. 23: 16.1 is rounded to 16, 7 are left. A quarter of 10: 7.5 is rounded to 8."""
        for share, train, test in ((0.3, (7, 16), (3, 7)), (0.25, (8, 17), (2, 6))):
            splits = seeded_split(self.ROWS, share, 1)
            held = {part: Counter(row.label for row in rows) for part, rows in splits.items()}
            assert held == {"train": dict(enumerate(train)), "test": dict(enumerate(test))}
            assert Counter(row for rows in splits.values() for row in rows) == Counter(self.ROWS)

    def test_images_without_content_are_in_the_order_of_a_hash_of_their_paths(self) -> None:
        """Of seed, a slash and the path: the same in any language."""
        names = sorted(("a.png", "b.png", "c.png"), key=lambda name: sha256(f"5/{name}".encode()).digest())
        splits = seeded_split([Row(name, 0) for name in ("a.png", "b.png", "c.png")], 0.4, 5)
        assert [row.path for rows in splits.values() for row in rows] == names

    def test_a_class_is_split_alike_whatever_else_there_is_and_in_any_order(self) -> None:
        one = seeded_split(self.ROWS, 0.3, 1)
        other = seeded_split([*reversed(self.ROWS[:10])], 0.3, 1)
        for part, rows in other.items():
            assert rows == tuple(row for row in one[part] if row.label == 0)

    @pytest.mark.parametrize(("least", "train"), [(7, (7, 16)), (9, (9, 16)), (16, (9, 16)), (30, (9, 22))])
    def test_as_many_to_train_on_as_are_asked_for(self, least: int, train: tuple[int, int]) -> None:
        splits = seeded_split(self.ROWS, 0.3, 1, least)
        assert tuple(Counter(row.label for row in splits["train"]).values()) == train
        assert len(splits["train"]) + len(splits["test"]) == 33

    def test_both_parts_get_an_image(self) -> None:
        rows = [Row("a/0.png", 0), *(Row(f"b/{number}.png", 1) for number in range(2))]
        for share in (0.01, 0.5, 0.99):
            splits = seeded_split(rows, share, 1)
            assert [sorted(row.label for row in listed) for listed in splits.values()] == [[0, 1], [1]]

    @pytest.mark.parametrize("seed", range(8))
    def test_no_group_is_on_both_sides(self, seed: int) -> None:
        """Groups of any size, in one class or in several; each class has some of both parts if it can."""
        draw = Random(seed)
        rows = [Row(f"{label}/{number}.png", label) for label in range(4) for number in range(40)]
        groups = {row.path: f"site {draw.randrange(8 * row.label, 8 * row.label + 11)}" for row in rows}
        for row in draw.sample(rows, 30):
            del groups[row.path]
        splits = seeded_split(rows, 0.3, seed, groups=groups)
        assert Counter(row for listed in splits.values() for row in listed) == Counter(rows)
        sides = [{groups.get(row.path, row.path) for row in listed} for listed in splits.values()]
        assert not sides[0] & sides[1]
        for listed in splits.values():
            assert {row.label for row in listed} == {0, 1, 2, 3}
        share = len(splits["test"]) / len(rows)
        assert 0.2 < share < 0.4

    @given(data=st.data())
    @settings(max_examples=60, deadline=None)
    def test_no_class_is_left_without_an_image_to_train_on(self, data: st.DataObject) -> None:
        """Classes that share groups, with any sizes, sides and shares: unless all groups of a class were
        tested on before and it is trained on nowhere else.
        """
        classes, kinds = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12))
        rows = [
            Row(f"{label}/{number}.png", label)
            for label in range(classes)
            for number in range(data.draw(st.integers(1, 5)))
        ]
        groups = {row.path: f"site {data.draw(st.integers(0, kinds))}" for row in rows}
        for row in data.draw(st.lists(st.sampled_from(rows), max_size=len(rows))):
            groups.pop(row.path, None)
        sides = {"site 0": "test"} if data.draw(st.booleans()) else {}
        splits = seeded_split(rows, data.draw(st.floats(0.05, 0.95)), 1, groups=groups, sides=sides)
        assert Counter(row for part in splits.values() for row in part) == Counter(rows)
        of_train = {row.label for row in splits["train"]}
        free = {row.label for row in rows if groups.get(row.path, "") not in sides}
        assert of_train == free
        names = [{groups.get(row.path, row.path) for row in part} for part in splits.values()]
        assert not names[0] & names[1]

    def test_frames_of_clips_stay_together(self, tmp_path: Path) -> None:
        """Six clips of 40 frames, two a class, told apart by what they show or by their names: one clip of
        each class is tested on.
        """
        for clip in range(6):
            scene = np.random.default_rng(clip).integers(0, 256, (4, 4, 3)).astype(np.uint8)
            scene = np.asarray(Image.fromarray(scene).resize((60, 60), Image.Resampling.BICUBIC), dtype=int)
            for frame in range(40):
                noise = np.random.default_rng(100 * clip + frame).integers(-9, 10, scene.shape)
                path = tmp_path / "photos" / "abc"[clip // 2] / f"clip{clip}_{frame:02}.jpg"
                save_picture(path, np.roll(scene, frame // 14, axis=1) + noise + frame)
        for group in (None, r"clip\d"):
            data = load_dataset(tmp_path / "photos", DataSettings(group=group, cache=tmp_path / "cache"))
            clips = [{Path(path).name[:5] for path in part.paths} for part in (data.train, data.test)]
            assert len(clips[0]) == len(clips[1]) == 3
            assert not clips[0] & clips[1]
            assert any("in 6 groups" in note for note in data.notes)
            assert any("whole groups allow: 120 images and 120 images" in note for note in data.notes)
            found = check_dataset(
                str(tmp_path / "photos"), DataSettings(group=group, cache=tmp_path / "cache")
            )
            assert found.counts == {"train": 120, "test": 120}
        apart = load_dataset(tmp_path / "photos", DataSettings(group="none", cache=tmp_path / "cache"))
        assert len(apart.test) == 72
        by_camera = DataSettings(group="camera", cache=tmp_path / "cache")
        refuses(DataError, "camera", load_dataset, tmp_path / "photos", by_camera)
        refuses(SettingsError, "'('", DataSettings, group="(")
        for number, path in enumerate(sorted((tmp_path / "photos").rglob("*.jpg"))):
            part = tmp_path / "given" / ("train" if number % 2 else "test") / path.parent.name
            part.mkdir(parents=True, exist_ok=True)
            path.rename(part / path.name)
        leaking = check_dataset(str(tmp_path / "given"), DataSettings(cache=tmp_path / "cache"))
        assert any("120 of 120 test images are near-duplicates" in line for line in leaking.warnings)

    def test_one_scene_in_several_classes_is_told_and_split_by_images(self, tmp_path: Path) -> None:
        """Parts under one camera, with or without a line; with a pattern that says which belong together, no
        more than that is.
        """
        scene = np.random.default_rng(0).integers(30, 220, (6, 8, 3)).astype(np.uint8)
        scene = np.asarray(Image.fromarray(scene).resize((160, 120), Image.Resampling.BICUBIC), dtype=float)
        for number in range(20):
            pixels = scene + np.random.default_rng(number).normal(0, 3, scene.shape)
            image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
            if number % 2:
                ImageDraw.Draw(image).line([40 + number, 40, 70 + number, 70], fill="white", width=2)
            path = tmp_path / "photos" / ("good", "scratch")[number % 2] / f"part{number // 4}_{number}.png"
            save_picture(path, image)
        for group, told in ((None, True), (r"part\d", False)):
            settings_of = DataSettings(group=group, cache=tmp_path / "cache")
            data = load_dataset(tmp_path / "photos", settings_of)
            assert any("20 of 20 images show one scene" in note for note in data.notes) == told
            found = check_dataset(str(tmp_path / "photos"), settings_of)
            assert found.counts == {part: len(getattr(data, part)) for part in ("train", "test")}
            if told:
                assert found.counts == {"train": 14, "test": 6}
                assert not any(data.train.groups)

    def test_a_drawn_split_without_images_to_test_on_is_warned_of(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            save_picture(tmp_path / "photos" / name / "1.png", noise_pixels(ord(name)))
        found = check_dataset(str(tmp_path / "photos"), DataSettings(cache=tmp_path / "cache"))
        assert (found.counts["train"], found.counts["test"]) == (2, 0)
        assert not found.ok
        assert any("no image is left to test on" in warning for warning in found.warnings)
        all_trained = DataSettings(cache=tmp_path / "cache", test_share=0)
        assert check_dataset(str(tmp_path / "photos"), all_trained).ok

    def test_names_of_files_and_folders_do_not_matter(self, tmp_path: Path) -> None:
        """The contents of each side and each group stay where all files and classes are called otherwise,
        and in a table in another order: also where near-duplicates lie in several classes.
        """
        draw, found = Random(1), []
        scenes = [np.random.default_rng(number).integers(0, 200, (20, 20, 3)) for number in range(60)]
        pictures = [(scene, number % 4) for number, scene in enumerate(scenes)]
        pictures += [(scenes[number] + 20, number % 3) for number in range(0, 60, 5)]  # brighter ones
        for numbers, classes in ((range(72), "abcd"), (draw.sample(range(72), 72), "cadb")):
            folder, lines = tmp_path / classes, ["path,label"]
            for place, number in enumerate(numbers):
                pixels, label = pictures[number]
                path = save_picture(folder / classes[label] / f"{place}.png", pixels)
                lines.append(f"{path},{classes[label]}")
            (tmp_path / f"{classes}.csv").write_text("\n".join(lines))
            for source in (folder, tmp_path / f"{classes}.csv"):
                data = load_dataset(source, DataSettings(cache=tmp_path / "cache"))
                assert any("are in 12 groups of near-duplicates" in note for note in data.notes)
                groups = check_dataset(str(source), DataSettings(cache=tmp_path / "cache")).groups or []
                members = [sorted(numbers[int(Path(path).stem)] for path in group) for group in groups]
                assert sorted(members) == [[number, 60 + number // 5] for number in range(0, 60, 5)]
                sides = [
                    sorted(zip(part.hashes, part.groups, strict=True)) for part in (data.train, data.test)
                ]
                assert all(sides)
                found.append(sides)
        assert found == [found[0]] * 4

    def test_images_without_a_split_join_those_that_have_one(self, tmp_path: Path) -> None:
        """A group goes where its others are, an image that is listed again stays on its side."""
        for number in range(24):
            part = ("train", "test", "more")[number % 3]
            scene = np.random.default_rng(number // 3 % 4).integers(0, 200, (20, 20, 3)) + number
            path = tmp_path / ("more" if part == "more" else f"given/{part}") / "ab"[number // 3 % 2]
            scene = scene if part != "train" else noise_pixels(number + 50)
            save_picture(path / f"{number}.png", scene)
        (tmp_path / "corrected.csv").write_text("path,label\ngiven/train/a/0.png,b\ngiven/test/a/1.png,b")
        sources = [str(tmp_path / name) for name in ("given", "more", "corrected.csv")]
        data = load_dataset(sources, DataSettings(cache=tmp_path / "cache", broken="skip"))
        assert [len(part) for part in (data.train, data.test)] == [8, 16]
        assert {path.split("/")[0] for path in data.train.paths} == {"given"}
        labels = dict(zip(data.train.paths, data.train.labels.tolist(), strict=True))
        assert labels["given/train/a/0.png"] == 1

    def test_a_column_of_a_table_is_the_group(self, tmp_path: Path) -> None:
        lines = ["file,class,Site"]
        for number in range(24):
            save_picture(tmp_path / "photos" / f"{number}.png", noise_pixels(number))
            lines.append(f"photos/{number}.png,{'ab'[number % 2]},s{number // 4}")
        (tmp_path / "table.csv").write_text("\n".join(lines))
        data = load_dataset(tmp_path / "table.csv", DataSettings(group="Site", cache=tmp_path / "cache"))
        sites = [{int(Path(path).stem) // 4 for path in part.paths} for part in (data.train, data.test)]
        assert (len(sites[0]), len(sites[1])) == (4, 2)
        assert not sites[0] & sites[1]


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
            ("n.json", '{"ant": "x"}', "has no name for 1 class; the first is 'sea_horse'"),
            ("n.json", '["x"]', "has 1 name for 2 classes"),
            ("n.csv", "ant,x\nant,y\n", "names a folder twice: 'ant'"),
            ("n.txt", "ant\n", "'ant' is not a folder and a class name"),
        ],
    )
    def test_refusals(
        self, tmp_path: Path, settings: DataSettings, file: str, text: str, message: str
    ) -> None:
        class_folders(tmp_path / "d", COUNTS)
        (tmp_path / file).write_text(text)
        refused(tmp_path / "d", replace(settings, classnames=tmp_path / file), message)

    def test_classes_that_differ_in_case_alone(self, tmp_path: Path, settings: DataSettings) -> None:
        """As letters do: they have one name each only by a file."""
        class_folders(tmp_path / "d", {"A": 2, "a": 2})
        refused(tmp_path / "d", settings, "the classes 'A' and 'a' have the same name")
        (tmp_path / "n.json").write_text('{"A": "capital a", "a": "small a"}')
        data = load(tmp_path / "d", replace(settings, classnames=tmp_path / "n.json"))
        assert (data.keys, data.classnames) == (("A", "a"), ("capital a", "small a"))


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
            *[(text, "needs exactly one {}") for text in ("a {} and a {}", "a {name}", "a {:>99}", "a {!r}")],
        ],
    )
    def test_refusals(self, tmp_path: Path, settings: DataSettings, text: str, message: str) -> None:
        class_folders(tmp_path / "d", COUNTS)
        refused(tmp_path / "d", DataSettings(cache=settings.cache, template=text), message)

    def test_too_much_is_asked_for(self) -> None:
        refuses(LimitError, "1,004", checked_templates, ["a {}" + 1000 * "b"], "templates")


def test_a_file_of_another_kind(tmp_path: Path, settings: DataSettings) -> None:
    (tmp_path / "x.rar").write_text("x")
    refused(tmp_path / "x.rar", settings, r"is not a supported file.*\.csv, .*\.zip, \.tar or \.parquet")
    refused(tmp_path / "gone.csv", settings, "the file .*gone.csv does not exist")


def test_each_data_set_of_a_run_has_its_own_group() -> None:
    """By its name or the last part of its path; the others have the group of all."""
    settings = DataSettings(group="site", groups='"clips=c[0-9]{1,2}", frames.csv=day')
    assert [settings.of_dataset(name).group for name in ("clips", "photos/clips", "a/frames.csv", "b")] == [
        "c[0-9]{1,2}", "c[0-9]{1,2}", "day", "site",
    ]  # fmt: skip
    assert DataSettings().of_dataset("clips") == DataSettings()
    for wrong in ("clips", "clips=", "=x", "clips=a,clips=b", "clips=(", '"'):
        with pytest.raises(SettingsError):
            DataSettings(groups=wrong)
