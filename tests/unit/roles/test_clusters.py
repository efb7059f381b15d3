"""Discriminants and clusters on points whose groups are known."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hdbscan.validity import validity_index
from torch.nn.functional import normalize

from dear.errors import DataError
from dear.roles import clusters
from dear.roles.clusters import discriminants, find_clusters, validity
from dear.roles.settings import RoleSettings

CONCEPTS = ("color", "object", "shape")
SMALL = RoleSettings(min_sizes=(17,), min_samples=3)


def blobs(each: int, seed: int, count: int = 3) -> tuple[torch.Tensor, list[str]]:
    """Unit vectors in 13 dimensions round 3 axes, and the name of each axis."""
    generator = torch.Generator().manual_seed(seed)
    centers = 4 * torch.eye(13)[:count].repeat_interleave(each, dim=0)
    points = normalize(centers + torch.randn(count * each, 13, generator=generator) * 0.3, dim=1)
    return points, [name for name in CONCEPTS[:count] for _ in range(each)]


def test_one_discriminant_is_fishers() -> None:
    """Two concepts: the direction is proportional to the inverse covariance times the difference of means."""
    generator = torch.Generator().manual_seed(1)
    mix = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    points = torch.randn(211, 5, generator=generator, dtype=torch.float64) @ mix
    labels = torch.arange(211) % 2
    points[labels == 1] += torch.tensor([1.0, 0, 2, 0, 0], dtype=torch.float64)
    center, directions = discriminants(points, labels, 2, 1e-9)
    one, two = points[labels == 0], points[labels == 1]
    within = (torch.cov(one.T, correction=0) + torch.cov(two.T, correction=0)) / 2
    wanted = torch.linalg.inv(within) @ (two.mean(dim=0) - one.mean(dim=0))
    assert directions.shape == (5, 1)
    cosine = normalize(directions[:, 0], dim=0) @ normalize(wanted, dim=0)
    assert abs(float(cosine)) == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close(center, (one.mean(dim=0) + two.mean(dim=0)) / 2)


def test_clusters_of_known_groups() -> None:
    named, concepts = blobs(31, 1)
    phrases, truth = blobs(11, 2)
    texts = [f"phrase {i}" for i in range(33)]
    found = find_clusters(texts, phrases, named, concepts, SMALL)
    assert sorted(found.names) == sorted(CONCEPTS)
    kept = [i for i in range(33) if found.labels[i] >= 0]
    assert len(kept) > 20
    assert all(found.names[int(found.labels[i])] == truth[i] for i in kept)
    # Each centroid is the mean of its members, of unit length.
    rows = torch.cat([phrases, named]).double()
    for one in range(3):
        members = rows[torch.from_numpy(found.labels == one)]
        torch.testing.assert_close(found.centroids[one], normalize(members.mean(dim=0), dim=0))
        assert found.sizes[one] == len(members)
        center = normalize(torch.from_numpy(found.reduced[found.labels == one].mean(axis=0)), dim=0)
        torch.testing.assert_close(found.centers[one], center)
        mine = [i for i in kept if found.labels[i] == one]
        similar = [(float(torch.from_numpy(found.reduced[i]) @ center), texts[i]) for i in mine]
        assert [*found.exemplars[one]] == [text for _, text in sorted(similar, reverse=True)[:6]]
    assert 0 < found.dbcv <= 1
    again = find_clusters(texts, phrases, named, concepts, SMALL)
    assert np.array_equal(found.labels, again.labels)
    assert torch.equal(found.centroids, again.centroids)


def test_the_papers_way_clusters_the_heads_phrases_alone_by_their_embeddings() -> None:
    named, concepts = blobs(31, 1)
    phrases, truth = blobs(23, 2)
    settings = replace(SMALL, min_sizes=(7,), space="embeddings", clustered="heads")
    texts = [f"phrase {i}" for i in range(69)]
    found = find_clusters(texts, phrases, named, concepts, settings)
    np.testing.assert_array_equal(found.reduced, torch.cat([phrases, named]).double().numpy())
    assert sorted(found.names) == sorted(CONCEPTS)
    assert (found.labels[69:] == -1).all()
    assert sum(found.sizes) == (found.labels[:69] >= 0).sum() > 20
    assert all(found.names[label] == truth[i] for i, label in enumerate(found.labels[:69]) if label >= 0)
    # Whatever the pool, the clusters are the same: it names them alone.
    others = find_clusters(texts, phrases, named[:31], concepts[:31], settings)
    assert np.array_equal(others.labels[:69], found.labels[:69])
    assert {*others.names} == {CONCEPTS[0]}


def test_the_setting_with_the_highest_dbcv_is_taken() -> None:
    named, concepts = blobs(31, 1)
    phrases, _ = blobs(11, 2)
    settings = RoleSettings(min_sizes=(2, 7, 500), min_samples=3)
    found = find_clusters(["x"] * 33, phrases, named, concepts, settings)
    scores = [row["dbcv"] for row in found.tried]
    assert len(found.tried) == 6
    assert scores[4:] == [None, None]  # 126 phrases have no cluster of 500
    assert found.dbcv == pytest.approx(max(s for s in scores if s is not None), abs=1e-4)


def test_dbcv_of_large_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large cluster every second member is compared; each cluster counts by its size all the same."""
    generator = np.random.default_rng(7)
    large, small = generator.normal(0, 1, (240, 3)), generator.normal(8, 1, (80, 3))
    noise = generator.normal(4, 6, (10, 3))
    rows, labels = np.concatenate([large, small, noise]), np.repeat([0, 1, -1], (240, 80, 10))
    assert validity(rows, labels) == pytest.approx(validity_index(rows, labels))
    halved = np.concatenate([large[::2], small, noise])
    _, parts = validity_index(halved, np.repeat([0, 1, -1], (120, 80, 10)), per_cluster_scores=True)
    monkeypatch.setattr(clusters, "COMPARED", 120)
    assert validity(rows, labels) == pytest.approx((240 * parts[0] + 80 * parts[1]) / 330)


