"""The linear probe's solution: by a gradient written out in loops, and scikit-learn's."""

import math
from dataclasses import dataclass

import numpy
import pytest
import torch
from torch import Tensor

from dear.methods.base import TrainingImages
from dear.methods.linear_probe import LinearProbeSettings
from dear.methods.registry import build_method
from tools.parity import small


@dataclass(frozen=True)
class Solved:
    """Features of one length and their classes; W and b, as the equation has them."""

    c: float
    features: numpy.ndarray
    labels: numpy.ndarray
    weight: Tensor
    bias: Tensor


@pytest.fixture(scope="module", params=[0.01, 0.316])
def solved(request: pytest.FixtureRequest) -> Solved:
    clip = small.small_openai_clip().double()
    settings = LinearProbeSettings(c=request.param)
    method = build_method("linear-probe", clip, torch.Generator(), settings=settings)
    method.set_classes(small.CLASSES, [small.TEMPLATE])
    trunk = method.image_trunk(small.images().flatten(0, 1).double())
    method.before_training(TrainingImages(small.LABELS.flatten(), lambda _: trunk))
    with torch.no_grad():
        own = clip.image.finish(trunk[:, 0])
    length = own.norm(dim=-1).mean()
    features = (own / own.norm(dim=-1, keepdim=True) * length).numpy()
    weight, bias = (method.get_parameter(name).detach() for name in ("weight", "bias"))
    return Solved(request.param, features, small.LABELS.flatten().numpy(), weight / length, bias)


def test_no_weight_can_be_bettered(solved: Solved) -> None:
    """All derivatives are 0 there; the objective is strictly convex in W, so there is one such W."""
    c, features, labels, weight, bias = solved.c, solved.features, solved.labels, solved.weight, solved.bias
    of_weight, of_bias = weight.numpy().copy(), numpy.zeros(5)  # of |W|^2 / 2
    for feature, label in zip(features, labels, strict=True):
        scores = [float(row @ feature) + float(one) for row, one in zip(weight.numpy(), bias, strict=True)]
        total = sum(math.exp(score) for score in scores)
        for k, score in enumerate(scores):
            error = math.exp(score) / total - (k == label)
            of_weight[k] += c * error * feature
            of_bias[k] += c * error
    assert abs(of_weight).max() < 1e-6 * c * len(labels)
    assert abs(of_bias).max() < 1e-6 * c * len(labels)
    assert abs(weight).max() > 1e-3


def test_it_is_scikit_learns(solved: Solved) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is not installed")
    theirs = linear_model.LogisticRegression(C=solved.c, tol=1e-10, max_iter=10000)
    theirs.fit(solved.features, solved.labels)
    numpy.testing.assert_allclose(solved.weight.numpy(), theirs.coef_, rtol=0, atol=1e-5)
    # A constant on all biases changes nothing: theirs add up to 0, and so do ours, from where they start.
    # Their solver stops a little earlier.
    numpy.testing.assert_allclose(solved.bias.numpy(), theirs.intercept_, rtol=0, atol=5e-4)
