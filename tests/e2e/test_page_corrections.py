"""Corrections on the page, in headless Chromium."""

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from dear.adapters.labels import CorrectedData
from dear.adapters.review_answers import ReviewAnswers
from dear.curation.issues import Issue
from dear.data.images.forms import file_hash, hash_image
from dear.data.settings import DataSettings
from dear.data.sources.corrections import read_corrections
from dear.serving.review import create_review_app
from dear.serving.service import Service
from tests.e2e.page import Open, pytestmark, serving  # noqa: F401
from tests.helpers.server import picture, png
from tests.helpers.server import serving as serving_app
from tests.unit.data.photos import class_folders

pytest_plugins = ["tests.e2e.page"]


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_corrects_what_it_shows(
    width: int,
    service: Service,
    browse: Open,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind the token, into the table beside the data."""
    monkeypatch.setenv("DEAR_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "images"
    picture(4).save(folder / "photo.jpg")
    service.data = folder
    with serving(service, "secret") as address:
        page = browse(f"{address}?token=secret", viewport={"width": width, "height": 844})
        page.wait_for_selector("h1:has-text('shades')")
        assert not page.locator("#correct").is_visible()  # there is nothing to correct yet
        page.set_input_files("#file", str(folder / "3.png"))
        page.wait_for_selector("#correct", state="visible")
        [wanted] = service.predictor.predict([picture(3)], top=1)
        assert page.input_value("#label") == wanted.best.name
        page.click("#correct button")  # it is right
        page.wait_for_selector(f"#saved:has-text('Saved: {wanted.best.name}.')")
        page.fill("#label", "None of these")
        page.press("#label", "Enter")
        page.wait_for_selector("#saved:has-text('Saved: remove.')")
        page.set_input_files("#file", str(folder / "photo.jpg"))
        page.wait_for_selector("#saved", state="hidden")
        page.wait_for_selector("#result details[open]")
        page.fill("#label", "an owl")
        page.click("#correct button")
        page.click("#meant button:has-text('new class')")
        page.wait_for_selector("#saved:has-text('Saved: an owl.')")
        assert "counts once it lies there" not in page.locator("#saved").inner_text()
        stranger = {"name": "=new.png", "mimeType": "image/png", "buffer": png(picture(99))}
        page.set_input_files("#file", stranger)
        page.wait_for_selector("#saved", state="hidden")
        page.wait_for_selector("#result details[open]")
        page.click("#correct button")
        page.wait_for_selector("#saved:has-text('counts once it lies there')")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.wait_for_selector("#neighbors figcaption:has-text('of no class (corrected)')")
        page.fill("#label", " _ ")
        page.click("#correct button")
        page.wait_for_selector("#saved:has-text('label is empty')")
        failed = "Failed to load resource: the server responded with a status of"
        assert page.said == [f"{failed} 409 (Conflict)", f"{failed} 400 (Bad Request)"]
        bad = {"name": "bad.png", "mimeType": "image/png", "buffer": b"no picture"}
        page.set_input_files("#file", bad)
        page.wait_for_selector("#result [role=alert]")
        assert not page.locator("#correct").is_visible()  # it would be of the picture before
        asked = urllib.request.Request(f"{address}api/labels?label=none", png(picture(3)), method="POST")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(asked)
        headers = {"Authorization": "Bearer secret"}
        asked = urllib.request.Request(f"{address}api/labels?label=none", b"no image", headers)
        with pytest.raises(urllib.error.HTTPError, match="415"):
            urllib.request.urlopen(asked)
    [stranger_label] = [one.best.name for one in service.predictor.predict([picture(99)], top=1)]
    assert {row.path: (row.label, row.content) for row in read_corrections(folder / "corrections.csv")} == {
        "3.png": ("remove", file_hash(folder / "3.png")),
        "photo.jpg": ("an owl", file_hash(folder / "photo.jpg")),
        "=new.png": (stranger_label, hash_image(png(picture(99)))),
    }


def test_a_review_by_keys_and_by_clicks(
    browse: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer is in the table at once, and the next image without one is next."""
    monkeypatch.setenv("DEAR_CACHE", str(tmp_path / "cache"))
    photos = class_folders(tmp_path / "photos", {"ant": 4, "bee": 4, "ewer": 4})
    names = ["ant/0.png", "ant/1.png", "bee/0.png", "bee/1.png", "ewer/0.png"]
    issues = [Issue(str(photos / name), name.split("/")[0], "ewer", 0.9) for name in names]
    review = ReviewAnswers(issues, [CorrectedData.read(photos, DataSettings())], (("ant", "bee", 3, 8),))

    def rows() -> dict[str, str]:
        return {row.path: row.label for row in read_corrections(photos / "corrections.csv")}

    with serving_app(create_review_app(review, token="secret", hosts=None)) as address:
        page = browse(f"{address}?token=secret")
        page.wait_for_selector("#count:has-text('5 of 5')")
        page.evaluate("Promise.all([...document.images].slice(0, 2).map((image) => image.decode()))")
        page.keyboard.press("k")
        page.wait_for_selector("#count:has-text('4 of 5')")
        page.keyboard.press("o")
        page.keyboard.type("ewr")
        page.keyboard.press("Enter")
        page.wait_for_selector(".asked button:focus:has-text('Yes, ewer')")
        assert rows() == {"ant/0.png": "ant"}
        page.keyboard.press("Enter")
        page.wait_for_selector("li:nth-child(2) .said:has-text('Now: ewer')")
        page.wait_for_selector("li:nth-child(3)[aria-current]")
        page.keyboard.press("n")
        page.wait_for_selector("li:nth-child(3) .said:has-text('Left out')")
        page.keyboard.press("u")
        page.wait_for_selector("li:nth-child(3) .said", state="hidden")
        page.click("li:nth-child(4) [data-key=s]")
        page.wait_for_selector("li:nth-child(4) .said:has-text('Now: ewer')")
        page.fill("li:nth-child(5) input", "owl")
        page.press("li:nth-child(5) input", "Enter")
        page.click(".asked button:has-text('Cancel')")
        page.click("li:nth-child(1) .back")
        page.wait_for_selector("#count:has-text('3 of 5')")
        assert page.locator("#confused li").inner_text().startswith("ant and bee: 3 of 8")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert {"409" in line for line in page.said} == {True}
    assert rows() == {"ant/1.png": "ewer", "bee/1.png": "ewer"}
