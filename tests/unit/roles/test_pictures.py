"""The images of a head against a slow reference: the published TEXTSPAN and a full sort."""

import numpy as np
import pytest
import torch

from dear.backbone.clip import Clip
from dear.backbone.head_contributions import Convention, head_contributions
from dear.errors import SettingsError
from dear.roles.decompose import decompose
from dear.roles.pictures import HeadGallery, build_gallery, extremes
from dear.roles.textspan import textspan
from tests.helpers.clips import eval_views
from tests.helpers.data import Noise
from tests.unit.roles.samples import Array, published

LABELS = [i % 4 for i in range(53)]


def chosen(
    clip: Clip, images: Noise, a_head: int, convention: Convention = "exact"
) -> tuple[HeadGallery, Array]:
    text = torch.randn(31, 17, generator=torch.Generator().manual_seed(3))
    found = decompose(clip, images, [5, 3], convention=convention, coordinates=True, batch=11)
    span = textspan(found.moments, text, rank=6, top=3)
    return build_gallery(clip, images, found, span.first, a_head=a_head, batch=7), text.double().numpy()


@pytest.mark.parametrize("convention", ["exact", "public"])
def test_the_images_are_those_of_the_slow_reference(small_clip: Clip, convention: Convention) -> None:
    images = Noise(LABELS)
    found, text = chosen(small_clip, images, 5, convention)
    pixels = small_clip.normalize_pixels(eval_views(images.load(torch.arange(53)), 20))
    every = head_contributions(small_clip.image, pixels, [5, 3], convention).heads.double().numpy()
    for at, layer in enumerate([5, 3]):
        for head in range(3):
            data = every[:, at, head]
            first = text[published(data, text, 1, 6)[0]]
            space = np.linalg.svd(data, full_matrices=False)[2][:6]
            direction = first @ space.T @ space
            scores = (data - data.mean(axis=0)) @ direction
            order = np.argsort(-scores)
            got = found.heads[layer, head]
            assert [one.image for one in got.most] == order[:5].tolist()
            assert [one.image for one in got.least] == order[::-1][:5].tolist()
            wanted = scores[order[:5]] / scores.std()
            assert [one.score for one in got.most] == pytest.approx(wanted.tolist(), rel=1e-3)
            assert got.most[0].score > 0 > got.least[0].score
    shown = {one.image for head in found.heads.values() for one in (*head.most, *head.least)}
    assert found.thumbnails.keys() == found.names.keys() == shown
    assert all(one.shape == (3, 20, 20) and one.dtype == torch.uint8 for one in found.thumbnails.values())
    assert found.considered == 53


def test_a_head_looks_where_its_first_images_say(small_clip: Clip) -> None:
    """Patches and class token add up to the projection of the contribution, whose mean is not taken off."""
    images = Noise(LABELS)
    found, text = chosen(small_clip, images, 5)
    pixels = small_clip.normalize_pixels(eval_views(images.load(torch.arange(53)), 20))
    every = head_contributions(small_clip.image, pixels, [5, 3]).heads.double().numpy()
    assert found.looks.keys() == found.heads.keys()
    for (layer, head), looks in found.looks.items():
        assert [look.image for look in looks] == [one.image for one in found.heads[layer, head].most[:2]]
        data = every[:, [5, 3].index(layer), head]
        space = np.linalg.svd(data, full_matrices=False)[2][:6]
        direction = text[published(data, text, 1, 6)[0]] @ space.T @ space
        for look in looks:
            assert look.grid.shape == (5, 5)
            whole = float(look.grid.sum()) + look.class_token
            wanted = float(data[look.image] @ direction / np.linalg.norm(direction))
            assert whole == pytest.approx(wanted, abs=1e-5)


def test_ties_few_images_and_a_head_that_does_nothing(small_clip: Clip) -> None:
    most, least = extremes(torch.tensor([1.0, 3, 3, 0, 0, 2, 1]), 2)
    assert (most, least) == ([(1, 3.0), (2, 3.0)], [(3, 0.0), (4, 0.0)])
    most, least = extremes(torch.tensor([1.0, 3, 2]), 10)
    assert (most, least) == ([(1, 3.0)], [(0, 1.0)])
    with torch.no_grad():
        small_clip.image.blocks[4].out_proj.weight[:, 7:14] = 0
    with pytest.raises(SettingsError, match="51"):
        chosen(small_clip, Noise(LABELS), 51)
    found, _ = chosen(small_clip, Noise(LABELS), 3)
    assert sorted(found.heads) == [(3, 0), (3, 1), (3, 2), (5, 0), (5, 2)]
