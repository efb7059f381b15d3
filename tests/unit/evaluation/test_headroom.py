"""The headroom of a task: the probe's optimum by its gradient, zero-shot accuracy against evaluate."""

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from dear.backbone.load import load_clip
from dear.data.fewshot import ClassSubset, Subset, base_novel
from dear.data.loading import load_dataset
from dear.evaluation.metrics import evaluate
from dear.methods.zero_shot.method import ZeroShot
from tools.headroom import carried_over, class_constants, headroom, linear_probe


def test_the_probe_is_at_its_optimum() -> None:
    features = normalize(torch.randn(53, 7, generator=torch.Generator().manual_seed(3)), dim=-1)
    labels = torch.arange(53) % 5
    weights = linear_probe(features, labels, penalty=0.01).requires_grad_()
    assert weights.shape == (7, 5)
    loss = cross_entropy(20 * features.double() @ weights, labels) + 0.01 * weights.square().sum()
    (gradient,) = torch.autograd.grad(loss, weights)
    assert gradient.abs().max() < 1e-4


def test_what_can_be_told_apart_is_told_apart() -> None:
    features = torch.eye(11)[torch.arange(44) % 11]
    assert torch.equal(
        (features.double() @ linear_probe(features, torch.arange(44) % 11)).argmax(1), torch.arange(44) % 11
    )


def test_zero_shot_accuracy_is_that_of_the_evaluation() -> None:
    clip, data = load_clip("tiny", "random:3"), load_dataset("mixed-paints")
    found = headroom(clip, data, shots=62)  # two images of each class are left to measure on
    method = ZeroShot(clip)
    for half, percent in zip(base_novel(len(data.classnames)), (found.base, found.novel), strict=True):
        method.set_classes([data.classnames[label] for label in half], data.templates)
        pool = ClassSubset(data.train, half)
        rows = torch.cat([(pool.labels == label).nonzero()[62:, 0] for label in range(len(half))])
        assert percent == pytest.approx(100 * evaluate(method, Subset(pool, rows)).accuracy)
    assert 0 <= found.probe <= 100


def test_constants_of_classes_by_hand() -> None:
    """With equal scores, the shares of the labels are log(3 / 1): constants half of it above and below 0."""
    constants = class_constants(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]), penalty=0)
    assert constants.tolist() == pytest.approx([0.5493061, -0.5493061], abs=1e-4)


def test_constants_are_carried_over_by_words() -> None:
    """red: the mean of 1 and 3; circle: 1. A class without known words gets 0."""
    constants = torch.tensor([1.0, 3.0, -4.0])
    found = carried_over(
        constants, ["red circle", "red square", "blue star"], ["red circle", "red ring", "green oval"]
    )
    assert found.tolist() == [1.5, 2.0, 0.0]
