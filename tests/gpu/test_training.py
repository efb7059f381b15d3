"""Training and testing on a GPU give what they give on the CPU, to rounding."""

import pytest
import torch

from dear.backbone.device import half
from dear.backbone.names import Precision
from dear.backbone.preprocess import Preprocess
from dear.data.images.transforms import prefetch_views, to_unit
from dear.evaluation.metrics import evaluate
from dear.training.loop import train
from dear.training.settings import TrainSettings
from tests.conftest import small_clip_of
from tests.helpers.data import Noise, few
from tests.helpers.methods import small_dear

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize(("precision", "gap"), [("32-true", 1e-3), ("bf16-mixed", 3e-2)])
def test_losses_are_those_of_the_cpu(precision: Precision, gap: float) -> None:
    settings = TrainSettings(epochs=2, batch=3, precision=precision)
    history = {}
    for device in ("cpu", "cuda"):
        method = small_dear(small_clip_of().to(device)).to(device)
        history[device] = train(method, few(), settings, seed=1)
    for one, other in zip(history["cuda"], history["cpu"], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=gap)


def test_float16_losses_are_those_of_the_cpu() -> None:
    settings = TrainSettings(epochs=2, batch=3, optimizer="sgd", lr=1e-2, precision="16-true")
    history = {}
    for device in ("cpu", "cuda"):
        method = small_dear(half(small_clip_of()).to(device)).to(device)
        history[device] = train(method, few(), settings, seed=1)
        assert {one.dtype for one in method.trainable} == {torch.float16}
    for one, other in zip(history["cuda"], history["cpu"], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-2)


def test_chunks_of_prompts_change_no_loss() -> None:
    found = []
    for chunk in (0, 2):
        method = small_dear(small_clip_of().to("cuda")).to("cuda")
        settings = TrainSettings(epochs=2, batch=3, precision="32-true", text_chunk=chunk)
        found.append(train(method, few(), settings, seed=1)[-1]["loss"])
    assert found[0] == pytest.approx(found[1], rel=1e-4)


@torch.no_grad()
def test_patches_are_not_rounded_to_tf32() -> None:
    """TF32 keeps 10 bits of a factor: off by about 1e-3."""
    tower = small_clip_of().to("cuda").image
    pixels = torch.randn(64, 3, tower.image_size, tower.image_size, device="cuda")
    embedded = tower.embed(pixels).double()
    exact = tower.double().embed(pixels.double())
    assert float((embedded - exact).norm() / exact.norm()) < 2e-6


def test_accuracy_is_that_of_the_cpu() -> None:
    images = Noise([0, 1, 2] * 9, seed=5)
    scores = [
        evaluate(small_dear(small_clip_of().to(device)).to(device), images, batch=5, precision="32-true")
        for device in ("cpu", "cuda")
    ]
    assert scores[0].accuracy == pytest.approx(scores[1].accuracy, abs=1.01 / 27)


def test_views_arrive_in_order() -> None:
    images = few()
    batches = torch.arange(7).split(3)
    side = images.pictures.shape[-1]
    loaded = prefetch_views(images, batches, Preprocess(side), "cuda")
    for chosen, views in zip(batches, loaded, strict=True):
        assert views.is_cuda
        assert torch.equal(views, to_unit(images.pictures[chosen].cuda()))
