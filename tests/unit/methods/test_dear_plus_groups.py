"""DeAR+ on images in groups, such as frames of clips: against refits without whole groups."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.optimize import minimize
from torch.nn.functional import cross_entropy

from dear.methods.dear_plus import DearPlusSettings
from dear.methods.dear_plus.fitting import compute_class_scores, fit, with_strengths
from dear.methods.dear_plus.gaussian import SHRINKAGES, BayesFactors, LabeledGaussians
from dear.methods.dear_plus.strengths import PRIOR
from dear.methods.dear_plus.unlabeled import AttributeViews
from tests.unit.methods.slow_gaussians import (
    CLASSES,
    SHRINKAGE,
    build_clips,
    drawn,
    log_normal,
    slow,
)


def test_groups_are_left_out_as_a_whole() -> None:
    """By refits without all clips that an image is left out with, and the best strengths of these scores."""
    few, clips = build_clips()
    points, labels, spread = few.frozen, few.labels, 1.7
    folds = [{*few.fold[clips == clip].tolist()} for clip in range(8)]
    assert [len(fold) for fold in folds] == [1] * 8
    assert not any(folds[clip] & folds[clip + 1] for clip in range(0, 8, 2))
    assert few.images.tolist() == [2] * CLASSES
    factors = torch.zeros(40, CLASSES, dtype=torch.float64)
    squares, halves = list[float](), [{*few.rank[clips == clip].tolist()} for clip in range(8)]
    assert sorted(map(sorted, halves)) == [[0]] * 4 + [[1]] * 4
    for item, label in enumerate(labels.tolist()):
        rest = few.fold != few.fold[item]
        means, covariance, freedom = slow(points[rest], labels[rest])
        center = torch.stack(means).mean(dim=0)
        background = log_normal(points[item, 0], center, (1 + spread) * covariance)
        background -= freedom / 2 * math.log(1 + spread)
        densities = [log_normal(points[item, 0], mean, covariance) for mean in means]
        factors[item] = torch.tensor(densities, dtype=torch.float64) - background
        squares.append(-2 * densities[label])
    settings = DearPlusSettings(shrinkage=SHRINKAGE, spread=spread)
    found = fit(few, settings)
    torch.testing.assert_close(found.terms.factors[0].among(2), factors, rtol=0, atol=1e-8)
    factors[torch.arange(40), labels] += 0.25 * sum(squares) / len(squares) / 2**2
    class_scores = compute_class_scores(few, settings.penalty)[2]

    def loss(weights: Any) -> float:
        scores = weights[0] * class_scores + weights[1] * factors
        return float(cross_entropy(scores, labels)) + PRIOR * float((weights**2).sum())

    best = minimize(loss, [0.5, 0.5], bounds=[(0.01, None), (0, None)], tol=1e-12).x
    assert found.strengths[0].tolist() == pytest.approx(best.tolist(), abs=1e-4)
    alone = fit(replace(few, groups=None), settings)
    assert float(found.strengths[0, 1]) < 0.1 * float(alone.strengths[0, 1])  # which sees the other frames


def test_a_class_of_one_group_has_evidence_that_its_own_images_do_not_judge() -> None:
    few, clips = build_clips()
    few = replace(few, labels=few.labels.where(clips != 7, 2))
    assert few.images.tolist() == [2, 2, 3, 1]
    found = fit(few, DearPlusSettings())
    only = few.labels == 3
    assert bool(found.has_evidence.all())
    assert not found.terms.factors[0].among(2)[only, 3].any()
    noise = found.terms.factors[0].squares.where(~only[:, None], drawn(40, CLASSES, seed=9))
    factors = BayesFactors(noise, found.terms.factors[0].backgrounds)
    other = with_strengths(
        found.correction, found.remainder, found.evidence, replace(found.terms, factors=[factors])
    )
    assert torch.equal(other.strengths[0], found.strengths[0])
    assert not few.keeps_classes


def test_a_fold_that_holds_all_images_is_none() -> None:
    few, _ = build_clips()
    sets = torch.ones(1, CLASSES).bool()
    alone = LabeledGaussians(few.frozen, few.labels, CLASSES, 1.7)
    in_one = LabeledGaussians(few.frozen, few.labels, CLASSES, 1.7, folds=torch.zeros(40).long())
    assert in_one.shrinkage == alone.shrinkage
    assert torch.equal(in_one.left_out(sets).among(0), alone.left_out(sets).among(0))


def test_folds_that_share_no_class_shrink_the_covariance_most() -> None:
    few, _ = build_clips()
    fitted = LabeledGaussians(few.frozen, few.labels, CLASSES, 1.7, folds=few.labels)
    assert fitted.shrinkage == SHRINKAGES[-1]
    assert fitted.left_out(torch.ones(1, CLASSES).bool()).among(0).isfinite().all()


def test_labeled_images_that_do_not_differ_give_no_evidence_with_others() -> None:
    """Two equal images of each class, and images without labels that do differ."""
    points, others = drawn(CLASSES, 1, 7).repeat_interleave(2, dim=0), drawn(5, 7, seed=2)
    labels, shares = torch.arange(CLASSES).repeat_interleave(2), torch.full((5, CLASSES), 0.25).double()
    fitted = LabeledGaussians(points, labels, CLASSES, 1.0)
    mixture = AttributeViews(points, others, fitted.variance, fitted.strength).gaussians(labels, shares)
    assert float(mixture.freedom) == 0
    assert not mixture.whitening.any()
    assert not mixture.evidence().factors(others, 1.0).any()
