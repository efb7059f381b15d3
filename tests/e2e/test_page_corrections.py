"""Corrections on the page, in headless Chromium."""

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from dear.data.images.forms import file_hash, hash_image
from dear.data.sources.corrections import read_corrections
from dear.serving.service import Service
from tests.e2e.page import Open, pytestmark, serving  # noqa: F401
from tests.helpers.server import picture, png

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
        bad = {"name": "bad.png", "mimeType": "image/png", "buffer": b"no picture"}
        page.set_input_files("#file", bad)
        page.wait_for_selector("#result [role=alert]")
        assert not page.locator("#correct").is_visible()  # it would be of the picture before
        assert page.said == [
            "Failed to load resource: the server responded with a status of 400 (Bad Request)"
        ]
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
