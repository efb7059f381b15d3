"""Known classes by evidence, against fits without each image and the densities of normal distributions."""

import math
from collections import Counter
from collections.abc import Callable
from itertools import permutations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from dear.curation.outlier_fit import TrainingFeatures, count_below, fit_outlier_model, summarize
from dear.curation.outliers import PREFIX, SPREAD, OutlierModel, describe_refusal
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
    return found[0]


SHRINKAGE = 0.3


def by_hand(points: Tensor, columns: Tensor, group: Tensor, rest: Tensor) -> Callable[[Tensor], list[float]]:
    """The evidence of an image by a fit to the ``rest``: an image of a class of n images, or groups of them,
    has a distance 1 + 1 / n larger.
    """
    present, targets = columns[rest].unique(return_inverse=True)
    gaussians = LabeledGaussians(points[rest][:, None], targets, len(present), SPREAD, SHRINKAGE)
    inverse, center = gaussians.whitening @ gaussians.whitening.T, gaussians.means.mean(dim=0)

    def evidence(point: Tensor) -> list[float]:
        background = float((point - center) @ inverse @ (point - center)) / 2
        of_classes = [-math.inf] * len(NUMBERS)
        for at, column in enumerate(present.tolist()):
            of_class = point - gaussians.means[at]
            count = len(group[rest & (columns == column)].unique())
            distance = float(of_class @ inverse @ of_class) / (1 + 1 / count)
            of_classes[column] = (background + float(gaussians.freedom) * math.log(2) - distance) / 2
        return of_classes

    return evidence


def moments(values: list[float], groups: list[int]) -> tuple[float, float]:
    """The mean and the standard deviation of values, each group counted once."""
    sizes = Counter(groups)
    weights = [1 / sizes[group] for group in groups]
    mean = sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights)
    squares = sum(w * (value - mean) ** 2 for w, value in zip(weights, values, strict=True))
    return mean, math.sqrt(squares / sum(weights))


COLUMNS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 1, 3, 3])
GROUP = torch.tensor([0, 0, 1, 2, 3, 4, 4, 5, 6, 2, 7, 9])
FOLD_OF = torch.tensor([0, 0, 1, 2, 0, 1, 1, 2, 0, 2, 1, 2])


