"""The report card: what it says with data and without, and that text of strangers is no markup."""

from dataclasses import replace
from pathlib import Path

import pytest

from dear.adapters.predictor import Predictor
from dear.adapters.report_card import write_report_card
from dear.backbone.clip import Clip
from dear.errors import DataError, OutputError
from tests.helpers.bundles import small_predictor
from tests.helpers.data import CLASSES
from tests.helpers.errors import refuses
from tests.helpers.pictures import save_picture
from tests.helpers.server import picture


@pytest.fixture
def predictor(small_clip: Clip) -> Predictor:
    return small_predictor(small_clip)


@pytest.mark.filterwarnings("ignore")
def test_the_card_has_what_was_measured_on_the_data(predictor: Predictor, tmp_path: Path) -> None:
    for label, name in enumerate(CLASSES):
        for number in range(4):
            path = tmp_path / "photos" / name / f"day{number % 2}-{number}.png"
            save_picture(path, picture(10 * label + number))
    page = write_report_card(
        predictor, tmp_path / "card.html", str(tmp_path / "photos"), purpose="<b>Sorts</b> cups", by=r"day\d"
    )
    text = page.read_text()
    assert "&lt;b&gt;Sorts&lt;/b&gt; cups" in text
    assert text.count("<img") == len(CLASSES)
    assert "<p>Images: photos</p>" in text
    assert "of the" not in text[text.index('id="classes"') : text.index("<table")]  # all have photographs
    assert "By day" in text
    assert "It has no operating point" in text
    assert "Signature" in text


@pytest.mark.filterwarnings("ignore")
def test_the_card_says_that_classes_have_no_photograph(predictor: Predictor, tmp_path: Path) -> None:
    for number in range(2):
        save_picture(tmp_path / "photos" / CLASSES[0] / f"{number}.png", picture(number))
    text = write_report_card(predictor, tmp_path / "card.html", str(tmp_path / "photos")).read_text()
    assert text.count("<img") == 1
    assert f"Photographs of 1 of the {len(CLASSES)} classes" in text


def test_the_card_of_a_bundle_alone(predictor: Predictor, tmp_path: Path) -> None:
    untested = Predictor(replace(predictor.bundle, scores=None), clip=predictor.clip)
    page = write_report_card(untested, tmp_path / "card")
    assert page == tmp_path / "card.html"
    text = page.read_text()
    assert "It was not tested" in text
    assert "What it is for:" in text
    assert "not measured" in text
    refuses(DataError, "labeled", write_report_card, untested, tmp_path / "card.html", by="month")
    refuses(OutputError, ("card.txt", ".html"), write_report_card, untested, tmp_path / "card.txt")
    with pytest.raises(OutputError):
        write_report_card(untested, tmp_path)
