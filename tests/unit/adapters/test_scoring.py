"""A bundle knows the classes of a data set by name and, if these differ, by its folders or labels."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import one_hot

from dear.adapters.calibration import Calibration, best_temperature, calibrate_by_left_out
from dear.adapters.facts import CROSS_VALIDATION, TrainingFacts
from dear.adapters.fit import fit
from dear.adapters.leftout import LeftOutScores
from dear.adapters.predictor import Predictor
from dear.adapters.scoring import (
    count_groups,
    evaluate_bundle,
    find_twins_of_training,
    matched_classes,
)
from dear.adapters.wording import describe_accuracy, describe_doubt
from dear.data.dataset import assemble
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError
from dear.evaluation.metrics import class_images
from dear.evaluation.predictions import Predictions
from dear.stats import gain_interval, share_interval
from tests.helpers.bundles import bundle_scores
from tests.helpers.data import Noise, noise_dataset
from tests.helpers.errors import refuses
from tests.helpers.pictures import save_picture

KEYS = ("n1", "n2", "n3", "n4")


@pytest.fixture
def bundle(roles: Path, tmp_path: Path) -> Path:
    """Fitted to classes whose folders are called n1 to n4."""
    data = replace(noise_dataset(), keys=KEYS)
    options = {"roles": roles, "method": "dear", "settings": {"first": 8}, "train": {"epochs": 2}}
    fit(data, tmp_path / "bundle", **options)  # type: ignore[arg-type]
    return tmp_path / "bundle"


def test_folders_have_the_names_that_they_were_fitted_with(bundle: Path) -> None:
    predictor = Predictor(bundle)
    assert predictor.bundle.keys == KEYS
    named = evaluate_bundle(predictor, noise_dataset())
    unnamed = replace(noise_dataset(), classnames=KEYS, keys=KEYS)
    with pytest.warns(
        UserWarning, match=r"bundle has for these .* used: n1 is red circle on the sea, n2 is h"
    ):
        assert evaluate_bundle(predictor, unnamed) == named
    strange = replace(unnamed, classnames=("n0", *KEYS[1:]), keys=("n0", *KEYS[1:]))
    refuses(DataError, "'n0'", evaluate_bundle, predictor, strange)


def test_labels_that_nobody_named_are_keys_before_they_are_names() -> None:
    """The first class is called as the third one's folder; a name that was given counts before the key."""
    data = replace(noise_dataset(), classnames=KEYS[2:], keys=KEYS[2:])
    classes = ("n3", "red", "blue", "green")
    with pytest.warns(UserWarning, match="n3 is blue, n4 is green"):
        assert matched_classes(classes, data, KEYS).tolist() == [2, 3]
    named = replace(data, classnames=("red", "n3"))
    assert matched_classes(classes, named, KEYS).tolist() == [1, 0]


def test_scores_count_each_image_once_among_the_data_sets_classes(bundle: Path) -> None:
    predictor = Predictor(bundle)
    names = ["house", "red circle", "sea", "green tree", "blue square", "red house", "tree"]
    labels = [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 3]  # no image of the last class
    images = Noise(labels, 3)
    data = assemble("seven", "Seven", names, ["a photo of a {}"], images, None, images)
    scores = evaluate_bundle(predictor, data, own_classes=False)

    pixels = torch.stack([predictor.preprocess(picture) for picture in images.pictures])
    ranking = predictor.logits(pixels, names).argsort(dim=1, descending=True).tolist()
    right = [classes[0] == label for classes, label in zip(ranking, labels, strict=True)]
    among_five = [label in classes[:5] for classes, label in zip(ranking, labels, strict=True)]
    assert 0 < sum(right) < sum(among_five) < len(labels)
    assert scores.accuracy == pytest.approx(sum(right) / 11)
    assert scores.top5 == pytest.approx(sum(among_five) / 11)
    by_class: dict[str, list[bool]] = {}
    for label, hit in zip(labels, right, strict=True):
        by_class.setdefault(names[label], []).append(hit)
    assert scores.per_class == pytest.approx({name: sum(hits) / len(hits) for name, hits in by_class.items()})


