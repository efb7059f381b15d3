"""Two classifiers on the same images: counts by hand, none of images that either was fitted on, and no class
that only one of them has.
"""

import json
import math
import warnings
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pandas import read_csv

import dear
from dear.adapters.bundle import Bundle
from dear.adapters.compare import compare, compare_predictions
from dear.adapters.fit import fit
from dear.backbone.clip import Clip
from dear.cli.main import main
from dear.data.images.photos import image_hashes, split_hashes
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError
from dear.evaluation.predictions import Predictions
from dear.stats import gain_interval
from tests.helpers.data import CLASSES, Noise
from tests.helpers.errors import refuses
from tests.helpers.pictures import save_folders
from tests.helpers.server import picture

ALL = DataSettings(test_share=1.0)


@pytest.fixture(autouse=True)
def small(only_clip: Clip) -> Iterator[None]:  # noqa: ARG001
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*the data has no split|.*test images are left out")
        yield


def draw(folder: Path, first: int, count: int, names: list[str] = CLASSES) -> Path:
    """Pictures of noise, each other than all others, in a folder for each class."""
    numbers = range(first, first + count)
    return save_folders(folder, names, numbers, lambda label, number: picture(100 * label + number))


def fitted(folder: Path, method: str = "linear-probe") -> Bundle:
    settings = DataSettings(test_share=0.3)
    return fit(folder, method=method, model="tiny", verbose=False, review=False, dataset=settings)


def predictions(labels: list[int], predicted: list[int]) -> Predictions:
    """The probability of what is predicted is 1 / 2, that of each of the two other classes 1 / 4."""
    logits = torch.zeros(len(labels), 3)
    logits[range(len(labels)), predicted] = torch.tensor(2.0).log()
    return Predictions(("ant", "bee", "cat"), torch.tensor(labels), logits, logits, logits)


