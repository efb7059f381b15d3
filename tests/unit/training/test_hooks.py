"""What a method may ask of the loop: several views, targets of pixels, batches and draws of its own."""

import math
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from dear.backbone.clip import Clip
from dear.data.images.transforms import view_numbers
from dear.errors import WeightsError
from dear.methods.coop.method import CoOp
from dear.methods.optional import ComputesTargets, StepHooks
from dear.methods.registry import build_method
from dear.training.cache import Cache
from dear.training.loop import train
from dear.training.seeding import generator
from dear.training.settings import TrainSettings
from tests.helpers.clips import train_views
from tests.helpers.data import CLASSES, few
from tests.helpers.errors import refuses
from tests.helpers.methods import stop_after

SETTINGS = TrainSettings(epochs=2, batch=3, lr=1e-2)


class Watched(CoOp, StepHooks, ComputesTargets):
    """CoOp that notes the inputs of its losses, without the one after the last step."""

    target: ClassVar[Literal["trunk", "view", "whole"] | None] = "trunk"

    def __init__(self, clip: Clip) -> None:
        super().__init__(clip, torch.Generator().manual_seed(1))
        self.given: list[tuple[Tensor, Tensor, Tensor | None]] = []
        self.drawn: list[float] = []

    def loss(self, trunk: Tensor, labels: Tensor, frozen: Tensor | None = None) -> dict[str, Tensor]:
        if torch.is_grad_enabled():
            self.given.append((trunk, labels, frozen))
        return super().loss(trunk, labels)

    def target_features(self, views: Tensor) -> Tensor:
        """The mean color of each view."""
        return views.mean(dim=(2, 3))

    def before_step(self, draw: torch.Generator) -> None:
        self.drawn.append(torch.rand((), generator=draw).item())


class TwoViews(Watched):
    target = "view"
    views_per_image = 2


class WholeImages(Watched):
    target = "whole"
    views_per_image = 2


class ByClass(Watched):
    """Batches of one class each: two images of those with three, in a random order of classes."""

    def batches(self, labels: Tensor, size: int, draw: torch.Generator) -> list[Tensor]:
        assert size == SETTINGS.batch
        kept = [torch.where(labels == label)[0][:2] for label in range(3)]
        return [kept[number] for number in torch.randperm(3, generator=draw)]


def trained(clip: Clip, kind: type[Watched], **more: Any) -> Watched:
    method = kind(clip)
    method.set_classes(CLASSES, ["a photo of a {}"])
    method.history = train(method, few(), SETTINGS, seed=1, **more)
    return method


def order(epoch: int) -> list[Tensor]:
    return [*torch.randperm(7, generator=generator(1, "order", epoch)).split(3)]


def views_by_hand(clip: Clip, epoch: int, step: int, chosen: Tensor) -> Tensor:
    draws = [("views", epoch, step), ("views", epoch, step, 1)]
    numbers = [view_numbers(len(chosen), generator(1, *purpose)) for purpose in draws]
    return torch.cat([train_views(few().load(chosen), clip.image_size, each) for each in numbers])


@pytest.mark.parametrize("cache", [None, 2**24])
def test_each_image_has_its_views(small_clip: Clip, cache: int | None) -> None:
    method = trained(small_clip, TwoViews, cache=cache and Cache(cache))
    steps = [(epoch, step, chosen) for epoch in range(2) for step, chosen in enumerate(order(epoch))]
    assert len(method.given) == len(steps) == 6
    for (epoch, step, chosen), (trunk, labels, target) in zip(steps, method.given, strict=True):
        views = views_by_hand(small_clip, epoch, step, chosen)
        torch.testing.assert_close(trunk, method.image_trunk(views))
        torch.testing.assert_close(target, views.mean(dim=(2, 3)))
        assert labels.tolist() == [*few().labels[chosen].tolist() * 2]
        assert not torch.equal(trunk[: len(chosen)], trunk[len(chosen) :])