@pytest.mark.parametrize("is_small", [False, True])
def test_a_left_out_image_gets_what_a_new_one_gets(is_small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By loops: a new image the mean over the fits, a left-out one that over fits without it, beside images
    of another fold or, where the fits are of halves, of other groups.
    """
    points, group = features(len(LABELS), 1), torch.full_like(LABELS, 8)
    group[LABELS != 1] = GROUP
    folds = [fold == FOLD_OF for fold in range(3)]
    pairs = [(part, part) for part in folds] if is_small else [*permutations(folds, 2)]
    monkeypatch.setattr(TrainingFeatures, "draw_parts", lambda _: (folds, pairs))
    monkeypatch.setattr(TrainingFeatures, "choose_shrinkage", lambda _: SHRINKAGE)
    fitted = fit_outlier_model(points, LABELS, CLASSES, group)
    assert fitted is not None
    found, ranks = fitted
    points, image, of_fits, items = points[LABELS != 1], features(1, 2)[0], list[float](), range(12)

    def rows_of(part: Tensor, rest: Tensor) -> list[int]:
        return [item for item in items if part[item] and COLUMNS[item] in COLUMNS[rest]]

    for number, part in enumerate(folds):
        evidence = by_hand(points, COLUMNS, GROUP, ~part)
        of_fit = found.evidence(image[None])[number, 0].tolist()
        assert of_fit == pytest.approx(evidence(image), rel=1e-4, abs=1e-4)
        rows = rows_of(part, ~part)
        mean, deviation = moments([max(evidence(points[item])) for item in rows], GROUP[rows].tolist())
        of_fits.append((max(evidence(image)) - mean) / deviation)
    scores = dict[int, list[float]]()
    for own, others in pairs:
        evidence = by_hand(points, COLUMNS, GROUP, rest := ~(own | others))
        for item in rows_of(own, rest):
            rows = [other for other in rows_of(others, rest) if GROUP[other] != GROUP[item]]
            if len({*GROUP[rows].tolist()}) > 1:
                values = [max(evidence(points[other])) for other in rows]
                mean, deviation = moments(values, GROUP[rows].tolist())
                scores.setdefault(item, []).append((max(evidence(points[item])) - mean) / deviation)
    means = {item: sum(values) / len(values) for item, values in scores.items()}
    assert len(means) > 9
    assert found.left_out.tolist() == pytest.approx(sorted(means.values()), rel=1e-3, abs=1e-3)
    sizes, new = Counter(int(GROUP[item]) for item in means), sum(of_fits) / 3
    weights = {item: 1 / sizes[int(GROUP[item])] for item in means}
    rank = sum(weights[item] for item in means if means[item] <= new)
    assert float(found.rank(image[None])) == pytest.approx(rank, abs=1e-4)
    below = [
        sum(weights[other] for other in means if means[other] <= means[item] and GROUP[other] != GROUP[item])
        for item in sorted(means, key=means.__getitem__)
    ]
    assert found.below.tolist() == pytest.approx(below, abs=1e-4)
    of_items = dict(zip(sorted(means, key=means.__getitem__), below, strict=True))
    assert ranks[LABELS != 1].tolist() == pytest.approx(
        [of_items.get(item, math.inf) for item in items], abs=1e-4
    )
    assert ranks[LABELS == 1].isinf().all()
    assert (int(found.groups), int(found.images)) == (len(sizes), len(means))


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("sizes", [[5, 7, 6], [2, 2, 2, 2], [2, 3, 2], [1, 2, 9]])
def test_parts_keep_groups_together_and_classes_apart(sizes: list[int], frames: int) -> None:
    """Each group is left out equally often; images of classes of two are scored by fits without two folds."""
    column_of = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    numbers = torch.arange(len(column_of)).repeat_interleave(frames)
    points = features(len(numbers), 5)
    images = TrainingFeatures(points, column_of[numbers], numbers, len(sizes))
    parts, ranked = images.draw_parts()
    assert torch.stack(parts).int().sum(dim=0).unique().numel() == 1
    for part in (*parts, *(own for own, _ in ranked)):
        assert not {*numbers[part].tolist()} & {*numbers[~part].tolist()}
    folds = min(5, len(column_of) // 2)
    pairs = folds * (folds - 1) // 2
    is_small = frames == 1 and sorted(sizes)[len(sizes) // 2] == 2
    assert (len(parts), len(ranked)) == ((pairs, pairs) if is_small else (folds, 2 * pairs))
    turned = torch.arange(len(numbers)).flip(0)
    other = TrainingFeatures(points[turned], images.columns[turned], numbers[turned], len(sizes))
    of_turned, _ = other.draw_parts()
    assert all(torch.equal(part, again.flip(0)) for part, again in zip(parts, of_turned, strict=True))


@pytest.mark.parametrize(
    ("images", "parts"), [(6, 3), (12, 5), (47, 5), (48, 6), (79, 9), (80, 10), (1000, 10), (1001, 5)]
)
def test_more_images_have_more_parts_of_eight_and_very_many_have_five(images: int, parts: int) -> None:
    columns = torch.arange(images) % 2
    drawn, _ = TrainingFeatures(features(images, 5), columns, torch.arange(images), 2).draw_parts()
    sizes = [int(part.sum()) for part in drawn]
    assert len(sizes) == parts
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == images


@pytest.mark.parametrize(
    ("share", "most"), [(0, None), (0.05, None), (0.076, None), (1 / 13, 0), (0.15, 0), (0.25, 2), (0.5, 5)]
)
def test_the_threshold_is_a_rank_among_left_out_images(
    share: float, most: float | None, fitted: OutlierModel
) -> None:
    """Of 12 and a new one, the new one has k - 1 below it with probability 1 / 13 each."""
    assert fitted.threshold(share) == (-math.inf if most is None else pytest.approx(most, abs=1e-4))
    assert fitted.expected(share) == pytest.approx(0 if most is None else (most + 1) / 13)


def test_frames_that_differ_as_much_as_clips_count_alone() -> None:
    """Of ten clips whose frames are like any others, a twentieth of the frames is half a clip; if the frames
    of each are the same, a clip is all or nothing, and 5% of new ones would need nineteen.
    """
    frames, clip = torch.arange(200).double(), torch.arange(200) % 10
    apart, alike = (
        replace_scores(scores, torch.full((200,), 0.05).double(), clip) for scores in (frames, clip.double())
    )
    assert apart.expected(0.05) == pytest.approx(0.05, abs=0.006)
    assert apart.threshold(0.05) == pytest.approx(0.5, abs=0.06)
    assert alike.threshold(0.05) == -math.inf
    assert alike.expected(0.1) == pytest.approx(1 / 11)


def replace_scores(scores: Tensor, weights: Tensor, groups: Tensor) -> OutlierModel:
    """A model of nothing but left-out images."""
    below, (kept, of_kept) = count_below(scores, weights, groups), summarize(scores, weights)
    nothing = torch.zeros(1)
    return OutlierModel(
        *[nothing] * 8, scores[kept], of_kept, below[kept], torch.tensor(len(scores)), groups.max() + 1
    )


CASES = {  # images of each class's groups
    "5 clips of 8 frames": [[8] * 5] * 4,
    "2 clips of 8 frames": [[8] * 2] * 10,
    "2 images": [[1] * 2] * 10,
    "5 images": [[1] * 5] * 6,
    "8 images": [[1] * 8] * 12,
    "100, 3 and 3 images": [[1] * 100, [1] * 3, [1] * 3],
    "3 images and a twin": [[2, 1, 1], *[[1] * 3] * 7],
}


@pytest.mark.parametrize("case", CASES)
def test_as_many_new_images_are_refused_as_is_told_on_average(case: str) -> None:
    """Over 20 draws; a new image is of a new group."""
    told = list[float]()
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
    for _ in range(20):
        means = 0.6 * randn(len(sizes)) + 1

        def images(label: Tensor, groups: Tensor) -> Tensor:
            centers = means[label] + 0.5 * deviations * randn(len(label))  # noqa: B023
            return normalize(centers[groups] + 0.2 * deviations * randn(len(groups)), dim=1)

        fitted = fit_outlier_model(images(of_group, group), labels, len(sizes), group)
        assert fitted is not None
        found, _ = fitted
        new = of_group.repeat(500 // len(of_group) + 1)
        tested = images(new, torch.arange(len(new))).float()
        told.append(found.expected(share))
        refused.append(float((found.rank(tested) <= found.threshold(share)).double().mean()))
    mean, error = torch.tensor(refused).mean(), torch.tensor(refused).std() / 20**0.5
    assert mean < share + 2 * error
    if not case.startswith("2"):  # then fewer are refused than is told
        assert mean > sum(told) / 20 - 0.015 - 2 * error


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
    monkeypatch.setattr("dear.curation.outlier_fit.QUANTILES", 4)
    items, weights = summarize(torch.arange(8).flip(0).double(), torch.full((8,), 0.5).double())
    assert items.tolist() == [7, 5, 3, 1]
    assert weights.tolist() == [1] * 4


def test_single_images_leave_nothing_out() -> None:
    assert fit_outlier_model(features(4, 1), torch.tensor([0, 1, 2, 2]), 3) is None


def test_tensors_hold_all_of_it(fitted: OutlierModel) -> None:
    again = OutlierModel.of({PREFIX + name: tensor for name, tensor in fitted.tensors().items()}, CLASSES)
    others = features(3, 2)
    torch.testing.assert_close(again.evidence(others), fitted.evidence(others), rtol=0, atol=0)
    assert again.threshold(0.3) == fitted.threshold(0.3)
