"""Contributions in a head's own dimensions hold everything."""

import pytest
import torch

from dear.backbone.head_contributions import Convention, head_contributions
from dear.data.images.transforms import eval_views
from dear.roles.decompose import Coordinates, decompose
from tests.conftest import MakeClip
from tests.unit.training.world import Noise


@pytest.mark.parametrize(("convention", "size"), [("exact", 7), ("public", 10)])
@pytest.mark.parametrize("layer_scale", [None, 0.3])
def test_nothing_is_lost(
    convention: Convention, size: int, layer_scale: float | None, make_small_clip: MakeClip
) -> None:
    clip = make_small_clip(layer_scale=layer_scale)
    images = Noise([0, 1, 2, 3, 0, 2, 1])
    found = decompose(clip, images, [4, 2], convention=convention, coordinates=True, batch=3)
    own = found.coordinates
    assert own is not None
    assert (own.values.shape, own.items.tolist()) == ((7, 2, 3, size), [*range(7)])
    pixels = clip.normalize_pixels(eval_views(images.load(torch.arange(7)), 20))
    wanted = head_contributions(clip.image, pixels, [4, 2], convention).heads.double()
    back = torch.einsum("ilhd,lhed->ilhe", own.values.double(), own.bases)
    torch.testing.assert_close(back, wanted, rtol=1e-4, atol=1e-5)
    directions = torch.randn(2, 3, 17, generator=torch.Generator().manual_seed(2))
    scores = ((wanted - wanted.mean(dim=0)) * directions).sum(dim=-1)
    torch.testing.assert_close(own.along(directions, found.moments.mean), scores, rtol=1e-4, atol=1e-5)


def test_of_too_many_images_an_even_part_is_kept(make_small_clip: MakeClip) -> None:
    tower = make_small_clip().image
    own = Coordinates(tower, [5], "exact", images=10, limit=4 * 3 * 7 * 4)
    assert own.items.tolist() == [0, 2, 5, 7]
    part = torch.randn(10, 1, 3, 17, generator=torch.Generator().manual_seed(3))
    for first in range(0, 10, 4):
        own.add(first, part[first : first + 4])
    own_again = Coordinates(tower, [5], "exact", images=4)
    own_again.add(0, part[own.items])
    torch.testing.assert_close(own.values, own_again.values)
