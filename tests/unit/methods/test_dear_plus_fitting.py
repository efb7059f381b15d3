"""What DeAR+ computes from readouts, against slow references: every image and class really left out."""

import math
from collections.abc import Iterable, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from dear.methods.dear_plus import DearPlusSettings, correction, strengths
from dear.methods.dear_plus.correction import fit_correction
from dear.methods.dear_plus.fitting import Examples, Fit, compute_class_scores, fit, fit_evidence
from dear.methods.dear_plus.gaussian import SHRINKAGES, BayesFactors, LabeledGaussians
from dear.methods.dear_plus.strengths import (
    PRIOR,
    LeftOutTerms,
    measure_name_cost,
)
from dear.methods.stacking import Batches, fit_term_weights
from tests.unit.methods.slow_gaussians import (
    CLASSES,
    EMBED,
    SHRINKAGE,
    VIEWS,
    build_clips,
    drawn,
    log_normal,
    slow,
)
from tests.unit.methods.slow_names import slow_cost

LABELS = torch.tensor([0, 2, 1, 0, 2, 2, 1, 3, 0, 1, 3])


def views(seed: int = 1, apart: float = 0.5) -> Tensor:
    """Unit features around a center of each class."""
    centers = drawn(CLASSES, EMBED, seed=seed + 100)
    noise = drawn(len(LABELS), VIEWS, EMBED, seed=seed)
    return normalize(apart * centers[LABELS][:, None] + 0.3 * noise, dim=-1)


def test_gaussians_by_loops() -> None:
    means, covariance, freedom = slow(points := views(), LABELS)
    fitted = LabeledGaussians(points, LABELS, CLASSES, 1.0, SHRINKAGE)
    torch.testing.assert_close(fitted.means, torch.stack(means), rtol=0, atol=1e-12)
    inverse = fitted.whitening @ fitted.whitening.T
    torch.testing.assert_close(inverse @ covariance, torch.eye(EMBED).double(), rtol=0, atol=1e-10)
    assert float(fitted.freedom) == pytest.approx(freedom, abs=1e-10)
    assert freedom < EMBED


def test_evidence_of_left_out_images_is_that_of_a_fit_without_them() -> None:
    """Every image in turn, with every other class taken for one without images, then with all known."""
    points, spread = views(), 1.7
    every, settings = (
        torch.ones(CLASSES, dtype=torch.bool),
        DearPlusSettings(shrinkage=SHRINKAGE, spread=spread),
    )
    few = examples(points, points[:4, 0])
    _, factors, found_lacking = fit_evidence(few, points, every, settings)
    squares = list[float]()
    for item, label in enumerate(LABELS.tolist()):
        others = torch.arange(len(LABELS)) != item
        means, covariance, _ = slow(points[others], LABELS[others])
        squares.append(-2 * log_normal(points[item, 0], means[label], covariance))
    images = torch.bincount(LABELS)[LABELS].double()
    lacking = 0.25 * sum(squares) / len(squares) / images**2
    torch.testing.assert_close(found_lacking, lacking, rtol=0, atol=1e-9)
    for half, known in enumerate(([1, 3], [0, 2], [0, 1, 2, 3])):
        for item in range(len(LABELS)):
            others = torch.arange(len(LABELS)) != item
            means, covariance, freedom = slow(points[others], LABELS[others])
            center = torch.stack([means[label] for label in known]).mean(dim=0)
            background = log_normal(points[item, 0], center, (1 + spread) * covariance)
            for label in range(CLASSES):
                factor = 0.0
                if label in known:
                    factor = log_normal(points[item, 0], means[label], covariance) - background
                    factor += freedom / 2 * math.log(1 + spread)
                found = factors.among(half)[item, label] * few.sets[half, label]
                assert float(found) == pytest.approx(factor, abs=1e-9)


