"""The page of a role table: figures for what the table holds, escaped text, nothing from elsewhere."""

import base64
import html
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from dear.report.render import write_html
from dear.report.roles_page import ADDS, TAKES, color_patches, entropy_histogram, roles_page
from dear.roles.inspection import Inspection
from dear.roles.phrase_map import MappedPhrase
from dear.roles.pictures import HeadGallery
from dear.roles.terms import EmbeddingTerms, LayerTerms
from tests.helpers.records import PLACES, curve, noise_pictures, table

TERMS = EmbeddingTerms(120, (LayerTerms(1, 0.6, 0.05, 0.3),), 0.05)


def test_everything_that_the_table_holds(tmp_path: Path) -> None:
    path = write_html(tmp_path / "deep" / "roles.html", roles_page(table()))
    page = path.read_text(encoding="utf-8")
    assert page.count("<svg") == 2  # roles and entropies
    assert "color 90% · shape 10%" in page
    assert "by &lt;hand&gt;" in page
    assert "red &amp; &lt;b&gt;" in page
    assert '<b>"' not in page
    assert "2 clusters (DBCV 0.31); HDBSCAN leaves out 2 of the heads' 7 phrases" in page.replace(
        "&#39;", "'"
    )
    assert "at or below 0.15 nats" in page
    (eleven,) = [head for head in table().heads if len(head.phrases) == 11]
    folded = page.partition(f'<details class="head" id="layer-{eleven.layer}-head-{eleven.head}">')[2]
    assert all(phrase in html.unescape(folded.partition("</details>")[0]) for phrase in eleven.phrases)
    assert "K = 3: 0.250." in page
    assert "15, 99" in page
    assert page == roles_page(table())
    assert [one.name for one in path.parent.iterdir()] == ["roles.html"]


def test_a_table_without_evidence() -> None:
    """The published one has roles and concepts only."""
    bare = [replace(head, entropy=None, share={}, phrases=()) for head in table().heads]
    page = roles_page(replace(table(), heads=tuple(bare), evidence={}, settings={}))
    assert page.count("<svg") == 1
    for absent in (
        "concept entropy at or below",
        "Concept entropies",
        "Map of phrases",
        "Concept clusters",
        "How it was computed",
    ):
        assert absent not in page


def test_the_page_has_each_picture_once() -> None:
    page = roles_page(table(), inspection=Inspection(curve(0.9), TERMS, noise_pictures(PLACES, 2, 5)))
    assert page.count("data:image/jpeg;base64,") == 5 + 2
    assert page.count('<span class="i p') == 6 * (2 + 2)
    assert page.count('<i class="i p') == 6 * 2  # of the most, in the folded head
    assert "&lt;b&gt;4: +2.5 standard deviations" in page
    assert 'id="layer-10-head-2"' in page
    assert 'href="#layer-10-head-2"' in page
    assert "of 5 images" in page
    assert page.count("<svg") == 3
    assert "What the heads carry" in page
    assert "<td>60.0</td><td>5.0</td><td>30.0</td>" in page
    assert "all constants: 5.0%" in page
    assert "patches +1.000, class token +0.250; strongest patch: row 2, column 1" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert 'class="warning"' not in page
    for url in re.findall(r"url\(data:image/jpeg;base64,([^)]*)\)", page):
        assert Image.open(io.BytesIO(base64.b64decode(url))).size == (64, 64)


def test_without_a_discovery() -> None:
    page = roles_page(table())
    for absent in (
        "data:image",
        "Images of each head",
        "What the embedding is made of",
        "What the heads carry",
        'class="warning"',
    ):
        assert absent not in page
    assert roles_page(table(), inspection=Inspection(gallery=HeadGallery(7, {}, {}, {}))) == page


def test_the_warning_comes_first() -> None:
    page = roles_page(table(), inspection=Inspection(curve(0.2)))
    assert re.search(r'<p class="warning">Roles will do little, .* layers 9 to 10 ', page)


def test_many_pictures_are_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """12 of 64 pixels a side: where 11 are many, of 48."""
    monkeypatch.setattr("dear.report.roles_page.SIDES", {11: 64, 20: 48})
    page = roles_page(table(), inspection=Inspection(gallery=noise_pictures(PLACES, 1, 12, 64)))
    url = re.findall(r"url\(data:image/jpeg;base64,([^)]*)\)", page)[0]
    assert Image.open(io.BytesIO(base64.b64decode(url))).size == (48, 48)


def test_entropies_are_counted_and_phrases_mapped() -> None:
    """Of 0.2, 0.9, 1.3, 0.1, 0.8 and 0.15 in twelve bins up to 1.3."""
    drawing = entropy_histogram(table())
    assert drawing is not None
    words = "0.00 to 0.11: 1; 0.11 to 0.22: 2; 0.76 to 0.87: 1; 0.87 to 0.97: 1"
    assert words in drawing.description.replace("0.76 to 0.87: 1; 0.87 to 0.98: 1", words.partition("2; ")[2])
    phrases = [MappedPhrase(at, -at, f"phrase {at}", "shape" if at else "<b>") for at in range(4)]
    page = roles_page(table(), phrases=phrases)
    assert page.count("<svg") == 3
    assert "Map of 4 phrases by concept: shape 3, &lt;b&gt; 1." in page


def test_a_patch_has_the_color_of_what_it_does() -> None:
    """On white, the strongest patch is three quarters of its color, one without a part is gray."""
    picture = Image.new("RGB", (20, 20), (255, 255, 255))
    shown = color_patches(picture, torch.tensor([[2.0, 0.0], [0.0, -1.0]]))
    assert shown.getpixel((80, 20)) == (255, 255, 255)
    for place, color, opaque in (((20, 20), ADDS, 191 / 255), ((80, 80), TAKES, 96 / 255)):
        wanted = tuple(round(float(opaque * one + (1 - opaque) * 255)) for one in color)
        assert shown.getpixel(place) == pytest.approx(wanted, abs=1)
