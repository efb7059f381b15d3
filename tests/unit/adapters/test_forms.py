"""Images in every form that Python has them: all forms of a picture give what its file gives."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pandas import DataFrame, Series
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from dear.adapters.bundle import Bundle
from dear.adapters.predictor import Predictor
from dear.adapters.results import Prediction
from dear.data.images.forms import hash_image, picture_of
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError
from tests.conftest import MakeClip
from tests.helpers.bundles import fitted
from tests.helpers.data import CLASSES
from tests.helpers.errors import refuses
from tests.helpers.methods import OTHERS, images


@pytest.fixture
def predictor(make_small_clip: MakeClip) -> Predictor:
    clip = make_small_clip()
    return Predictor(fitted("dear", clip)[0], clip=clip)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Five pictures of random levels, 31 x 41, as PNG."""
    shape = (5, 31, 41, 3)
    levels = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(5), dtype=torch.uint8)
    for number, picture in enumerate(levels):
        Image.fromarray(picture.numpy()).save(tmp_path / f"{number}.png")
    return [tmp_path / f"{number}.png" for number in range(5)]


def pixels(path: Path) -> np.ndarray:
    """Height x width x 3, by Pillow alone."""
    return np.asarray(Image.open(path))


FORMS: dict[str, Callable[[Path], Any]] = {
    "path": lambda path: path,
    "text": str,
    "Pillow": Image.open,
    "array": pixels,
    "array, mirrored twice": lambda path: np.ascontiguousarray(pixels(path)[:, ::-1])[:, ::-1],
    "array in [0, 1]": lambda path: pixels(path) / 255,
    "tensor": lambda path: torch.tensor(pixels(path)).permute(2, 0, 1),
    "tensor in [0, 1]": lambda path: torch.tensor(pixels(path)).permute(2, 0, 1) / 255,  # ToTensor's
    "array, channels first": lambda path: pixels(path).transpose(2, 0, 1),
    "bytes": Path.read_bytes,
    "bytearray": lambda path: bytearray(path.read_bytes()),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_what_the_file_gives(form: str, predictor: Predictor, paths: list[Path]) -> None:
    """One image gives one result, a list a list."""
    [expected] = predictor.predict([paths[0]])
    image = FORMS[form](paths[0])
    prediction = predictor.predict(image)
    assert isinstance(prediction, Prediction)
    assert prediction.top == expected.top
    assert prediction.image == (str(paths[0]) if form in ("path", "text") else None)
    assert predictor([image])[0].top == expected.top
    feature = predictor.encode(paths[0])
    assert feature.shape == (3, 17)
    assert torch.equal(predictor.encode(image), feature)
    assert torch.equal(predictor.encode([image])[0], feature)
    assert torch.equal(predictor.logits(image), predictor.logits([paths[0]])[0])


class Pictures(Dataset[Any]):
    """A torch Dataset without an end of its own: any index gives an item."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index % len(self.items)]


def test_several_images_in_every_container(predictor: Predictor, paths: list[Path]) -> None:
    expected = [prediction.top for prediction in predictor.predict(paths)]
    arrays = [pixels(path) for path in paths]
    tensors = [torch.tensor(array).permute(2, 0, 1) for array in arrays]
    labeled = [(tensor, number) for number, tensor in enumerate(tensors)]
    containers: dict[str, Any] = {
        "tuple": tuple(paths),
        "generator": (path for path in paths),
        "row of paths": np.array([str(path) for path in paths]),
        "batch of arrays": np.stack(arrays),
        "batch of tensors": torch.stack(tensors),
        "Dataset": Pictures(arrays),
        "labeled Dataset": Pictures(labeled),
        "columns": Pictures([{"image": array, "label": 0} for array in arrays]),
        "folder": paths[0].parent,
        "name of a folder": str(paths[0].parent),
        "samples of ImageFolder": [(str(path), 0) for path in paths],
        "loader": DataLoader(Pictures(tensors), batch_size=2),
        "labeled loader": DataLoader(Pictures(labeled), batch_size=2),
        "loader of columns": DataLoader(Pictures([{"image": t, "label": 0} for t in tensors]), batch_size=2),
        "loader of paths": DataLoader(Pictures([(str(path), 1) for path in paths]), batch_size=2),
        "loader of lists": DataLoader(Pictures(labeled), batch_size=2, collate_fn=list),
        "loader without batches": DataLoader(Pictures(labeled), batch_size=None),
        "loader of batches": DataLoader([(torch.stack(tensors), torch.arange(5))], batch_size=None),
        "loader with one-hot labels": DataLoader([(t, torch.eye(3)[0]) for t in tensors], batch_size=None),
        "loader of single paths": DataLoader([str(path) for path in paths], batch_size=None),
        "frame": DataFrame({"label": "x", "path": map(str, paths)}, index=range(7, 12)),
        "frame of arrays": DataFrame({"image": arrays}),
        "column": Series(paths, index=range(7, 12)),
    }
    for name, container in containers.items():
        assert [prediction.top for prediction in predictor.predict(container)] == expected, name
    assert predictor.predict([]) == []
    assert predictor.encode([]).shape == (0, 3, 17)
    assert predictor.predict_proba([]).shape == (0, len(CLASSES))


def test_probabilities_are_the_softmax_of_the_logits(predictor: Predictor, paths: list[Path]) -> None:
    """Over the temperature, which is 1.7; computed by numpy."""
    shares = predictor.predict_proba(paths)
    powers = np.exp(predictor.logits(paths).double().numpy() / 1.7)
    assert isinstance(shares, np.ndarray)
    np.testing.assert_allclose(shares, powers / powers.sum(axis=1, keepdims=True), rtol=1e-12)
    np.testing.assert_allclose(predictor.predict_proba(paths[0]), shares[0], rtol=1e-4)
    assert predictor.predict_proba(paths, OTHERS).shape == (5, len(OTHERS))


def test_grey_has_no_axis_of_channels(predictor: Predictor, tmp_path: Path) -> None:
    """A file with the same levels, an array, one in [0, 1] and a tensor."""
    levels = np.random.default_rng(7).integers(0, 256, (31, 41), dtype=np.uint8)
    Image.fromarray(levels).save(tmp_path / "gray.png")
    expected = predictor.predict(tmp_path / "gray.png").top
    forms = [levels, levels / 255, levels[None], levels[..., None], np.stack([levels] * 3)]
    for image in [*forms, torch.tensor(levels), torch.tensor(levels)[None]]:
        assert predictor.predict(image).top == expected


@pytest.mark.parametrize("count", [2, 3, 5])
def test_several_gray_images_have_an_axis_of_one(predictor: Predictor, count: int) -> None:
    """Three axes are one image, whatever their sizes: of three gray images too. In batches of a loader, in a
    data set and in scikit-learn's classifier the first axis counts them.
    """
    levels = np.random.default_rng(7).integers(0, 256, (count, 31, 41), dtype=np.uint8)
    expected = [prediction.top for prediction in predictor.predict([*levels])]
    tensors = torch.tensor(levels)
    batches = DataLoader(Pictures([*tensors]), batch_size=3)
    labeled = DataLoader(Pictures([(image, 1) for image in tensors]), batch_size=count)
    for several in (levels[:, None], levels[..., None], tensors[:, None], batches, labeled):
        assert [prediction.top for prediction in predictor.predict(several)] == expected
    for listed in (levels, tensors):
        data = load_dataset((listed, ["a"] * count), DataSettings(test_share=0))
        assert [int(picture[0, 7, 11]) for picture in data.train.load(torch.arange(count))] == [
            *levels[:, 7, 11]
        ]
    if count == 3:
        assert isinstance(predictor.predict(levels), Prediction)
    else:
        for unclear in (levels, tensors, DataLoader([tensors], batch_size=None)):
            with pytest.raises(DataError, match="several gray images are N x 1 x height x width, or a list"):
                predictor.predict(unclear)


def test_numbers_of_the_models_size_stay_as_they_are(predictor: Predictor) -> None:
    """Not rounded to 8 bits: what `preprocess` gives is taken again."""
    views = images()
    assert torch.equal(predictor.preprocess(views[0]), views[0])
    torch.testing.assert_close(predictor.encode([*views]), predictor.encode(views))


NO_IMAGES: list[Any] = [
    7,
    None,
    {"image": "a.png"},
    [["a.png", "b.png"]],
    [Path(__file__).parent],
    np.zeros((4, 9, 8), np.uint8),
    np.full((9, 8, 3), -1, np.int64),
    torch.zeros(9, 8, 3, dtype=torch.uint8),
    torch.zeros(3, 0, 8),
    torch.full((3, 20, 20), -2.5),
    torch.full((2, 3, 20, 20), float("nan")),
    b"words",
    b"",
    "https://example.org/a.jpg",
    Path("https://example.org/a.jpg"),
    "data:image/png;base64,AAAA",
]


@pytest.mark.parametrize("image", NO_IMAGES, ids=range(len(NO_IMAGES)))
def test_what_is_no_image_is_refused_in_one_line(predictor: Predictor, image: Any) -> None:
    for use in (predictor.predict, predictor.encode, predictor.predict_proba):
        refuses(DataError, "", use, image)


def test_open_files_integers_and_masks_are_the_image_that_they_hold(tmp_path: Path) -> None:
    """By hand: an open file is its bytes, whole numbers are levels, and True is white."""
    levels = np.random.default_rng(3).integers(0, 256, (23, 29, 3), dtype=np.uint8)
    Image.fromarray(levels).save(tmp_path / "a.png")
    with (tmp_path / "a.png").open("rb") as file:
        file.read(5)
        assert torch.equal(picture_of(file), picture_of(levels))
        assert hash_image(file) == hash_image(tmp_path / "a.png")
    assert torch.equal(picture_of(levels.astype(np.int64)), picture_of(levels))
    assert torch.equal(picture_of(torch.from_numpy(levels).permute(2, 0, 1).int()), picture_of(levels))
    assert torch.equal(picture_of(levels > 99), picture_of(np.where(levels > 99, 255, 0).astype(np.uint8)))
    for wrong in (levels.astype(np.int64) - 1, levels.astype(np.int64) + 256):
        with pytest.raises(DataError):
            picture_of(wrong)
    with (tmp_path / "a.png").open(encoding="latin-1") as text, pytest.raises(DataError, match="rb"):
        picture_of(text)


def test_a_predictor_is_pickled_by_what_it_was_built_from(
    make_small_clip: MakeClip, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = make_small_clip()
    monkeypatch.setattr(Bundle, "load_backbone", lambda *_arguments, **_options: clip)
    bundle, _ = fitted("dear", clip)
    predictor = Predictor(bundle, refuse=0)
    again = pickle.loads(pickle.dumps(predictor))
    picture = np.random.default_rng(3).integers(0, 256, (23, 29, 3), dtype=np.uint8)
    assert again.predict(picture) == predictor.predict(picture)
    assert len(pickle.dumps(predictor)) < 100_000
