"""The page of a bundle: its numbers are those of the scores, its mistakes the most confident ones."""

import warnings
from pathlib import Path

import pytest
from pandas import read_csv

from dear.adapters.evaluation_page import write_evaluation
from dear.adapters.predictor import Predictor
from dear.backbone.clip import Clip
from dear.data.dataset import Dataset
from dear.data.loading import load_dataset
from tests.helpers.bundles import small_predictor
from tests.helpers.data import CLASSES
from tests.helpers.server import picture

EACH = 4


@pytest.fixture
def toys(tmp_path: Path) -> Dataset:
    """A few pictures of noise for each class, as files."""
    for split in ("train", "test"):
        for at, name in enumerate(CLASSES):
            folder = tmp_path / "toys" / split / name
            folder.mkdir(parents=True)
            for number in range(EACH):
                picture(100 * at + number + 50 * (split == "test")).save(folder / f"{number}.png")
    return load_dataset(str(tmp_path / "toys"))


@pytest.fixture
def predictor(small_clip: Clip) -> Predictor:
    return small_predictor(small_clip)


def test_the_numbers_are_those_of_the_scores(predictor: Predictor, toys: Dataset, tmp_path: Path) -> None:
    scores, (page, *_) = write_evaluation(tmp_path / "page", predictor, toys)
    count, right = EACH * len(CLASSES), round(scores.accuracy * EACH * len(CLASSES))
    assert scores.images == count
    mistakes, classes = (read_csv(page.parent / f"{name}.csv") for name in ("mistakes", "classes"))
    assert len(mistakes) == count - right  # all of them, whatever the page shows
    assert dict(classes[["class", "accuracy"]].to_numpy()) == pytest.approx(scores.per_class)
    text = page.read_text()
    assert f"is {100 * scores.calibration_error:.2f}%." in text
    assert f"{right} of {count} right" in text


def test_the_page_and_its_files(predictor: Predictor, toys: Dataset, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores, files = write_evaluation(tmp_path / "page", predictor, toys, let_through=0.25)
    text = files[0].read_text()
    assert files[0] == tmp_path / "page" / "evaluation.html"
    assert f"{100 * scores.accuracy:.1f}%" in text
    assert "test/" in text
    assert "http" not in text.replace("http://www.w3.org", "")
    names = {path.name for path in files}
    assert {"classes.csv", "confusions.csv", "mistakes.csv", "figure-confusion.svg"} <= names
    assert "let_through,0.25" in (tmp_path / "page" / "scores.csv").read_text().splitlines()