@pytest.mark.parametrize("in_groups", [False, True])
def test_shrinkage_is_where_refits_without_each_image_or_group_make_it_likeliest(in_groups: bool) -> None:
    """By normal densities of every image under the fit without it, at the best of many sizes of C."""
    points, labels, fold, found = views(apart=0.2), LABELS, torch.arange(len(LABELS)), dict[float, float]()
    if in_groups:
        few, _ = build_clips()
        points, labels, fold = few.frozen, few.labels, few.fold
    sizes = torch.linspace(-3, 9, 6001, dtype=torch.float64).exp()
    for shrinkage in SHRINKAGES:
        squares, determinants = list[float](), list[float]()
        for item, label in enumerate(labels.tolist()):
            rest = fold != fold[item]
            means, covariance, _ = slow(points[rest], labels[rest], shrinkage)
            size = 1 + 1 / int((labels[rest] == label).sum())
            squares.append(-2 * log_normal(points[item, 0], means[label], size * covariance))
            determinants.append(float(torch.linalg.slogdet(covariance)[1]))
        square, determinant = sum(squares) / len(squares), sum(determinants) / len(determinants)
        found[shrinkage] = float((-(EMBED * sizes.log() + determinant + square / sizes) / 2).max())
    fitted = LabeledGaussians(points, labels, CLASSES, 1.0, folds=fold if in_groups else None)
    assert fitted.shrinkage == max(found, key=found.__getitem__)
    constant = fitted.left_out_likelihood(0.1) - found[0.1]
    for shrinkage, expected in found.items():
        assert fitted.left_out_likelihood(shrinkage) - constant == pytest.approx(expected, abs=1e-5)
    if in_groups:  # single frames, which see the others, would have it less
        assert fitted.shrinkage > LabeledGaussians(points, labels, CLASSES, 1.0).shrinkage


def test_views_that_never_differ_say_nothing() -> None:
    constant = normalize(torch.ones(len(LABELS), VIEWS, EMBED, dtype=torch.float64), dim=-1)
    fitted = LabeledGaussians(constant + 1e-9 * drawn(*constant.shape), LABELS, CLASSES, 1.0, SHRINKAGE)
    assert not fitted.whitening.any()
    factors = fitted.left_out(torch.ones(1, CLASSES, dtype=torch.bool))
    assert not factors.squares.any()
    assert not factors.backgrounds.any()
    for count in (len(LABELS), CLASSES):  # the last with one image a class
        views, labels = constant[:count], LABELS if count > CLASSES else torch.arange(CLASSES)
        found = fit(examples(views, drawn(CLASSES, EMBED), labels), DearPlusSettings())
        assert not found.evidence[0].means.any()
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
    sets = [torch.stack([part, second], dim=2) for part in (first, other)]
    weights = fit_term_weights(batches(sets), least, PRIOR)
    assert float(weights[1]) == 0

    def loss(weight: float) -> float:
        losses = [float(cross_entropy(weight * part, LABELS)) for part in (first, other)]
        return sum(losses) / 2 + PRIOR * weight**2

    best = min((loss(0.01 + step / 1000), 0.01 + step / 1000) for step in range(5000))
    assert float(weights[0]) == pytest.approx(best[1], abs=2e-3)


def batches(sets: Iterable[Tensor], labels: Tensor = LABELS) -> Batches:
    """Terms of all images, item x class x term, for each set of classes, as the solver takes them."""
    parts = [(terms.movedim(2, 0), labels) for terms in sets]
    return lambda: parts


def examples(frozen: Tensor, text: Tensor, labels: Tensor = LABELS, groups: Tensor | None = None) -> Examples:
    """Halves of classes are those of even and of odd number."""
    groups = frozen.unsqueeze(2) if groups is None else groups
    return Examples(frozen, groups, labels, 10 * text, torch.arange(len(text)))


