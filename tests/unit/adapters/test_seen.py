"""A bundle knows the images that it was fitted on, in every form that they come in, and is not tested on
them.
"""

import hashlib
import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dear.adapters.bundle import Bundle
from dear.adapters.evaluation_page import evaluation_page
from dear.adapters.fit import fit
from dear.adapters.predictor import Predictor
from dear.adapters.scoring import evaluate_bundle
from dear.backbone.clip import Clip
from dear.cli.main import main
from dear.data.dataset import Dataset
from dear.data.image_check import leave_out_copies
from dear.data.images.photos import image_hashes
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError
from dear.evaluation.experiment import Experiment
from dear.evaluation.predictions import list_parts, load_predictions
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.protocols.transfer import CrossDataset
from dear.evaluation.records import read_record
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.runs import Runner, run_all, run_one
from tests.unit.serving.small import picture
from tests.unit.training.world import CLASSES, noise_dataset

EACH = 10


@pytest.fixture(autouse=True)
def small(small_clip: Clip, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for module in ("adapters.prepare", "adapters.bundle", "evaluation.runs"):
        monkeypatch.setattr(f"dear.{module}.load_clip", lambda *_args, **_options: small_clip)
    monkeypatch.setenv("DEAR_CACHE", str(tmp_path / "cache"))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*the data has no split")
        yield


def add(folder: Path, first: int, count: int) -> None:
    """Pictures of noise, each other than all others, in a folder for each class."""
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(first, first + count):
            picture(100 * label + number).save(folder / name / f"{number}.png")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    add(tmp_path / "photos", 0, EACH)
    return tmp_path / "photos"


def all_of(folder: Path) -> Dataset:
    return load_dataset(folder, DataSettings(test_share=1.0))


def hash_of(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=8).digest()


def fitted(data: Any, **options: Any) -> Bundle:
    return fit(data, method="linear-probe", model="tiny", verbose=False, **options)


class TestHashes:
    def test_files_data_frames_and_bytes_have_that_of_the_file(self, folder: Path) -> None:
        files = sorted(folder.rglob("*.png"))
        wanted = sorted(hash_of(file.read_bytes()) for file in files)
        names = [file.parent.name for file in files]
        whole = DataSettings(test_share=1.0)
        forms: list[Any] = [
            folder,
            {"path": [str(file) for file in files], "label": names},
            ([file.read_bytes() for file in files], names),
        ]
        for form in forms:
            assert sorted(image_hashes(load_dataset(form, whole).test)) == wanted

    def test_pictures_in_memory_have_that_of_their_pixels(self) -> None:
        arrays = [np.asarray(picture(number)) for number in range(3)]
        wanted = [
            hash_of(str((3, *array.shape[:2])).encode() + array.transpose(2, 0, 1).tobytes())
            for array in arrays
        ]
        for form in (arrays, [Image.fromarray(array) for array in arrays]):
            data = load_dataset((form, ["a", "b", "a"]), DataSettings(test_share=1.0))
            assert image_hashes(data.test) == wanted


class TestFit:
    def test_what_is_stored(self, folder: Path, tmp_path: Path) -> None:
        data = load_dataset(folder)
        trained = {hash_of((folder / path).read_bytes()) for path in data.train.paths}  # type: ignore[attr-defined]
        assert len(trained) == 21  # 70% of ten for each of three classes
        bundle = fitted(folder, out=tmp_path / "bundle")
        assert bundle.image_hashes == b"".join(sorted(trained))
        assert Bundle.from_pretrained(tmp_path / "bundle").image_hashes == bundle.image_hashes

    def test_images_of_the_temperature_count_too(self, folder: Path) -> None:
        few = fitted(folder, shots=2, calibrate=False)
        assert len(few.image_hashes) == 8 * 6
        calibrated = fitted(folder, shots=2, calibrate=True)
        assert len(calibrated.image_hashes) == 8 * 21

    def test_a_copy_of_a_training_image_is_no_test_image(self, tmp_path: Path) -> None:
        for part, start in (("train", 0), ("test", 50)):
            add(tmp_path / "apart" / part, start, 4)
        source = tmp_path / "apart" / "train" / CLASSES[0] / "1.png"
        (tmp_path / "apart" / "test" / CLASSES[0] / "copy.png").write_bytes(source.read_bytes())
        with pytest.warns(
            UserWarning, match="apart: 1 of 13 test images are left out: `dear fit` trained on"
        ):
            bundle = fitted(tmp_path / "apart")
        assert bundle.training["test_images"] == 12


class TestRun:
    """The same in the protocols, with all images that could be trained on: all runs have the same tests."""

    @pytest.fixture
    def apart(self, tmp_path: Path) -> Path:
        """Four images of each class to train on and four to test on, and two copies among the latter."""
        for part, start in (("train", 0), ("test", 50)):
            add(tmp_path / "apart" / part, start, 4)
        for name in CLASSES[:2]:
            source = tmp_path / "apart" / "train" / name / "1.png"
            (tmp_path / "apart" / "test" / name / "copy.png").write_bytes(source.read_bytes())
        return tmp_path / "apart"

    def run(self, out: Path, protocol: Protocol, data: tuple[str, ...]) -> list[dict[str, Any]]:
        setups = (MethodSetup("zero-shot"), MethodSetup("linear-probe"))[: 1 + isinstance(protocol, FewShot)]
        experiment = Experiment(
            protocol=protocol, methods=setups, data=data, shots=(1,), model="tiny", out=out
        )
        runner = Runner("cpu")
        runner.check(experiment)
        return [run_one(*runner.prepare(experiment, run), out=out) for run in experiment.runs()]

    def test_copies_of_training_images_are_left_out(
        self, apart: Path, tmp_path: Path, small_clip: Clip
    ) -> None:
        with pytest.warns(UserWarning, match="apart: 2 of 14 test images are left out: they are copies of"):
            records = self.run(tmp_path / "out", FewShot(), (str(apart),))
        for record in records:
            assert record["dataset"]["left_out"] == 2
            path = next((tmp_path / "out").glob(f"*{record['method']}*.json"))
            assert read_record(path) == record
            tested = load_predictions(path.with_suffix(".npz"), "all")
            assert np.bincount(tested.labels).tolist() == [4, 4, 4]
            assert not any("copy" in file for file in tested.paths)
        (again,) = run_all(small_clip, [load_dataset(apart)], [MethodSetup("zero-shot")], protocol=FewShot())
        assert again["results"] == records[0]["results"]

    def test_of_the_source_and_of_targets(self, apart: Path, folder: Path, tmp_path: Path) -> None:
        """The second image of each class of photos/ is in apart/train too."""
        with pytest.warns(UserWarning, match="photos: 12 of 30 test images are left out"):
            (record,) = self.run(tmp_path / "out", CrossDataset(source=str(apart)), (str(folder),))
        assert record["dataset"]["left_out"] == 2
        assert [target["left_out"] for target in record["targets"]] == [12]
        (path,) = (tmp_path / "out").glob("*.npz")
        assert [len(load_predictions(path, part).labels) for part in list_parts(path)] == [12, 18]

    def test_a_benchmark_keeps_its_split(self, apart: Path) -> None:
        data = replace(load_dataset(apart), benchmark=True)
        with pytest.warns(UserWarning, match="its published split is kept"):
            assert leave_out_copies(data, data) is data

    def test_only_copies(self, apart: Path) -> None:
        data = load_dataset(apart)
        with pytest.raises(DataError, match="all 12 test images of apart are copies of training images"):
            leave_out_copies(replace(data, test=data.train), data)
        assert leave_out_copies(noise_dataset(), noise_dataset()).left_out == 0


class TestEval:
    def test_new_images_in_the_same_folders_are_all_tested(self, folder: Path) -> None:
        predictor = Predictor(fitted(folder))
        add(folder, 50, 4)
        with pytest.warns(UserWarning, match="photos: 21 of 42 test images are left out: `dear fit` trained"):
            scores = evaluate_bundle(predictor, all_of(folder))
        assert (scores.images, scores.left_out) == (21, 21)
        assert evaluate_bundle(predictor, load_dataset(folder), split="train").left_out == 0

    def test_training_images_alone_are_refused(self, folder: Path) -> None:
        predictor = Predictor(fitted(folder))
        data = load_dataset(folder)
        with pytest.raises(DataError, match="all 21 test images of photos to train on: test on other images"):
            evaluate_bundle(predictor, replace(data, test=data.train))

    def test_the_page_shows_the_right_pictures(self, folder: Path) -> None:
        predictor = Predictor(fitted(folder))
        data = all_of(folder)
        scores, page = evaluation_page(predictor, data)
        assert any(note.startswith("21 of 30 images, which") for note in page.notes)
        seen = {*np.frombuffer(predictor.bundle.image_hashes, "S8").tolist()}
        for mistake in page.mistakes.examples.itertuples():
            assert mistake.file == data.test.paths[mistake.image]  # type: ignore[attr-defined]
            assert hash_of((folder / str(mistake.file)).read_bytes()) not in seen
        assert scores.images == 9

    def test_the_command_takes_all_images_of_a_folder_without_a_split(
        self, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        fitted(folder, out=tmp_path / "bundle")
        add(tmp_path / "more", 50, 4)
        counts = {}
        for name, options in {
            "more": [],
            "photos": [],
            "half": ["--dataset.test-share", "0.5"],
            "train": ["--split", "train"],
        }.items():
            data = tmp_path / ("photos" if name == "photos" else "more")
            assert main(["eval", str(tmp_path / "bundle"), str(data), "--json", *options]) == 0
            result = json.loads(capsys.readouterr().out)
            counts[name] = result["images"], result["left_out"]
        assert counts == {"more": (12, 0), "photos": (9, 21), "half": (6, 0), "train": (9, 0)}
