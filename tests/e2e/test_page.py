"""The page in headless Chromium: it loads from this server alone, classifies, retrieves and refuses."""

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.serving.small import bomb, picture, png, small_predictor

from dear.backbone.clip import Clip
from dear.retrieval.build import build_index
from dear.retrieval.query import Index
from dear.serving.encoder import BundleEncoder
from dear.serving.limits import Limits
from dear.serving.server import listen
from dear.serving.service import Service

for name, extra in (("faiss", "retrieval"), ("gradio", "app"), ("playwright", "dev")):
    pytest.importorskip(name, reason=f"the extra `{extra}` is not installed")
CHROMIUM = next(
    (found for one in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(one))), None
)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")]
PATIENCE = 60_000  # milliseconds


@pytest.fixture
def address(small_clip: Clip, tmp_path: Path) -> Iterator[str]:
    """A server of a small bundle with an index of seven pictures, in a thread."""
    import uvicorn

    from dear.serving.api import create_app
    from dear.serving.app import mount

    predictor = small_predictor(small_clip)
    folder = tmp_path / "images"
    folder.mkdir()
    for seed in range(7):
        (folder / f"{seed}.png").write_bytes(png(picture(seed)))
    build_index(BundleEncoder(predictor), folder, tmp_path / "index")
    service = Service(predictor, Limits(upload=1), Index.open(tmp_path / "index"))
    server = uvicorn.Server(uvicorn.Config(mount(create_app(service), service), log_level="error"))
    opened: socket.socket = listen("127.0.0.1", 0, None)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{opened.getsockname()[1]}/"
    server.should_exit = True
    thread.join(30)


@pytest.fixture
def page(address: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 390, "height": 844})
        tab.set_default_timeout(PATIENCE)
        tab.asked = []
        tab.on("request", lambda request: tab.asked.append(request.url))
        tab.goto(address)
        tab.wait_for_selector("#dear-image input[type=file]", state="attached")
        yield tab
        browser.close()


def upload(page: Any, file: Path) -> None:
    remove = page.locator(
        "#dear-image button[aria-label='Remove Image'], #dear-image button[aria-label='Clear']"
    )
    if remove.count():
        remove.first.click()
    page.wait_for_selector("#dear-image input[type=file]", state="attached")
    page.set_input_files("#dear-image input[type=file]", str(file))


def test_the_page(page: Any, address: str, tmp_path: Path) -> None:
    good = tmp_path / "photo.png"
    good.write_bytes(png(picture(3)))
    upload(page, good)
    page.wait_for_selector("#dear-bars details[open] tbody tr")
    assert page.locator("#dear-bars details").count() == 3
    rows = page.locator("#dear-bars details[open] tbody th").all_inner_texts()
    assert rows == ["class", "color", "object"]
    page.wait_for_selector("#dear-neighbours img")
    assert "3.png" not in page.locator("#dear-neighbours").inner_text()  # the query itself is left out
    page.wait_for_selector("#dear-attention img")
    assert page.locator("#dear-roles svg").count() == 1
    # It fits the width of a phone, and everything came from this server.
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    foreign = [url for url in page.asked if not url.startswith((address, "data:", "blob:"))]
    assert foreign == []

    (tmp_path / "words.jpg").write_text("this is a text")
    (tmp_path / "bomb.png").write_bytes(bomb())
    for file, words in (("words.jpg", "no image"), ("bomb.png", "60.0 megapixels")):
        upload(page, tmp_path / file)
        page.wait_for_selector(f"#dear-result [role=alert]:has-text('{words}')")
    upload(page, good)  # it goes on
    page.wait_for_selector("#dear-bars")

    (tmp_path / "large.png").write_bytes(b"\0" * (2 * 2**20))
    upload(page, tmp_path / "large.png")
    page.wait_for_selector("text=/exceed the maximum allowed size/i")


def test_everything_is_reached_by_the_keyboard(page: Any) -> None:
    seen = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.add(
            page.evaluate(
                "(e => [e.tagName, e.type || '', e.closest('[id]')?.id].join(' '))(document.activeElement)"
            )
        )
    kinds = " ".join(seen)
    assert "range" in kinds
    assert "radio" in kinds
    assert "TEXTAREA" in kinds or "text" in kinds
    assert any(word.startswith("BUTTON") for word in seen)
    assert "dear-roles" in kinds