def test_wrong_labels_leave_the_temperature_as_it_is() -> None:
    """A tenth of the labels flipped: without these the temperature is as of clean labels, and with them it
    would be far too high. Labels that nobody could tell are all used.
    """
    draw = torch.Generator().manual_seed(2)
    labels = torch.arange(400) % 8
    logits = torch.randn(400, 8, generator=draw, dtype=torch.float64)
    logits[torch.arange(400), labels] += 5
    clean, flipped = calibrated(logits, labels), labels.clone()
    flipped[::10] = (labels[::10] + 3) % 8
    found = calibrated(logits, flipped)
    assert found.temperature == pytest.approx(clean.temperature, rel=0.2)
    assert best_temperature(logits, flipped) > 1.5 * clean.temperature
    assert 36 <= found.doubted <= 44
    assert found.images == 400 - found.doubted
    random = labels[torch.randperm(400, generator=draw)]
    assert calibrated(logits, random).doubted == 0


def calibrated(logits: Tensor, labels: Tensor) -> Calibration:
    return calibrate_by_left_out(left_out_scores(logits, labels, torch.arange(len(labels))))


def left_out_scores(logits: Tensor, labels: Tensor, groups: Tensor) -> LeftOutScores:
    """Those of images that were parted in one way."""
    judged = torch.arange(len(labels))
    return LeftOutScores("dear+", judged, logits[None], labels, judged[None] % 5, groups)