def test_counts_by_hand() -> None:
    """Of ten images 6 are right with the first classifier and 8 with the second, 1 and 3 with it alone; one
    is wrong with both, in different ways.
    """
    labels = [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    first = predictions(labels, [0, 0, 1, 1, 1, 1, 1, 0, 0, 2])
    second = predictions(labels, [0, 0, 0, 0, 0, 1, 1, 2, 1, 2])
    result = compare_predictions(
        (first, second), Noise(labels), ("old", "new"), methods=("a", "b"), right_of_all=(6, 7), data="toys",
        left_out=0, other_images=0, twins=0, other_classes=((), ()),
    )  # fmt: skip
    assert (result.first.right, result.second.right, result.images) == (6, 8, 10)
    assert "group" not in result.verdict
    assert (result.only_first, result.only_second) == (1, 3)
    assert result.difference == pytest.approx(0.2)
    assert (result.low, result.high) == gain_interval(3, 1, 10)
    assert result.p == pytest.approx(2 * (1 + 4) / 16)
    assert result.first.log_loss == pytest.approx(1.4 * math.log(2))
    assert result.second.log_loss == pytest.approx(1.2 * math.log(2))
    assert [astuple(row) for row in result.per_class] == [
        ("ant", 4, 2, 4, 0, 2), ("bee", 3, 3, 2, 1, 0), ("cat", 3, 1, 2, 0, 1),
    ]  # fmt: skip
    assert [(image.number, image.right) for image in result.differences] == [
        (2, "second"), (3, "second"), (7, "second"), (4, "first"), (8, "neither"),
    ]  # fmt: skip
    last = result.differences[-1]
    assert (last.label, last.first, last.second) == ("cat", "ant", "bee")
    assert (last.first_probability, last.second_probability) == pytest.approx((0.5, 0.5))
    assert "neither clearly better nor clearly worse" in result.verdict


def test_images_of_a_group_count_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 images in 4 clips of 15, of which the second classifier has one clip of each class more right: 30 to
    0 images are clear, but of two clips both are better by chance in half of all cases.
    """
    labels = [image // 15 % 2 for image in range(60)]
    first = predictions(labels, [label if image < 30 else 2 for image, label in enumerate(labels)])
    second = predictions(labels, labels)
    facts = {"data": "toys", "left_out": 0, "other_images": 0, "twins": 0, "other_classes": ((), ())}
    options: dict[str, Any] = {"methods": ("a", "b"), "right_of_all": (30, 60), **facts}
    alone = compare_predictions((first, second), Noise(labels), ("old", "new"), **options)
    clips = [f"group {image // 15}" for image in range(60)]
    monkeypatch.setattr("dear.adapters.compare.group_names", lambda _: clips)
    grouped = compare_predictions((first, second), Noise(labels), ("old", "new"), **options)
    assert (alone.groups, grouped.groups) == (60, 4)
    assert alone.p < 1e-6
    assert grouped.p == pytest.approx(1 / 2)
    assert grouped.low < 0 < alone.low
    assert grouped.first.low < alone.first.low < alone.first.high < grouped.first.high
    assert "new is better than old" in alone.verdict
    assert "neither clearly better nor clearly worse" in grouped.verdict
    assert "from 4 groups" in grouped.verdict


def test_images_that_either_was_fitted_on_are_left_out(tmp_path: Path) -> None:
    folder = draw(tmp_path / "photos", 0, 10)
    old = fitted(folder)
    draw(folder, 20, 10)
    new = fitted(folder, "zero-shot")
    new = replace(new, image_hashes=b"".join(image_hashes(load_dataset(folder).train)))
    result = dear.compare(old, new, folder)
    seen = split_hashes(old.image_hashes) | split_hashes(new.image_hashes)
    assert len(split_hashes(old.image_hashes)) == 21 < len(seen) < 60
    assert (result.images, result.left_out) == (60 - len(seen), len(seen))
    whole = load_dataset(folder, ALL).test
    assert not {*image_hashes(whole, [image.number for image in result.differences])} & seen
    turned = dear.compare(new, old, folder)
    assert (turned.difference, turned.low) == pytest.approx((-result.difference, -result.high))
    same = dear.compare(old, old, folder)
    assert (same.difference, same.p, same.differences) == (0, 1, ())
    trained = [*map(str, trained_files(folder, old))], ["house"] * 21
    refuses(DataError, "all 21", dear.compare, old, old, trained)


def trained_files(folder: Path, bundle: Bundle) -> list[Path]:
    whole, seen = load_dataset(folder, ALL).test, split_hashes(bundle.image_hashes)
    hashes = zip(image_hashes(whole), whole.paths, strict=True)  # type: ignore[attr-defined]
    return [folder / path for digest, path in hashes if digest in seen]


def test_classes_of_one_alone_are_left_out_and_told(tmp_path: Path) -> None:
    """Predictions among the classes of both: the logits of the first bundle without its third column."""
    first = fitted(draw(tmp_path / "one", 0, 4))
    second = fitted(draw(tmp_path / "two", 40, 4, [CLASSES[1], CLASSES[0], "cube"]))
    folder = draw(tmp_path / "test", 70, 5, [*CLASSES, "cube", "whale"])
    result = compare(first, second, folder)
    assert {*result.classes} == {*CLASSES[:2]}
    assert result.other_classes == ((CLASSES[2],), ("cube",))
    assert (result.images, result.other_images) == (10, 15)
    predictor, files = dear.Predictor(first), [*map(str, sorted(folder.rglob("*.png")))]
    files = [file for file in files if Path(file).parent.name in CLASSES[:2]]
    names = [name for name in first.classes if name in CLASSES[:2]]
    columns = [first.classes.index(name) for name in names]
    best = predictor.logits(files)[:, columns].argmax(dim=1).tolist()
    right = sum(names[number] == Path(file).parent.name for number, file in zip(best, files, strict=True))
    among_all = [prediction.best.name for prediction in predictor.predict(files)]
    assert result.first.right == right
    assert result.first.right_of_all == sum(
        name == Path(file).parent.name for name, file in zip(among_all, files, strict=True)
    )
    refuses(DataError, "both", compare, first, second, draw(tmp_path / "whales", 90, 2, ["whale"]))


def test_the_command_and_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = draw(tmp_path / "photos", 0, 10)
    for method in ("linear-probe", "zero-shot"):
        settings = DataSettings(test_share=0.3)
        options = {"method": method, "model": "tiny", "verbose": False, "dataset": settings}
        fit(folder, tmp_path / method, **options)  # type: ignore[arg-type]
    words = [*map(str, (tmp_path / "linear-probe", tmp_path / "zero-shot", folder))]
    assert main(["compare", *words, "--out", str(tmp_path / "page"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    differences, page = result["differences"], (tmp_path / "page/comparison.html").read_text()
    assert result["images"] == 9
    for side, method in (("first", "linear-probe"), ("second", "zero-shot")):  # both fits have one split
        scores = Bundle.from_pretrained(tmp_path / method).scores
        assert scores is not None
        assert result[side]["accuracy"] == scores.accuracy
    assert (
        result["only_second"] - result["only_first"] == result["second"]["right"] - result["first"]["right"]
    )
    assert page.count("<img") == len(differences) > 0
    table = read_csv(tmp_path / "page/differences.csv")
    assert [*table.image] == [image["image"] for image in differences]
    assert all((folder / name).is_file() for name in table.image)
    assert main(["compare", *words, "--by", "^[^/]+", "--out", str(tmp_path / "page")]) == 0
    out = capsys.readouterr().out
    assert result["verdict"][0] in out
    groups = read_csv(tmp_path / "page/groups.csv")
    assert {*groups["name"]} == {*CLASSES}
    assert groups.images.sum() == 9
    assert groups.second_right.sum() == result["second"]["right"]
    assert "By group" in (tmp_path / "page/comparison.html").read_text()
