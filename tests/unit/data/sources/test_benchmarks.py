"""The rows of the benchmarks, and each reader on a small tree of its own."""

import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision.datasets
from scipy.io import savemat

from dear.data.dataset import Dataset
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.data.sources import benchmarks as rows
from dear.data.sources.benchmarks import Benchmark, benchmarks, find_benchmark, published_names
from dear.data.sources.download import fetch
from dear.data.sources.readers import READERS
from dear.errors import DataError, OutputError
from dear.limits import LimitError
from tests.unit.data.photos import class_folders, picture

CALTECH = Path(__file__).parents[4] / "../shared/data/caltech-101"
NAMES = ("ant", "bee", "emu")
WNIDS = ("n01", "n02", "n03")


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Benchmark]:
    """Make a benchmark have three classes, for the length of a test."""

    def make(name: str, **fields: Any) -> Benchmark:
        small = replace(benchmarks()[name], classes=3, **fields)
        monkeypatch.setattr(rows, "benchmarks", lambda: {name: small})
        monkeypatch.setattr(
            rows, "packaged_names", lambda file: WNIDS if file.endswith("wnids.txt") else NAMES
        )
        return small

    return make


def load(name: str, root: Path, **options: Any) -> Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_dataset(name, DataSettings(root=root, cache=root / "cache", workers=1, **options))


def paths(images: Any) -> list[str]:
    return [*images.paths]


