"""Training as published or as given, SGD, and what a method does after an epoch."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dear.backbone.clip import Clip
from dear.data.images.transforms import view_numbers
from dear.errors import SettingsError
from dear.methods.base import Method
from dear.methods.registry import METHODS, build_method
from dear.progress import TrainingStep
from dear.training.loop import train
from dear.training.seeding import generator
from dear.training.settings import TrainOptions, TrainSettings
from tests.unit.training.world import CLASSES, few
from tests.views import train_views


def promptsrc(clip: Clip) -> Method:
    settings = METHODS["promptsrc"].settings(average_mean=2.0, teacher="dataset")
    method = build_method("promptsrc", clip, torch.Generator().manual_seed(1), settings=settings)
    method.set_classes(CLASSES, ["a photo of a {}"])
    return method


def coop(clip: Clip) -> Method:
    method = build_method("coop", clip, torch.Generator())
    method.set_classes(CLASSES, ["a photo of a {}"])
    return method


def test_what_is_given_goes_over_what_is_published() -> None:
    published = {"optimizer": "sgd", "lr": 0.5, "epochs": 7}
    assert TrainOptions().over({}) == TrainSettings()
    assert TrainOptions().over(published) == TrainSettings(optimizer="sgd", lr=0.5, epochs=7)
    want = TrainSettings(optimizer="sgd", lr=0.25, epochs=7, warmup_epochs=0)
    assert TrainOptions(lr=0.25, warmup_epochs=0).over(published) == want
    with pytest.raises(SettingsError, match="warmup_epochs is 1 of 1 epochs: all would train at the warm-up"):
        TrainOptions(epochs=1).over(published)
    assert TrainOptions(epochs=1, warmup_epochs=0).over(published).lr_at(0) == 0.5
    with pytest.raises(SettingsError, match="batch is 0"):
        TrainOptions(batch=0).over(published)
    with pytest.raises(SettingsError, match=r"momentum is 1\.0: it must be at least 0 and below 1"):
        TrainOptions(momentum=1.0).over(published)


def test_sgd_with_momentum_by_hand(small_clip: Clip) -> None:
    """CoOp in two steps of all images: v = 0.75 v + gradient + 0.1 p; p = p - lr v, the rates of a cosine."""
    images, seed = few(), 3
    settings = TrainSettings(
        optimizer="sgd", lr=0.5, momentum=0.75, weight_decay=0.1, epochs=2, batch=7, warmup_epochs=0
    )
    got, hand = coop(small_clip), coop(small_clip)
    train(got, images, settings, seed=seed)
    context, velocity = hand.get_parameter("context"), torch.zeros(4, 22)
    for epoch, rate in enumerate((0.5, 0.25)):  # 0.5 x (1 + cos(pi x epoch / 2)) / 2
        order = torch.randperm(7, generator=generator(seed, "order", epoch))
        views = train_views(
            images.load(order), small_clip.image_size, view_numbers(7, generator(seed, "views", epoch, 0))
        )
        hand.zero_grad()
        hand.loss(hand.image_trunk(views), images.labels[order])["loss"].backward()
        assert context.grad is not None
        with torch.no_grad():
            velocity = 0.75 * velocity + context.grad + 0.1 * context
            context -= rate * velocity
    torch.testing.assert_close(got.get_parameter("context"), context)


def test_a_step_of_adam_by_hand(small_clip: Clip) -> None:
    """Weight decay is a part of the gradient, unlike AdamW's; the first step is then the rate by its sign."""
    images, seed = few(), 3
    settings = TrainSettings(optimizer="adam", lr=0.5, weight_decay=0.1, epochs=1, batch=7, warmup_epochs=0)
    got, hand = coop(small_clip), coop(small_clip)
    train(got, images, settings, seed=seed)
    order = torch.randperm(7, generator=generator(seed, "order", 0))
    views = train_views(
        images.load(order), small_clip.image_size, view_numbers(7, generator(seed, "views", 0, 0))
    )
    hand.loss(hand.image_trunk(views), images.labels[order])["loss"].backward()
    context = hand.get_parameter("context")
    assert context.grad is not None
    gradient = context.grad + 0.1 * context.detach()
    want = context.detach() - 0.5 * gradient / (gradient.abs() + 1e-8)
    torch.testing.assert_close(got.get_parameter("context").detach(), want, rtol=1e-4, atol=1e-5)


def test_an_average_over_epochs_survives_a_cut(small_clip: Clip, tmp_path: Path) -> None:
    settings = TrainSettings(epochs=3, batch=4, lr=1e-2)
    whole = promptsrc(small_clip)
    train(whole, few(), settings, seed=1)

    def cut(step: TrainingStep) -> None:
        if step.ends_epoch and step.epoch == 2:
            raise KeyboardInterrupt

    path = tmp_path / "checkpoint"
    with pytest.raises(KeyboardInterrupt):
        train(promptsrc(small_clip), few(), settings, seed=1, checkpoint=path, progress=cut)
    resumed = promptsrc(small_clip)
    train(resumed, few(), settings, seed=1, checkpoint=path)
    for name, parameter in whole.named_parameters():
        assert torch.equal(resumed.get_parameter(name), parameter), name
        assert torch.equal(whole.get_buffer(name.replace("prompts", "average")), parameter), name


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 10**390}, {"steps_per_shot": 10**390}, {"lr": 1e308}, {"weight_decay": 1e308},
        {"view_seed": 1, "view_cache": 1e300},
    ],
)  # fmt: skip
def test_numbers_beyond_all_bounds_are_refused(settings: dict[str, Any]) -> None:
    """A recipe may have them; they overflowed in the training."""
    [name] = settings.keys() - {"view_seed"}
    with pytest.raises(SettingsError, match=rf"{name} is .*1,000,000,000"):
        TrainSettings(**settings)
