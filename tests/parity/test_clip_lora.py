"""CLIP-LoRA trains as its authors' code does: scores, losses, rates and parameters in five steps, a test."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dear.backbone.change import UpdateDropout
from dear.backbone.clip import Clip
from dear.methods.clip_lora import ClipLoraSettings
from dear.methods.clip_lora.method import ClipLora
from dear.training.settings import TrainSettings
from tools.parity import small
from tools.parity.make_clip_lora import BATCHES, CASES, RATE, TOWERS, keeps, start


@dataclass(frozen=True)
class Replayed(UpdateDropout):
    """The masks of a step that the reference was made with. Of the last layer's queries only the row of the
    token that is read is computed.
    """

    tower: str = "image"
    step: int = 0
    read: Tensor | None = None

    def drop(self, tokens: Tensor, layer: int, part: int) -> Tensor:
        mask = keeps(self.tower, layer, part, self.step)
        if tokens.shape[1] == 1:
            assert (layer, part) == (TOWERS[self.tower][0] - 1, 0)
            mask = mask[torch.arange(len(mask)), self.read].unsqueeze(1)
        mask = mask if self.rows is None else mask[self.rows]
        return tokens * mask[:, : tokens.shape[1]] / (1 - self.rate)


@pytest.fixture(scope="module")
def clip() -> Clip:
    return small.small_openai_clip()


def drawn(clip: Clip, case: dict[str, Any]) -> ClipLora:
    method = ClipLora(clip, torch.Generator(), ClipLoraSettings(template="a photo of a {}.", **case))
    method.set_classes(small.CLASSES, [small.TEMPLATE])
    with torch.no_grad():
        for name, value in start(case["rank"]).items():
            method.get_parameter(name).copy_(value)
    return method


@torch.no_grad()
def cosines(method: ClipLora, images: Tensor) -> Tensor:
    return method.image_features(method.image_trunk(images))[0] @ method.text_features().T


@pytest.mark.parametrize("name", CASES)
def test_same_training_as_the_public_code(name: str, clip: Clip) -> None:
    case, stored = CASES[name], load_file(small.FOLDER / "clip-lora.safetensors")
    want = {key.removeprefix(f"{name}/"): x for key, x in stored.items() if key.startswith(f"{name}/")}
    method = drawn(clip, case)
    before = {key: parameter.detach().clone() for key, parameter in method.named_parameters()}
    published = {**ClipLoraSettings.training, "lr": RATE, "steps_per_shot": small.STEPS}
    training = TrainSettings(**published)  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(method.trainable, lr=RATE, weight_decay=training.weight_decay)
    rates, losses, scores = [], [], []
    assert training.total_steps(images=len(small.CLASSES), classes=len(small.CLASSES), epoch_steps=3) == 5
    for step in range(small.STEPS):
        image, labels = small.images()[step % BATCHES], small.LABELS[step % BATCHES]
        (group,) = optimizer.param_groups
        group["lr"] = training.lr_at(step / BATCHES, small.STEPS / BATCHES)
        method.before_step(torch.Generator())
        assert (method.image_dropout is None) == (case["dropout"] == 0)
        if case["dropout"]:
            read = {"image": torch.zeros(small.BATCH, dtype=torch.long), "text": method.prompts[0].end}
            method.image_dropout, method.text_dropout = (
                Replayed(case["dropout"], (), tower=tower, step=step, read=read[tower]) for tower in TOWERS
            )
        logits = method.logits(method.image_features(method.image_trunk(image)), method.text_features())
        loss = method.loss(method.image_trunk(image), labels)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        method.after_step((step + 1) / small.STEPS)
        rates.append(group["lr"])
        losses.append(float(loss.detach()))
        scores.append(logits.detach())
    torch.testing.assert_close(torch.tensor(rates, dtype=torch.float64), want["rates"], rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.stack(scores), want["scores"], rtol=0, atol=1e-4 * 100)
    torch.testing.assert_close(torch.tensor(losses), want["losses"], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(cosines(method, small.images()[0]), want["tested"], rtol=0, atol=1e-4)
    for key, parameter in method.named_parameters():
        after = want[f"after.{key}"]
        moved = (after - before[key]).abs().max()
        assert moved > 1e-2
        assert (parameter.detach() - after).abs().max() < 1e-2 * moved, key
