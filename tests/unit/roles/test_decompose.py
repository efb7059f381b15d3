"""Contributions over an image set: the same in batches, as moments."""

import pytest
import torch

from dear.backbone.clip import Clip
from dear.backbone.head_contributions import Convention, head_contributions, written_rows
from dear.errors import SettingsError
from dear.roles.decompose import analyzed_layers, decompose, head_rank
from tests.conftest import MakeClip
from tests.helpers.clips import eval_views
from tests.helpers.data import Noise


def test_the_stream_is_what_all_images_at_once_give(small_clip: Clip) -> None:
    images = Noise([0, 1, 2, 3, 0, 2, 1])
    told: list[tuple[int, int]] = []
    found = decompose(
        small_clip, images, [4, 2], batch=3, progress=lambda _step, done, of: told.append((done, of))
    )
    pixels = small_clip.normalize_pixels(eval_views(images.load(torch.arange(7)), 20))
    wanted = head_contributions(small_clip.image, pixels, [4, 2]).heads
    torch.testing.assert_close(found.moments.mean, wanted.double().mean(dim=0), rtol=1e-4, atol=1e-5)
    outer = torch.einsum("ilhd,ilhe->lhde", wanted.double(), wanted.double()) / 7
    torch.testing.assert_close(found.moments.second, outer, rtol=1e-4, atol=1e-5)
    assert (found.layers, told) == ((4, 2), [(3, 7), (6, 7), (7, 7)])


def test_layers_and_rank(small_clip: Clip) -> None:
    assert analyzed_layers(small_clip) == (4, 5)  # the last third of 5
    assert analyzed_layers(small_clip, [2, 5]) == (2, 5)
    for layers in ([], [0], [6], [3, 3]):
        with pytest.raises(SettingsError, match="tower of 5"):
            analyzed_layers(small_clip, layers)
    assert head_rank(small_clip) == 7  # a head of width 7
    assert head_rank(small_clip, 80, "public") == 10  # two biases and the mean beside it
    ranks = torch.linalg.matrix_rank(written_rows(small_clip.image, 4, "exact"))
    assert ranks.tolist() == [head_rank(small_clip)] * small_clip.image.heads
    assert head_rank(small_clip, 3) == 3
    with pytest.raises(SettingsError, match="rank is 0"):
        head_rank(small_clip, 0)


@pytest.mark.parametrize(("convention", "size"), [("exact", 7), ("public", 10)])
@pytest.mark.parametrize("layer_scale", [None, 0.3])
def test_nothing_is_lost(
    convention: Convention, size: int, layer_scale: float | None, make_small_clip: MakeClip
) -> None:
    clip = make_small_clip(layer_scale=layer_scale)
    images = Noise([0, 1, 2, 3, 0, 2, 1])
    found = decompose(clip, images, [4, 2], convention=convention, coordinates=True, batch=3)
    assert found.coordinates.shape == (7, 2, 3, size)
    pixels = clip.normalize_pixels(eval_views(images.load(torch.arange(7)), 20))
    wanted = head_contributions(clip.image, pixels, [4, 2], convention).heads.double()
    back = torch.einsum("ilhd,lhed->ilhe", found.coordinates.double(), found.bases)
    torch.testing.assert_close(back, wanted, rtol=1e-4, atol=1e-5)
    directions = torch.randn(2, 3, 17, generator=torch.Generator().manual_seed(2))
    scores = ((wanted - wanted.mean(dim=0)) * directions).sum(dim=-1)
    torch.testing.assert_close(found.project(directions), scores, rtol=1e-4, atol=1e-5)
