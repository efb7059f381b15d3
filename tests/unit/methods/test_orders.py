"""Neither the numbers of classes nor the order of images matters to the methods that `fit` can choose."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from dear.backbone.clip import Clip
from dear.methods.base import TrainingImages
from dear.methods.optional import UsesAllImages
from dear.methods.registry import CANDIDATES, build_method

CLASSES = ["red circle on the sea", "house", "green tree", "blue square", "sea"]
NUMBERS = [3, 0, 4, 1, 2]  # class k becomes NUMBERS[k]


@torch.no_grad()
def score(
    name: str, clip: Clip, labels: Sequence[int], items: Sequence[int], numbers: Sequence[int]
) -> Tensor:
    """The scores of new images, and of left-out ones where there are any, in the order of CLASSES and of
    images, after a fit with others.
    """
    method = build_method(name, clip, torch.Generator())
    method.set_classes([CLASSES[k] for k in torch.tensor(numbers).argsort().tolist()], ["a photo of a {}"])

    def draw(count: int, seed: int) -> Tensor:
        return torch.rand(count, 3, 20, 20, generator=torch.Generator().manual_seed(seed))

    def trunk(view: int | None) -> Tensor:
        brightness = torch.tensor(labels)[:, None, None, None] / 9
        views = (
            0.4 * draw(len(labels), 3)
            + 0.1 * draw(len(labels), 9 if view is None else 10 + view)
            + brightness
        )
        return method.image_trunk(views[[*items]])

    targets = torch.tensor([numbers[labels[item]] for item in items])
    if isinstance(method, UsesAllImages):
        method.before_training(TrainingImages(targets, trunk))
    features = method.image_features(method.read_out(method.image_trunk(draw(7, 5))))
    scores = [method.logits(features, method.text_features())]
    if name == "dear+":
        back = torch.tensor(items).argsort()
        scores += [of_setting[back].to(scores[0]) for of_setting in method.fitted.left_out]  # type: ignore[union-attr]
    return torch.cat(scores)[:, [*numbers]]


@pytest.mark.parametrize("name", sorted({each.method for each in CANDIDATES} | {"linear-probe", "gda"}))
@pytest.mark.parametrize("labels", [[0, 1, 2, 3, 4] * 3, [0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4, 4, 4]])
def test_orders_change_nothing(name: str, labels: list[int], small_clip: Clip) -> None:
    items = torch.randperm(len(labels), generator=torch.Generator().manual_seed(2)).tolist()
    plain = score(name, small_clip, labels, range(len(labels)), range(5))
    for changed in ((items, range(5)), (range(len(labels)), NUMBERS), (items, NUMBERS)):
        found = score(name, small_clip, labels, *changed)
        torch.testing.assert_close(found, plain, rtol=1e-3, atol=1e-3)