def test_class_scores_are_of_a_correction_that_saw_neither_the_class_nor_the_image() -> None:
    text = normalize(drawn(CLASSES, EMBED, seed=4), dim=-1)
    few = examples(views(), text)
    first = few.frozen[:, 0, 0].tolist()
    order = [
        sum(first[other] < first[item] for other in range(len(LABELS)) if LABELS[other] == LABELS[item])
        for item in range(len(LABELS))
    ]
    for left_out, scores in zip(([0, 2], [1, 3], []), compute_class_scores(few, 0.5), strict=True):
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


def whole(groups: Tensor, frozen: Tensor, labels: Tensor = LABELS, classes: int = CLASSES) -> Fit:
    text = normalize(drawn(classes, EMBED, seed=4), dim=-1)
    return fit(examples(frozen, text, labels, groups), DearPlusSettings(shrinkage=SHRINKAGE))


@pytest.mark.parametrize("by_name", [0, 1])
def test_evidence_counts_for_more_where_all_classes_have_it(by_name: int) -> None:
    """The first strengths are those of evidence and class scores of left-out images, all classes known; the
    others are those of halves of the classes that are taken for ones without images.
    """
    groups, frozen = 0.3 * drawn(len(LABELS), VIEWS, 1, EMBED) + views().unsqueeze(2), views(2)
    found = whole(groups, frozen, classes=CLASSES + by_name)
    few = examples(frozen, normalize(drawn(CLASSES + by_name, EMBED, seed=4), dim=-1))
    features = normalize(groups[:, :, 0] + found.remainder[0], dim=-1)
    has_evidence, settings = torch.arange(CLASSES + by_name) < CLASSES, DearPlusSettings(shrinkage=SHRINKAGE)
    _, factors, lacking = fit_evidence(few, features, has_evidence, settings)
    scores = compute_class_scores(few, settings.penalty)
    terms = [
        torch.stack([part, factors.among(number) * few.sets[number] * has_evidence], dim=2)
        for number, part in enumerate(scores)
    ]
    terms[2][torch.arange(len(LABELS)), LABELS, 1] += lacking
    least = torch.tensor([0.01, 0.0], dtype=torch.float64)
    expected = [
        fit_term_weights(batches(parts), least, PRIOR) for parts in ([terms[2][:, :CLASSES]], terms[:2])
    ]
    torch.testing.assert_close(found.strengths, torch.stack(expected))
    assert float(found.strengths[0, 1]) > float(found.strengths[1, 1])


