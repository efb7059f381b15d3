"""The page of roles in headless Chromium: mouse and keyboard sort its table, and nothing is loaded."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dear.report.roles_page import write_roles_page
from tests.unit.report.test_roles_page import table
from tests.unit.report.test_roles_pictures import PLACES, curve, noise_pictures

pytest.importorskip("playwright", reason="the extra `dev` is not installed")
CHROMIUM = next(
    (found for one in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(one))), None
)
pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")]


def test_sorting(tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    known = table()
    heads = [replace(head, entropy=None) if at == 3 else head for at, head in enumerate(known.heads)]
    content = replace(known, heads=tuple(heads))
    path = write_roles_page(
        tmp_path / "roles.html", content, curve=curve(0.9), pictures=noise_pictures(PLACES, 2, 5)
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page()
        faults: list[str] = []
        asked: list[str] = []
        tab.on("pageerror", lambda error: faults.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(path.as_uri())

        def column(number: int) -> list[str]:
            cells = tab.locator(f"table.sortable tbody tr > :nth-child({number})")
            return [text.strip() for text in cells.all_inner_texts()]

        assert column(6) == ["0.20", "0.90", "1.30", "–", "0.80", "0.15"]
        entropy = tab.locator("table.sortable thead button", has_text="Entropy")
        entropy.click()
        assert column(6) == ["0.15", "0.20", "0.80", "0.90", "1.30", "–"]
        entropy.focus()
        tab.keyboard.press("Enter")
        assert column(6) == ["1.30", "0.90", "0.80", "0.20", "0.15", "–"]
        assert tab.locator("th[aria-sort]").all_inner_texts() == ["Entropy"]
        assert tab.locator("th[aria-sort]").get_attribute("aria-sort") == "descending"
        tab.locator("table.sortable thead button", has_text="Concept").click()
        assert column(4) == sorted(column(4))
        box = tab.locator("#layer-9-head-0 .i").first.bounding_box()
        assert box is not None
        assert box["width"] == pytest.approx(56)
        assert (faults, [url for url in asked if not url.startswith(("file:", "data:"))]) == ([], [])
        browser.close()