def test_a_clustering_that_has_no_dbcv() -> None:
    """hdbscan's own code asserts what rounding of few points, repeated almost exactly, makes untrue."""
    generator = torch.Generator().manual_seed(1)
    few = normalize(torch.randn(5, 40, generator=generator).double(), dim=1)
    points = few[torch.randint(5, (30,), generator=generator)]
    points = points + 1e-9 * torch.randn(points.shape, generator=generator).double()
    labels = torch.randint(2, (30,), generator=generator)
    with pytest.raises(AssertionError):
        validity_index(points.numpy(), labels.numpy())
    assert validity(points.numpy(), labels.numpy()) == -1
    assert validity(points.numpy()[:3], np.array([0, 1, -1])) == -1


@pytest.mark.parametrize("value", [math.nan, 0.5])
def test_embeddings_that_tell_nothing_apart(value: float) -> None:
    same = torch.full((9, 13), value)
    settings = RoleSettings(min_sizes=(2,), min_samples=3)
    with pytest.raises(DataError, match="do not tell them apart"):
        find_clusters(["x"] * 9, same, same, CONCEPTS * 3, settings)


@pytest.mark.parametrize("each", [1, 7])
def test_few_distinct_embeddings(each: int) -> None:
    """A point for each concept, however often, as of short texts or a pool with a phrase for each."""
    points = torch.eye(13)[:3].repeat_interleave(each, dim=0)
    concepts = [name for name in CONCEPTS for _ in range(each)]
    settings = RoleSettings(min_sizes=(2,), min_samples=1)
    found = find_clusters([str(i) for i in range(3 * each)], points, points, concepts, settings)
    assert sorted(found.names) == [*CONCEPTS]
