"""Shares of the terms of the embedding, against covariances over the whole set at once."""

from dataclasses import replace

import pytest
import torch

from dear.backbone.clip import Clip
from dear.backbone.head_contributions import head_contributions
from dear.backbone.patch_contributions import class_token_contributions
from dear.roles.inspection import inspect_heads
from dear.roles.phrase_map import map_phrases
from dear.roles.table import named_table
from dear.roles.terms import embedding_terms
from tests.helpers.clips import eval_views
from tests.helpers.data import Noise
from tests.helpers.methods import role_table

LABELS = [i % 4 for i in range(53)]


def test_shares_are_covariances_with_the_embedding(small_clip: Clip) -> None:
    images, tower = Noise(LABELS), small_clip.image
    found = embedding_terms(small_clip, images)
    pixels = small_clip.normalize_pixels(eval_views(images.load(torch.arange(53)), 20))
    layers = range(1, tower.depth + 1)
    terms = head_contributions(tower, pixels, layers)
    of_class = class_token_contributions(tower, pixels, layers)
    embedding = terms.total().double()
    embedding -= embedding.mean(dim=0)

    def share(term: torch.Tensor) -> float:
        return float((term.double() * embedding).sum() / (embedding**2).sum())

    assert (found.images, [one.layer for one in found.layers]) == (53, [*layers])
    for at, layer in enumerate(found.layers):
        assert layer.class_token == pytest.approx(share(of_class[:, at]), abs=1e-5)
        assert layer.patches == pytest.approx(
            share(terms.heads[:, at].sum(dim=1) - of_class[:, at]), abs=1e-5
        )
        assert layer.mlp == pytest.approx(share(terms.mlps[:, at]), abs=1e-5)
    whole = sum(layer.patches + layer.class_token + layer.mlp for layer in found.layers) + found.rest
    assert whole == pytest.approx(1, abs=1e-9)


def test_a_table_is_inspected_along_its_first_phrases(small_clip: Clip) -> None:
    by_hand = role_table(small_clip)
    heads = (replace(head, phrases=("a red thing",) if head.head else ()) for head in by_hand.heads)
    table = replace(by_hand, heads=tuple(heads))
    found = inspect_heads(small_clip, table, Noise(LABELS), a_head=3)
    assert found.gallery is not None
    with_phrases = {(head.layer, head.head) for head in table.heads if head.phrases}
    assert found.gallery.heads.keys() == with_phrases
    assert found.curve is not None
    assert found.curve.which == (4, 5)
    assert inspect_heads(small_clip, table, Noise(LABELS), a_head=0).gallery is None


def test_the_phrases_of_a_table_on_a_plane() -> None:
    pytest.importorskip("sklearn")
    table = named_table("discovered")
    found = map_phrases(table)
    assert len(found) == len({phrase for head in table.heads for phrase in head.phrases})
    first = {phrase: head.concept for head in reversed(table.heads) for phrase in head.phrases[:1]}
    assert {one.phrase: one.concept for one in found if one.phrase in first} == first
    assert found == map_phrases(table)
    assert map_phrases(named_table("ground-truth")) == []
