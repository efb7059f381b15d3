"""A fit to known images: as a fit from scratch, but these are not encoded again."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dear.adapters import fit as fit_module
from dear.adapters.bundle import Bundle
from dear.adapters.fit import fit
from dear.backbone.loading.load import load_clip
from dear.backbone.names import Precision
from dear.data.images import photos as photos_module
from dear.data.settings import DataSettings
from dear.errors import OutputError
from dear.evaluation.predictions import predict
from dear.methods.base import Method, TrainingImages
from dear.methods.registry import build_method
from dear.roles.table import find_role_table
from dear.training import cache as cache_module
from dear.training.batches import training_images
from dear.training.cache import Cache, ReadoutStore
from dear.training.settings import TrainSettings
from dear.writing import locked
from tests.helpers.pictures import save_picture
from tests.helpers.server import picture

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
    save_picture(path, picture(seed, 29, 23))


def fit_counted(
    photos: Path,
    out: str,
    monkeypatch: pytest.MonkeyPatch,
    earlier: str | None = None,
    cache: str = "cache",
    **options: Any,
) -> tuple[Bundle, int, list[str]]:
    """The bundle, how many views were encoded, and which files were decoded."""
    encoded, decoded = [0], list[str]()
    encode, decode = cache_module._encode, photos_module.decode

    def count(methods: Sequence[Method], images: Tensor, precision: Precision) -> list[Tensor]:
        encoded[0] += len(images)
        return encode(methods, images, precision)

    def note(path: Path, *rest: Any) -> Tensor:
        decoded.append(path.relative_to(photos).as_posix())
        return decode(path, *rest)

    options = {"method": "dear+", "roles": photos.parent / "roles.json"} | options
    with monkeypatch.context() as patch:
        patch.setattr(cache_module, "_encode", count)
        patch.setattr(photos_module, "decode", note)
        patch.setenv("DEAR_CACHE", str(photos.parent / cache))
        folder = None if earlier is None else photos.parent / earlier
        bundle = fit(
            str(photos), photos.parent / out, model="small", verbose=False, continue_from=folder, **options
        )
    return bundle, encoded[0], decoded


def fit_plain(photos: Path, out: str) -> None:
    roles = photos.parent / "roles.json"
    fit(photos, photos.parent / out, method="dear+", roles=roles, model="small", review=False, verbose=False)


def interrupted(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def require_same(bundle: Bundle, other: Bundle) -> None:
    """The same bit for bit, with all that was measured."""
    tensors, others = dict(bundle._all_tensors()), dict(other._all_tensors())
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)
    for name in ("scores", "temperature", "image_hashes", "review"):
        assert getattr(bundle, name) == getattr(other, name)


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
    whole, _, _ = fit_counted(photos, "whole", monkeypatch, cache="other", review=False)
    grown, encoded, decoded = fit_counted(photos, "grown", monkeypatch, review=False)
    assert (encoded, set(decoded)) == (4 * VIEWS + 1, new)
    require_same(grown, whole)
    assert any(
        not torch.equal(grown.tensors[name], first.tensors[name]) for name in ("strengths", "remainder")
    )
    with pytest.warns(UserWarning, match=r"earlier commands: (\d+) of \1$"):
        continued, encoded, _ = fit_counted(photos, "continued", monkeypatch, "first", review=False)
    assert encoded == 0
    require_same(continued, whole)


@pytest.mark.filterwarnings("ignore")
def test_an_interrupted_fit_keeps_what_it_has_encoded(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle, and again before anything is read: the third call encodes the rest."""
    monkeypatch.setattr("dear.backbone.vision.VisionTower.images_at_once", 4)
    whole, all_views, _ = fit_counted(photos, "whole", monkeypatch, cache="other", review=False)
    encode, views = cache_module._encode, 0

    def interrupt(methods: Sequence[Method], images: Tensor, precision: Precision) -> list[Tensor]:
        nonlocal views
        if views >= 12:
            raise KeyboardInterrupt
        views += len(images)
        return encode(methods, images, precision)

    monkeypatch.setenv("DEAR_CACHE", str(photos.parent / "cache"))
    for target, name, stop in (
        (cache_module, "_encode", interrupt),
        (fit_module, "prepare_run", interrupted),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, stop)
            with pytest.raises(KeyboardInterrupt):
                fit_plain(photos, "out")
    bundle, encoded, _ = fit_counted(photos, "out", monkeypatch, review=False)
    assert encoded == all_views - views
    require_same(bundle, whole)


