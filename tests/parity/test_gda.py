"""The Gaussian discriminant's scores: those of the authors' scripts, by hand, and by a slow reference."""

import math

import pytest
import torch
from safetensors.torch import load_file

from dear.backbone.clip import Clip
from dear.errors import SettingsError
from dear.methods.base import Method, TrainingImages
from dear.methods.gda import GdaSettings
from dear.methods.gda.method import discriminant, moment_precision, shrunk_precision
from dear.methods.registry import build_method
from tools.parity import small
from tools.parity.make_gda import NEW, VIEWS


@pytest.fixture(scope="module")
def clip() -> Clip:
    return small.small_openai_clip()


def trained(clip: Clip, **settings: object) -> Method:
    method = build_method("gda", clip, torch.Generator(), settings=GdaSettings(**settings))  # type: ignore[arg-type]
    method.set_classes(small.CLASSES, [small.TEMPLATE])
    method.before_training(small.all_images(method))
    return method


@torch.no_grad()
def scores(method: Method) -> torch.Tensor:
    features = method.image_features(method.image_trunk(small.images(7).flatten(0, 1)))
    return method.logits(features, method.text_features())


@pytest.mark.parametrize(
    ("covariance", "script", "part"),
    [
        ("mean", "main_base2new", "base"),
        ("shrunk", "main_few_shots", "all"),
        ("mean", "main_base2new", "new"),
    ],
)
def test_same_scores_as_the_public_code(covariance: str, script: str, part: str, clip: Clip) -> None:
    """The mean covariance of 75 features of 47 numbers is badly conditioned, and inverted in float32."""
    expected = load_file(small.FOLDER / "gda.safetensors")[f"{script}/{part}"]
    method = trained(clip, alpha=1.0, covariance=covariance, views=VIEWS)
    if part == "new":
        method.set_classes(NEW, [small.TEMPLATE])
    largest = float(expected.abs().max())
    torch.testing.assert_close(scores(method), expected, rtol=0, atol=1e-5 * largest)


def test_two_classes_by_hand() -> None:
    """Means (1, 0) and (0, 2), precision diag(2, 1): W is (2, 0) and (0, 2), b is -log 2 - (1 and 2)."""
    weight, bias = discriminant(torch.tensor([[1.0, 0], [0, 2]]), torch.diag(torch.tensor([2.0, 1])))
    torch.testing.assert_close(weight, torch.tensor([[2.0, 0], [0, 2]]))
    torch.testing.assert_close(bias, torch.tensor([-math.log(2) - 1, -math.log(2) - 2]))


def test_shrinking_by_hand() -> None:
    """Of S = diag(3, 1) of 5 features of 2 numbers: 2 / (4 S + 4 I) = diag(1/8, 1/4)."""
    torch.testing.assert_close(
        shrunk_precision(torch.diag(torch.tensor([3.0, 1])), 5), torch.diag(torch.tensor([1 / 8, 1 / 4]))
    )


@pytest.mark.parametrize("items", [1, 2, 5, 31])
def test_the_precision_of_neighbors_is_the_shrunk_inverse(items: int) -> None:
    """Held to the inverse of the whole matrix, as the code has it, for fewer rows than columns and more."""
    rows = torch.randn(items, 13, generator=torch.Generator().manual_seed(items), dtype=torch.float64)
    moment = rows.T @ rows / max(1, items - 1)
    torch.testing.assert_close(moment_precision(rows), shrunk_precision(moment, items), rtol=1e-11, atol=0)


def test_classes_keep_their_rules_among_each_other(clip: Clip) -> None:
    """Columns of trained and new classes, scored together in another order, are those of each half alone."""
    method = trained(clip, views=VIEWS)
    base = scores(method)
    method.set_classes(NEW, [small.TEMPLATE])
    new = scores(method)
    method.set_classes([NEW[2], *small.CLASSES[::-1], NEW[0], NEW[1]], [small.TEMPLATE])
    expected = torch.cat([new[:, 2:], base.flip(1), new[:, :2]], dim=1)
    # Precision is a mean over the classes without images, which are the same.
    torch.testing.assert_close(scores(method), expected, rtol=1e-4, atol=1e-4)


def test_one_view_of_a_class_has_no_covariance(clip: Clip) -> None:
    method = build_method("gda", clip, torch.Generator(), settings=GdaSettings())
    method.set_classes(small.CLASSES, [small.TEMPLATE])
    few = small.all_images(method)
    first = TrainingImages(few.labels[:5], lambda seed: few.view(seed)[:5])
    with pytest.raises(SettingsError, match=r"gda\.covariance is mean: it needs two"):
        method.before_training(first)
