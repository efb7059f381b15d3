"""Contrastive pretraining of the tiny CLIP on the Attribute World: resumable, and a pure function of its
settings.

Every caption names some of an image's factors, so it also describes other images of the batch. All of them
are its positives (UniCL, Yang et al., CVPR 2022): the target of each row and column of the
similarity matrix is uniform over them.
"""

import copy
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import log_softmax, normalize

from dear.backbone import tiny
from dear.backbone.attention import attend_written_out
from dear.backbone.convert import to_towers
from dear.backbone.device import find_device
from dear.backbone.tokenizer import WordTokenizer
from dear.backbone.towers import TextTower
from dear.data.files import whole
from dear.data.world.captions import describe, world_words
from dear.data.world.factors import FACTOR_NAMES, STYLES
from dear.data.world.render import render
from dear.data.world.scene import Scene, draw_scenes
from dear.errors import OutputError, TrainingDiverged, first_line
from dear.training.checkpoint import (
    AMISS,
    CheckpointError,
    read_state,
    require_steps,
    set_aside,
    write_state,
)
from dear.training.seeding import generator
from dear.training.settings import PretrainSettings

SKETCH = STYLES.values.index("sketch")


def matches(
    images: Int[Tensor, "image factor"],
    visible: Bool[Tensor, "image factor"],
    captions: Int[Tensor, "caption factor"],
    named: Bool[Tensor, "caption factor"],
) -> Bool[Tensor, "image caption"]:
    """Which images a caption describes: every factor that it names is visible in the image and has the
    named value.
    """
    same = (images[:, None] == captions[None]) & visible[:, None]
    return (same | ~named[None]).all(dim=-1)


def multi_positive_loss(
    similarity: Float[Tensor, "image caption"], positive: Bool[Tensor, "image caption"]
) -> Float[Tensor, ""]:
    """Cross-entropy against uniform targets over the positives, mean of both directions (UniCL, eq. 2 to
    4).
    """

    def one_way(logits: Tensor, mask: Tensor) -> Tensor:
        target = mask / mask.sum(dim=1, keepdim=True)
        return -(target * log_softmax(logits, dim=1)).sum(dim=1).mean()

    mask = positive.to(similarity.dtype)
    return 0.5 * (one_way(similarity, mask) + one_way(similarity.T, mask.T))


def visible_factors(scene: Scene) -> Bool[Tensor, "image factor"]:
    """All factors are visible, except the colour of a sketch."""
    visible = torch.ones_like(scene.factors, dtype=torch.bool)
    visible[:, FACTOR_NAMES.index("color")] = scene.style != SKETCH
    return visible


def text_features(
    tower: TextTower, ids: Int[Tensor, "caption token"], parts: int = 4
) -> Float[Tensor, "caption embed"]:
    """The tower's features, computed in ``parts`` from short to long captions: each part is cut at its own
    longest caption, so that a few long ones do not pad the rest (exact, as attention is causal).
    """
    order = ids.argmax(dim=-1).argsort(stable=True)
    features = torch.cat([tower(ids[rows]) for rows in order.chunk(parts)])
    return features[order.argsort()]


