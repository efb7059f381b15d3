"""ProGrad: the start of its context, and the projection of its gradient in the training loop."""

from typing import Any

import pytest
import torch

from dear.backbone.clip import Clip
from dear.data.images.transforms import view_numbers
from dear.errors import SettingsError
from dear.methods.prograd.method import ProGrad, projected
from dear.training.loop import train
from dear.training.seeding import generator
from dear.training.settings import TrainSettings
from tests.conftest import MakeClip
from tests.helpers.clips import train_views
from tests.helpers.data import CLASSES, few
from tests.helpers.methods import build, seeded


def make(clip: Clip, **options: Any) -> ProGrad:
    method = build("prograd", clip, **{"tokens": 5} | options)
    assert isinstance(method, ProGrad)
    return method


def test_the_context_ends_with_the_words_of_the_template(small_clip: Clip) -> None:
    words = small_clip.text.token_embedding(small_clip.tokenize(["a photo of a"]))[0, 1:5]
    start = make(small_clip, tokens=6).context.detach()
    assert torch.equal(start[2:], words)
    assert torch.equal(start[:2], torch.zeros(2, 22))
    method = make(small_clip, tokens=4)
    assert torch.equal(method.context.detach(), words)
    torch.testing.assert_close(method.text_features().detach(), method.frozen_text)  # CLIP as it is
    method.set_classes(CLASSES, ["the {}"])
    assert torch.equal(method.context.detach(), words)  # as trained
    with pytest.raises(SettingsError, match=r"prograd\.tokens is 3, and the template has 4 words"):
        make(small_clip, tokens=3)


def test_the_part_against_a_gradient_is_taken_away() -> None:
    general = torch.tensor([0.0, 2.0])
    for gradient, strength, want in (
        ([3.0, -4.0], 1.0, [3.0, 0.0]),
        ([3.0, -4.0], 0.75, [3.0, -1.0]),
        ([3.0, 4.0], 1.0, [3.0, 4.0]),
    ):
        got = projected(torch.tensor(gradient), general, strength)
        torch.testing.assert_close(got, torch.tensor(want))
        scaled = projected(1e4 * torch.tensor(gradient), 1e4 * general, strength)
        torch.testing.assert_close(scaled, 1e4 * got)
    assert torch.equal(projected(general, torch.zeros(2), 1.0), general)


@pytest.mark.parametrize("strength", [0.8, 1.0])
def test_training_is_two_plain_backward_passes_a_step(strength: float, make_small_clip: MakeClip) -> None:
    """By hand, from the equations: each loss has a forward pass of its own, and the divergence is KL."""
    clip, images, seed, temperature = make_small_clip(), few(), 3, 2.0
    settings = TrainSettings(
        optimizer="sgd", lr=0.3, momentum=0.0, weight_decay=0.1, epochs=6, batch=7, warmup_epochs=0
    )
    got, hand = (make(clip, strength=strength, temperature=temperature) for _ in range(2))
    for method in (got, hand):  # from a start from which both gradients soon part
        torch.nn.init.normal_(method.context, std=0.3, generator=seeded(0))
    history, against = train(got, images, settings, seed=seed), 0
    for epoch in range(6):
        order = torch.randperm(7, generator=generator(seed, "order", epoch))
        numbers = view_numbers(7, generator(seed, "views", epoch, 0))
        views = train_views(images.load(order), clip.image_size, numbers)
        image, labels = hand.image_features(hand.image_trunk(views))[0], images.labels[order]
        teacher = (clip.scale * image @ hand.frozen_text.T / temperature).softmax(dim=1)
        gradients = []
        for kind in ("ce", "kl"):
            scores = clip.scale * image @ hand.text_features().T
            if kind == "ce":
                loss = -scores.log_softmax(dim=1)[range(7), labels].mean()
                assert float(loss.detach()) == pytest.approx(history[epoch]["loss"], rel=1e-4)
            else:
                ratio = teacher.log() - (scores / temperature).log_softmax(dim=1)
                loss = temperature**2 * (teacher * ratio).sum(dim=1).mean()
            gradients.append(torch.autograd.grad(loss, hand.context)[0])
        a, b = gradients
        if (a * b).sum() < 0:
            against += 1
            a = a - strength * (a * b).sum() / (b * b).sum() * b
        with torch.no_grad():
            hand.context -= settings.lr_at(epoch) * (a + 0.1 * hand.context)
    assert against >= 2
    torch.testing.assert_close(got.context, hand.context, rtol=1e-3, atol=1e-4)
