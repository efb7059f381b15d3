"""What a command loads: nothing heavy for help and errors, little besides torch for a prediction."""

from pathlib import Path

import pytest
from PIL import Image

from dear.adapters.bundle import Bundle
from dear.backbone.load import load_clip
from dear.methods.registry import METHODS
from tests.unit.cli.forks import run_each

HEAVY = {
    "cv2", "fastapi", "httpx", "lightning_fabric", "matplotlib", "open_clip", "pandas", "ray", "scipy",
    "sklearn", "sympy", "timm", "torch._dynamo", "torch.onnx", "torchvision", "transformers",
}  # fmt: skip


ERRORS = [
    (["fit", "--data", "nowhere", "--out", "b"], "No file or folder has that name either."),
    (["fit", "--data", "./nowhere", "--out", "b"], "the folder ./nowhere does not exist"),
    (["fit", "--data", "mixed-paints", "--out", "b", "--shoots", "1"], "Did you mean --shots?"),
    (["run", "few-shot", "--data", "nowhere"], "unknown data set 'nowhere'"),
    (["run", "recipe", "nowhere.yaml"], "nowhere.yaml"),
    (["data", "pick", "nowhere"], "unknown data set 'nowhere'"),
    (["predict", "./nowhere", "image.png"], "there is no bundle at nowhere"),
    (["predict", "./nowhere", "https://example.org/a.jpg"], "https://example.org/a.jpg is an address, not"),
    (["predict", "./nowhere", "list.csv"], "list.csv is a table: `dear predict` takes images"),
    (
        ["index", "query", "./nowhere", "a striped thing"],
        "no image a striped thing: check the path, or give",
    ),
    (["eval", "./nowhere", "--data", "mixed-paints"], "there is no bundle at nowhere"),
    (["export", "./nowhere", "--out", "model.onnx"], "there is no bundle at nowhere"),
    (["serve", "./nowhere"], "there is no bundle at nowhere"),
    (["index", "build", "./nowhere", "photos"], "there is no bundle at nowhere"),
    (["index", "build", "photos", "--features", "heads", "--model", "ViT-C-16"], "unknown backbone"),
    (
        ["fit", "--data", "mixed-paints", "--out", "b", "--model", "ViT-C-16"],
        "unknown backbone 'ViT-C-16'",
    ),
    (["run", "few-shot", "--data", "mixed-paints", "--model", "ViT-C-16"], "unknown backbone 'ViT-C-16'"),
    (["roles", "discover", "--data", "nowhere"], "unknown data set 'nowhere'"),
    (["roles", "discover", "--data", "mixed-paints", "--model", "ViT-C-16"], "unknown backbone"),
    (["roles", "ablate", "--data", "nowhere"], "unknown data set 'nowhere'"),
    (["roles", "show", "nowhere.json"], "nowhere.json is not a role table: No such file"),
    (["roles", "compare", "published", "nowhere.json"], "nowhere.json is not a role table: No such file"),
    (["roles", "assign", "nowhere.txt"], "nowhere.txt: No such file"),
]
"""Command lines, and a part of what is said of each."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that has learned nothing, with an image in it."""
    made = Bundle(
        method="zero-shot",
        settings=METHODS["zero-shot"].settings(),
        model="tiny",
        pretrained=None,
        weights=load_clip("tiny").identity,
        roles=None,
        classes=("red circle", "blue square"),
        templates=("a photo of a {}.",),
        tensors={},
    )
    place = made.save_pretrained(tmp_path_factory.mktemp("made") / "bundle")
    Image.new("RGB", (64, 64), "red").save(place.parent / "red.png")
    return place


def test_an_error_in_the_words_is_told_without_torch() -> None:
    ends = run_each([words for words, _ in ERRORS])
    for (words, message), end in zip(ERRORS, ends, strict=True):
        assert (end.code, message in end.output) == (2, True), (words, end.output)
        assert not {"torch", "numpy"} & end.modules, words


def test_an_image_that_is_missing_is_told_without_torch(bundle: Path, tmp_path: Path) -> None:
    [end] = run_each([["predict", str(bundle), str(tmp_path / "no.png")]])
    assert (end.code, "no.png: No such file" in end.output) == (2, True), end.output
    assert not {"torch", "numpy"} & end.modules


def test_a_prediction_loads_torch_and_little_else(bundle: Path) -> None:
    [end] = run_each([["predict", str(bundle), str(bundle.parent / "red.png")]])
    assert (end.code, "red circle" in end.output) == (0, True), end.output
    assert "torch" in end.modules
    assert not HEAVY & end.modules
