"""Strange pictures (tests/data/zoo), few of them, and such with nothing to tell apart: every command does its
work, or says in one line why it cannot.
"""

import shutil
from collections.abc import Callable, Sequence
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
def attempt(capsys: pytest.CaptureFixture[str]) -> Try:
    """``attempt(words)``: the exit code of a command that is done, in part or in all, or says why not."""

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


OTHERS = [
    pytest.param(name, marks=[pytest.mark.long] if place % 3 else []) for place, name in enumerate(SETS)
]


@pytest.mark.parametrize("name", OTHERS)
def test_every_command_works(name: str, attempt: Try, tmp_path: Path) -> None:
    data, bundle = ZOO / name, tmp_path / "bundle"
    threads = ["--threads", "2"] if name in OF_TWO_THREADS else []
    method = ("auto", "ensemble", "auto", "dear+")[SETS.index(name) % 4]
    assert attempt("data", "check", data) in (0, 1)
    assert attempt(*fit(data, bundle, "--method", method, *threads)) == 0
    # All images may have been trained on, where none are left.
    attempt("eval", bundle, data)
    if SETS.index(name) % 2:  # these save the time of commands that choose and fit again
        return
    assert attempt("review", data, "--model", "tiny", "--out", tmp_path / "review", *threads) in (0, 1)
    assert attempt("predict", bundle, data, "--out", tmp_path / "predictions.csv") == 0
    assert attempt("index", "build", bundle, data, "--out", tmp_path / "index") == 0
    attempt("suggest", bundle, data, "--count", "3", "--out", tmp_path / "next.csv")
    assert attempt(
        *fit(data, tmp_path / "second", "--continue", bundle, "--method", "ensemble", "--dataset.balance")
    ) in (0, 2)
    attempt("compare", bundle, tmp_path / "second", data)


@pytest.mark.long
@pytest.mark.parametrize("name", ["cam_scratch", "digits8", "fonts", "gray16"])
def test_what_was_fitted_is_exported(name: str, attempt: Try, tmp_path: Path) -> None:
    assert attempt(*fit(ZOO / name, tmp_path / "bundle")) == 0
    assert attempt("export", tmp_path / "bundle", "--out", tmp_path / "bundle.onnx") == 0


def fit_in_ways(data: Path, folder: Path, attempt: Try, method: str, ways: Sequence[Sequence[str]]) -> None:
    """Fit a method with some options, and use what was fitted."""
    for number, words in enumerate(ways):
        bundle = folder / f"bundle{number}"
        code = attempt(*fit(data, bundle, "--method", method, *words))
        if code == 0 and not number:
            assert attempt("predict", bundle, data, "--out", folder / "predictions.csv") == 0


def keep_few(data: Path, folder: Path, count: int | None) -> Path:
    """A copy of a set with so many images of each class."""
    for label in sorted(data.iterdir()):
        if label.is_dir():
            (folder / label.name).mkdir(parents=True)
            for path in sorted(label.iterdir())[:count]:
                shutil.copy(path, folder / label.name)
    return folder


METHODS = ("linear-probe", "gda", "tip-adapter", *dict.fromkeys(each.method for each in CANDIDATES))
PAIRS = [*product(METHODS, COUNTS)]


@pytest.mark.parametrize("place", range(len(PAIRS)))
def test_every_method_takes_few_images(place: int, attempt: Try, tmp_path: Path) -> None:
    """Each method with each number of images, on one set after the other."""
    method, count = PAIRS[place]
    data = keep_few(ZOO / SETS[place % len(SETS)], tmp_path / "data", count)
    fit_in_ways(data, tmp_path, attempt, method, [()])


IN_TURN = [
    (method, name)
    for (row, method), (column, name) in product(enumerate(["auto", *METHODS]), enumerate(SETS))
    if row % 4 == column % 4
]


@pytest.mark.long
@pytest.mark.parametrize(("method", "name"), IN_TURN)
def test_every_method_takes_every_number_of_images(
    method: str, name: str, attempt: Try, tmp_path: Path
) -> None:
    """Each way of fitting with another number of images on each set, and the choice with two numbers."""
    ways: list[tuple[str, ...]] = [
        ("--threads", "2"),
        ("--dataset.balance",),
        ("--dataset.test-share", "0"),
        ("--unlabeled", str(ZOO / name)),
        ("--add-classes", "a crane,snow"),
    ]
    first = (SETS.index(name) + len(method)) % len(COUNTS)
    for number in sorted({first, 1}) if method == "auto" else [first]:
        count = COUNTS[number]
        folder = tmp_path / str(count)
        data = keep_few(ZOO / name, folder / "data", count)
        way = ways[(number + SETS.index(name)) % len(ways)]
        fit_in_ways(data, folder, attempt, method, [(), way])
        if count == COUNTS[1] and (folder / "bundle0").exists():
            attempt("eval", folder / "bundle0", ZOO / name)
            attempt("suggest", folder / "bundle0", ZOO / name, "--out", folder / "next.csv")
            attempt(*fit(ZOO / name, folder / "next", "--continue", folder / "bundle0"))
            attempt("review", data, "--model", "tiny", "--out", folder / "review")


COPIES = ("same in a class", "same in both classes")
"""Kinds that may be refused: every image to test on is a copy of one to train on, or has two labels."""


def draw_nothing(folder: Path, kind: str) -> Path:
    """Pictures of two classes that do not differ, or by class alone; of one class; one of each class."""
    for label in ("one", "two")[: 1 if kind == "1 class" else 2]:
        (folder / label).mkdir(parents=True)
        for number in range(1 if kind == "2 images" else 6):
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
    for method in METHODS[:3]:  # the others were tried for the choice
        attempt(*fit(data, tmp_path / method, "--method", method))
    if not code:
        assert attempt("predict", bundle, data, "--out", tmp_path / "predictions.csv") == 0
        attempt("eval", bundle, data)
    attempt("data", "check", data)
    attempt("review", data, "--model", "tiny", "--out", tmp_path / "review")
