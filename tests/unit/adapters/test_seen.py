"""A bundle knows the images that it was fitted on, in every form that they come in, and is not tested on
them; copies of a picture have one label.
"""

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pandas import read_csv
from PIL import Image

from dear.adapters.bundle import Bundle
from dear.adapters.evaluation import evaluate
from dear.adapters.fit import fit
from dear.adapters.predictor import Predictor
from dear.adapters.scoring import evaluate_bundle
from dear.backbone.clip import Clip
from dear.cli.main import main
from dear.data.check import check_dataset
from dear.data.image_check import leave_out_copies
from dear.data.images.photos import image_hashes
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError
from dear.evaluation.experiment import Experiment, Machines
from dear.evaluation.launch import launch
from dear.evaluation.predictions import list_parts, load_predictions
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.protocols.transfer import CrossDataset
from dear.evaluation.records import read_record
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.session import Session
from tests.helpers.data import CLASSES, noise_dataset
from tests.helpers.errors import refuses
from tests.helpers.pictures import save_folders
from tests.helpers.server import picture

EACH = 10


@pytest.fixture(autouse=True)
def small(only_clip: Clip) -> Iterator[None]:  # noqa: ARG001
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*the data has no split")
        yield


def add(folder: Path, first: int, count: int) -> Path:
    """Pictures of noise, each other than all others, in a folder for each class."""
    numbers = range(first, first + count)
    return save_folders(folder, CLASSES, numbers, lambda label, number: picture(100 * label + number))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return add(tmp_path / "photos", 0, EACH)


def hash_of(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=8).digest()


def fitted(data: Any, **options: Any) -> Bundle:
    settings = DataSettings(test_share=0.3)
    return fit(data, method="linear-probe", model="tiny", verbose=False, dataset=settings, **options)


def test_images_have_the_hash_of_their_file_or_in_memory_of_their_pixels(folder: Path) -> None:
    files, whole = sorted(folder.rglob("*.png")), DataSettings(test_share=1.0)
    wanted = sorted(hash_of(file.read_bytes()) for file in files)
    names = [file.parent.name for file in files]
    columns = {"path": [str(file) for file in files], "label": names}
    for form in (folder, columns, ([file.read_bytes() for file in files], names)):
        assert sorted(image_hashes(load_dataset(form, whole).test)) == wanted
    arrays = [np.asarray(picture(number)) for number in range(3)]
    sizes = [str((3, *array.shape[:2])).encode() for array in arrays]
    wanted = [hash_of(size + a.transpose(2, 0, 1).tobytes()) for size, a in zip(sizes, arrays, strict=True)]
    for pictures in (arrays, [Image.fromarray(array) for array in arrays]):
        assert image_hashes(load_dataset((pictures, ["a", "b", "a"]), whole).test) == wanted