class Pretraining:
    """One pretraining run in a folder: ``run`` continues from the folder's checkpoint if there is one."""

    def __init__(self, settings: PretrainSettings, out: Path, device: str = "cpu") -> None:
        self.settings, self.out, self.device = settings, out, find_device(device)
        self.tokenizer = WordTokenizer(world_words(), tiny.config()["text_cfg"]["context_length"])
        self.master = tiny.build(self.tokenizer, settings.seed).to(self.device)
        self.worker = tiny.build(self.tokenizer, settings.seed).to(
            self.device, torch.bfloat16 if settings.bf16 else torch.float32
        )
        self.image, self.text = to_towers(self.worker)
        if self.device.type == "cpu":  # the fused kernel is several times slower there at 37 tokens
            for block in [*self.image.blocks, *self.text.blocks]:
                block.attend = attend_written_out
        matrices = [p for p in self.master.parameters() if p.ndim >= 2]
        vectors = [p for p in self.master.parameters() if p.ndim < 2]
        groups = [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.98), fused=True)
        self.step, self.seconds, self.loss = 0, 0.0, float("nan")

    def batch_loss(self, step: int) -> Float[Tensor, ""]:
        """Loss of the batch of a step, through the worker's weights."""
        s = self.settings
        index = torch.arange(step * s.batch, (step + 1) * s.batch, device=self.device)
        scene = draw_scenes(s.seed, index, combinations="pretraining")
        drawn = [describe(scene, s.seed, index, draw=draw) for draw in range(s.captions)]
        drawn.append(describe(scene, s.seed, index, draw=s.captions, only=s.emphasis))
        texts = list(dict.fromkeys(text for captions in drawn for text in captions.texts))
        row = {text: i for i, text in enumerate(texts)}
        place = torch.tensor([row[text] for captions in drawn for text in captions.texts], device=self.device)
        dtype = torch.bfloat16 if s.bf16 else torch.float32
        pixels = (render(scene, tiny.config()["vision_cfg"]["image_size"]).to(dtype) / 255 - 0.5) / 0.5
        images = normalize(self.image(pixels).float(), dim=-1)
        ids = self.tokenizer(texts, spell=self._spelling(step)).to(self.device)
        captions = normalize(text_features(self.text, ids).float(), dim=-1)[place]
        scale = self.worker.logit_scale.float().exp()  # type: ignore[operator]
        named = torch.cat([captions.named for captions in drawn])
        positive = matches(scene.factors, visible_factors(scene), scene.factors.repeat(len(drawn), 1), named)
        return multi_positive_loss(scale * images @ captions.T, positive)

    def _spelling(self, step: int) -> Callable[[str], bool]:
        """Which words of a step's captions are spelled out: each with the same chance, in the order asked."""
        if self.settings.spelled == 0:
            return lambda _: False
        numbers = torch.rand(1 << 14, generator=generator(self.settings.seed, "spelling", step)).tolist()
        drawn = cycle(numbers)
        return lambda _: next(drawn) < self.settings.spelled

    def advance(self) -> None:
        """One optimisation step."""
        with torch.no_grad():
            for worker, master in zip(self.worker.parameters(), self.master.parameters(), strict=True):
                worker.copy_(master)
        loss = self.batch_loss(self.step)
        self.worker.zero_grad(set_to_none=True)
        loss.backward()
        for worker, master in zip(self.worker.parameters(), self.master.parameters(), strict=True):
            master.grad = None if worker.grad is None else worker.grad.float()
        norm = nn.utils.clip_grad_norm_(self.master.parameters(), 1.0)
        if not (torch.isfinite(loss) and torch.isfinite(norm)):
            raise TrainingDiverged(
                self.step + 1,
                "Try a lower --settings.lr, a longer --settings.warmup or --no-settings.bf16.",
                self._kept(),
            )
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.lr_at(self.step)
        self.optimizer.step()
        with torch.no_grad():
            self.master.logit_scale.clamp_(max=math.log(100))  # type: ignore[operator]
        self.step += 1
        value = float(loss.detach())
        self.loss = value if math.isnan(self.loss) else 0.98 * self.loss + 0.02 * value

    def run(
        self,
        *,
        every: int = 250,
        start_over: bool = False,
        progress: Callable[["Pretraining"], None] = lambda _: None,
    ) -> dict[str, Any]:
        """Train to the end, with a checkpoint and a call of ``progress`` each ``every`` steps; write and
        return the model's facts. With ``start_over`` a damaged checkpoint is set aside, and it starts over.
        """
        self._make_folder()
        before = copy.deepcopy((self.master.state_dict(), self.optimizer.state_dict()))
        try:
            self.resume()
        except CheckpointError as error:
            if not start_over:
                raise
            set_aside(error.path)
            self.master.load_state_dict(before[0])  # a part may have been taken up
            self.optimizer.load_state_dict(before[1])
        start, before = time.perf_counter(), self.seconds
        while self.step < self.settings.steps:
            self.advance()
            if self.step % every == 0 or self.step == self.settings.steps:
                self.seconds = before + time.perf_counter() - start
                self.save()
                progress(self)
        return self.export()

    def save(self) -> None:
        """Write the checkpoint, replacing the last one whole."""
        state = {
            "settings": json.dumps(asdict(self.settings)),
            "step": self.step,
            "seconds": self.seconds,
            "loss": self.loss,
            "model": self.master.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        write_state(self._checkpoint, state)

    def resume(self) -> None:
        """Take up the folder's checkpoint, if it has one. Raises OutputError for one of other settings,
        CheckpointError for one that is not what was written.
        """
        if not self._checkpoint.exists():
            return
        state = read_state(self._checkpoint, self.device)
        if state.get("settings") != json.dumps(asdict(self.settings)):
            raise OutputError(
                f"{self._checkpoint} is of other settings ({state.get('settings')}): "
                "choose another --out or remove it."
            )
        try:
            self.master.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            require_steps(self.optimizer, state["step"])
            self.step, self.seconds, self.loss = state["step"], float(state["seconds"]), float(state["loss"])
        except AMISS as error:
            raise CheckpointError(self._checkpoint, first_line(error)) from error

    def export(self) -> dict[str, Any]:
        """Write float16 weights and vocabulary as the package embeds them; return what the run was."""
        self._make_folder()
        state = {name: tensor.half().contiguous() for name, tensor in self.master.state_dict().items()}
        try:
            with whole(self.out / tiny.WEIGHTS) as file:
                file.write(save(state, metadata={"format": "pt"}))
            with whole(self.out / tiny.VOCABULARY) as file:
                file.write(self.tokenizer.to_json().encode())
        except OSError as error:
            raise OutputError(
                f"cannot write the model to {self.out}: {error}. Choose another --out."
            ) from error
        return {
            "settings": asdict(self.settings), "steps": self.step, "loss": round(self.loss, 4), "seconds":
            round(self.seconds), "parameters": sum(p.numel() for p in self.master.parameters()),
        }  # fmt: skip

    def _make_folder(self) -> None:
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot write to {self.out}: {error}. Choose another --out.") from error

    @property
    def _checkpoint(self) -> Path:
        return self.out / "checkpoint.pt"

    def _kept(self) -> Path | None:
        return self._checkpoint if self._checkpoint.exists() else None
