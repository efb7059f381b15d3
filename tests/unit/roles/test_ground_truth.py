"""Roles from known factors: explained variance, entropy and assignment worked out by hand."""

import math

import pytest
import torch

from dear.backbone.loading import tiny
from dear.world.factors import FACTOR_NAMES
from tools.ground_truth import assign, explained_variance, roles_from_factors


def test_explained_variance_by_hand() -> None:
    # Columns (1, 3 | 5, 7, 9) and (0, 0 | 0, 0, 5); means 5 and 1; centered squares 16+4+0+4+16 = 40 and
    # 1+1+1+1+16 = 20: total 60. Group sums of the centered values: (-6, -2) of 2 items, (6, 2) of 3:
    # between = 40/2 + 40/3 = 100/3. Within = (60 - 100/3) / (5 - 2) = 80/9; epsilon squared = (100/3 -
    # 80/9) / 60 = (220/9) / 60 = 11/27.
    values = torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 0.0], [7.0, 0.0], [9.0, 5.0]])
    groups = torch.tensor([0, 0, 1, 1, 1])
    assert explained_variance(values, groups, 2) == pytest.approx(11 / 27, abs=1e-12)
    # A group without items counts for nothing, and a shift of all values neither.
    assert explained_variance(values + 100, groups * 2, 7) == pytest.approx(11 / 27, abs=1e-12)


# Shares: color 1 (core), object 0.5 exactly (core), then entropies in the order even > broad > narrow > pair.
COLOR, OBJECT = [0.3, 0, 0, 0, 0], [0.1, 0, 0.1, 0.2, 0]
EVEN, BROAD, NARROW, PAIR = [1, 1, 1, 1, 1], [4, 2, 2, 1, 1], [2, 2, 1, 0, 0], [0, 49, 0, 0, 51]


def test_assign_by_hand() -> None:
    places = [(layer, head) for layer in (4, 5) for head in range(3)]
    raws = dict(zip(places, (COLOR, EVEN, NARROW, OBJECT, BROAD, [0, 2, 2, 1, 0]), strict=True))
    found = assign([(layer, head, raw) for (layer, head), raw in raws.items()], core=0.5, general=0.25)
    got = [(h.layer, h.head, h.role, h.attribute, h.concept) for h in found]
    assert got == [
        (4, 0, "core", "color", "color"),
        (4, 1, "generalization", None, "color"),  # a quarter of 6 heads, rounded, is 2: entropies log 5 ..
        (4, 2, "mixed", None, "color"),
        (5, 0, "core", "object", "object"),
        (5, 1, "generalization", None, "color"),  # .. and 1.47
        (5, 2, "mixed", None, "shape"),
    ]
    assert found[0].entropy == 0
    assert found[1].entropy == pytest.approx(math.log(5), abs=1e-4)
    assert found[3].share == {"color": 0.25, "shape": 0, "texture": 0.25, "object": 0.5, "place": 0}
    # Six tenths of six heads, rounded, are four: all but the two narrowest.
    most = assign([(layer, head, raw) for (layer, head), raw in raws.items()], core=0.5, general=0.6)
    assert [h.role[:4] for h in most] == ["core", "gene", "gene", "core", "gene", "gene"]


def test_assign_with_other_bounds() -> None:
    found = assign([(4, 0, PAIR), (4, 1, OBJECT), (4, 2, EVEN)], core=0.52, general=0.0)
    assert [h.role for h in found] == ["mixed", "mixed", "mixed"]
    found = assign([(4, 0, PAIR), (4, 1, OBJECT), (4, 2, EVEN)], core=0.51, general=0.34)
    assert [h.role for h in found] == ["core", "mixed", "generalization"]
    assert found[0].attribute == "place"


def test_the_packaged_model_smoke() -> None:
    clip = tiny.load()
    table = roles_from_factors(clip, images=60, batch=30)
    assert (table.weights, table.attributes) == (clip.identity, FACTOR_NAMES)
    layers, heads = range(9, clip.image.depth + 1), range(clip.image.heads)
    assert [(h.layer, h.head) for h in table.heads] == [(layer, head) for layer in layers for head in heads]
    assert all(sum(h.share.values()) == pytest.approx(1, abs=1e-3) for h in table.heads)
