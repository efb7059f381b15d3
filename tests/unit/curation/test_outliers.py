"""Known classes by evidence, against fits without each image and the densities of normal distributions."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from dear.curation import outliers
from dear.curation.outliers import PREFIX, OutlierModel, describe_refusal, fit_outlier_model
from dear.methods.dear_plus.gaussian import LabeledGaussians

LABELS = torch.tensor([0, 0, 0, 2, 2, 3, 3, 3, 3, 1, 2, 5, 5])
CLASSES, EMBED, NUMBERS = 7, 5, [0, 2, 3, 5]  # class 1 has one image, classes 4 and 6 have none


def features(count: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(count, EMBED, generator=draw, dtype=torch.float64), dim=1)


@pytest.fixture
def fitted() -> OutlierModel:
    found = fit_outlier_model(features(len(LABELS), 1), LABELS, CLASSES)
    assert found is not None
    return found


def test_evidence_is_of_fits_without_each_fold() -> None:
    """By hand from the covariance of each fit: an image of a class of n has a distance 1 + 1 / n larger."""
    points, used = features(len(LABELS), 1), LABELS != 1
    group = torch.tensor([0, 0, 1, 2, 3, 4, 4, 5, 5, 6, 2, 7, 8])
    folds = [(group % 3 == part, group % 3 != part) for part in range(3)]
    found = fit_outlier_model(points, LABELS, CLASSES, folds, group)
    assert found is not None
    image, largest, weights = features(1, 2)[0], list[float](), list[float]()
    for fold, (left_out, rest) in enumerate(folds):
        rows = rest & used
        present, columns = LABELS[rows].unique(return_inverse=True)
        inner = group[rows] % 3
        gaussians = LabeledGaussians(
            points[rows][:, None], columns, len(present), outliers.SPREAD, folds=inner
        )
        inverse = gaussians.whitening @ gaussians.whitening.T
        center = gaussians.means.mean(dim=0)

        def evidence(point: Tensor, label: int) -> float:
            at = present.tolist().index(label)  # noqa: B023
            of_class = point - gaussians.means[at]  # noqa: B023
            count = len(group[rows & (label == LABELS)].unique())  # noqa: B023
            distance = float(of_class @ inverse @ of_class) / (1 + 1 / count)  # noqa: B023
            background = float((point - center) @ inverse @ (point - center)) / 2  # noqa: B023
            return (background + float(gaussians.freedom) * math.log(2) - distance) / 2  # noqa: B023

        expected = [evidence(image, n) if n in present else -math.inf for n in NUMBERS]
        assert found.evidence(image[None])[fold, 0].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-4)
        for item in (left_out & used).nonzero().flatten().tolist():
            if LABELS[item] in present:
                largest.append(max(evidence(points[item], n) for n in present.tolist()))
                weights.append(item)
    assert sorted(found.left_out.tolist()) == pytest.approx(sorted(largest), rel=1e-4, abs=1e-4)
    assert int(found.groups) == len({int(group[item]) for item in weights})
    assert float(found.weight.sum()) == pytest.approx(int(found.groups))


@pytest.mark.parametrize(
    ("share", "most"),
    [(0, None), (0.05, None), (0.076, None), (1 / 13, 0), (0.15, 0.95), (0.25, 2.25), (0.5, 5.5)],
)
def test_the_threshold_is_a_rank_among_left_out_images(
    share: float, most: float | None, fitted: OutlierModel
) -> None:
    """Of 12 and a new one, the new one has k - 1 below it with probability 1 / 13 each."""
    assert fitted.threshold(share) == (-math.inf if most is None else pytest.approx(most, abs=1e-5))
    images = features(50, 4)
    largest = fitted.evidence(images).amax(dim=2)
    below = [
        sum(
            float(value) <= float(largest[fold, row])
            for value, fold in zip(fitted.left_out, fitted.fold, strict=True)
        )
        for row in range(50)
    ]
    assert fitted.rank(images).tolist() == below


CASES = {  # images of each class's groups
    "5 clips of 8 frames": [[8] * 5] * 4,
    "2 clips of 8 frames": [[8] * 2] * 10,
    "2 images": [[1] * 2] * 10,
    "5 images": [[1] * 5] * 6,
    "100, 3 and 3 images": [[1] * 100, [1] * 3, [1] * 3],
    "3 images and a twin": [[2, 1, 1], *[[1] * 3] * 7],
}


@pytest.mark.parametrize("case", CASES)
def test_no_more_than_the_share_of_new_images_is_refused_on_average(case: str) -> None:
    """Over 30 draws; a new image is of a new group. So few images refuse less than they may, not nothing."""
    draw, refused, width, share = torch.Generator().manual_seed(7), list[float](), 24, 0.1
    deviations = torch.linspace(1.5, 0.1, width).double()

    def randn(count: int) -> Tensor:
        return torch.randn(count, width, generator=draw).double()

    sizes = CASES[case]
    group = torch.arange(sum(map(len, sizes))).repeat_interleave(
        torch.tensor([n for of in sizes for n in of])
    )
    of_group = torch.arange(len(sizes)).repeat_interleave(torch.tensor([*map(len, sizes)]))
    labels = of_group[group]
    place = torch.cat([torch.arange(len(of)) for of in sizes])
    is_grouped, parts = len(group) > len(of_group), min(5, max(2, len(sizes[-1])))
    fold = ((place + of_group) % parts)[group]
    folds = [(fold == part, fold != part) for part in range(parts)] if is_grouped else []
    for _ in range(30):
        means = 0.6 * randn(len(sizes)) + 1

        def images(label: Tensor, groups: Tensor) -> Tensor:
            centers = means[label] + 0.5 * deviations * randn(len(label))  # noqa: B023
            return normalize(centers[groups] + 0.2 * deviations * randn(len(groups)), dim=1)

        found = fit_outlier_model(images(of_group, group), labels, len(sizes), folds, group)
        assert found is not None
        new = of_group.repeat(500 // len(of_group) + 1)
        tested = images(new, torch.arange(len(new))).float()
        refused.append(float((found.rank(tested) <= found.threshold(share)).double().mean()))
    mean, error = torch.tensor(refused).mean(), torch.tensor(refused).std() / 30**0.5
    assert 0.01 < mean < share + 2 * error


def test_what_is_said_of_refusals_counts_groups(fitted: OutlierModel) -> None:
    (none,), (few,), (some,) = (
        describe_refusal(model, share) for model, share in ((None, 0.05), (fitted, 0.05), (fitted, 0.25))
    )
    assert "classes of 2 or more" in none
    assert "19 images" in few
    assert "there are 12" in few
    assert f": {3 / 13:.1%} of new images" in some
    assert describe_refusal(None, 0) == []
    # 3 of 12 may be refused, up to 48% of new images (Beta(3, 10)): 9 of 20 may be chance, 19 of 20 not.
    assert [len(describe_refusal(fitted, 0.25, refused / 20, 20)) for refused in (9, 19)] == [1, 2]


def test_quantiles_stand_for_many_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outliers, "QUANTILES", 4)
    values, weights = outliers.summarize(torch.arange(8).flip(0).double(), torch.full((8,), 0.5).double())
    assert values.tolist() == [0, 2, 4, 6]
    assert weights.tolist() == [1] * 4


def test_single_images_leave_nothing_out() -> None:
    assert fit_outlier_model(features(4, 1), torch.tensor([0, 1, 2, 2]), 3) is None


def test_tensors_hold_all_of_it(fitted: OutlierModel) -> None:
    again = OutlierModel.of({PREFIX + name: tensor for name, tensor in fitted.tensors().items()}, CLASSES)
    others = features(3, 2)
    torch.testing.assert_close(again.evidence(others), fitted.evidence(others), rtol=0, atol=0)
    assert again.threshold(0.3) == fitted.threshold(0.3)
