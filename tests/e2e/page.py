"""A server of a small bundle, and tabs of headless Chromium."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dear.adapters.index_encoder import BundleEncoder
from dear.backbone.clip import Clip
from dear.retrieval.build import build_index
from dear.retrieval.index import open_index
from dear.serving.limits import Limits
from dear.serving.service import Service
from tests.helpers.bundles import small_predictor
from tests.helpers.server import picture, png
from tests.helpers.server import serving as serving_app

for name, extra in (("uvicorn", "app"), ("playwright", "dev")):
    pytest.importorskip(name, reason=f"the extra `{extra}` is not installed")
CHROMIUM = next(
    (found for one in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(one))), None
)
pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")]
PATIENCE = 60_000  # milliseconds
PHONE = {"width": 390, "height": 844}


@contextmanager
def serving(service: Service, token: str | None = None) -> Iterator[str]:
    """A service with its page; its address."""
    from dear.serving.app import create_app

    with serving_app(create_app(service, token=token, page=True)) as address:
        yield address


@pytest.fixture
def service(small_clip: Clip, tmp_path: Path) -> Service:
    """A small bundle with an index of seven pictures."""
    predictor = small_predictor(small_clip)
    folder = tmp_path / "images"
    folder.mkdir()
    for seed in range(7):
        (folder / f"{seed}.png").write_bytes(png(picture(seed)))
    build_index(BundleEncoder(predictor), folder, tmp_path / "index")
    return Service(predictor, Limits(upload=1), open_index(tmp_path / "index"), "shades")


Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browse() -> Iterator[Open]:
    """``browse(address, **context)``: a tab at an address; what it asks for and complains of is kept."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

        def browse(address: str, **context: Any) -> Any:
            tab = browser.new_context(**{"viewport": PHONE} | context).new_page()
            tab.set_default_timeout(PATIENCE)
            tab.asked, tab.said = [], []
            tab.on("request", lambda request: tab.asked.append(request.url))
            tab.on("console", lambda message: tab.said.append(message.text))
            tab.on("pageerror", lambda error: tab.said.append(str(error)))
            tab.goto(address)
            return tab

        yield browse
        browser.close()
