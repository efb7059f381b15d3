"""fit: what it trains on, what it measures, and what it refuses before training."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.training.world import Noise, noise_dataset, role_table

from dear.adapters.bundle import Bundle
from dear.adapters.calibration import best_temperature
from dear.adapters.fit import fit
from dear.adapters.predictor import Predictor
from dear.adapters.scoring import evaluate_bundle
from dear.backbone.clip import Clip
from dear.data.dataset import Dataset
from dear.errors import DataError, OutputError, SettingsError
from dear.methods.coop.settings import CoOpSettings
from dear.methods.dear.settings import DearSettings
from dear.training.settings import TrainOptions

SHORT = TrainOptions(epochs=2)
SETTINGS = DearSettings(first=8)


@pytest.fixture
def roles(small_clip: Clip, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr("dear.adapters.fit.load_clip", lambda *_args, **_options: small_clip)
    monkeypatch.setattr("dear.adapters.bundle.load_clip", lambda *_args, **_options: small_clip)
    role_table(small_clip).save(tmp_path / "roles.json")
    return tmp_path / "roles.json"


def test_what_is_trained_in_float16_is_kept_in_float32(roles: Path, tmp_path: Path) -> None:
    half = TrainOptions(epochs=2, precision="16-true", optimizer="sgd")
    bundle = fit(noise_dataset(), tmp_path / "bundle", roles=roles, settings=SETTINGS, train=half)
    assert {one.dtype for one in bundle.tensors.values()} == {torch.float32}
    assert all(torch.equal(one, one.half().float()) for one in bundle.tensors.values())
    read = Bundle.from_pretrained(tmp_path / "bundle")
    assert evaluate_bundle(Predictor(read), noise_dataset()).accuracy == bundle.metrics["accuracy"]


def test_all_images_or_some(roles: Path, tmp_path: Path) -> None:
    data = noise_dataset()
    every = fit(data, tmp_path / "bundle", roles=roles, settings=SETTINGS, train=SHORT)
    assert every.training["train_images"] == 12
    assert (every.training["shots"], every.training["test_images"]) == ("all", 24)
    assert every.classes == data.classnames
    assert every.temperature == 1
    few = fit(data, roles=roles, shots=2, settings=SETTINGS, train=SHORT)
    assert few.training["train_images"] == 8
    assert not torch.equal(few.tensors["projection"], every.tensors["projection"])
    loaded = Bundle.from_pretrained(tmp_path / "bundle")
    assert loaded.metrics == every.metrics
    assert loaded.training["train"]["epochs"] == 2


def test_what_is_measured_is_what_the_bundle_predicts(roles: Path) -> None:
    data = noise_dataset()
    bundle = fit(data, roles=roles, settings=SETTINGS, train=SHORT)
    predictor = Predictor(bundle)
    pixels = torch.stack([predictor.preprocess(image(one)) for one in data.test.load(torch.arange(24))])
    guesses = predictor.logits(pixels).argmax(dim=1)
    hits = (guesses == data.test.labels).double()
    assert bundle.metrics["accuracy"] == pytest.approx(float(hits.mean()))
    assert bundle.metrics["top5"] == 1  # of four classes
    for label, name in enumerate(data.classnames):
        wanted = float(hits[data.test.labels == label].mean())
        assert bundle.metrics["per_class"][name] == pytest.approx(wanted)


def image(picture: torch.Tensor) -> Any:
    from PIL import Image

    return Image.fromarray(picture.permute(1, 2, 0).numpy())


def test_calibration_takes_validation_images_or_those_that_were_not_picked(roles: Path) -> None:
    data, options = noise_dataset(), {"roles": roles, "settings": SETTINGS, "train": SHORT}
    bundle = fit(data, shots=2, calibrate=True, **options)  # type: ignore[arg-type]
    rest = fit(data, shots=2, **options)  # type: ignore[arg-type]
    assert bundle.temperature != 1
    assert {name: one.tolist() for name, one in bundle.tensors.items()} == {
        name: one.tolist() for name, one in rest.tensors.items()
    }
    val = Noise([3, 0, 1], 7)
    bundle = fit(replace(data, val=val), calibrate=True, **options)  # type: ignore[arg-type]
    predictor = Predictor(bundle)
    pixels = torch.stack([predictor.preprocess(image(one)) for one in val.load(torch.arange(3))])
    want = best_temperature(predictor.logits(pixels), val.labels)
    assert bundle.temperature == pytest.approx(want, rel=1e-3)
    with pytest.raises(DataError, match="nothing to calibrate on"):
        fit(data, calibrate=True, **options)  # type: ignore[arg-type]


def test_zero_shot_and_peers_fit_too(roles: Path) -> None:
    assert roles.exists()
    assert fit(noise_dataset(), method="zero-shot").parameters == 0
    once = TrainOptions(epochs=1, warmup_epochs=0)
    bundle = fit(noise_dataset(), method="coop", settings=CoOpSettings(tokens=3), train=once)
    assert bundle.roles is None
    assert bundle.settings == CoOpSettings(
        tokens=3, words=""
    )  # as published for few-shot, but for our tokens


def test_what_is_refused_before_training(
    roles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dear.adapters.fit.adapt", None)  # so nothing can be trained
    data = noise_dataset()
    with pytest.raises(SettingsError, match="shots is 0"):
        fit(data, roles=roles, shots=0)
    with pytest.raises(DataError, match="fewer than 4 shots"):
        fit(data, roles=roles, shots=4)
    with pytest.raises(SettingsError, match="dear takes DearSettings"):
        fit(data, roles=roles, settings=CoOpSettings())
    with pytest.raises(DataError, match="only be tested on"):
        fit(replace(data, train=Noise([])), roles=roles)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/a.tex").write_text("x")
    with pytest.raises(DataError, match="the classes 'house' and 'House' have the same name"):
        fit(replace(data, classnames=("sea", "house", "House", "tree")), roles=roles)
    with pytest.raises(OutputError, match="files that are not a bundle's"):
        fit(data, tmp_path / "thesis", roles=roles)
    with pytest.raises(OutputError, match="cannot write the bundle"):
        fit(data, tmp_path / "thesis/a.tex/bundle", roles=roles)
    with pytest.raises(SettingsError, match=f"the seed is {2**64}: it must be from"):
        fit(data, roles=roles, seed=2**64)


def test_without_test_images(roles: Path) -> None:
    bundle = fit(replace(noise_dataset(), test=Noise([])), roles=roles, settings=SETTINGS, train=SHORT)
    assert bundle.metrics == {}
    assert bundle.training["test_images"] == 0


def test_judging_other_classes_and_splits(roles: Path) -> None:
    data = noise_dataset()
    predictor = Predictor(fit(data, roles=roles, settings=SETTINGS, train=SHORT))
    turned = replace(data, classnames=tuple(reversed([name.upper() for name in data.classnames])))
    assert evaluate_bundle(predictor, data, split="train").images == 12
    assert evaluate_bundle(predictor, turned).accuracy == pytest.approx(_turned(predictor, data))
    names = ("ol\xe9", *data.classnames[1:])
    composed = Predictor(replace(predictor.bundle, classes=names), clip=predictor.clip)
    decomposed = replace(data, classnames=("ole\u0301", *data.classnames[1:]))
    assert evaluate_bundle(composed, decomposed) == evaluate_bundle(composed, replace(data, classnames=names))
    other = replace(data, classnames=("sea", *data.classnames[1:]))
    with pytest.raises(DataError, match="the data set's class 'sea' is not among the bundle's 4 classes"):
        evaluate_bundle(predictor, other)
    assert set(evaluate_bundle(predictor, other, own_classes=False).per_class) == {*other.classnames}
    with pytest.raises(DataError, match="noise has no val images"):
        evaluate_bundle(predictor, data, split="val")


def _turned(predictor: Predictor, data: Dataset) -> float:
    """Accuracy if label 0 means the last class, and so on."""
    pictures = data.test.load(torch.arange(24))
    found = predictor.predict([image(one) for one in pictures], top=1)
    names = list(reversed(data.classnames))
    return sum(
        one.best.name == names[label] for one, label in zip(found, data.test.labels.tolist(), strict=True)
    ) / len(found)
