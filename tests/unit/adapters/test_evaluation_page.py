"""The page of a bundle: its numbers are those of the scores, its mistakes the most confident ones."""

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from pandas import read_csv

from dear.adapters.evaluation import evaluate
from dear.adapters.evaluation_page import core_heads
from dear.adapters.operating import DECIDED, TO_A_PERSON
from dear.adapters.predictor import Predictor
from dear.adapters.results import Prediction
from dear.adapters.wording import verdict
from dear.backbone.clip import Clip
from dear.data.dataset import Dataset
from dear.data.loading import load_dataset
from dear.methods.base import Method
from dear.methods.declaration import MethodSettings
from dear.roles.table import HeadRole
from dear.stats import share_interval
from tests.helpers.bundles import fitted, small_predictor
from tests.helpers.data import CLASSES
from tests.helpers.pictures import save_picture
from tests.helpers.server import picture

EACH = 4


@pytest.fixture
def toys(tmp_path: Path) -> Dataset:
    """A few pictures of noise for each class, as files."""
    for split in ("train", "test"):
        for at, name in enumerate(CLASSES):
            for number in range(EACH):
                seed = 100 * at + number + 50 * (split == "test")
                save_picture(tmp_path / "toys" / split / name / f"{number}.png", picture(seed))
    return load_dataset(str(tmp_path / "toys"))


@pytest.fixture
def predictor(small_clip: Clip) -> Predictor:
    return small_predictor(small_clip)


def test_the_numbers_are_those_of_the_scores(predictor: Predictor, toys: Dataset, tmp_path: Path) -> None:
    found = evaluate(predictor, toys, tmp_path / "page")
    scores, page = found.scores, found.files[0]
    count, right = EACH * len(CLASSES), round(scores.accuracy * EACH * len(CLASSES))
    assert scores.images == count
    mistakes, classes = (read_csv(page.parent / f"{name}.csv") for name in ("mistakes", "classes"))
    assert len(mistakes) == count - right  # all of them, whatever the page shows
    assert dict(classes[["class", "accuracy"]].to_numpy()) == pytest.approx(scores.per_class)
    text = page.read_text()
    assert f"is {100 * scores.calibration_error:.2f}%." in text
    assert f"{right} of {count} right" in text


def test_the_page_and_its_files(predictor: Predictor, toys: Dataset, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = evaluate(predictor, toys, tmp_path / "page")
    scores, files = found.scores, found.files
    text = files[0].read_text()
    assert files[0] == tmp_path / "page" / "evaluation.html"
    assert f"{100 * scores.accuracy:.1f}%" in text
    assert "test/" in text
    assert "http" not in text.replace("http://www.w3.org", "")
    names = {path.name for path in files}
    assert {"classes.csv", "confusions.csv", "mistakes.csv", "figure-confusion.svg"} <= names


def test_images_of_no_class_are_measured_beside(
    predictor: Predictor, toys: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of four is taken for one of the classes, and decided."""
    monkeypatch.setattr(predictor, "refusal_threshold", 0.1)
    answers = [
        Prediction(None, (), none_of_these=is_none, decision=TO_A_PERSON if is_none else DECIDED)
        for is_none in (True, False, True, True)
    ]
    monkeypatch.setattr(predictor, "predict", lambda *_: answers)
    found = evaluate(predictor, toys, tmp_path / "page", others=tmp_path / "toys" / "train")
    assert (found.scores.let_through, found.scores.others) == (0.25, 4)
    low, high = share_interval(1, 4)
    told = f"of 4 other images 25.0% (95%: {low:.1%} to {high:.1%}) look like one of them, and 1 is decided"
    assert told in " ".join(verdict(replace(found.scores, refused=0.0)))
    assert "let_through,0.25" in (tmp_path / "page" / "scores.csv").read_text().splitlines()


def test_a_second_look_encodes_no_image_again(
    small_clip: Clip, toys: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, _ = fitted("linear-probe", small_clip)
    encoded = list[int]()
    trunk = Method.image_trunk
    monkeypatch.setattr(
        Method, "image_trunk", lambda self, images: encoded.append(len(images)) or trunk(self, images)
    )
    first = evaluate(Predictor(bundle, clip=small_clip), toys).scores
    assert sum(encoded) >= first.images
    del encoded[:]
    assert evaluate(Predictor(bundle, clip=small_clip), toys).scores == first
    assert not encoded


def test_attention_by_attribute(predictor: Predictor, toys: Dataset, tmp_path: Path) -> None:
    """Of a core head for each attribute, in the plain CLIP and under the mask; the maps are the method's."""
    page = evaluate(predictor, toys, tmp_path / "page").files[0]
    text = page.read_text()
    assert "Attention by attribute" in text
    images = text.count(", classified correctly</h3>") + text.count(", classified wrongly</h3>")
    assert images in (1, 2)
    assert text.count("under the mask, color token</small>") == images
    assert text.count("plain CLIP, class token</small>") == 2 * images
    bundle = replace(predictor.bundle, method="zero-shot", settings=MethodSettings(), roles=None, tensors={})
    plain = Predictor(bundle, clip=predictor.clip)
    page = evaluate(plain, toys, tmp_path / "plain").files[0]
    assert "Attention by attribute" not in page.read_text()


def test_the_core_head_of_an_attribute_has_the_largest_share_the_last_of_equals(predictor: Predictor) -> None:
    table = predictor.bundle.roles
    assert table is not None
    heads = [
        HeadRole(4, 0, "core", "color", share={"color": 0.7}),
        HeadRole(4, 1, "core", "color", share={"color": 0.9}),
        HeadRole(4, 2, "core", "object", share={"object": 0.8}),
        HeadRole(5, 0, "mixed", None, "color", share={"color": 1.0}),
        HeadRole(5, 2, "core", "object", share={"object": 0.8}),
    ]
    found = core_heads(replace(table, attributes=("object", "color"), heads=tuple(heads)))
    assert [(one.layer, one.head) for one in found] == [(5, 2), (4, 1)]
