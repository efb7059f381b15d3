"""Pictures on a page of roles: each once, within the limit, and nothing of them without a discovery."""

import base64
import io
import re

import pytest
import torch
from PIL import Image

from dear.report.roles_page import roles_page
from dear.roles.ablation import Ablated, LayerAblation, LayerCurve
from dear.roles.pictures import HeadImages, Pictures, RankedImage
from tests.unit.report.test_roles_page import table

PLACES = [(layer, head) for layer in (9, 10) for head in range(3)]


def noise_pictures(places: list[tuple[int, int]], a_head: int, images: int, side: int = 64) -> Pictures:
    """Noise is the worst case of a JPEG. The images of the heads are taken in turn."""
    generator = torch.Generator().manual_seed(1)
    heads, used = {}, set[int]()
    for at, place in enumerate(places):
        mine = [(2 * a_head * at + one) % images for one in range(2 * a_head)]
        used |= {*mine}
        rows = [tuple(RankedImage(one, 2.5) for one in half) for half in (mine[:a_head], mine[a_head:])]
        heads[place] = HeadImages(*rows)
    draw = {
        one: torch.randint(0, 256, (3, side, side), generator=generator, dtype=torch.uint8) for one in used
    }
    return Pictures(images, heads, draw, {one: f"<b>{one}" for one in draw})


def curve(lost: float) -> LayerCurve:
    part = Ablated(1 - lost / 2, lost)
    layers = tuple(LayerAblation(layer, part, part) for layer in range(1, 11))
    return LayerCurve(120, 0.5, layers, part, (9, 10))


def test_the_page_has_each_picture_once() -> None:
    page = roles_page(table(), curve=curve(0.9), pictures=noise_pictures(PLACES, 2, 5))
    assert page.count("data:image/jpeg;base64,") == 5
    assert page.count('class="i p') == 6 * (2 + 2)
    assert "&lt;b&gt;4: +2.5 standard deviations" in page
    assert 'id="layer-10-head-2"' in page
    assert 'href="#layer-10-head-2"' in page
    assert "of 5 images" in page
    assert page.count("<svg") == 3
    assert "What the heads carry" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert page == roles_page(table(), curve=curve(0.9), pictures=noise_pictures(PLACES, 2, 5))
    for url in re.findall(r"url\(data:image/jpeg;base64,([^)]*)\)", page):
        assert Image.open(io.BytesIO(base64.b64decode(url))).size == (64, 64)


def test_without_a_discovery() -> None:
    page = roles_page(table())
    assert "data:image" not in page
    assert "Images of each head" not in page
    assert "What the heads carry" not in page
    none = Pictures(7, {}, {}, {})
    assert roles_page(table(), pictures=none) == page


def test_the_warning_comes_first() -> None:
    page = roles_page(table(), curve=curve(0.2))
    assert re.search(r'<p class="warning">Roles will do little, .* layers 9 to 10 ', page)
    assert 'class="warning"' not in roles_page(table(), curve=curve(0.9))


@pytest.mark.parametrize(("pictures", "side"), [(12, 64), (3001, 48)])
def test_many_pictures_are_smaller(pictures: int, side: int) -> None:
    heads = PLACES if pictures < 100 else [(9, head) for head in range(51)]
    page = roles_page(table(), pictures=noise_pictures(heads, 1 if pictures < 100 else 30, pictures, 64))
    url = re.findall(r"url\(data:image/jpeg;base64,([^)]*)\)", page)[0]
    assert Image.open(io.BytesIO(base64.b64decode(url))).size == (side, side)
