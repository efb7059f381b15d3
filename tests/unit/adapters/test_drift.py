"""Drift: darkened pictures are found, and no other change is told; without a reference little is said."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import ImageEnhance, ImageFilter

from dear.adapters.drift import detect_drift, measure_picture
from dear.adapters.operating import OperatingPoint
from dear.adapters.predictor import Predictor
from dear.backbone.clip import Clip
from dear.data.images.decode import as_image, as_picture
from dear.data.images.transforms import to_unit
from dear.errors import DataError, SettingsError
from tests.helpers.bundles import small_predictor
from tests.helpers.data import pack
from tests.helpers.pictures import save_picture
from tests.helpers.server import picture


@pytest.fixture
def predictor(small_clip: Clip) -> Predictor:
    return small_predictor(small_clip)


def draw(folder: Path, first: int, count: int = 30, brightness: float = 1.0) -> Path:
    for seed in range(first, first + count):
        shown = ImageEnhance.Brightness(picture(seed)).enhance(brightness)
        save_picture(folder / f"clip{seed // 2}-{seed}.png", shown)
    return folder


def test_a_darkened_month_is_found(predictor: Predictor, tmp_path: Path) -> None:
    before, now = draw(tmp_path / "before", 0), draw(tmp_path / "now", 100, brightness=0.4)
    packed = pack(tmp_path / "now.zip", now)
    drift = detect_drift(predictor, packed, before, tmp_path / "page")
    assert drift.is_clear
    old, new, p = drift.values["brightness"]
    assert new == pytest.approx(0.4 * old, rel=0.1)
    assert p < 0.05
    old, new, _ = drift.values["sharpness"]
    assert new == pytest.approx(old, rel=0.05)  # a darkened picture is as sharp as before
    assert "The features of these images differ from those of the 30 images" in drift.verdict[0]
    assert "Unusual brightness" in drift.verdict[1]
    assert "cannot be known without labels" in drift.verdict[-1]
    assert len(drift.furthest) == 12
    assert "Unusual brightness" in (tmp_path / "page" / "drift.html").read_text()


def test_blurred_pictures_are_less_sharp_and_flat_ones_have_no_sharpness() -> None:
    noise = torch.rand(3, 40, 40, generator=torch.Generator().manual_seed(0))
    whole = measure_picture(noise)
    assert measure_picture(0.3 * noise)[1] == pytest.approx(whole[1].item(), rel=1e-4)
    shown = as_image((255 * noise).to(torch.uint8)).filter(ImageFilter.GaussianBlur(2))
    assert measure_picture(to_unit(as_picture(shown)))[1] < 0.2 * whole[1]
    assert measure_picture(torch.full((3, 40, 40), 0.4))[1] == 0


def test_the_same_kind_of_pictures_is_no_drift(predictor: Predictor, tmp_path: Path) -> None:
    drift = detect_drift(predictor, draw(tmp_path / "now", 100), draw(tmp_path / "before", 0))
    assert not drift.is_clear
    assert "do not clearly differ" in drift.verdict[0]


def test_without_a_reference_nothing_is_tested(predictor: Predictor, tmp_path: Path) -> None:
    drift = detect_drift(predictor, draw(tmp_path / "now", 100))
    assert drift.p is None
    assert "--reference" in drift.verdict[0]
    few = detect_drift(predictor, tmp_path / "now", draw(tmp_path / "few", 0, 5))
    assert few.p is None
    assert "takes 10 groups" in few.verdict[0]


def test_what_is_no_folder_of_images_is_refused(predictor: Predictor, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError):
        detect_drift(predictor, tmp_path / "empty")
    with pytest.raises(SettingsError):
        detect_drift(predictor, [picture(1)])


def test_what_is_decided_is_counted_as_when_the_point_was_measured(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What looks like none of the classes goes to a person."""
    facts = replace(predictor.bundle.training, operating=OperatingPoint(precision=0.9, threshold=0.0))
    decides = Predictor(replace(predictor.bundle, training=facts), clip=predictor.clip)
    monkeypatch.setattr(decides, "refusal_threshold", 0.1)
    monkeypatch.setattr(decides, "refusal", lambda _: lambda rows, _predicted: torch.ones(len(rows)).bool())
    drift = detect_drift(decides, draw(tmp_path / "now", 0, 4))
    assert (drift.none_of_these, drift.decided) == (1, 0)