def test_what_is_stored(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training images and those of the temperature."""
    data = load_dataset(folder)
    trained = {hash_of((folder / path).read_bytes()) for path in data.train.paths}  # type: ignore[attr-defined]
    assert len(trained) == 21  # 70% of ten for each of three classes
    assert len(fitted(folder, shots=2).image_hashes) == 8 * 6  # too few are spared for the temperature
    monkeypatch.setattr("dear.adapters.prepare.FEWEST_TO_CALIBRATE", 1)
    bundle = fitted(folder, out=tmp_path / "bundle", shots=2)
    assert bundle.image_hashes == b"".join(sorted(trained))
    assert Bundle.from_pretrained(tmp_path / "bundle").image_hashes == bundle.image_hashes


@pytest.fixture
def apart(tmp_path: Path) -> Path:
    """Four images of each class to train on and four to test on, and two copies among the latter."""
    for part, start in (("train", 0), ("test", 50)):
        add(tmp_path / "apart" / part, start, 4)
    for name in CLASSES[:2]:
        source = tmp_path / "apart" / "train" / name / "1.png"
        (tmp_path / "apart" / "test" / name / "copy.png").write_bytes(source.read_bytes())
    return tmp_path / "apart"


def run(out: Path, protocol: Protocol, data: Path, *methods: str) -> list[dict[str, Any]]:
    setups = tuple(map(MethodSetup, methods))
    options = {"data": (str(data),), "shots": (1,), "model": "tiny", "out": out}
    experiment = Experiment(protocol=protocol, methods=setups, **options)  # type: ignore[arg-type]
    return launch([experiment], Machines("cpu"))[0]


def test_runs_leave_out_copies_of_all_images_that_could_be_trained_on(apart: Path, tmp_path: Path) -> None:
    """So that all runs have the same tests."""
    with pytest.warns(UserWarning, match="apart: 2 of 14 test images are left out: they are copies of"):
        records = run(tmp_path / "out", FewShot(), apart, "zero-shot", "linear-probe")
    for record in records:
        assert record["dataset"]["left_out"] == 2
        path = next((tmp_path / "out").glob(f"*{record['method']}*.json"))
        assert read_record(path) == record
        tested = load_predictions(path.with_suffix(".npz"), "all")
        assert np.bincount(tested.labels).tolist() == [4, 4, 4]
        assert not any("copy" in file for file in tested.paths)


def test_copies_among_the_images_of_the_source_and_of_targets(
    apart: Path, folder: Path, tmp_path: Path
) -> None:
    """The second image of each class of photos/ is in apart/train too."""
    with pytest.warns(UserWarning, match="photos: 12 of 30 test images are left out"):
        (record,) = run(tmp_path / "out", CrossDataset(source=str(apart)), folder, "zero-shot")
    assert record["dataset"]["left_out"] == 2
    assert [target["left_out"] for target in record["targets"]] == [12]
    (path,) = (tmp_path / "out").glob("*.npz")
    assert [len(load_predictions(path, part).labels) for part in list_parts(path)] == [12, 18]


def test_a_benchmark_keeps_its_split_and_no_test_has_copies_alone(apart: Path) -> None:
    data = load_dataset(apart)
    benchmark = replace(data, benchmark=True)
    with pytest.warns(UserWarning, match="its published split is kept"):
        assert leave_out_copies(benchmark, benchmark) is benchmark
    refuses(DataError, ("12", "apart"), leave_out_copies, replace(data, test=data.train), data)
    assert leave_out_copies(noise_dataset(), noise_dataset()).left_out == 0


FORMS: dict[str, Callable[[Path], Any]] = {
    "folder": lambda folder: folder,
    "arrays": lambda folder: (
        [np.asarray(Image.open(path)) for path in images_of(folder)],
        [path.parent.name for path in images_of(folder)],
    ),
}


def images_of(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.png"))


@pytest.mark.parametrize("form", FORMS)
def test_copies_with_two_labels_are_refused_and_named(form: str, folder: Path) -> None:
    """Files and arrays, by all that compares predictions with labels; copies with one label are no fault."""
    (first, second, third), options = CLASSES[:3], {"method": "zero-shot", "review": False, "refuse": 0}
    shutil.copy(folder / first / "0.png", folder / first / "same.png")
    bundle = fit(FORMS[form](folder), verbose=False, **options)
    shutil.copy(folder / first / "1.png", folder / second / "other.png")
    shutil.copy(folder / third / "2.png", folder / second / "another.png")
    data = load_dataset(FORMS[form](folder))
    names = {f"{first}/1.png": f"{second}/other.png", f"{third}/2.png": f"{second}/another.png"}
    files = [*map(str, images_of(folder))]
    for use in (
        lambda: fit(FORMS[form](folder), **options),
        lambda: fit(data, **options),
        lambda: evaluate_bundle(Predictor(bundle), data),
        *([lambda: Session().dataset(str(folder), DataSettings(), str(folder))] if form == "folder" else []),
    ):
        pictures = [name for pair in names.items() for name in pair]
        told = [str(files.index(str(folder / name))) if form == "arrays" else name for name in pictures]
        refuses(DataError, ("2 pictures", *(f"{name} ('" for name in told)), use)


def test_the_page_shows_the_right_pictures(folder: Path, tmp_path: Path) -> None:
    predictor, data = Predictor(fitted(folder)), load_dataset(folder, DataSettings(test_share=1.0))
    found = evaluate(predictor, data, tmp_path / "page")
    page = found.files[0]
    assert "21 of 30 images, which" in page.read_text()
    seen = {*np.frombuffer(predictor.bundle.image_hashes, "S8").tolist()}
    for mistake in read_csv(page.parent / "mistakes.csv").itertuples():
        assert mistake.file in data.test.paths  # type: ignore[attr-defined]
        assert hash_of((folder / str(mistake.file)).read_bytes()) not in seen
    assert found.scores.images == 9


def test_eval_takes_all_images_of_a_folder_without_a_split(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted(folder, out=tmp_path / "bundle")
    add(tmp_path / "more", 50, 4)
    counts = []
    for words in (
        ["more"],
        ["photos"],
        ["more", "--dataset.test-share", "0.5"],
        ["more", "--split", "train"],
    ):
        assert main(["eval", str(tmp_path / "bundle"), str(tmp_path / words[0]), "--json", *words[1:]]) == 0
        result = json.loads(capsys.readouterr().out)
        counts.append((result["images"], result["left_out"]))
    assert counts == [(12, 0), (9, 21), (6, 0), (9, 0)]


def test_what_cannot_be_left_out_or_tested_takes_nothing_else_away(folder: Path, tmp_path: Path) -> None:
    """Test images that are all copies, and a class of one image, leave a fit that says so."""
    shutil.copytree(folder, tmp_path / "copied/train")
    shutil.copytree(folder, tmp_path / "copied/test")
    options: dict[str, Any] = {"model": "tiny", "verbose": False}
    with pytest.warns(UserWarning, match="30 of 30 test images are left out"):
        bundle = fit(tmp_path / "copied", **options)
    assert bundle.scores is not None
    assert (bundle.scores.images, bundle.scores.split) == (30, "cross-validation")
    for number in range(1, EACH):
        (folder / CLASSES[1] / f"{number}.png").unlink()
    assert "says nothing of 1 of 3 classes" in fit(folder, **options).verdict
    for name in CLASSES[1:]:
        shutil.rmtree(folder / name)
    (folder / CLASSES[1]).mkdir()
    assert fit(folder, **options).training.chosen == "the default: a single class has images"


def test_unreadable_files_are_no_copies(folder: Path) -> None:
    for name in CLASSES[:2]:
        (folder / name / "empty.png").touch()
    check = check_dataset(str(folder), DataSettings())
    assert (check.duplicates, len(check.broken or {})) == ([], 2)
    assert not any("several labels" in line for line in check.faults)
