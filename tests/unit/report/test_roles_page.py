"""The page of a role table: figures for what the table holds, escaped text, nothing from elsewhere."""

import base64
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from dear.report.render import write_html
from dear.report.roles_page import roles_page
from dear.roles.pictures import HeadGallery
from tests.helpers.records import PLACES, curve, noise_pictures, table


def test_everything_that_the_table_holds(tmp_path: Path) -> None:
    path = write_html(tmp_path / "deep" / "roles.html", roles_page(table()))
    page = path.read_text(encoding="utf-8")
    assert page.count("<svg") == 1
    assert "color 90% · shape 10%" in page
    assert "by &lt;hand&gt;" in page
    assert "red &amp; &lt;b&gt;" in page
    assert '<b>"' not in page
    assert "2 clusters (DBCV 0.31); HDBSCAN leaves out 2 of the heads' 7 phrases" in page.replace(
        "&#39;", "'"
    )
    assert "at or below 0.15 nats" in page
    assert "1 more" in page  # of the eleven phrases of layer 9, head 1
    assert "K = 3: 0.250." in page
    assert "15, 99" in page
    assert page == roles_page(table())
    assert [one.name for one in path.parent.iterdir()] == ["roles.html"]


def test_a_table_without_evidence() -> None:
    """The published one has roles and concepts only."""
    bare = [replace(head, entropy=None, share={}, phrases=()) for head in table().heads]
    page = roles_page(replace(table(), heads=tuple(bare), evidence={}, settings={}))
    assert page.count("<svg") == 1
    for absent in ("concept entropy at or below", "Concept clusters", "How it was computed"):
        assert absent not in page


def test_the_page_has_each_picture_once() -> None:
    page = roles_page(table(), curve=curve(0.9), pictures=noise_pictures(PLACES, 2, 5))
    assert page.count("data:image/jpeg;base64,") == 5
    assert page.count('class="i p') == 6 * (2 + 2)
    assert "&lt;b&gt;4: +2.5 standard deviations" in page
    assert 'id="layer-10-head-2"' in page
    assert 'href="#layer-10-head-2"' in page
    assert "of 5 images" in page
    assert page.count("<svg") == 2
    assert "What the heads carry" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert 'class="warning"' not in page
    for url in re.findall(r"url\(data:image/jpeg;base64,([^)]*)\)", page):
        assert Image.open(io.BytesIO(base64.b64decode(url))).size == (64, 64)


def test_without_a_discovery() -> None:
    page = roles_page(table())
    for absent in ("data:image", "Images of each head", "What the heads carry", 'class="warning"'):
        assert absent not in page
    assert roles_page(table(), pictures=HeadGallery(7, {}, {}, {})) == page


def test_the_warning_comes_first() -> None:
    page = roles_page(table(), curve=curve(0.2))
    assert re.search(r'<p class="warning">Roles will do little, .* layers 9 to 10 ', page)


def test_many_pictures_are_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """12 of 64 pixels a side: where 11 are many, of 48."""
    monkeypatch.setattr("dear.report.roles_page.SIDES", {11: 64, 20: 48})
    page = roles_page(table(), pictures=noise_pictures(PLACES, 1, 12, 64))
    url = re.findall(r"url\(data:image/jpeg;base64,([^)]*)\)", page)[0]
    assert Image.open(io.BytesIO(base64.b64decode(url))).size == (48, 48)
