"""A fit that continues an earlier one: as a fit from scratch, but known images are not encoded again."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dear.adapters.bundle import Bundle
from dear.adapters.fit import FEATURES, fit
from dear.backbone.load import load_clip
from dear.data.images import photos as photos_module
from dear.data.settings import DataSettings
from dear.methods.base import Method
from dear.methods.registry import build_method
from dear.roles.packaged import find_role_table
from dear.training.cache import Cache
from tests.conftest import small_clip_of
from tests.unit.serving.small import picture
from tests.unit.training.world import role_table

VIEWS = 3  # of a training image: the test view and two random ones


@pytest.fixture
def photos(tmp_path: Path, roles: Path) -> Path:  # noqa: ARG001
    """Photographs of three classes, seven to train on and five to test on; the small CLIP reads them."""
    for number, name in enumerate(("house", "sea", "tree")):
        for part, images in (("train", 7), ("test", 5)):
            for image in range(images):
                paint(tmp_path / "photos" / part / name / f"{image}.png", 100 * number + 10 * image + images)
    return tmp_path / "photos"


def paint(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(seed, 29, 23).save(path)


def fit_counted(
    photos: Path, out: str, monkeypatch: pytest.MonkeyPatch, earlier: str | None = None, **options: Any
) -> tuple[Bundle, int, list[str]]:
    """The bundle, how many views went through the tower, and which files were decoded."""
    encoded, decoded = [0], list[str]()
    image_trunk, decode = Method.image_trunk, photos_module.decode

    def count(method: Method, images: Tensor) -> Tensor:
        encoded[0] += len(images)
        return image_trunk(method, images)

    def note(path: Path, *rest: Any) -> Tensor:
        decoded.append(path.relative_to(photos).as_posix())
        return decode(path, *rest)

    options = {"method": "dear+", "roles": photos.parent / "roles.json"} | options
    with monkeypatch.context() as patch:
        patch.setattr(Method, "image_trunk", count)
        patch.setattr(photos_module, "decode", note)
        folder = None if earlier is None else photos.parent / earlier
        bundle = fit(
            str(photos), photos.parent / out, model="small", verbose=False, continue_from=folder, **options
        )
    return bundle, encoded[0], decoded


def require_same(bundle: Bundle, other: Bundle) -> None:
    """Every tensor, bit for bit, and all that was measured."""
    tensors, others = dict(bundle._all_tensors()), dict(other._all_tensors())
    assert tensors.keys() == others.keys()
    assert [name for name in tensors if not torch.equal(tensors[name], others[name])] == []
    measured = [(one.scores, one.temperature, one.review, one.image_hashes) for one in (bundle, other)]
    assert measured[0] == measured[1]


def change(photos: Path) -> set[str]:
    """Add images (one between others), a class and a test image, correct a label, remove two images.
    Returns what is new.
    """
    new = ["train/house/new.png", "train/sea/1a.png", "train/blue square/0.png", "train/blue square/1.png"]
    new.append("test/sea/new.png")
    for number, path in enumerate(new):
        paint(photos / path, 1001 + number)
    (photos / "train/house/3.png").rename(photos / "train/tree/from house.png")
    (photos / "train/house/0.png").unlink()
    (photos / "test/tree/4.png").unlink()
    return {*new}


@pytest.mark.filterwarnings("ignore")
def test_it_equals_a_fit_from_scratch_and_encodes_what_is_new(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, all_views, _ = fit_counted(photos, "first", monkeypatch, review=False)
    assert all_views == 21 * VIEWS + 15
    new = change(photos)
    whole, _, _ = fit_counted(photos, "whole", monkeypatch, review=False)
    grown, encoded, decoded = fit_counted(photos, "grown", monkeypatch, "first", review=False)
    assert (encoded, set(decoded)) == (4 * VIEWS + 1, new)
    require_same(grown, whole)
    assert any(not torch.equal(grown.tensors[name], first.tensors[name]) for name in ("strengths", "rest"))
    kept, anew = (load_file(photos.parent / name / FEATURES) for name in ("grown", "whole"))
    assert {name: len(part) for name, part in kept.items()} == {name: len(anew[name]) for name in anew}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", ["linear-probe", "dear"])
def test_other_methods_are_trained_anew_on_what_is_known(
    method: str, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A calibrated fit with its review; DeAR trains its span, and only the review reads what is kept."""
    few = DataSettings(allow_fewer=True)
    options: dict[str, Any] = {"method": method, "shots": 5, "calibrate": True, "dataset": few}
    options |= {"train": {"epochs": 2}} if method == "dear" else {}
    fit_counted(photos, "first", monkeypatch, **options)
    change(photos)
    whole, all_views, _ = fit_counted(photos, "whole", monkeypatch, **options)
    grown, encoded, _ = fit_counted(photos, "grown", monkeypatch, "first", **options)
    require_same(grown, whole)
    assert encoded < all_views / (1 if method == "dear" else 2)


def test_what_is_read_of_an_image_does_not_depend_on_those_beside_it(tmp_path: Path) -> None:
    """The matrices of the tiny CLIP are large enough for their last digits to depend on the batch."""
    for number in range(5):
        paint(tmp_path / f"{number}.png", number)
    images, clip = photos_module.PhotoImages(tmp_path, [(f"{n}.png", 0) for n in range(5)]), load_clip("tiny")
    method = build_method("dear+", clip, torch.Generator(), roles=find_role_table(clip))
    together = Cache(readouts={}).read_images(method, images, torch.arange(5), "auto")
    alone = Cache(readouts={}).read_images(method, images, torch.tensor([3]), "auto")
    assert torch.equal(together[3:4], alone)


@pytest.mark.filterwarnings("ignore:.*uneven")
def test_nothing_is_taken_from_another_backbone_or_a_damaged_file(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, all_views, _ = fit_counted(photos, "first", monkeypatch, review=False)
    shutil.copytree(photos.parent / "first", photos.parent / "damaged")
    (photos.parent / "damaged" / FEATURES).write_bytes(b"cut")
    with pytest.warns(UserWarning, match="damaged: its features cannot be read"):
        assert fit_counted(photos, "again", monkeypatch, "damaged", review=False)[1] == all_views
    other = small_clip_of(seed=1)
    role_table(other).save(photos.parent / "roles.json")
    monkeypatch.setattr("dear.adapters.prepare.load_clip", lambda *_args, **_options: other)
    with pytest.warns(UserWarning, match="first: 0 of 36 images are known"):
        assert fit_counted(photos, "other", monkeypatch, "first", review=False)[1] == all_views