def test_twins_of_training_images_are_those_saved_again(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    for part, count in (("train", 5), ("test", 4)):
        for number in range(count):
            file = tmp_path / "photos" / part / ("cat", "dog")[number % 2] / f"{number}.png"
            pixels = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            save_picture(file, Image.fromarray(pixels).resize((64, 64), Image.Resampling.NEAREST))
    with Image.open(tmp_path / "photos" / "train" / "dog" / "3.png") as picture:
        picture.save(tmp_path / "photos" / "test" / "dog" / "again.jpg", quality=90)
    data = load_dataset(tmp_path / "photos", DataSettings(broken="skip", cache=tmp_path / "cache"))
    twins = find_twins_of_training(data, data.test)
    paths = [path for path, is_twin in zip(data.test.paths, twins, strict=True) if is_twin]
    assert paths == ["test/dog/again.jpg"]


def test_images_that_are_drawn_anew_are_no_twins() -> None:
    data = noise_dataset()  # as those of the Attribute World, without files
    assert not find_twins_of_training(data, data.test).any()


def test_if_all_test_images_leak_nothing_is_said_of_others() -> None:
    lines = describe_accuracy(bundle_scores(40, accuracy=0.9, twins=40, twins_right=36))
    assert "nothing is known about new images" in lines[0]
    assert not any("others" in line or "chance." in line for line in lines[:1])


def test_the_interval_of_an_accuracy_counts_groups(bundle: Path) -> None:
    told = describe_accuracy(bundle_scores(40, groups=8, interval=(0.05, 0.65)))
    assert any("(95%: 5.0% to 65.0%)" in line for line in told)
    assert any("from 8 groups" in line for line in told)
    assert not any("groups" in line for line in describe_accuracy(bundle_scores(40, groups=40)))
    scores = evaluate_bundle(Predictor(bundle), noise_dataset())
    assert scores.groups == 24  # each image stands alone
    assert scores.interval == pytest.approx(share_interval(round(24 * scores.accuracy), 24))


def test_classes_by_name_alone_do_not_change_the_temperature() -> None:
    """Two further columns, of which one is nearly always the second best."""
    draw, labels = torch.Generator().manual_seed(3), torch.arange(40) % 4
    scores = torch.randn(40, 4, generator=draw) + 6 * one_hot(labels, 4)
    names = torch.stack([scores.amax(dim=1) - 0.01, scores.amin(dim=1)], dim=1)
    assert calibrated(torch.cat([scores, names], dim=1), labels) == calibrated(scores, labels)


def test_a_fit_counts_the_clips_that_were_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 classes of 2 clips of 3 frames: 24 images of 8 groups, for the temperature too."""
    draw, weights = np.random.default_rng(5), list[float]()
    for clip in range(8):
        scene = draw.integers(40, 200, (32, 32, 3))
        for frame in range(3):
            file = tmp_path / "photos" / f"class {clip // 2}" / f"clip{clip}_{frame}.png"
            save_picture(file, scene + draw.integers(-3, 4, scene.shape))

    def record(logits: Tensor, labels: Tensor, per_group: float = 1) -> float:
        weights.append(per_group)
        return best_temperature(logits, labels, per_group)

    monkeypatch.setattr("dear.adapters.calibration.best_temperature", record)
    monkeypatch.setattr("dear.adapters.calibration.FEWEST_TO_CALIBRATE", 8)
    options: dict[str, Any] = {"method": "dear+", "model": "tiny", "review": False, "verbose": False}
    settings = DataSettings(group="clip[0-9]+", test_share=0, cache=tmp_path / "cache")
    bundle = fit(tmp_path / "photos", dataset=settings, **options)
    assert {*weights} == {3}
    assert bundle.scores is not None
    assert (bundle.scores.images, bundle.scores.groups) == (24, 8)
    assert any("from 8 groups" in line for line in describe_accuracy(bundle.scores))
    few = left_out_scores(torch.randn(24, 4), torch.arange(24) % 4, torch.arange(24) % 7)
    uncalibrated = calibrate_by_left_out(few)
    assert uncalibrated.temperature == 1
    assert "24 training images of 7 groups" in uncalibrated.missing


def test_an_accuracy_by_labels_that_look_wrong_is_said_to_be_too_low() -> None:
    facts = TrainingFacts(judged_labels=80, suspect_labels=6)
    (line,) = describe_doubt(bundle_scores(40, split=CROSS_VALIDATION), facts)
    assert line.startswith("6 of these 40 labels look wrong")
    assert "15.0 points" in line
    (line,) = describe_doubt(bundle_scores(40), facts)
    assert "6 of 80 training labels look wrong" in line
    assert not describe_doubt(bundle_scores(40), TrainingFacts(judged_labels=80))
    assert not describe_doubt(bundle_scores(100_000, split=CROSS_VALIDATION), facts)  # next to nothing


def test_uneven_classes_are_told_as_if_each_counted_the_same() -> None:
    """100 stars, 3 arrows and 3 fruits, of which one is wrong."""
    uneven = {"per_class": {"star": 1.0, "fruit": 2 / 3, "arrow": 1.0}, "accuracy": 105 / 106}
    uneven["class_images"] = {"star": 100, "fruit": 3, "arrow": 3}
    told = "\n".join(describe_accuracy(bundle_scores(106, chance=100 / 106, **uneven)))
    assert "88.9% are right; the worst is fruit with 66.7% of 3 images" in told  # (1 + 2/3 + 1) / 3
    told = "\n".join(describe_accuracy(bundle_scores(106, chance=0.4, **uneven)))
    assert "uneven" not in told


def test_the_images_of_classes_are_counted() -> None:
    labels, logits = torch.tensor([2, 0, 2, 2]), torch.eye(4)[:, :3]
    assert class_images(Predictions(("a", "b", "c"), labels, logits, logits, logits)) == {"a": 1, "c": 3}


def test_a_difference_that_rounds_to_zero_has_no_minus_sign() -> None:
    told = "\n".join(describe_accuracy(bundle_scores(36, accuracy=1.0, zero_shot=32 / 36, gained=4, lost=0)))
    assert "-0.0" not in told
    assert "+0.0 to" in told  # the interval of 4 gained and none lost begins at 0


def test_a_gain_counts_groups() -> None:
    """Of three clips of four frames two are gained: as two of three images, not as eight of twelve."""
    labels, right, wrong = (
        torch.zeros(12, dtype=torch.long),
        torch.tensor([1.0, 0.0]),
        torch.tensor([0.0, 1.0]),
    )
    logits = right.expand(12, 2)
    before = torch.stack([wrong] * 8 + [right] * 4)
    predictions = Predictions(("a", "b"), labels, logits, logits, logits, zero_shot=before)
    facts = count_groups(predictions, [0] * 4 + [1] * 4 + [2] * 4)
    assert facts["groups"] == 3
    assert facts["gain_interval"] == pytest.approx(gain_interval(2, 0, 3), abs=1e-9)
    told = describe_accuracy(bundle_scores(12, accuracy=1.0, zero_shot=1 / 3, gained=8, lost=0, **facts))
    assert told[0].startswith("Not clearly better than zero-shot")
    alone = describe_accuracy(bundle_scores(12, accuracy=1.0, zero_shot=1 / 3, gained=8, lost=0))
    assert any(line.startswith("Better than zero-shot") for line in alone)
