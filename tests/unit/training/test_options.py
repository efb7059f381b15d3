"""Training as published or as given, and the optimizers by hand."""

import torch

from dear.backbone.clip import Clip
from dear.data.images.transforms import view_numbers
from dear.errors import SettingsError
from dear.methods.base import Method
from dear.methods.registry import build_method
from dear.training.loop import train
from dear.training.seeding import generator
from dear.training.settings import TrainSettings, resolve_training
from tests.helpers.clips import train_views
from tests.helpers.data import CLASSES, few
from tests.helpers.errors import refuses


def coop(clip: Clip) -> Method:
    method = build_method("coop", clip, torch.Generator())
    method.set_classes(CLASSES, ["a photo of a {}"])
    return method


def test_what_is_given_goes_over_what_is_published() -> None:
    published = {"optimizer": "sgd", "lr": 0.5, "epochs": 7}
    assert resolve_training({}, {}) == TrainSettings()
    assert resolve_training(published, {}) == TrainSettings(optimizer="sgd", lr=0.5, epochs=7)
    want = TrainSettings(optimizer="sgd", lr=0.25, epochs=7, warmup_epochs=0)
    assert resolve_training(published, {"lr": 0.25, "warmup_epochs": 0}) == want
    refuses(SettingsError, "warmup_epochs", resolve_training, published, {"epochs": 1})
    assert resolve_training(published, {"epochs": 1, "warmup_epochs": 0}).lr_at(0) == 0.5
    refuses(SettingsError, "batch is 0", resolve_training, published, {"batch": 0})


def loss_by_hand(method: Method, epoch: int) -> None:
    """The gradients of a step of all seven images."""
    images, order = few(), torch.randperm(7, generator=generator(3, "order", epoch))
    drawn = view_numbers(7, generator(3, "views", epoch, 0))
    views = train_views(images.load(order), method.clip.image_size, drawn)
    method.zero_grad()
    method.loss(method.image_trunk(views), images.labels[order])["loss"].backward()


def test_sgd_with_momentum_by_hand(small_clip: Clip) -> None:
    """CoOp in two steps of all images: v = 0.75 v + gradient + 0.1 p; p = p - lr v, the rates of a cosine."""
    settings = TrainSettings(
        optimizer="sgd", lr=0.5, momentum=0.75, weight_decay=0.1, epochs=2, batch=7, warmup_epochs=0
    )
    got, hand = coop(small_clip), coop(small_clip)
    train(got, few(), settings, seed=3)
    context, velocity = hand.get_parameter("context"), torch.zeros(4, 22)
    for epoch, rate in enumerate((0.5, 0.25)):  # 0.5 x (1 + cos(pi x epoch / 2)) / 2
        loss_by_hand(hand, epoch)
        with torch.no_grad():
            velocity = 0.75 * velocity + context.grad + 0.1 * context
            context -= rate * velocity
    torch.testing.assert_close(got.get_parameter("context"), context)


def test_a_step_of_adam_by_hand(small_clip: Clip) -> None:
    """Weight decay is a part of the gradient, unlike AdamW's; the first step is then the rate by its sign."""
    settings = TrainSettings(optimizer="adam", lr=0.5, weight_decay=0.1, epochs=1, batch=7, warmup_epochs=0)
    got, hand = coop(small_clip), coop(small_clip)
    train(got, few(), settings, seed=3)
    loss_by_hand(hand, 0)
    context = hand.get_parameter("context")
    gradient = context.grad + 0.1 * context.detach()
    want = context.detach() - 0.5 * gradient / (gradient.abs() + 1e-8)
    torch.testing.assert_close(got.get_parameter("context").detach(), want, rtol=1e-4, atol=1e-5)
