"""Neighbors and precision by hand."""

import pytest
import torch

from dear.backbone import vision
from dear.backbone.clip import Clip
from dear.evaluation.retrieve import (
    all_features,
    chance_by_factor,
    nearest,
    precision_by_factor,
    spread,
)
from tests.helpers.clips import eval_views
from tests.helpers.data import Noise
from tests.helpers.methods import small_dear


def test_nearest_by_hand() -> None:
    angles = torch.tensor([0.0, 10.0, 25.0, 180.0, 200.0]).deg2rad()
    features = torch.stack([angles.cos(), angles.sin()], dim=1)
    assert nearest(features, 2).tolist() == [[1, 2], [0, 2], [1, 0], [4, 2], [3, 0]]
    assert nearest(features, 1).tolist() == [[1], [0], [1], [4], [3]]


def test_an_item_is_not_its_own_neighbor_even_among_copies() -> None:
    found = nearest(torch.ones(3, 1), 2)
    assert [sorted(row) for row in found.tolist()] == [[1, 2], [0, 2], [0, 1]]


def test_precision_by_hand() -> None:
    factors = torch.tensor([[0, 5], [0, 6], [1, 5]])
    neighbors = torch.tensor([[1, 2], [0, 2], [0, 1]])
    # Color: (yes, no), (yes, no), (no, no). Object: (no, yes), (no, no), (yes, no).
    got = precision_by_factor(neighbors, factors, ["color", "object"])
    assert got == pytest.approx({"color": 2 / 6, "object": 2 / 6})
    got = precision_by_factor(neighbors[:, :1], factors, ["color", "object"])
    assert got == pytest.approx({"color": 2 / 3, "object": 1 / 3})


def test_chance_is_the_precision_of_all_other_items() -> None:
    factors = torch.tensor([[0, 5], [0, 6], [1, 5], [0, 7], [2, 8]])
    everyone = torch.tensor([[j for j in range(5) if j != i] for i in range(5)])
    wanted = precision_by_factor(everyone, factors, ["color", "object"])
    # Color: three items with two alike of four others each; object: two with one of four.
    assert wanted == pytest.approx({"color": 3 * 2 / 4 / 5, "object": 2 * 1 / 4 / 5})
    assert chance_by_factor(factors, ["color", "object"]) == pytest.approx(wanted)


def test_queries_are_spread_over_all_images() -> None:
    """ImageNet has 50 test images of each class, in the order of the classes."""
    assert [number // 50 for number in spread(50_000)] == [166, 500, 833]
    assert (spread(2), spread(640)) == ([0, 1], [106, 320, 533])


@torch.no_grad()
def test_features_of_all_images_in_any_batches(small_clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    method, images = small_dear(small_clip), Noise([0, 1, 2, 1, 0])
    monkeypatch.setattr(vision, "MAX_IMAGES", 2)
    got = all_features(method, images)
    assert got.shape == (3, 5, 17)
    for item in range(5):
        trunk = method.image_trunk(eval_views(images.load(torch.tensor([item])), 20))
        torch.testing.assert_close(got[:, item], method.image_features(trunk)[:, 0], rtol=0, atol=1e-5)
