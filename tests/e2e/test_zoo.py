"""Strange pictures (tests/data/zoo), few of them, and such with nothing to tell apart: every command does its
work, or says in one line why it cannot.
"""

import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from PIL import Image

from dear.cli.main import main
from dear.methods.registry import CANDIDATES

ZOO = Path(__file__).parents[1] / "data/zoo"
SETS = sorted(folder.name for folder in ZOO.iterdir() if folder.is_dir())
COUNTS = (1, 2, 3, 5, None)
"""Images of each class; None is all of them."""
OF_TWO_THREADS = {"digits8", "cam_scratch"}

Try = Callable[..., int]


@pytest.fixture
def attempt(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Try:
    """``attempt(words)``: the exit code of a command that is done, in part or in all, or says why not. An
    image is left out once.
    """
    monkeypatch.setattr("dear.adapters.leftout.ENOUGH", 1)

    def attempt(*words: str | Path) -> int:
        capsys.readouterr()
        code, errors = main([str(word) for word in words]), capsys.readouterr().err
        refusals = [line for line in errors.splitlines() if line.startswith("dear: error: ")]
        assert code in (0, 1, 2), errors
        assert len(refusals) == (code == 2), errors
        assert "Traceback" not in errors
        return code

    return attempt


def fit(data: Path, out: Path, *words: str | Path) -> list[str | Path]:
    return ["fit", data, "--model", "tiny", "--out", out, "--overwrite", *words]


def test_there_are_twelve_sets_of_up_to_3_megabytes() -> None:
    assert len(SETS) == 12
    assert sum(path.stat().st_size for path in ZOO.rglob("*")) < 3e6


SHORT = {"imbalanced": "auto", "gray16": "ensemble"}
"""Sets of `make test`, with a method: 1, 2 and 24 images with transparent grounds; 16 bits."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SHORT else [pytest.mark.long]) for name in SETS]
)
def test_every_command_works(name: str, attempt: Try, tmp_path: Path) -> None:
    data, bundle = ZOO / name, tmp_path / "bundle"
    threads = ["--threads", "2"] if name in OF_TWO_THREADS else []
    cheap = ["--method", "ensemble"]
    assert attempt("data", "check", data) in (0, 1)
    assert attempt(*fit(data, bundle, "--method", SHORT.get(name, "auto"), *threads)) == 0
    attempt("eval", bundle, data)  # all images may have been trained on, where none are left
    assert attempt("review", data, *cheap, "--model", "tiny", "--out", tmp_path / "review") in (0, 1)
    assert attempt("predict", bundle, data, "--out", tmp_path / "predictions.csv") == 0
    assert attempt("index", "build", bundle, data, "--out", tmp_path / "index") == 0
    attempt("suggest", bundle, data, "--count", "3", "--out", tmp_path / "next.csv")
    second = tmp_path / "second"
    assert attempt(*fit(data, second, "--continue", bundle, *cheap, "--dataset.balance")) in (0, 2)
    attempt("compare", bundle, second, data)
    if name == "cam_scratch":
        assert attempt("export", bundle, "--out", tmp_path / "bundle.onnx") == 0


def keep_few(data: Path, folder: Path, count: int | None) -> Path:
    """A copy of a set with so many images of each class."""
    for label in sorted(data.iterdir()):
        if label.is_dir():
            (folder / label.name).mkdir(parents=True)
            for path in sorted(label.iterdir())[:count]:
                shutil.copy(path, folder / label.name)
    return folder


METHODS = ("linear-probe", "gda", "tip-adapter", *dict.fromkeys(each.method for each in CANDIDATES))
WAYS: tuple[tuple[str, ...], ...] = (
    (), ("--threads", "2"), ("--dataset.balance",), ("--dataset.test-share", "0"), ("--unlabeled", "DATA"),
    ("--add-classes", "a crane,snow"),
)  # fmt: skip
FEW = [
    pytest.param(method, count, marks=[] if row % len(COUNTS) == column else [pytest.mark.long])
    for (row, method), (column, count) in product(enumerate(METHODS), enumerate(COUNTS))
]


@pytest.mark.parametrize(("method", "count"), FEW)
def test_every_method_takes_few_images(method: str, count: int | None, attempt: Try, tmp_path: Path) -> None:
    """Each number of images on another set, fitted in another way."""
    place = METHODS.index(method) * len(COUNTS) + COUNTS.index(count)
    data = keep_few(whole := ZOO / SETS[place % len(SETS)], tmp_path / "data", count)
    words = [str(whole) if word == "DATA" else word for word in WAYS[place % len(WAYS)]]
    if attempt(*fit(data, tmp_path / "bundle", "--method", method, *words)) == 0:
        assert attempt("predict", tmp_path / "bundle", data, "--out", tmp_path / "predictions.csv") == 0
        attempt("eval", tmp_path / "bundle", whole)
        attempt("suggest", tmp_path / "bundle", whole, "--out", tmp_path / "next.csv")


@pytest.mark.long
@pytest.mark.parametrize("name", SETS[::3])
def test_the_choice_takes_two_images(name: str, attempt: Try, tmp_path: Path) -> None:
    """And continues with all of them."""
    data, bundle = keep_few(ZOO / name, tmp_path / "data", 2), tmp_path / "bundle"
    if attempt(*fit(data, bundle)) == 0:
        attempt(*fit(ZOO / name, tmp_path / "next", "--continue", bundle))
    attempt("review", data, "--model", "tiny", "--out", tmp_path / "review")


COPIES = ("same in a class", "same in both classes")
"""Kinds that may be refused: every image to test on is a copy of one to train on, or has two labels."""


def draw_nothing(folder: Path, kind: str) -> Path:
    """Pictures of two classes that do not differ, or by class alone; of one class; one of each class."""
    for label in ("one", "two")[: 1 if kind == "1 class" else 2]:
        (folder / label).mkdir(parents=True)
        for number in range(1 if kind == "2 images" else 4):
            shade = 60 if kind == "same in both classes" or label == "one" else 200
            image = Image.new("RGB", (40, 30), (shade, 90, 40))
            if kind not in COPIES:
                image.putpixel((number, 3), (255, 255, 255))
            image.save(folder / label / f"{number}.png")
    return folder


@pytest.mark.parametrize("kind", [*COPIES, "hardly differ", "1 class", "2 images"])
def test_pictures_with_nothing_to_tell_apart(kind: str, attempt: Try, tmp_path: Path) -> None:
    data, bundle = draw_nothing(tmp_path / "data", kind), tmp_path / "bundle"
    code = attempt(*fit(data, bundle))
    assert not code or kind in COPIES
    if not code:
        assert attempt("predict", bundle, data, "--out", tmp_path / "predictions.csv") == 0
        attempt("eval", bundle, data)
    attempt("data", "check", data)
    attempt("review", data, "--model", "tiny", "--method", "ensemble", "--out", tmp_path / "review")