def test_two_fits_into_one_folder(photos: Path) -> None:
    """The second is refused at once, and the folder is free once the first has ended."""
    out, settings = photos.parent / "out", DataSettings()
    with locked(out, settings.cache_folder()), pytest.raises(OutputError, match="another process is writing"):
        fit_plain(photos, "out")
    assert not out.exists()
    fit_plain(photos, "out")
    assert (out / "config.json").is_file()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", ["linear-probe", "dear"])
def test_other_methods_are_trained_anew_on_what_is_known(
    method: str, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A calibrated fit with its review; DeAR trains its span, and only the review reads what is kept."""
    few = DataSettings(allow_fewer=True)
    options: dict[str, Any] = {"method": method, "shots": 5, "dataset": few}
    options |= {"train": {"epochs": 2}} if method == "dear" else {}
    fit_counted(photos, "first", monkeypatch, **options)
    change(photos)
    whole, all_views, _ = fit_counted(photos, "whole", monkeypatch, cache="other", **options)
    grown, encoded, _ = fit_counted(photos, "grown", monkeypatch, "first", **options)
    require_same(grown, whole)
    assert encoded < all_views / 2


def test_batches_change_no_prediction(tmp_path: Path) -> None:
    """The matrices of the tiny CLIP are large enough for last digits to depend on the batch. Training images
    and tested ones are read in any batches, with and without readouts by content.
    """
    for number in range(12):
        paint(tmp_path / f"{number}.png", number)
    rows = [(f"{number}.png", number % 3) for number in range(12)]
    images, clip = photos_module.PhotoImages(tmp_path, rows), load_clip("tiny")
    probabilities = list[Tensor]()
    for batch, is_kept in ((1, True), (5, True), (12, False), (7, False)):
        cache = Cache(readouts=ReadoutStore(tmp_path / str(batch)) if is_kept else None)
        method = build_method("dear+", clip, torch.Generator(), roles=find_role_table(clip))
        method.set_classes(("house", "sea", "tree"), ("a photo of a {}.",))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(clip.image), "images_at_once", batch)
            few = training_images(method, images, TrainSettings(), 1, cache)
            method.before_training(TrainingImages(few.labels, lambda _, few=few: few.view(None)))
            logits = predict(method, images, cache=cache).logits
        probabilities.append(logits.double().softmax(dim=1))
    for other in probabilities[1:]:
        assert torch.equal(other.argmax(dim=1), probabilities[0].argmax(dim=1))
        torch.testing.assert_close(other, probabilities[0], rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("only_clip")
def test_a_fit_on_all_images_keeps_the_number_of_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It encodes nothing anew where the method takes one view of an image, and says whose number it is."""
    monkeypatch.setenv("DEAR_CACHE", str(tmp_path / "cache"))
    for number, name in enumerate(("house", "sea", "tree")):
        for image in range(10):
            paint(tmp_path / "all" / name / f"{image}.png", 100 * number + 10 * image)
    photos, options = tmp_path / "all", {"method": "linear-probe", "roles": None, "review": False}
    whole, parted = (options | {"dataset": DataSettings(test_share=share)} for share in (0.0, 0.3))
    first, _, _ = fit_counted(photos, "first", monkeypatch, **parted)
    again, encoded, _ = fit_counted(photos, "again", monkeypatch, "first", **whole)
    assert (again.training.train_images, encoded) == (30, 0)
    assert first.scores is not None
    assert again.scores is not None
    assert (first.scores.images, again.scores.images, again.scores.split) == (9, 30, "cross-validation")
    continued, _, _ = fit_counted(photos, "continued", monkeypatch, "first", **options)
    assert continued.scores == first.scores  # what was kept aside stays aside
    assert Bundle.from_pretrained(tmp_path / "again").training == again.training
    probe, _, _ = fit_counted(photos, "other", monkeypatch, "first", **whole | {"method": "zero-shot"})
    assert probe.training.earlier_test is None
    for number in range(3):
        (photos / f"sea/{number}.png").unlink()
    fewer, _, _ = fit_counted(photos, "fewer", monkeypatch, "first", **whole)
    assert fewer.training.earlier_test is None
