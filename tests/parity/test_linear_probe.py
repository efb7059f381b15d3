"""The linear probe's solution: by hand, by a gradient written out in loops, and scikit-learn's."""

import math

import numpy
import pytest
import torch
from torch import Tensor

from dear.backbone.clip import Clip
from dear.methods.base import Method, TrainingImages
from dear.methods.linear_probe import LinearProbeSettings
from dear.methods.registry import build_method
from tests.parity import small


@pytest.fixture(scope="module")
def clip() -> Clip:
    return small.small_openai_clip().double()


def probe(clip: Clip, c: float) -> Method:
    method = build_method("linear-probe", clip, torch.Generator(), settings=LinearProbeSettings(c=c))
    method.set_classes(small.CLASSES, [small.TEMPLATE])
    return method


def images_of(method: Method) -> TrainingImages:
    trunk = method.image_trunk(small.images().flatten(0, 1).double())
    return TrainingImages(small.LABELS.flatten(), lambda: trunk, lambda _: trunk)


def solved(clip: Clip, c: float) -> tuple[numpy.ndarray, numpy.ndarray, Tensor, Tensor]:
    """Features of one length and their classes; W and b, as the equation has them."""
    method = probe(clip, c)
    images = images_of(method)
    method.before_training(images)
    with torch.no_grad():
        own = clip.image.finish(images.centre()[:, 0])
    length = own.norm(dim=-1).mean()
    features = (own / own.norm(dim=-1, keepdim=True) * length).numpy()
    weight, bias = (method.get_parameter(name).detach() for name in ("weight", "bias"))
    return features, images.labels.numpy(), weight / length, bias


@pytest.mark.parametrize("c", [0.01, 0.316, 10.0])
def test_no_weight_can_be_bettered(c: float, clip: Clip) -> None:
    """All derivatives are 0 there; the objective is strictly convex in W, so there is one such W."""
    features, labels, weight, bias = solved(clip, c)
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


@pytest.mark.parametrize("c", [0.01, 0.316, 10.0])
def test_it_is_scikit_learns(c: float, clip: Clip) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is not installed")
    features, labels, weight, bias = solved(clip, c)
    theirs = linear_model.LogisticRegression(C=c, tol=1e-10, max_iter=10000).fit(features, labels)
    numpy.testing.assert_allclose(weight.numpy(), theirs.coef_, rtol=0, atol=1e-5)
    # A constant on all biases changes nothing: theirs add up to 0, and so do ours, from where they start.
    # Their solver stops a little earlier.
    numpy.testing.assert_allclose(bias.numpy(), theirs.intercept_, rtol=0, atol=5e-4)


def test_two_images_by_hand(clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features 3 e1 of class 0 and 3 e2 of class 1. By symmetry W is a, -a over -a, a and b is 0; what is
    left is the minimum of 2 a^2 + 2 c log(1 + exp(-6 a)), where a = 3 c / (1 + exp(6 a)).
    """
    monkeypatch.setattr(clip.image, "finish", lambda x: x)
    settings = LinearProbeSettings(c=0.5)
    method = build_method("linear-probe", clip, torch.Generator(), settings=settings)
    method.set_classes(["cat", "dog"], ["a {}"])
    trunk = 3 * torch.eye(small.EMBED, dtype=torch.float64)[:2, None]
    method.before_training(TrainingImages(torch.tensor([0, 1]), lambda: trunk, lambda _: trunk))
    weight, bias = (method.get_parameter(name).detach() for name in ("weight", "bias"))
    a = float(weight[0, 0]) / 3
    assert a * (1 + math.exp(6 * a)) == pytest.approx(1.5, abs=1e-6)
    torch.testing.assert_close(weight[:, :2], 3 * torch.tensor([[a, -a], [-a, a]], dtype=torch.float64))
    assert not weight[:, 2:].any()
    torch.testing.assert_close(bias, torch.zeros_like(bias), rtol=0, atol=1e-8)
