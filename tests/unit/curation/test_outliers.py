"""Known classes by evidence, against fits without each image and the densities of normal distributions."""

import math
import re

import pytest
import torch
from scipy.stats import beta
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.nn.functional import normalize

from dear.curation import outliers
from dear.curation.outliers import PREFIX, OutlierModel, describe_refusal, fit_outlier_model
from dear.methods.dear_plus.gaussian import LabeledGaussians

LABELS = torch.tensor([0, 0, 0, 2, 2, 3, 3, 3, 3, 1, 2, 5, 5])
CLASSES, EMBED, NUMBERS = 7, 5, [0, 2, 3, 5]  # class 1 has one image, classes 4 and 6 have none


def features(count: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(count, EMBED, generator=draw, dtype=torch.float64), dim=1)


def slow_evidence(points: Tensor, labels: Tensor, image: Tensor, shrinkage: float) -> list[float]:
    """Of one image for each known class, by log densities under Gaussians of these points."""
    means = torch.stack([points[labels == label].mean(dim=0) for label in NUMBERS])
    around = points - means[[NUMBERS.index(int(label)) for label in labels]]
    scatter = around.T @ around / len(points)
    covariance = (1 - shrinkage) * scatter + shrinkage * scatter.trace() / EMBED * torch.eye(EMBED).double()
    freedom = (1 - shrinkage) * float((torch.linalg.inv(covariance) @ scatter).trace())
    background = float(MultivariateNormal(means.mean(dim=0), 2 * covariance).log_prob(image))
    background += (EMBED - freedom) / 2 * math.log(2)  # in the dimensions that vary
    return [float(MultivariateNormal(mean, covariance).log_prob(image)) - background for mean in means]


@pytest.fixture
def fitted() -> OutlierModel:
    found = fit_outlier_model(features(len(LABELS), 1), LABELS, CLASSES)
    assert found is not None
    return found


def test_evidence_is_the_bayes_factor_of_normal_densities(fitted: OutlierModel) -> None:
    points, used = features(len(LABELS), 1), LABELS != 1
    columns = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 1, 3, 3])
    shrinkage = LabeledGaussians(points[used][:, None], columns, 4, outliers.SPREAD).shrinkage
    assert fitted.classes.tolist() == NUMBERS
    others = features(3, 2)
    for image, found in zip(others, fitted.evidence(others), strict=True):
        expected = slow_evidence(points[used], LABELS[used], image, shrinkage)
        assert found.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_left_out_evidence_is_that_of_fits_without_each_image(fitted: OutlierModel) -> None:
    points, used = features(len(LABELS), 1)[LABELS != 1], LABELS[LABELS != 1]
    columns = torch.tensor([NUMBERS.index(int(label)) for label in used])
    shrinkage = LabeledGaussians(points[:, None], columns, len(NUMBERS), outliers.SPREAD).shrinkage
    largest = []
    for item in range(len(used)):
        others = torch.arange(len(used)) != item
        largest.append(max(slow_evidence(points[others], used[others], points[item], shrinkage)))
    assert fitted.images == len(used)
    assert fitted.left_out.tolist() == pytest.approx(sorted(largest), rel=1e-4, abs=1e-4)


def test_what_is_said_of_refusals_counts_images_that_there_are(fitted: OutlierModel) -> None:
    """Without a model there is nothing to count, and no sentence says "of 0"."""
    (none,), (few,), (some,) = (
        describe_refusal(model, share) for model, share in ((None, 0.05), (fitted, 0.05), (fitted, 0.25))
    )
    assert [*map(int, re.findall(r"\d+", none))] == [2]  # images that a class needs
    assert [*map(int, re.findall(r"\d+", few))] == [19, 2, 12]  # 1 / 0.05 - 1, in classes of 2, of 12 images
    assert f"{3 / 13:.1%} of new images" in some
    assert describe_refusal(None, 0) == []
    # 3 of 12 may be refused, up to 48% of new images (Beta(3, 10)): 9 of 20 may be chance, 19 of 20 not.
    assert [len(describe_refusal(fitted, 0.25, refused / 20, 20)) for refused in (9, 19)] == [1, 2]