class TestRows:
    def test_fifteen_with_a_place_for_the_class_and_a_known_reader(self) -> None:
        assert len(benchmarks()) == 15
        for name, row in benchmarks().items():
            assert row.template.count("{}") == 1
            assert row.reader in READERS
            assert len(published_names(row)) == row.classes, name
            assert row.by_hand
        assert benchmarks()["UCF101"].template.format("Archery") == "a photo of a person doing Archery."

    def test_the_files_of_names_are_those_of_the_published_lists(self) -> None:
        source = CALTECH.parents[1] / "paper/classnames.json"
        if not source.is_file():
            pytest.skip(f"{source} is not here")
        lists = json.loads(source.read_text())
        for key, names in lists.items():
            row = find_benchmark({"dtd": "DTD"}.get(key, key))
            assert row is not None
            assert [*published_names(row)] == names

    def test_subsets_of_imagenet_keep_its_names(self) -> None:
        whole = dict(
            zip(
                rows.folder_names(benchmarks()["ImageNet"]) or (),
                published_names(benchmarks()["ImageNet"]),
                strict=True,
            )
        )
        assert len(whole) == 1000
        for name in ("ImageNetA", "ImageNetR"):
            row = benchmarks()[name]
            assert [whole[wnid] for wnid in rows.folder_names(row) or ()] == [*published_names(row)]
        assert published_names(benchmarks()["ImageNetR"])[0] == "goldfish"  # n01443537

    @pytest.mark.parametrize("name", ["DTD", "dtd", "describable-textures", "DescribableTextures"])
    def test_names(self, name: str) -> None:
        found = find_benchmark(name)
        assert found is not None
        assert found.name == "DescribableTextures"

    def test_no_root(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("DEAR_DATA", raising=False)
        monkeypatch.chdir(tmp_path)
        with pytest.raises(DataError, match="DescribableTextures needs the folder of the benchmarks"):
            load_dataset("dtd")
        monkeypatch.setenv("DEAR_DATA", str(tmp_path))
        with pytest.raises(DataError, match=r"is not in .*dtd\. Fetch it with `dear data get "):
            load_dataset("dtd")


class TestReaders:
    def test_class_folders_take_our_split(self, tmp_path: Path, known: Callable[..., Benchmark]) -> None:
        known("EuroSAT")
        class_folders(tmp_path / "eurosat/2750", {"Ant": 10, "Bee": 10, "Emu": 10})
        with pytest.warns(
            UserWarning,
            match=r"EuroSAT: the data has no split: .*50% for training, 20% for validation, 30% for testing",
        ):
            data = load_dataset("eurosat", DataSettings(root=tmp_path, cache=tmp_path / "cache"))
        assert data.classnames == NAMES
        assert data.templates == ("a centered satellite photo of {}.",)
        assert data.val is not None
        assert [len(part) for part in (data.train, data.val, data.test)] == [15, 6, 9]
        class_folders(tmp_path / "eurosat/2750", {"Owl": 10})
        with pytest.raises(DataError, match="has 4 folders of classes, but EuroSAT has 3"):
            load("EuroSAT", tmp_path)

    def test_folders_called_like_classes_are_matched_by_name(
        self, tmp_path: Path, known: Callable[..., Benchmark], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        known("UCF101")
        monkeypatch.setattr(rows, "packaged_names", lambda _: ("Hammering", "Hammer_Throw"))
        class_folders(tmp_path / "ucf101/UCF-101-midframes", {"Hammering": 3, "Hammer_Throw": 3})
        data = load("ucf101", tmp_path)
        assert data.classnames == ("Hammering", "Hammer Throw")
        assert {path.split("/")[0] for path in paths(data.test)[:1]} == {"Hammering"}

    def test_imagenet(self, tmp_path: Path, known: Callable[..., Benchmark]) -> None:
        known("ImageNet")
        class_folders(tmp_path / "imagenet/images/train", dict.fromkeys(WNIDS, 2))
        class_folders(tmp_path / "imagenet/images/val", dict.fromkeys(WNIDS, 1))
        data = load("ImageNet", tmp_path)
        assert (data.classnames, len(data.train), data.val) == (NAMES, 6, None)
        assert paths(data.test) == ["val/n01/0.png", "val/n02/0.png", "val/n03/0.png"]
        (tmp_path / "imagenet/classnames.txt").write_text("n03 x\nn01 sea horse\nn02 z\n")
        assert load("ImageNet", tmp_path).classnames == ("sea horse", "z", "x")
        (tmp_path / "imagenet/images/val/n02/0.png").unlink()
        (tmp_path / "imagenet/images/val/n02").rmdir()
        with pytest.raises(DataError, match="lacks 1 of the 3 folders of ImageNet; the first is n02"):
            load("ImageNet", tmp_path)

    def test_variants_to_test_on(self, tmp_path: Path, known: Callable[..., Benchmark]) -> None:
        known("ImageNetR")
        class_folders(tmp_path / "imagenet-rendition/imagenet-r", dict.fromkeys(WNIDS, 2))
        (tmp_path / "imagenet-rendition/imagenet-r/README.txt").write_text("x")
        data = load("imagenet_r", tmp_path)
        assert (len(data.train), len(data.test), data.classnames) == (0, 6, NAMES)

    def test_numbered_folders(self, tmp_path: Path, known: Callable[..., Benchmark]) -> None:
        known("ImageNetV2")
        place = tmp_path / "imagenetv2/imagenetv2-matched-frequency-format-val"
        class_folders(place, {"0": 1, "2": 1, "1": 1})
        data = load("ImageNetV2", tmp_path)
        assert paths(data.test) == ["0/0.png", "1/0.png", "2/0.png"]

    def test_pets(self, tmp_path: Path, known: Callable[..., Benchmark]) -> None:
        known("OxfordPets")
        for name in ("Ant_1", "Ant_2", "bee_1", "bee_2", "emu_1", "emu_2", "emu_3"):
            picture(tmp_path / f"oxford_pets/images/{name}.jpg")
        notes = tmp_path / "oxford_pets/annotations"
        notes.mkdir()
        (notes / "trainval.txt").write_text(
            "# a comment\nAnt_1 1 1 1\nAnt_2 1 1 1\nbee_1 2 1 1\nbee_2 2 1 1\nemu_1 3 2 1\nemu_2 3 2 1\n"
        )
        (notes / "test.txt").write_text("emu_3 3 2 1\n")
        data = load("OxfordPets", tmp_path)
        assert (paths(data.test), data.test.labels.tolist()) == (["emu_3.jpg"], [2])
        assert sorted(data.train.labels.tolist()) == [0, 1, 2]  # 80% of 2 is rounded to 2, val needs 1
        (notes / "test.txt").write_text("emu_3 4 2 1\n")
        with pytest.raises(DataError, match="label 4 is out of range, 1 to 3"):
            load("OxfordPets", tmp_path)
        (notes / "test.txt").unlink()
        with pytest.raises(
            DataError, match=r"no split list .*test\.txt cannot be read.*dear data get OxfordPets"
        ):
            load("OxfordPets", tmp_path)

    def test_aircraft(self, tmp_path: Path, known: Callable[..., Benchmark]) -> None:
        known("FGVCAircraft")
        home = tmp_path / "fgvc_aircraft"
        for number in range(3):
            picture(home / f"images/{number}.jpg")
        (home / "variants.txt").write_text("ant\nbee two\nemu\n")
        for part, line in (("train", "0 bee two"), ("val", "1 emu"), ("test", "2 ant")):
            (home / f"images_variant_{part}.txt").write_text(line + "\n")
        data = load("fgvc_aircraft", tmp_path)
        assert data.val is not None
        assert [(paths(s), s.labels.tolist()) for s in (data.train, data.val, data.test)] == [
            (["0.jpg"], [1]), (["1.jpg"], [2]), (["2.jpg"], [0]),
        ]  # fmt: skip

    def test_sun(self, tmp_path: Path, known: Callable[..., Benchmark]) -> None:
        known("SUN397")
        home = tmp_path / "sun397"
        for key in ("a/ant", "b/bee/indoor", "e/emu"):
            class_folders(home / "SUN397", {key: 4})
        (home / "ClassName.txt").write_text("/a/ant\n/b/bee/indoor\n/e/emu\n")
        data = load("SUN397", tmp_path)
        assert (len(data.train), len(data.test)) == (6, 3)
        lines = [f"/{key}/{k}.png\n" for key in ("a/ant", "b/bee/indoor", "e/emu") for k in (0, 1)]
        (home / "Training_01.txt").write_text("".join(lines))
        (home / "Testing_01.txt").write_text("/b/bee/indoor/3.png\n")
        data = load("SUN397", tmp_path)
        assert (paths(data.test), data.test.labels.tolist()) == (["b/bee/indoor/3.png"], [1])

    def test_ucf_lists(self, tmp_path: Path, known: Callable[..., Benchmark]) -> None:
        known("UCF101")
        home = tmp_path / "ucf101"
        for name in ("Ant_Walk/v_1", "Ant_Walk/v_2", "Bee/v_1", "Bee/v_2", "Bee/v_3"):
            picture(home / f"UCF-101-midframes/{name}.jpg")
        lists = home / "ucfTrainTestlist"
        lists.mkdir()
        (lists / "classInd.txt").write_text("1 AntWalk\n2 Bee\n")
        (lists / "trainlist01.txt").write_text(
            "AntWalk/v_1.avi 1\nAntWalk/v_2.avi 1\nBee/v_1.avi 2\nBee/v_2.avi 2\n"
        )
        (lists / "testlist01.txt").write_text("Bee/v_3.avi\n")
        with pytest.raises(DataError, match=r"class 2 \(emu\) has 0 images"):
            load("UCF101", tmp_path)
        rows.packaged_names = lambda _: ("Ant_Walk", "Bee")  # the fixture puts it back
        data = load("UCF101", tmp_path)
        assert (paths(data.test), data.test.labels.tolist()) == (["Bee/v_3.jpg"], [1])

    def test_matlab_labels(self, tmp_path: Path, known: Callable[..., Benchmark]) -> None:
        known("OxfordFlowers")
        home = tmp_path / "oxford_flowers"
        labels = [3, 1, 2] * 4
        for number in range(1, 13):
            picture(home / f"jpg/image_{number:05}.jpg")
        savemat(home / "imagelabels.mat", {"labels": np.array([labels], dtype=np.uint8)})
        data = load("flowers102", tmp_path)
        for images in (data.train, data.test):
            numbers = [int(path[6:11]) for path in paths(images)]
            assert [labels[n - 1] - 1 for n in numbers] == images.labels.tolist()
        assert (len(data.train), len(data.test)) == (6, 3)

    def test_cars(self, tmp_path: Path, known: Callable[..., Benchmark]) -> None:
        known("StanfordCars")
        home = tmp_path / "stanford_cars"
        kind = [("fname", object), ("class", object)]

        def annotate(file: str, items: list[tuple[str, int]]) -> None:
            (home / file).parent.mkdir(parents=True, exist_ok=True)
            savemat(home / file, {"annotations": np.array([items], dtype=kind)})

        train = [(f"{n:05}.jpg", label) for n, label in enumerate((2, 1, 3, 1, 3, 2), start=1)]
        annotate("devkit/cars_train_annos.mat", train)
        annotate("cars_test_annos_withlabels.mat", [("00001.jpg", 3)])
        for name, _ in train:
            picture(home / "cars_train" / name)
        picture(home / "cars_test/00001.jpg")
        data = load("stanford-cars", tmp_path)
        assert (paths(data.test), data.test.labels.tolist()) == (["cars_test/00001.jpg"], [2])
        assert sorted(data.train.labels.tolist()) == [0, 1, 2]

    @pytest.mark.parametrize("path", ["../../x.png", "/../x", "a/../../x", "/etc/../../x"])
    @pytest.mark.parametrize("name", ["OxfordPets", "FGVCAircraft", "SUN397", "UCF101", "StanfordCars"])
    def test_paths_that_lead_out(
        self, name: str, path: str, tmp_path: Path, known: Callable[..., Benchmark]
    ) -> None:
        """Each list of a benchmark that names files, with one outside of its folder of images."""
        benchmark = known(name)
        home = tmp_path / benchmark.folder
        entry = np.array([(path, 1)], dtype=[("fname", object), ("class", object)])
        lists: dict[str, dict[str, Any]] = {
            "OxfordPets": {"annotations/trainval.txt": f"{path} 1\n", "annotations/test.txt": f"{path} 1\n"},
            "FGVCAircraft": {
                "variants.txt": "ant\n",
                **{f"images_variant_{part}.txt": f"{path} ant\n" for part in ("train", "val", "test")},
            },
            "SUN397": {
                "ClassName.txt": "/a/ant\n", "Training_01.txt": f"/a/ant/{path}\n",
                "Testing_01.txt": f"/a/ant/{path}\n",
            },
            "UCF101": {
                "ucfTrainTestlist/classInd.txt": "1 Ant\n",
                "ucfTrainTestlist/trainlist01.txt": f"Ant/{path}\n",
                "ucfTrainTestlist/testlist01.txt": f"Ant/{path}\n",
            },
            "StanfordCars": {
                "devkit/cars_train_annos.mat": entry, "cars_test_annos_withlabels.mat": entry,
            },
        }  # fmt: skip
        for file, content in lists[name].items():
            (home / file).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, str):
                (home / file).write_text(content)
            else:
                savemat(home / file, {"annotations": content})
        with pytest.raises(DataError, match=r"leads out of the image folder|has no class"):
            load(name, tmp_path)

    @pytest.mark.parametrize("line", ["Ant", "1 Ant Walk more", "x Ant"])
    def test_damaged_class_lists(self, line: str, tmp_path: Path, known: Callable[..., Benchmark]) -> None:
        known("UCF101")
        lists = tmp_path / "ucf101/ucfTrainTestlist"
        lists.mkdir(parents=True)
        (lists / "classInd.txt").write_text(f"{line}\n")
        for part in ("train", "test"):
            (lists / f"{part}list01.txt").write_text("Ant/v_1.avi\n")
        with pytest.raises(DataError, match=r"is not a label|has no class 'Ant'"):
            load("UCF101", tmp_path)

    @pytest.mark.parametrize(
        "content",
        [
            {"other": 1},
            {"annotations": 3},
            {"annotations": np.array([("a",)], dtype=[("fname", object)])},
            {"annotations": np.array([(["a", "b"], 1)], dtype=[("fname", object), ("class", object)])},
        ],
    )
    def test_damaged_annotations(
        self, content: dict[str, Any], tmp_path: Path, known: Callable[..., Benchmark]
    ) -> None:
        known("StanfordCars")
        file = tmp_path / "stanford_cars/devkit/cars_train_annos.mat"
        file.parent.mkdir(parents=True)
        savemat(file, content)
        with pytest.raises(DataError, match=r"cars_train_annos\.mat (cannot be read|are not records)"):
            load("StanfordCars", tmp_path)

    @pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded on Linux only")
    def test_a_matlab_file_that_unpacks_to_much(
        self, tmp_path: Path, known: Callable[..., Benchmark], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        known("OxfordFlowers")
        file = tmp_path / "oxford_flowers/imagelabels.mat"
        file.parent.mkdir()
        savemat(file, {"labels": np.zeros(2**26, np.uint8)}, do_compression=True)
        assert file.stat().st_size < 2**20
        monkeypatch.setattr("dear.data.sources.readers.MATLAB_BYTES", 2**25)
        # A process that has freed as much before has room for it, and then counts the labels.
        with pytest.raises(
            LimitError, match=r"imagelabels\.mat: (it takes more than 32 MiB|67,108,864 rows)"
        ):
            load("OxfordFlowers", tmp_path)

    def test_a_split_list_comes_first(self, tmp_path: Path, known: Callable[..., Benchmark]) -> None:
        known("EuroSAT", published={"train": 1, "test": 1})
        class_folders(tmp_path / "eurosat/2750", {"Ant": 2})
        content = {"train": [["Ant/1.png", 0, "ant_hill"]], "val": [], "test": [["Ant/0.png", 0, "ant_hill"]]}
        (tmp_path / "eurosat/split_zhou_EuroSAT.json").write_text(json.dumps(content))
        data = load("EuroSAT", tmp_path)
        assert (data.classnames, paths(data.train), data.notes) == (("ant hill",), ["Ant/1.png"], ())


class TestFetch:
    @pytest.fixture
    def host(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def food(root: str, *, split: str, download: bool) -> None:
            assert (split, download) == ("train", True)
            picture(Path(root) / "food-101/images/pie/1.jpg")
            (Path(root) / "food-101/meta").mkdir()
            (Path(root) / "food-101.tar.gz").write_text("x")

        monkeypatch.setattr(torchvision.datasets, "Food101", food)

    @pytest.mark.usefixtures("host")
    def test_into_coops_layout(self, tmp_path: Path) -> None:
        result = fetch(benchmarks()["Food101"], tmp_path)
        assert (result.fetched, result.why) == (["images", "meta"], None)
        assert [line for line in result.by_hand if "split_zhou_Food101.json" in line] == result.by_hand
        assert sorted(path.name for path in (tmp_path / "food-101").iterdir()) == ["images", "meta"]
        assert "already exists" in (fetch(benchmarks()["Food101"], tmp_path).why or "")

    def test_a_host_that_does_not_answer(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from urllib.error import URLError

        def fail(*_args: Any, **_options: Any) -> None:
            raise URLError("no route to host")

        monkeypatch.setattr(torchvision.datasets, "EuroSAT", fail)
        result = fetch(benchmarks()["EuroSAT"], tmp_path)
        assert "the download failed" in (result.why or "")
        assert result.by_hand == [*benchmarks()["EuroSAT"].by_hand]
        assert [*tmp_path.iterdir()] == []

    def test_a_full_disk_is_no_host_that_does_not_answer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_args: Any, **_options: Any) -> None:
            raise OSError(28, "No space left on device")  # of a write, which knows no name

        monkeypatch.setattr(torchvision.datasets, "EuroSAT", fail)
        with pytest.raises(OutputError, match=r"cannot write to .*No space left"):
            fetch(benchmarks()["EuroSAT"], tmp_path)

    def test_what_torchvision_does_not_have(self, tmp_path: Path) -> None:
        result = fetch(benchmarks()["ImageNetA"], tmp_path)
        assert result.by_hand
        assert [*tmp_path.iterdir()] == []
