"""Accuracy by group: groups from a column, a path or EXIF data; counts by hand; what is clearly worse."""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags

from dear.adapters.by_group import (
    UNKNOWN,
    accuracy_by_group,
    describe_groups,
    difference_by_group,
    read_groups,
)
from dear.adapters.evaluation import evaluate
from dear.adapters.predictor import Predictor
from dear.backbone.clip import Clip
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import SettingsError
from dear.evaluation.predictions import Predictions
from tests.helpers.bundles import small_predictor
from tests.helpers.data import CLASSES, Noise
from tests.helpers.server import picture

ALL = DataSettings(test_share=1.0, group="none")


@pytest.fixture(autouse=True)
def quiet():  # type: ignore[no-untyped-def]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Four photographs of each class, in two months; the first of each is without EXIF data."""
    for label, name in enumerate(CLASSES):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(4):
            image = picture(10 * label + number)
            exif = image.getexif()
            if number:
                exif[ExifTags.Base.Model] = "Alpha" if number == 1 else "Beta"
                exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = (
                    f"2026:0{number}:05 10:00:00"
                )
            image.save(tmp_path / "photos" / name / f"day{number % 2}-{number}.jpg", exif=exif)
    return tmp_path / "photos"


def test_groups_are_read_from_columns_paths_and_exif(photos: Path) -> None:
    images = load_dataset(str(photos), ALL).test
    paths = list(images.images.paths) if hasattr(images, "images") else list(images.paths)  # type: ignore[attr-defined]
    numbers = [int(path[-5]) for path in paths]
    months = [f"2026-0{number}" if number else UNKNOWN for number in numbers]
    assert read_groups(str(photos), images, "month", ALL) == months
    cameras = [(UNKNOWN, "Alpha", "Beta", "Beta")[number] for number in numbers]
    assert read_groups(str(photos), images, "camera", ALL) == cameras
    assert read_groups(str(photos), images, r"day\d", ALL) == [f"day{number % 2}" for number in numbers]
    table = photos / "list.csv"
    rows = [
        f"{path},{path.split('/')[0]},{'ab'[number % 2]}" for path, number in zip(paths, numbers, strict=True)
    ]
    table.write_text("\n".join(["path,label,camera", *rows]))
    listed = load_dataset(str(table), ALL).test
    assert read_groups(str(table), listed, "camera", ALL) == ["ab"[number % 2] for number in numbers]
    for wrong in ("nowhere[0-9]", "("):
        with pytest.raises(SettingsError, match="by '"):
            read_groups(str(photos), images, wrong, ALL)


def test_counts_of_groups_by_hand() -> None:
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    predicted = torch.tensor([0, 0, 0, 0, 2, 2, 0, 2])
    logits = torch.nn.functional.one_hot(predicted, 3).double()
    predictions = Predictions(("ant", "bee", "cat"), labels, logits, logits, logits)
    rows = accuracy_by_group(predictions, Noise(labels.tolist()), [*"aaaabbbb"])
    assert [(row.name, row.images, row.right) for row in rows] == [("b", 4, 1), ("a", 4, 4)]
    assert rows[0].confusions == (("bee", "cat", 2), ("cat", "ant", 1))
    choices = np.array([0, -1, 0, 0, -1, 2, -1, 2])  # in each group one image goes to a person or more
    decided = accuracy_by_group(predictions, Noise(labels.tolist()), [*"aaaabbbb"], choices)
    assert [(row.decided, row.decided_right) for row in decided] == [(2, 1), (3, 3)]
    assert [*decided[0].cells][4:] == ["decided", "right of these", "most confused"]
    right = np.array([True] * 4 + [False] * 4)
    worse = difference_by_group(right, predictions.correct.numpy(), Noise(labels.tolist()), [*"aaaabbbb"])
    assert [(row.name, row.first_right, row.second_right, row.difference) for row in worse] == [
        ("a", 4, 4, 0.0), ("b", 0, 1, 0.25),
    ]  # fmt: skip


def test_a_group_that_is_clearly_worse_is_named() -> None:
    labels = torch.zeros(80, dtype=torch.int64)
    logits = torch.nn.functional.one_hot(torch.tensor([0] * 60 + [1] * 20), 2).double()
    predictions = Predictions(("ant", "bee"), labels, logits, logits, logits)
    rows = accuracy_by_group(predictions, Noise(labels.tolist()), ["phone"] * 40 + ["dashcam"] * 40)
    [line] = describe_groups("camera", rows)
    assert "clearly worse than all together (75.0%): dashcam (50.0% of 40)" in line
    assert "no group of 1" in describe_groups("camera", rows[:1])[0]


def test_what_is_decided_of_groups_is_what_is_said_of_all(
    small_clip: Clip, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With these costs each image is decided but every second one, which looks like none of the classes."""

    def refuse(_: Predictor, predictions: Predictions) -> torch.Tensor:
        return torch.arange(len(predictions.labels)) % 2 == 0

    for module in ("scoring", "evaluation"):
        monkeypatch.setattr(f"dear.adapters.{module}.find_refused", refuse)
    predictor, count = small_predictor(small_clip), 4 * len(CLASSES)
    found = evaluate(predictor, str(photos), by="camera", costs={CLASSES[0]: 2.0}, dataset=ALL)
    assert found.operating is not None
    assert found.operating.measured is not None
    assert sum(row.decided or 0 for row in found.by_group) == found.operating.measured.decided == count // 2
    training = replace(predictor.bundle.training, operating=found.operating)
    own = Predictor(replace(predictor.bundle, training=training), clip=small_clip)
    found = evaluate(own, str(photos), by="camera", dataset=ALL)
    assert found.scores.decided is not None
    assert sum(row.decided or 0 for row in found.by_group) == found.scores.decided.decided == count // 2
    right = sum(row.decided_right or 0 for row in found.by_group)
    assert right == found.scores.decided.right


def test_evaluate_lists_groups_and_writes_them(small_clip: Clip, photos: Path, tmp_path: Path) -> None:
    predictor: Predictor = small_predictor(small_clip)
    found = evaluate(predictor, str(photos), tmp_path / "page", by="camera", precision=0.9, dataset=ALL)
    assert sum(row.images for row in found.by_group) == 4 * len(CLASSES)
    assert found.operating is not None
    text = (tmp_path / "page" / "evaluation.html").read_text()
    assert "By camera" in text
    assert "What it can decide by itself" in text
    assert (tmp_path / "page" / "groups.csv").is_file()
    assert (tmp_path / "page" / "figure-risk-coverage.svg").is_file()
