"""A server of a small bundle, and tabs of headless Chromium."""

import shutil
import threading
import time
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
from dear.serving.server import listen, server_of
from dear.serving.service import Service
from tests.helpers.bundles import small_predictor
from tests.helpers.server import picture, png

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
    """A server in a thread, as the command runs it; its address."""
    from dear.serving.app import create_app

    server = server_of(create_app(service, token=token, page=True))
    opened = listen("127.0.0.1", 0, None)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{opened.getsockname()[1]}/"
    server.should_exit = True
    thread.join(30)


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
