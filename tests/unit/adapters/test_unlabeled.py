"""fit with images without labels, and what to label next."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from dear.adapters.facts import UnlabeledGain
from dear.adapters.fit import fit
from dear.adapters.predictor import Predictor
from dear.adapters.wording import describe_unlabeled
from dear.data.fewshot import Subset
from dear.data.settings import DataSettings
from dear.errors import DataError, SettingsError
from dear.methods.base import Method
from tests.helpers.data import noise_dataset
from tests.helpers.errors import refuses
from tests.helpers.pictures import save_picture
from tests.helpers.server import picture

OTHERS = 7


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """A folder of noise, at two depths, and a file that is no image."""
    for number in range(OTHERS):
        path = tmp_path / "more" / ("deeper" if number % 2 else "") / f"{number}.png"
        save_picture(path, picture(number, 20, 20))
    (tmp_path / "more" / "broken.png").write_bytes(b"no image")
    return tmp_path / "more"


def test_others_are_used_only_if_left_out_images_gain(
    roles: Path, others: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = fit(noise_dataset(), roles=roles, method="dear+")
    bundle = fit(noise_dataset(), roles=roles, method="dear+", unlabeled=others)
    gain = bundle.training.unlabeled
    assert gain is not None
    assert (gain.images, gain.weight) == (OTHERS, 0)  # noise
    assert all(torch.equal(bundle.tensors[name], values) for name, values in plain.tensors.items())
    assert "7 images without labels not used" in bundle.verdict
    monkeypatch.setattr("dear.methods.dear_plus.unlabeled.SURE", -1e9)
    used = fit(noise_dataset(), roles=roles, method="dear+", unlabeled=others)
    assert not torch.equal(used.tensors["means"], plain.tensors["means"])
    assert torch.equal(used.tensors["correction"], plain.tensors["correction"])
    assert "7 images without labels used, at a weight of" in used.verdict


def test_who_does_not_take_them(roles: Path, others: Path) -> None:
    refuses(SettingsError, "coop", fit, noise_dataset(), roles=roles, method="coop", unlabeled=others)
    data = noise_dataset()
    few = replace(
        data, train=Subset(data.train, (data.train.labels > 0).nonzero().flatten()), allow_fewer=True
    )
    bundle = fit(few, roles=roles, method="dear+", unlabeled=others)
    assert bundle.training.unlabeled == UnlabeledGain(OTHERS)  # a class by name alone
    alone = fit((sorted(others.rglob("[0-5].png")), ["a"] * 6), roles=roles, method="dear+", unlabeled=others)
    assert alone.training.unlabeled == UnlabeledGain(1)  # of a single class
    assert "--unlabeled" in describe_unlabeled(UnlabeledGain(OTHERS))


@pytest.mark.parametrize(("before", "after", "is_same"), [(1.0, 1.0, True), (0.5, 0.75, False)])
def test_whether_more_are_right_is_said_plainly(before: float, after: float, is_same: bool) -> None:
    gain = UnlabeledGain(3, weight=1.0, before=0.2, after=0.1, accuracy_before=before, accuracy_after=after)
    line = describe_unlabeled(gain)
    assert ("as many right (100.0%)" in line, "50.0% right without them, 75.0% with them" in line) == (
        is_same,
        not is_same,
    )


def test_copies_of_the_data_set_are_left_out(roles: Path, others: Path) -> None:
    files = sorted(others.rglob("[0-9].png"))
    data = files[:6], ["a", "b"] * 3
    gain = fit(data, roles=roles, method="dear+", unlabeled=files).training.unlabeled
    assert gain is not None
    assert gain.images == 1
    with pytest.raises(DataError, match="nothing to add"):
        fit(data, roles=roles, method="dear+", unlabeled=files[:6])


def test_what_it_was_fitted_on_is_not_suggested(roles: Path, others: Path) -> None:
    files = sorted(others.rglob("[0-9].png"))
    settings = DataSettings(test_share=0)
    predictor = Predictor(fit((files[:4], ["a", "b"] * 2), roles=roles, method="dear+", dataset=settings))
    with pytest.warns(UserWarning, match="1 image cannot be read"):
        suggested = predictor.suggest(others, 50)
    assert {one.image for one in suggested} == {str(file) for file in files[4:]}
    probabilities = predictor.predict_proba([one.image for one in suggested])
    margins = abs(probabilities[:, 0] - probabilities[:, 1])
    assert [one.margin for one in suggested] == pytest.approx(margins, abs=1e-6)
    assert [one.suggested for one in suggested] == [predictor.classes[row] for row in probabilities.argmax(1)]
    with pytest.raises(DataError, match="no image is left"):
        predictor.suggest(files[:4])


def test_what_was_encoded_is_remembered_by_content(
    roles: Path, others: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second call encodes only images that are new, moved ones or not; another bundle has its own."""
    (others / "broken.png").unlink()
    files, settings = sorted(others.rglob("[0-9].png")), DataSettings(test_share=0)
    bundle = fit((files[:4], ["a", "b"] * 2), roles=roles, method="dear+", dataset=settings)
    views, image_trunk = list[int](), Method.image_trunk

    def count(method: Method, images: Tensor) -> Tensor:
        views.append(len(images))
        return image_trunk(method, images)

    monkeypatch.setattr(Method, "image_trunk", count)
    predictor = Predictor(bundle)
    first = predictor.suggest(others)
    assert sum(views) == OTHERS - 4
    files[5].rename(others / "moved.png")
    picture(99, 20, 20).save(others / "new.png")
    views.clear()
    again = Predictor(bundle).suggest(others)
    assert (sum(views), len(again)) == (1, len(first) + 1)
    margin = {one.image: one.margin for one in (*first, *again)}
    assert margin[str(others / "moved.png")] == pytest.approx(margin[str(files[5])], abs=1e-6)
    views.clear()
    arrays = [np.array(Image.open(others / "new.png"))]
    predictor.predict(arrays)
    assert sum(views) == 1  # without remembering
    for remembered in ([], [1]):
        views.clear()
        [*predictor.predict_each(arrays, remember=True)]
        assert sum(views) == 1 - len(remembered)
    other = fit((files[:4], ["a", "b", "b", "a"]), roles=roles, method="dear+", dataset=settings)
    views.clear()
    Predictor(other).suggest(others)
    assert sum(views) == OTHERS - 4 + 1


@pytest.mark.parametrize("with_files", [False, True])
def test_images_in_memory_that_were_in_the_fit_are_known_by_their_pixels(
    with_files: bool, roles: Path, others: Path
) -> None:
    files = sorted(others.rglob("[0-9].png"))
    arrays = [np.array(Image.open(file)) for file in files]
    settings = DataSettings(test_share=0)
    bundle = fit((arrays[:4], ["a", "b"] * 2), roles=roles, method="dear+", dataset=settings)
    for _ in range(2):  # the second time by what is remembered
        suggested = Predictor(bundle).suggest(files if with_files else arrays)
    names = [str(files[item]) if with_files else str(item) for item in range(4, OTHERS)]
    assert sorted(one.image for one in suggested) == sorted(names)