def test_views_shared_between_runs_depend_on_the_image_alone(small_clip: Clip) -> None:
    method = TwoViews(small_clip)
    method.set_classes(CLASSES, ["a photo of a {}"])
    train(method, few(), TrainSettings(epochs=1, batch=3, view_seed=5), seed=1)
    for chosen, (_, _, target) in zip(order(0), method.given, strict=True):
        numbers = [[("view", 0, item), ("view", 0, item, 1)] for item in chosen.tolist()]
        for place, (first, second) in enumerate(numbers):
            for row, purpose in ((place, first), (place + len(chosen), second)):
                drawn = view_numbers(1, generator(5, *purpose))
                view = train_views(few().load(chosen[place : place + 1]), small_clip.image_size, drawn)
                torch.testing.assert_close(target[row], view.mean(dim=(0, 2, 3)))


def test_whole_images_are_the_targets_of_all_their_views(small_clip: Clip) -> None:
    method, size = trained(small_clip, WholeImages), small_clip.image_size
    pictures = few().pictures.float()
    whole = interpolate(pictures, (size, size), mode="bicubic", antialias=True).div(255).clamp(0, 1)
    for (_, _, target), chosen in zip(method.given, [*order(0), *order(1)], strict=True):
        torch.testing.assert_close(target, whole.mean(dim=(2, 3))[chosen].repeat(2, 1))


def test_a_method_composes_its_batches(small_clip: Clip) -> None:
    method = trained(small_clip, ByClass, cache=Cache(2**24))
    seen = [labels.tolist() for _, labels, _ in method.given]
    assert sorted(seen[:3]) == sorted(seen[3:]) == [[0, 0], [1, 1], [2, 2]]
    drawn = [torch.randperm(3, generator=generator(1, "order", epoch)).tolist() for epoch in range(2)]
    assert [labels[0] for labels in seen] == drawn[0] + drawn[1]


def test_other_batches_of_the_same_step_are_not_taken_from_memory(small_clip: Clip) -> None:
    class Backwards(ByClass):
        def batches(self, *order: Any) -> list[Tensor]:
            return super().batches(*order)[::-1]

    cache = Cache(2**24)
    trained(small_clip, ByClass, cache=cache)
    for alone, after in zip(
        trained(small_clip, Backwards).given, trained(small_clip, Backwards, cache=cache).given, strict=True
    ):
        torch.testing.assert_close(after[0], alone[0])


def test_the_mean_loss_is_of_the_images_of_its_batches(small_clip: Clip) -> None:
    class Ones(ByClass):
        def loss(self, trunk: Tensor, labels: Tensor, frozen: Tensor | None = None) -> dict[str, Tensor]:
            return {name: one * 0 + 1 for name, one in super().loss(trunk, labels, frozen).items()}

    assert [epoch["loss"] for epoch in trained(small_clip, Ones).history] == [1.0, 1.0]


def test_each_step_has_draws_of_its_own(small_clip: Clip, tmp_path: Path) -> None:
    whole = trained(small_clip, Watched)
    assert whole.drawn == [
        torch.rand((), generator=generator(1, "step", epoch, step)).item()
        for epoch in range(2)
        for step in range(3)
    ]
    assert len(set(whole.drawn)) == 6

    with pytest.raises(KeyboardInterrupt):
        trained(small_clip, Watched, checkpoint=tmp_path / "run.pt", progress=stop_after(1))
    assert trained(small_clip, Watched, checkpoint=tmp_path / "run.pt").drawn == whole.drawn[3:]


def test_features_that_are_not_finite(small_clip: Clip) -> None:
    """Of images, by whose covariance GDA divides, and of class names."""
    method = build_method("gda", small_clip, torch.Generator().manual_seed(1))
    method.set_classes(CLASSES, ["a photo of a {}"])
    small_clip.image.projection.data.fill_(math.nan)
    refuses(WeightsError, "gda", train, method, few(), TrainSettings(), seed=1)
    small_clip.text.projection.data.fill_(math.nan)
    refuses(WeightsError, "class names", method.set_classes, ["sea"], ["a photo of a {}"])
