"""A fit with an operating point: predictions, the card, files and evaluation say what it decides."""

import csv
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dear.adapters.bundle import Bundle
from dear.adapters.bundle_config import CARD
from dear.adapters.fit import fit
from dear.adapters.predictor import Predictor
from dear.adapters.results import write_predictions
from dear.adapters.scoring import evaluate_bundle
from dear.backbone.clip import Clip
from dear.data.settings import DataSettings
from dear.errors import UnknownNameError
from tests.helpers.errors import refuses
from tests.helpers.pictures import save_folders

HUES = {"blue": (40, 60, 200), "green": (40, 180, 60), "red": (200, 50, 40)}
APART = DataSettings(group="none")
OPTIONS: dict[str, Any] = {
    "method": "linear-probe", "model": "tiny", "review": False, "verbose": False, "dataset": APART,
}  # fmt: skip


@pytest.fixture(autouse=True)
def small(only_clip: Clip) -> Iterator[None]:  # noqa: ARG001
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def draw(folder: Path, first: int, count: int = 20) -> Path:
    """Pictures of three colors with noise, which any classifier tells apart."""
    hues = [*HUES.values()]

    def look(label: int, number: int) -> np.ndarray:
        return np.random.default_rng([label, number]).integers(-40, 40, (32, 32, 3)) + hues[label]

    return save_folders(folder, HUES, range(first, first + count), look)


def test_a_bundle_keeps_what_it_promised(tmp_path: Path) -> None:
    photos, new = draw(tmp_path / "photos", 0), draw(tmp_path / "new", 100, 10)
    fit(photos, tmp_path / "bundle", precision=0.9, refuse=0, **OPTIONS)
    bundle = Bundle.from_pretrained(tmp_path / "bundle")
    point = bundle.training.operating
    assert point is not None
    assert point.measured is not None
    assert (point.precision, point.split) == (0.9, "cross-validation")
    assert point.threshold is not None
    assert "To be 90% right, accept a probability of" in bundle.verdict
    assert "To be 90% right" in (tmp_path / "bundle" / CARD).read_text()
    predictor = Predictor(bundle)
    predictions = predictor.predict([*sorted(new.rglob("*.png"))])
    for prediction in predictions:
        is_sure = prediction.best.probability >= point.threshold
        assert prediction.decision == ("decided" if is_sure else "to a person")
        assert prediction.decided_class == (prediction.best.name if is_sure else "")
    assert "decided" in {prediction.decision for prediction in predictions}
    write_predictions(tmp_path / "out.csv", predictions)
    with (tmp_path / "out.csv").open(encoding="utf-8-sig") as file:
        rows = [*csv.DictReader(file)]
    assert [row["decision"] for row in rows] == [prediction.decision for prediction in predictions]
    scores = evaluate_bundle(predictor, str(new))
    assert scores.decided is not None
    assert scores.decided.decided == sum(prediction.decision == "decided" for prediction in predictions)


def test_costs_move_what_is_decided(tmp_path: Path) -> None:
    photos = draw(tmp_path / "photos", 0, 8)
    refuses(UnknownNameError, "mauve", fit, photos, costs={"mauve": 3}, **OPTIONS)
    bundle = fit(photos, costs="red=1000000000", refuse=0, **OPTIONS)
    assert "By its costs, an image costs" in bundle.verdict
    read = replace(bundle, temperature=100.0)  # no class is sure
    [prediction] = Predictor(read).predict([Image.new("RGB", (32, 32), HUES["blue"])])
    assert (prediction.best.name, prediction.decided_class) == ("blue", "red")


def test_a_fit_decides_test_images_as_eval_does(tmp_path: Path) -> None:
    """Those that look like none of the classes go to a person, here about half."""
    draw(tmp_path / "photos" / "train", 0, 8)
    draw(tmp_path / "photos" / "test", 100, 8)
    bundle = fit(tmp_path / "photos", tmp_path / "bundle", costs="red=2", refuse=0.5, **OPTIONS)
    found, scores = bundle.scores, evaluate_bundle(tmp_path / "bundle", str(tmp_path / "photos"))
    assert found is not None
    assert found.split == "test"
    assert found.refused == scores.refused != 0
    assert found.decided == scores.decided is not None
    assert found.decided.decided == round((1 - found.refused) * found.images)
