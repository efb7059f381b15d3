"""What DeAR+ computes from readouts, against slow references: every image and class really left out."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from dear.methods.dear_plus import DearPlusSettings
from dear.methods.dear_plus.fitting import (
    Examples,
    Fit,
    choose_penalty,
    class_scores,
    fit,
    left_out_evidence,
    number_in_class,
)
from dear.methods.dear_plus.gaussian import SHRINKAGES, Gaussians
from dear.methods.dear_plus.solvers import PRIOR, fit_correction, fit_strengths

LABELS = torch.tensor([0, 2, 1, 0, 2, 2, 1, 3, 0, 1, 3])
CLASSES, VIEWS, EMBED, SHRINKAGE = 4, 3, 7, 0.2


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def views(seed: int = 1, apart: float = 0.5) -> Tensor:
    """Unit features around a centre of each class."""
    centres = drawn(CLASSES, EMBED, seed=seed + 100)
    noise = drawn(len(LABELS), VIEWS, EMBED, seed=seed)
    return normalize(apart * centres[LABELS][:, None] + 0.3 * noise, dim=-1)


def slow(points: Tensor, labels: Tensor, shrinkage: float = SHRINKAGE) -> tuple[list[Tensor], Tensor, float]:
    """Means by class, shrunk covariance and degrees of freedom, by loops over views."""
    means = [points[labels == label].flatten(0, 1).mean(dim=0) for label in range(CLASSES)]
    scatter, count = torch.zeros(EMBED, EMBED, dtype=torch.float64), 0
    for item, label in zip(points, labels.tolist(), strict=True):
        for view in item:
            scatter += torch.outer(view - means[label], view - means[label])
            count += 1
    identity = torch.eye(EMBED, dtype=torch.float64)
    within = scatter / count
    covariance = (1 - shrinkage) * within + shrinkage * within.trace() / EMBED * identity
    return means, covariance, float(((1 - shrinkage) * torch.linalg.inv(covariance) @ within).trace())


def log_normal(point: Tensor, mean: Tensor, covariance: Tensor) -> float:
    """Up to the constant in the dimension and the determinant of the covariance."""
    gap = point - mean
    return float(-0.5 * gap @ torch.linalg.solve(covariance, gap))


def test_gaussians_by_loops() -> None:
    means, covariance, freedom = slow(points := views(), LABELS)
    fitted = Gaussians(points, LABELS, CLASSES, SHRINKAGE)
    torch.testing.assert_close(fitted.means, torch.stack(means), rtol=0, atol=1e-12)
    inverse = fitted.whitening @ fitted.whitening.T
    torch.testing.assert_close(inverse @ covariance, torch.eye(EMBED).double(), rtol=0, atol=1e-10)
    assert float(fitted.freedom) == pytest.approx(freedom, abs=1e-10)
    assert freedom < EMBED


def test_evidence_of_left_out_images_is_that_of_a_fit_without_them() -> None:
    """Every image in turn, with every other class taken for one without images, then with all known."""
    points, spread = views(), 1.7
    fitted = Gaussians(points, LABELS, CLASSES, SHRINKAGE)
    every = torch.ones(CLASSES, dtype=torch.bool)
    found = left_out_evidence(fitted, points, LABELS, every, spread)
    squares = list[float]()
    for item, label in enumerate(LABELS.tolist()):
        others = torch.arange(len(LABELS)) != item
        means, covariance, _ = slow(points[others], LABELS[others])
        squares.append(-2 * log_normal(points[item, 0], means[label], covariance))
    surplus = sum(squares) / len(squares)
    for half, known in enumerate(([1, 3], [0, 2], [0, 1, 2, 3])):
        for item in range(len(LABELS)):
            others = torch.arange(len(LABELS)) != item
            means, covariance, freedom = slow(points[others], LABELS[others])
            centre = torch.stack([means[label] for label in known]).mean(dim=0)
            background = log_normal(points[item, 0], centre, (1 + spread) * covariance)
            for label in range(CLASSES):
                factor = 0.0
                if label in known:
                    factor = log_normal(points[item, 0], means[label], covariance) - background
                    factor += freedom / 2 * math.log(1 + spread)
                    if half == 2 and label == LABELS[item]:
                        factor += 0.25 * surplus / int((label == LABELS).sum()) ** 2
                assert float(found[half][item, label]) == pytest.approx(factor, abs=1e-9)


def test_shrinkage_is_where_refits_without_each_image_make_it_likeliest() -> None:
    """By normal densities of every image under the fit without it, at the best of many sizes of C."""
    points, found = views(apart=0.2), {}
    sizes = torch.linspace(-3, 5, 4001, dtype=torch.float64).exp()
    for shrinkage in SHRINKAGES:
        squares, determinants = list[float](), list[float]()
        for item, label in enumerate(LABELS.tolist()):
            others, images = torch.arange(len(LABELS)) != item, int((label == LABELS).sum())
            means, covariance, _ = slow(points[others], LABELS[others], shrinkage)
            squares.append(-2 * log_normal(points[item, 0], means[label], images / (images - 1) * covariance))
            determinants.append(float(torch.linalg.slogdet(covariance)[1]))
        square, determinant = sum(squares) / len(squares), sum(determinants) / len(determinants)
        found[shrinkage] = float((-(EMBED * sizes.log() + determinant + square / sizes) / 2).max())
    fitted = Gaussians(points, LABELS, CLASSES)
    assert fitted.shrinkage == max(found, key=found.__getitem__)
    constant = fitted.left_out_likelihood(0.1) - found[0.1]
    for shrinkage, expected in found.items():
        assert fitted.left_out_likelihood(shrinkage) - constant == pytest.approx(expected, abs=1e-5)


def test_views_that_never_differ_say_nothing() -> None:
    constant = normalize(torch.ones(len(LABELS), VIEWS, EMBED, dtype=torch.float64), dim=-1)
    fitted = Gaussians(constant + 1e-9 * drawn(*constant.shape), LABELS, CLASSES, SHRINKAGE)
    assert not fitted.whitening.any()
    distances = fitted.left_out(torch.full((1, CLASSES), 0.25, dtype=torch.float64))
    assert not distances.to_classes.any()
    assert not distances.to_centres.any()
    for count in (len(LABELS), CLASSES):  # the last with one image a class
        views, labels = constant[:count], LABELS if count > CLASSES else torch.arange(CLASSES)
        few = examples(views, drawn(CLASSES, EMBED), labels)
        found = fit(few, views.unsqueeze(2), [True], DearPlusSettings())
        assert not found.means.any()
        assert bool(found.strengths.isfinite().all())


def test_the_correction_is_where_the_objective_has_no_slope() -> None:
    features, text = views()[:, 0], 5 * normalize(drawn(CLASSES, EMBED, seed=4), dim=-1)
    change = fit_correction(features, LABELS, text, 0.3).requires_grad_()
    scores = torch.stack([(f + change.T @ f) @ text.T for f in features])
    loss = cross_entropy(scores, LABELS) + 0.15 * change.square().sum()
    (slope,) = torch.autograd.grad(loss, change)
    assert slope.abs().max() < 1e-6
    assert float(loss.detach()) < float(cross_entropy(features @ text.T, LABELS))


def test_strengths_are_the_best_of_a_fine_grid() -> None:
    """Of a term that helps and one that misleads, which gets exactly its least weight."""
    truth = torch.nn.functional.one_hot(LABELS, CLASSES).double()
    first, second = truth + drawn(len(LABELS), CLASSES), -truth + drawn(len(LABELS), CLASSES, seed=2)
    other, least = truth + drawn(len(LABELS), CLASSES, seed=3), torch.tensor([0.01, 0.0]).double()
    settings = [torch.stack([part, second], dim=2) for part in (first, other)]
    weights = fit_strengths(settings, LABELS, least, [0.8, 0.2])
    assert float(weights[1]) == 0

    def loss(weight: float) -> float:
        losses = [float(cross_entropy(weight * part, LABELS)) for part in (first, other)]
        return 0.8 * losses[0] + 0.2 * losses[1] + PRIOR * weight**2

    best = min((loss(0.01 + step / 1000), 0.01 + step / 1000) for step in range(5000))
    assert float(weights[0]) == pytest.approx(best[1], abs=2e-3)


def examples(frozen: Tensor, text: Tensor, labels: Tensor = LABELS) -> Examples:
    return Examples(frozen, labels, 10 * text)


def test_class_scores_are_of_a_correction_that_saw_neither_the_class_nor_the_image() -> None:
    text = normalize(drawn(CLASSES, EMBED, seed=4), dim=-1)
    few = examples(views(), text)
    order = [0, 0, 0, 1, 1, 2, 1, 0, 2, 2, 1]  # of each image within its class, by hand
    assert number_in_class(LABELS).tolist() == order
    for left_out, scores in zip(([0, 2], [1, 3], []), class_scores(few, 0.5), strict=True):
        for item, label in enumerate(LABELS.tolist()):
            parity = 1 - order[item] % 2 if label in left_out else order[item] % 2
            chosen = [
                other
                for other in range(len(LABELS))
                if int(LABELS[other]) not in left_out and order[other] % 2 != parity
            ]
            assert item not in chosen
            assert label not in LABELS[chosen] or label not in left_out
            present = sorted({*LABELS[chosen].tolist()})
            targets = torch.tensor([present.index(int(LABELS[other])) for other in chosen])
            change = fit_correction(
                few.frozen[chosen].flatten(0, 1), targets.repeat_interleave(VIEWS), few.text[present], 0.5
            )
            feature = few.frozen[item, 0]
            expected = few.text @ normalize(feature + change.T @ feature, dim=0)
            torch.testing.assert_close(scores[item], expected, rtol=0, atol=1e-5)


def test_the_penalty_is_raised_where_left_out_classes_suffer() -> None:
    """Images of a class hold a little less of a partner's text feature than of their class's. Learned without
    the partner, the correction takes that for the class too, and the partner's images for its own.
    """
    labels, text = torch.arange(8).repeat_interleave(4), torch.eye(8, dtype=torch.float64)
    partner = text[torch.arange(8).view(-1, 2).flip(1).flatten()]
    noise = 0.01 * drawn(len(labels), 8)
    alone = normalize(text[labels] + noise, dim=-1).unsqueeze(1)
    paired = normalize((text + 0.9 * partner)[labels] + noise, dim=-1).unsqueeze(1)
    by_name = torch.cat([text, torch.full((1, 8), 8**-0.5, dtype=torch.float64)])  # one without images
    for names in (text, by_name):
        assert choose_penalty(Examples(alone, labels, 2 * names), 1e-4)[0] == 1e-4
    penalty, scores = choose_penalty(Examples(paired, labels, 2 * text), 1e-4)
    assert penalty is None
    for of_half in scores:
        torch.testing.assert_close(of_half, paired[:, 0] @ (2 * text).T)
    assert choose_penalty(Examples(paired, labels, 2 * text), 1e4)[0] == 1e4  # too small to do harm


def whole(
    groups: Tensor, frozen: Tensor, labels: Tensor = LABELS, carried: int = 0, classes: int = CLASSES
) -> Fit:
    text = normalize(drawn(classes, EMBED, seed=4), dim=-1)
    flags = [True] * groups.shape[2]
    flags[-1] = flags[-1] and not carried
    return fit(examples(frozen, text, labels), groups, flags, DearPlusSettings(shrinkage=SHRINKAGE))


@pytest.mark.parametrize("by_name", [0, 1])
def test_evidence_counts_for_more_where_all_classes_have_it(by_name: int) -> None:
    """The first strengths are those of evidence and class scores of left-out images, all classes known; the
    others by the share of classes without images.
    """
    groups, frozen = 0.3 * drawn(len(LABELS), VIEWS, 1, EMBED) + views().unsqueeze(2), views(2)
    found = whole(groups, frozen, classes=CLASSES + by_name)
    few = examples(frozen, normalize(drawn(CLASSES + by_name, EMBED, seed=4), dim=-1))
    features = normalize(groups[:, :, 0] + found.rest[0], dim=-1)
    known = torch.arange(CLASSES + by_name) < CLASSES
    evidence = left_out_evidence(
        Gaussians(features, LABELS, CLASSES, SHRINKAGE), features, LABELS, known, DearPlusSettings().spread
    )
    terms = [
        torch.stack(pair, dim=2) for pair in zip(class_scores(few, found.penalty), evidence, strict=True)
    ]
    least = torch.tensor([0.01, 0.0], dtype=torch.float64)
    torch.testing.assert_close(found.strengths[0], fit_strengths([terms[2][:, :CLASSES]], LABELS, least))
    share = by_name / ((CLASSES + by_name) // 2)  # 1 is half of the classes
    shares = [share / 2, share / 2, 1 - share] if by_name else [0.5, 0.5, 0.0]
    torch.testing.assert_close(found.strengths[1], fit_strengths(terms, LABELS, least, shares))
    assert float(found.strengths[0, 1]) > float(found.strengths[1, 1])


def test_a_class_with_one_image_has_no_evidence_among_others_and_has_among_its_like() -> None:
    groups, frozen = 0.3 * drawn(len(LABELS), VIEWS, 2, EMBED), views()
    found = whole(groups, frozen, torch.tensor([0, 2, 0, 0, 2, 2, 0, 3, 0, 1, 3]))
    assert found.with_evidence.tolist() == [True, False, True, True]
    assert found.means.shape == (3, 2, EMBED)
    alone = whole(groups[:4], frozen[:4], torch.arange(4))
    assert alone.with_evidence.all()
    ratio = alone.strengths[0, 1:] / alone.strengths[0, 0]
    torch.testing.assert_close(ratio, (0.5 / alone.freedom.sum().sqrt()).expand(2))
    assert alone.strengths[1, 1:].tolist() == [0, 0]
    assert bool((alone.parts > 0).all())