def test_a_name_takes_at_most_its_share_of_the_others_images() -> None:
    """By loops over images and names: the least threshold with which no larger share goes."""
    classes, count = 6, 120
    draw = torch.Generator().manual_seed(3)
    labels = torch.arange(count) % classes
    scores = torch.randn(2, count, classes, generator=draw, dtype=torch.float64)
    evidence = 2 * torch.randn(count, classes, generator=draw, dtype=torch.float64)
    scores[:, torch.arange(count), labels] += 1.5
    evidence[torch.arange(count), labels] += 3.0
    strengths = torch.tensor([[1.0, 0.5], [0.7, 0.2]], dtype=torch.float64)
    known = torch.tensor([[True, False] * 3, [False, True] * 3])
    terms = [torch.stack([part, evidence * of], dim=2) for part, of in zip(scores, known, strict=True)]
    factors = BayesFactors(-2 * evidence, torch.zeros(count, 3).double())
    left_out = LeftOutTerms(
        labels,
        [*scores, scores[0]],
        [factors],
        torch.cat([known, torch.ones(1, classes).bool()]),
        [torch.zeros(count).double()],
        torch.zeros(count).bool(),
        mostly_alone=False,
    )
    cost = measure_name_cost(left_out, strengths)

    def measure(threshold: float) -> tuple[list[tuple[list[float], int]], float]:
        taken, right = [(list[float](), 60) for _ in range(classes)], list[bool]()
        for part, is_known in zip(terms, known, strict=True):
            inside = is_known.nonzero().flatten().tolist()
            for item, label in enumerate(labels.tolist()):
                first, second = (
                    [float(part[item, of] @ used) for of in range(classes)] for used in strengths
                )
                level = math.log(sum(math.exp(first[of]) for of in inside))
                level -= math.log(sum(math.exp(second[of]) for of in inside))
                best = max(inside, key=first.__getitem__)
                for name in {*range(classes)} - {*inside}:
                    margin = second[name] + level - first[best]
                    taken[name][0].extend([margin] * (label == best and margin > 0))
                    right += [margin > threshold] * (label == name)
        return taken, sum(right) / len(right)

    taken, found = measure(cost.threshold)
    assert cost.threshold > 0
    assert (cost.threshold, cost.taken) == pytest.approx(slow_cost(taken))
    assert (cost.found, cost.images) == (found, 2 * count // 2)


def test_a_class_with_one_image_has_no_evidence_among_others_and_has_among_its_like() -> None:
    groups, frozen = 0.3 * drawn(len(LABELS), VIEWS, 2, EMBED), views()
    found = whole(groups, frozen, torch.tensor([0, 2, 0, 0, 2, 2, 0, 3, 0, 1, 3]))
    assert found.has_evidence.tolist() == [True, False, True, True]
    assert [of.means.shape for of in found.evidence] == [(3, EMBED)] * 2
    alone = whole(groups[:4], frozen[:4], torch.arange(4))
    assert alone.has_evidence.all()
    freedom = torch.stack([of.freedom for of in alone.evidence])
    ratio = alone.strengths[0, 1:] / alone.strengths[0, 0]
    torch.testing.assert_close(ratio, (0.5 / freedom.sum().sqrt()).expand(2))
    assert alone.strengths[1, 1:].tolist() == [0, 0]
    assert bool((alone.parts >= 0).all())


def test_left_out_scores_where_most_classes_have_one_image() -> None:
    """By fits without each image: a class without its only one is one by name alone."""
    labels, spread, classes = torch.tensor([0, 1, 2, 2, 3, 4, 2]), 1.7, 5
    frozen, features = views()[:7], normalize(views(3)[:7] + 0.2, dim=-1)
    text, groups = normalize(drawn(classes, EMBED, seed=4), dim=-1), (features - 0.1).unsqueeze(2)
    few, settings = (
        examples(frozen, text, labels, groups),
        DearPlusSettings(shrinkage=SHRINKAGE, spread=spread),
    )
    found = fit(few, settings)
    features = normalize(features - 0.1 + found.remainder, dim=-1)
    class_scores = compute_class_scores(few, settings.penalty)[2]
    for item, label in enumerate(labels.tolist()):
        rest = [other for other in range(len(labels)) if other != item]
        points = features[rest].flatten(0, 1)
        within = (points - points.mean(dim=0)).T @ (points - points.mean(dim=0)) / len(points)
        identity = torch.eye(EMBED, dtype=torch.float64)
        every = (1 - SHRINKAGE) * within + SHRINKAGE * within.trace() / EMBED * identity
        covariance = every / (1 + spread)
        freedom = float(((1 - SHRINKAGE) * torch.linalg.inv(every) @ within).trace())
        known = sorted({*labels[rest].tolist()})
        means = {of: features[rest][labels[rest] == of].flatten(0, 1).mean(dim=0) for of in known}
        center = torch.stack([*means.values()]).mean(dim=0)
        point, factors = features[item, 0], torch.zeros(classes, dtype=torch.float64)
        for of, mean in means.items():
            factors[of] = log_normal(point, mean, covariance) - log_normal(point, center, every)
            factors[of] += freedom / 2 * math.log(1 + spread)
        torch.testing.assert_close(found.terms.factors[0].among(2)[item], factors, rtol=0, atol=1e-8)
        beta, alpha = found.strengths[1 if label not in known else 0].tolist()
        expected = beta * class_scores[item] + alpha * factors
        torch.testing.assert_close(found.left_out[2][item], expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("labels", [LABELS.tolist(), [0, 1, 2, 3, 1, 0, 2, 3, 1, 2, 0], [0, 1, 2, 3, 3]])
def test_orders_change_nothing(labels: Sequence[int]) -> None:
    """Classes numbered otherwise and images in another order give the same, permuted."""
    given = torch.tensor(labels)
    items = torch.randperm(len(given), generator=torch.Generator().manual_seed(5))
    numbers = torch.tensor([2, 0, 3, 1])  # class k becomes numbers[k]
    frozen = views()[: len(given)]
    groups = 0.3 * drawn(len(given), VIEWS, 2, EMBED) + frozen.unsqueeze(2)
    few = examples(frozen, normalize(drawn(CLASSES, EMBED, seed=4), dim=-1), given, groups)
    back = numbers.argsort()
    other = Examples(few.frozen[items], groups[items], numbers[given[items]], few.text[back], few.order[back])
    first, second = (fit(of, DearPlusSettings()) for of in (few, other))
    for name in ("correction", "remainder", "strengths", "parts"):
        torch.testing.assert_close(getattr(second, name), getattr(first, name), rtol=0, atol=1e-6)
    for one, same in zip(second.left_out, first.left_out, strict=True):
        torch.testing.assert_close(one, same[items][:, back], rtol=0, atol=1e-5)
    for one, same in zip(second.evidence, first.evidence, strict=True):
        assert torch.equal(second.has_evidence, first.has_evidence[back])
        torch.testing.assert_close(one.whitening @ one.whitening.T, same.whitening @ same.whitening.T)
        torch.testing.assert_close(one.means @ one.whitening.T, (same.means @ same.whitening.T)[back])


@pytest.mark.parametrize("labels", [LABELS.tolist(), [0, 1, 2, 3, 3]])
def test_images_are_computed_in_any_parts(labels: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """One image at a time, three, or all; also where most classes have one image, or one class has none."""
    given, classes = torch.tensor(labels), CLASSES + (len(labels) < 6)
    groups = 0.3 * drawn(len(given), VIEWS, 2, EMBED) + views()[: len(given)].unsqueeze(2)
    fits = []
    for at_once in (1, 3 * classes, 10**6):
        for module in (correction, strengths):
            monkeypatch.setattr(module, "SCORES_AT_ONCE", at_once)
        fits.append(whole(groups, views(2)[: len(given)], given, classes=classes))
    for found in fits[:2]:
        for name in ("correction", "strengths", "parts"):
            torch.testing.assert_close(getattr(found, name), getattr(fits[2], name), rtol=0, atol=1e-7)
        for part, same in zip(found.left_out, fits[2].left_out, strict=True):
            torch.testing.assert_close(part, same, rtol=0, atol=1e-6)


@pytest.mark.parametrize("images", [(5, 5, 5, 5, 5), (9, 1, 7, 1, 7), (1, 1, 8, 1, 8), (2, 2, 2, 2, 2)])
def test_random_labels_are_not_found(images: tuple[int, ...]) -> None:
    """Of left-out images in classes with another image, no more are right than the 99% interval has of the
    guess at the commonest class.
    """
    correct, tested, most = 0, 0, max(images) / sum(images)
    for seed in range(8):
        labels = torch.arange(5).repeat_interleave(torch.tensor(images))
        frozen = normalize(1 + drawn(len(labels), VIEWS, EMBED, seed=seed), dim=-1)
        groups = drawn(len(labels), VIEWS, 1, EMBED, seed=seed + 50)
        few = examples(frozen, normalize(drawn(5, EMBED, seed=seed + 99), dim=-1), labels, groups)
        scores = fit(few, DearPlusSettings()).left_out[2]
        left_out = torch.tensor(images)[labels] > 1
        correct += int((scores.argmax(dim=1) == labels)[left_out].sum())
        tested += int(left_out.sum())
    assert correct / tested < most + 2.58 * math.sqrt(most * (1 - most) / tested)