@pytest.mark.parametrize(
    ("share", "rank"),
    [(0, 0), (0.05, 0), (0.076, 0), (1 / 13, 1), (0.15, 1), (0.25, 3), (0.5, 6), (1, 12)],
)
def test_the_threshold_is_a_rank_among_left_out_images(share: float, rank: int, fitted: OutlierModel) -> None:
    """floor(13 share) of 12: below the k-th smallest is one of 13 with probability k / 13."""
    assert fitted.rank(share) == rank
    assert fitted.threshold(share) == (float(fitted.left_out[rank - 1]) if rank else -math.inf)


def test_no_more_than_the_share_of_new_images_is_refused_on_average() -> None:
    """Over 60 draws of four classes, which say of how many it is uncertain too."""
    draw, refused, inside = torch.Generator().manual_seed(7), [], 0
    means = 2 * torch.randn(4, EMBED, generator=draw).double()
    for _ in range(60):
        labels = torch.arange(36) % 4
        sets = [means[labels] + torch.randn(36, EMBED, generator=draw).double() for _ in range(12)]
        found = fit_outlier_model(sets[0], labels, 4)
        assert found is not None
        new = found.evidence(torch.cat(sets[1:])).amax(dim=1)
        refused.append(float((new < found.threshold(0.1)).double().mean()))
        low, high = beta.ppf([0.005, 0.995], found.rank(0.1), 37 - found.rank(0.1))
        inside += low <= refused[-1] <= high
    mean, error = torch.tensor(refused).mean(), torch.tensor(refused).std() / 60**0.5
    assert 0.04 < mean < 0.1 + 2 * error
    assert inside >= 57


def test_groups_are_left_out_whole() -> None:
    """By fits without each group: the limit is of images that have no twin among those that remain."""
    points, group = features(len(LABELS), 1), torch.tensor([0, 0, 1, 2, 3, 4, 4, 5, 5, 6, 2, 7, 8])
    folds = [(group == number, group != number) for number in range(9)]
    found = fit_outlier_model(points, LABELS, CLASSES, folds)
    assert found is not None
    used, largest = LABELS != 1, []
    for left_out, rest in folds:
        columns, targets = LABELS[rest & used].unique(return_inverse=True)
        fitted = LabeledGaussians(points[rest & used][:, None], targets, len(columns), outliers.SPREAD)
        covariance = torch.linalg.inv(fitted.whitening @ fitted.whitening.T)
        for item in (left_out & used).nonzero().flatten().tolist():
            if LABELS[item] not in columns:
                continue
            center = fitted.means.mean(dim=0)
            background = MultivariateNormal(center, 2 * covariance).log_prob(points[item])
            background += (EMBED - fitted.freedom) / 2 * math.log(2)
            densities = [MultivariateNormal(mean, covariance).log_prob(points[item]) for mean in fitted.means]
            largest.append(float(max(densities) - background))
    assert found.images == len(largest)
    assert found.left_out.tolist() == pytest.approx(sorted(largest), rel=1e-4, abs=1e-4)


def test_quantiles_stand_for_many_images(monkeypatch: pytest.MonkeyPatch, fitted: OutlierModel) -> None:
    monkeypatch.setattr(outliers, "QUANTILES", 5)
    few = fit_outlier_model(features(len(LABELS), 1), LABELS, CLASSES)
    assert few is not None
    assert len(few.left_out) == 5
    assert few.left_out.tolist() == pytest.approx([fitted.left_out.quantile(q / 4).item() for q in range(5)])
    assert few.threshold(0.5) == few.left_out[1]  # below the sixth of twelve


def test_single_images_leave_nothing_out() -> None:
    assert fit_outlier_model(features(4, 1), torch.tensor([0, 1, 2, 2]), 3) is None


def test_tensors_hold_all_of_it(fitted: OutlierModel) -> None:
    again = OutlierModel.of({PREFIX + name: tensor for name, tensor in fitted.tensors().items()}, CLASSES)
    others = features(3, 2)
    torch.testing.assert_close(again.evidence(others), fitted.evidence(others), rtol=0, atol=0)
    assert again.threshold(0.3) == fitted.threshold(0.3)
