"""A refit takes the place of the present classifier if it is not worse, and keeps what was asked of that."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dear.adapters.bundle import Bundle
from dear.adapters.fit import fit
from dear.adapters.predictor import Predictor
from dear.adapters.refit import refit
from dear.backbone.clip import Clip
from dear.cli.main import main
from dear.data.settings import DataSettings
from dear.errors import BundleError, OutputError
from dear.stats import share_interval
from tests.helpers.errors import refuses
from tests.helpers.pictures import save_picture

COLORS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220)}
EACH = 8
OPTIONS: dict[str, Any] = {"method": "linear-probe", "verbose": False}


def save(path: Path, name: str, number: int) -> None:
    noise = np.random.default_rng([number, *COLORS[name]]).integers(-25, 26, (24, 24, 3))
    save_picture(path, noise + COLORS[name])


@pytest.fixture
def photos(tmp_path: Path, only_clip: Clip) -> Path:  # noqa: ARG001
    """Three classes by color."""
    for name in COLORS:
        for number in range(EACH):
            save(tmp_path / "photos" / name / f"{number}.png", name, number)
    return tmp_path / "photos"


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_corrections_make_it_better_and_the_one_before_is_kept(photos: Path, tmp_path: Path) -> None:
    (photos / "red/0.png").rename(photos / "blue/wrong.png")
    promise: dict[str, Any] = {"precision": 0.75, "per_class": True, "refuse": 0.1, "seed": 3}
    fit(photos, tmp_path / "mine", settings={"c": 0.5}, **promise, **OPTIONS)
    before = contents(tmp_path / "mine")
    (photos / "corrections.csv").write_text("path,label\nblue/wrong.png,red\n")
    done = refit(tmp_path / "mine", photos)
    assert (done.is_replaced, done.before, done.is_worse) == (True, tmp_path / "mine.before", False)
    assert contents(tmp_path / "mine.before") == before
    promised = done.cross_validated
    assert promised is not None
    assert promised.before < promised.now == 1
    assert promised.low < promised.now - promised.before < promised.high
    assert promised.interval_now == share_interval(promised.images_now, promised.images_now)
    assert f"now (95%: {promised.interval_now[0]:.1%} to 100.0%)" in str(promised)
    assert done.comparison is None  # it has seen all of them
    new, old = Bundle.from_pretrained(tmp_path / "mine"), Bundle.from_pretrained(tmp_path / "mine.before")
    assert (new.settings, new.refuse, new.training.seed) == (old.settings, 0.1, 3)
    point = new.training.operating
    assert point is not None
    assert (point.precision, point.by_class is None) == (0.75, False)
    assert "# mine\n" in (tmp_path / "mine" / "README.md").read_text()
    assert not (tmp_path / "mine.new").exists()


def test_what_is_decided_is_compared_too_and_a_page_without_images_is_told(
    photos: Path, tmp_path: Path
) -> None:
    """All 24 images are decided rightly, which shows at least 88%; then their labels are random."""
    fit(photos, tmp_path / "mine", precision=0.85, refuse=0, **OPTIONS)
    rows = [
        f"{file.parent.name}/{file.name},{[*COLORS][at % 3]}"
        for at, file in enumerate(sorted(photos.rglob("*.png")))
    ]
    (photos / "corrections.csv").write_text("\n".join(["path,label", *rows]))
    with pytest.warns(UserWarning, match="no page is written"):
        done = refit(tmp_path / "mine", photos, out=tmp_path / "page", force=True)
    assert done.decided is not None
    assert [(of.decided, of.images) for of in done.decided] == [(24, 24), (0, 24)]
    assert done.is_worse
    assert "100.0% of images by the present one, 0.0% (95%:" in " ".join(done.verdict)
    assert not (tmp_path / "page").exists()


def test_a_class_that_corrections_empty_is_named(photos: Path, tmp_path: Path) -> None:
    fit(photos, tmp_path / "mine", **OPTIONS)
    rows = [f"red/{number}.png,blue\n" for number in range(EACH - 1)]  # the last cannot be left out
    (photos / "corrections.csv").write_text("path,label\n" + "".join(rows))
    done = refit(tmp_path / "mine", photos)
    assert done.shrunk == (("red", EACH, 1),)
    assert any(f"red (1 of {EACH})" in line for line in done.verdict)


def test_the_surest_wrong_image_is_named(photos: Path, tmp_path: Path) -> None:
    (photos / "red/0.png").rename(photos / "blue/wrong.png")
    with pytest.warns(UserWarning, match=r"are wrong although .*blue/wrong\.png"):
        fit(photos, tmp_path / "mine", precision=0.9, refuse=0, **OPTIONS)


def test_what_looks_like_none_of_the_classes_is_not_decided_at_the_fit(photos: Path, tmp_path: Path) -> None:
    """By these costs every image is decided, but those that are up to the threshold where they are left out:
    as many as the sentence on new images is computed from.
    """
    bundle = fit(photos, tmp_path / "mine", costs={"red": 2.0}, refuse=0.2, **OPTIONS)
    known, point = bundle.known, bundle.training.operating
    assert known is not None
    assert point is not None
    assert point.measured is not None
    refused = known.expected(0.2) * (int(known.groups) + 1)
    assert refused >= 1
    assert point.measured.images - point.measured.decided == pytest.approx(refused, abs=1e-6)


def test_what_is_worse_does_not_take_the_place(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(photos, tmp_path / "mine", **OPTIONS)
    before = contents(tmp_path / "mine")
    rows = [
        f"{file.parent.name}/{file.name},{[*COLORS][at % 3]}"
        for at, file in enumerate(sorted(photos.rglob("*.png")))
    ]
    (photos / "corrections.csv").write_text("\n".join(["path,label", *rows]))
    words = ["refit", str(tmp_path / "mine"), str(photos)]
    assert main(words) == 1
    assert "clearly worse: the present one stays" in capsys.readouterr().out
    assert contents(tmp_path / "mine") == before
    new = Bundle.from_pretrained(tmp_path / "mine.new")
    assert new.scores is not None
    assert new.scores.accuracy < 0.7
    assert not (tmp_path / "mine.before").exists()
    assert main([*words, "--force"]) == 0
    assert contents(tmp_path / "mine.before") == before
    assert (
        contents(tmp_path / "mine")["adapter.safetensors"]
        == contents(tmp_path / "mine.new")["adapter.safetensors"]
    )


def test_both_are_compared_on_new_images(photos: Path, tmp_path: Path) -> None:
    """The present one predicts them itself. A new class is not among those that are compared."""
    fit(photos, tmp_path / "mine", **OPTIONS)
    new = [photos / name / f"new{number}.png" for name in COLORS for number in range(2)]
    for file in new:
        save(file, file.parent.name, 100 + int(file.stem[-1]))
    save(photos / "red/odd.png", "blue", 200)  # which the present one takes for blue
    for number in range(4):
        plain = Image.new("RGB", (24, 24), (250, 240, 30 + number))
        save_picture(photos / "yellow" / f"{number}.png", plain)
    right = [
        answer.best.name for answer in Predictor(tmp_path / "mine").predict([*new, photos / "red/odd.png"])
    ]
    assert right == [*(file.parent.name for file in new), "blue"]
    done = refit(tmp_path / "mine", photos, out=tmp_path / "page", dataset=DataSettings())
    comparison = done.comparison
    assert comparison is not None
    assert (comparison.images, comparison.first.right) == (7, 6)
    assert comparison.second.right in (6, 7)
    assert (comparison.left_out, comparison.other_images) == (3 * EACH, 4)
    assert (done.added, done.lost, comparison.other_classes) == (("yellow",), (), ((), ("yellow",)))
    assert (tmp_path / "page" / "comparison.html").is_file()


def test_test_images_are_what_both_are_compared_on(photos: Path, tmp_path: Path) -> None:
    for name in COLORS:
        for number in range(EACH):
            save(photos / "test" / name / f"{number}.png", name, 300 + number)
        shutil.move(photos / name, photos / "train" / name)
    fit(photos, tmp_path / "mine", **OPTIONS)
    done = refit(tmp_path / "mine", photos)
    assert done.comparison is not None
    assert (done.comparison.images, done.cross_validated, done.is_replaced) == (3 * EACH, None, True)


def test_what_cannot_be_is_refused_before_the_fit(photos: Path, tmp_path: Path) -> None:
    refuses(BundleError, "no bundle", refit, tmp_path / "mine", photos)
    fit(photos, tmp_path / "mine", review=False, **OPTIONS)
    (tmp_path / "mine.before").mkdir()
    (tmp_path / "mine.before" / "thesis.txt").write_text("my own")
    refuses(OutputError, "mine.before", refit, tmp_path / "mine", photos)
    assert contents(tmp_path / "mine.before") == {"thesis.txt": b"my own"}
