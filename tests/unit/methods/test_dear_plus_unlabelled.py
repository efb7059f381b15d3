"""Images without labels for DeAR+, against loops and fits without the images that are left out."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from dear.methods.dear_plus import DearPlusSettings
from dear.methods.dear_plus.fitting import Examples, Fit, fit
from dear.methods.dear_plus.unlabelled import (
    ALONE,
    FOLDS,
    Gain,
    Mixture,
    Readouts,
    fit_with_others,
    left_out_evidence,
    share_out,
)

LABELS = torch.tensor([0, 2, 1, 0, 2, 2, 1, 0])
CLASSES, VIEWS, EMBED, OTHERS, ATTRIBUTES = 3, 2, 5, 11, 2


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build_readouts(labels: Tensor = LABELS) -> Readouts:
    centres = draw(ATTRIBUTES, CLASSES, EMBED, seed=2)
    of_others = torch.arange(OTHERS) % CLASSES
    return Readouts(
        centres[:, labels][:, :, None] + draw(ATTRIBUTES, len(labels), VIEWS, EMBED, seed=3),
        labels,
        centres[:, of_others] + draw(ATTRIBUTES, OTHERS, EMBED, seed=4),
        draw(OTHERS, CLASSES, seed=5),
        torch.tensor([0.7, 1.3], dtype=torch.float64),
        torch.tensor([3.0, 5.0], dtype=torch.float64),
    )


def covariance(mixture: Mixture, attribute: int) -> Tensor:
    return torch.linalg.inv(mixture.whitening[attribute] @ mixture.whitening[attribute].T)


def test_a_mixture_by_loops() -> None:
    readouts, shares = build_readouts(), draw(OTHERS, CLASSES, seed=6).softmax(dim=1)
    kept = torch.tensor([1.0, 1, 0, 1, 1, 0, 1, 1], dtype=torch.float64)
    mixture = Mixture.of(readouts, kept, shares)
    for attribute in range(ATTRIBUTES):
        points = [  # each with its class and weight
            (view, label, weight / VIEWS)
            for item, label, weight in zip(readouts.labelled[attribute], LABELS, kept, strict=True)
            for view in item
        ]
        for other, of_other in zip(readouts.others[attribute], shares, strict=True):
            points += [(other, label, share) for label, share in enumerate(of_other)]
        means = []
        for label in range(CLASSES):
            mine = [(point, weight) for point, of_class, weight in points if of_class == label]
            means.append(sum(weight * point for point, weight in mine) / sum(weight for _, weight in mine))
        scatter = sum(
            weight * torch.outer(point - means[label], point - means[label])
            for point, label, weight in points
        )
        strength, total = readouts.strength[attribute], sum(weight for *_, weight in points)
        prior = strength * readouts.variance[attribute] * torch.eye(EMBED, dtype=torch.float64)
        expected = (scatter + prior) / (total + strength)
        torch.testing.assert_close(mixture.means[attribute], torch.stack(means))
        torch.testing.assert_close(covariance(mixture, attribute), expected)
        freedom = (torch.linalg.inv(expected) @ scatter).trace() / (total + strength)
        torch.testing.assert_close(mixture.freedom[attribute], freedom)


def test_one_round_in_one_dimension_by_hand() -> None:
    """Classes at -1 and 1, two images each, 0.5 off: S / N = 0.25, shrunk to 0.25 it stays, d is 4 / 5."""
    labelled = torch.tensor([-1.5, -0.5, 0.5, 1.5], dtype=torch.float64)[None, :, None, None]
    others, labels = torch.tensor([[[0.25]]], dtype=torch.float64), torch.tensor([0, 0, 1, 1])
    numbers = (torch.tensor([value], dtype=torch.float64) for value in (0.25, 1.0))
    readouts = Readouts(labelled, labels, others, torch.zeros(1, 2, dtype=torch.float64), *numbers)
    mixture = share_out(readouts, torch.ones(4, dtype=torch.float64), 1.0, rounds=1)
    gap = (1.25**2 - 0.75**2) / 0.25 / 2  # of log densities; the surplus of both classes is the same
    share = 1 / (1 + math.exp(-ALONE / math.sqrt(4 / 5) * gap))  # of the class at 1
    expected = [(-2 + (1 - share) * 0.25) / (3 - share), (2 + share * 0.25) / (2 + share)]
    assert mixture.means.flatten().tolist() == pytest.approx(expected)
    assert mixture.counts.tolist() == pytest.approx([3 - share, 2 + share])


def test_rounds_raise_the_likelihood() -> None:
    """Of features and labels, with each attribute's density to the power alpha, and the prior's."""
    readouts, alpha = build_readouts(), 0.4
    kept, shares = torch.ones(len(LABELS), dtype=torch.float64), torch.zeros(OTHERS, CLASSES).double()
    reached = []
    for _ in range(12):
        mixture = Mixture.of(readouts, kept, shares)
        scores, objective = readouts.prior.clone(), 0.0
        for attribute in range(ATTRIBUTES):
            spread = covariance(mixture, attribute)
            normals = [
                torch.distributions.MultivariateNormal(mean, spread) for mean in mixture.means[attribute]
            ]
            scores += alpha * torch.stack(
                [one.log_prob(readouts.others[attribute]) for one in normals], dim=1
            )
            for item, label in zip(readouts.labelled[attribute], LABELS.tolist(), strict=True):
                objective += alpha * float(normals[label].log_prob(item).mean())
            pull = spread.logdet() + readouts.variance[attribute] * torch.linalg.inv(spread).trace()
            objective -= alpha * float(readouts.strength[attribute] * pull) / 2
        reached.append(objective + float(scores.logsumexp(dim=1).sum()))
        shares = scores.softmax(dim=1)
    assert all(later > earlier - 1e-9 for earlier, later in itertools.pairwise(reached))
    assert reached[-1] > reached[1] + 0.01  # the first has no shares yet


@pytest.mark.parametrize("anew", [True, False])
def test_images_are_left_out(anew: bool) -> None:
    readouts, weight, spread = build_readouts(), 0.5, 1.5
    whole = share_out(readouts, torch.ones(len(LABELS), dtype=torch.float64), weight)
    found = left_out_evidence(readouts, weight, spread, None if anew else whole)
    seen = [0, 0, 0]
    fold = []
    for label in LABELS.tolist():
        fold.append((seen[label] + label) % FOLDS)
        seen[label] += 1
    for item, label in enumerate(LABELS.tolist()):
        rest = torch.tensor([other for other in range(len(LABELS)) if fold[other] != fold[item]])
        without = share_out(
            replace(readouts, labelled=readouts.labelled[:, rest], labels=LABELS[rest]),
            torch.ones(len(rest), dtype=torch.float64),
            weight,
            None if anew else whole,
        )
        for attribute in range(ATTRIBUTES):
            inverse = without.whitening[attribute] @ without.whitening[attribute].T
            point, means = readouts.labelled[attribute, item, 0], without.means[attribute]
            for setting, known in enumerate(([1], [0, 2], [0, 1, 2])):
                gap = point - means[known].mean(dim=0)
                freedom = without.freedom[attribute]
                background = gap @ inverse @ gap / (1 + spread) + freedom * math.log1p(spread)
                for label in range(CLASSES):
                    gap = point - means[label]
                    lost = freedom / without.counts[label] - whole.freedom[attribute] / whole.counts[label]
                    expected = (background - gap @ inverse @ gap + lost) / 2 if label in known else 0
                    assert float(found[setting][item, label, attribute]) == pytest.approx(float(expected))


def build_clusters(apart: float, labelled: Sequence[int] = (0, 1, 2, 0, 1, 2, 0, 1, 2)) -> tuple[Any, ...]:
    """A fit of labelled unit features, with many others around the same centres, and the arguments of the
    fit with these.
    """
    centres, labels = draw(CLASSES, EMBED, seed=7), torch.tensor([*labelled])
    points = normalize(apart * centres[labels][:, None] + draw(len(labels), VIEWS, EMBED, seed=8), dim=-1)
    of_others = torch.arange(120) % CLASSES
    others = normalize(apart * centres[of_others] + draw(120, EMBED, seed=9), dim=-1)
    examples = Examples(points, labels, 2 * normalize(centres + draw(CLASSES, EMBED, seed=10), dim=-1))
    settings = DearPlusSettings(views=1)
    plain = fit(examples, points.unsqueeze(2), [True], settings)
    return plain, examples, points.unsqueeze(2), (others, others.unsqueeze(1)), [True], settings


def differing(result: Fit, plain: Fit) -> list[str]:
    tensors = ("correction", "rest", "means", "centre", "whitening", "freedom", "strengths", "parts")
    return [name for name in tensors if not torch.equal(getattr(result, name), getattr(plain, name))]


def test_others_are_used_where_left_out_images_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = build_clusters(1.5)
    result, gain = fit_with_others(*arguments)
    assert gain.weight > 0
    assert gain.after < gain.before
    assert differing(result, arguments[0]) == [
        "means",
        "centre",
        "whitening",
        "freedom",
        "strengths",
        "parts",
    ]
    monkeypatch.setattr("dear.methods.dear_plus.unlabelled.WEIGHTS", (0.0,))
    plain, none = fit_with_others(*arguments)
    assert none.weight == 0
    assert differing(plain, arguments[0]) == []


def test_others_without_a_gain_change_nothing() -> None:
    plain, examples, groups, (frozen, _), *rest = build_clusters(1.5)
    noise = normalize(draw(*frozen.shape, seed=20), dim=-1)
    result, gain = fit_with_others(plain, examples, groups, (noise, noise.unsqueeze(1)), *rest)
    assert isinstance(gain, Gain)
    assert gain.weight == 0
    assert result is plain
