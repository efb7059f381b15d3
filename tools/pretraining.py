"""Contrastive pretraining of the tiny CLIP on the Attribute World: resumable, and a pure function of its
settings.

Every caption names some of an image's factors, so it may also describe other images of the batch. All images
it describes are its positives (UniCL, Yang et al., CVPR 2022): the target of each row and column of the
similarity matrix is uniform over them.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import log_softmax, normalize

from dear.backbone.attention import attend_written_out
from dear.backbone.device import find_device
from dear.backbone.loading import tiny, weights
from dear.backbone.loading.convert import to_towers
from dear.backbone.loading.tiny import WordTokenizer
from dear.backbone.text import TextTower
from dear.backbone.vision import VisionTower
from dear.errors import (
    OutputError,
    TrainingDiverged,
    UnknownNameError,
    WeightsError,
    first_line,
)
from dear.reading.typed import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Range,
    Share,
    check_fields,
)
from dear.training.checkpoint import write_state
from dear.training.seeding import generator
from dear.world.factors import FACTOR_NAMES, STYLES
from dear.world.render import render
from dear.world.scene import Scene, draw_scenes
from dear.writing import atomic_write, write_json
from tools.captions import describe, world_words

FACTS = "pretraining.json"
"""File with the facts of a run, preceded by those of the run it started from."""

SKETCH = STYLES.values.index("sketch")


@dataclass(frozen=True)
class PretrainSettings:
    """Settings of a pretraining run; together with the version of the code they determine the weights (bit
    for bit on one machine).

    Attributes:
        images: Images to train on, each seen once.
        batch: Images per step.
        captions: Captions drawn per image.
        lr: Peak learning rate of AdamW.
        weight_decay: Weight decay of matrices; vectors have none.
        warmup: Steps of linear warm-up, before the cosine to zero.
        restart: Number of images after which warm-up and cosine start again, at half the peak (a warm restart
            as in SGDR, Loshchilov & Hutter, ICLR 2017); 0 for none.
        bf16: Forward and backward pass in bfloat16, with float32 master weights.
        seed: Seed of the initial weights and the images.
        emphasis: A factor for which each image gets one extra caption that names nothing else: texture is
            learned last. Several, separated by commas, give one extra caption each.
        spelled: Probability that a word of a caption is spelled out, so that the letters of words outside
            the vocabulary get a meaning.
        late: Weight of the term that makes the class token gather late (``early_share``); 0 for none. In real
            ViT CLIPs the late attention layers build the class token (Gandelsman et al., ICLR 2024).
        late_first: The first layer that may write image content into the class token.
        late_mlp: Weight of the term that makes it gather through attention heads (``mlp_share``); 0 for none.
    """

    images: PositiveInt = 1_700_000
    batch: PositiveInt = 128
    captions: PositiveInt = 2
    lr: PositiveFloat = 1e-3
    weight_decay: NonNegativeFloat = 0.05
    warmup: NonNegativeInt = 500
    restart: NonNegativeInt = 1_000_000
    bf16: bool = True
    seed: int = 0
    emphasis: str = "texture"
    spelled: Share = 0.1
    late: NonNegativeFloat = 0.0
    late_first: Annotated[int, Range(2)] = 9
    late_mlp: NonNegativeFloat = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        for name in self.emphasized:
            if name not in FACTOR_NAMES:
                raise UnknownNameError("factor", name, FACTOR_NAMES)

    @property
    def emphasized(self) -> list[str]:
        """The factors in ``emphasis``, in order."""
        return [name.strip() for name in self.emphasis.split(",")]

    @property
    def steps(self) -> int:
        """Total number of steps; the last batch is full."""
        return math.ceil(self.images / self.batch)

    def lr_at(self, step: int) -> float:
        """Learning rate of a step, counted from 0: linear warm-up, then a cosine to zero; repeated at half
        the peak after the restart.
        """
        first = min(math.ceil(self.restart / self.batch), self.steps) or self.steps
        peak, begin, end = (self.lr, 0, first) if step < first else (self.lr / 2, first, self.steps)
        if step - begin < self.warmup:
            return peak * (step - begin + 1) / self.warmup
        done = (step - begin - self.warmup) / max(1, end - begin - self.warmup)
        return peak * 0.5 * (1 + math.cos(math.pi * done))


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
    """Every factor is visible, except the color of a sketch."""
    visible = torch.ones_like(scene.factors, dtype=torch.bool)
    visible[:, FACTOR_NAMES.index("color")] = scene.style != SKETCH
    return visible


def early_share(tokens: Float[Tensor, "batch token width"]) -> Float[Tensor, ""]:
    """How much the class token (token 0) varies with the image, relative to the patch tokens: the variance of
    the class token over the batch divided by that of the patch tokens over batch and tokens (no gradient
    flows through the latter).

    At the input of a layer it measures how much of the image the class token has gathered before that layer;
    0 is nothing. In real ViT CLIPs the late attention layers build the class token: mean-ablating all earlier
    ones hardly changes the accuracy (Gandelsman et al., ICLR 2024). [ours]
    """
    tokens = tokens.float()
    return _variance(tokens[:, 0]) / _variance(tokens[:, 1:].flatten(0, 1).detach())


def mlp_share(mlps: Float[Tensor, "batch width"], heads: Float[Tensor, "batch width"]) -> Float[Tensor, ""]:
    """How much of the class token the MLPs write, relative to the attention heads: the variance over the
    batch of the MLPs' sum divided by that of the heads' sum (no gradient flows through the latter).

    In real ViT CLIPs the direct effect of the MLPs is negligible (Gandelsman et al., ICLR 2024). [ours]
    """
    return _variance(mlps.float()) / _variance(heads.float().detach())


def _variance(vectors: Float[Tensor, "item width"]) -> Float[Tensor, ""]:
    return (vectors - vectors.mean(dim=0)).square().sum(dim=-1).mean()


@contextmanager
def mlps_of_class_token(tower: VisionTower, first: int) -> Iterator[list[Tensor]]:
    """Collect in the yielded list what the MLP of each layer from ``first`` on adds to the class token,
    (batch, width), in every forward pass.
    """
    written: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        written.append(output[:, 0])  # the last layer runs on the class token alone

    hooks = [block.ls_2.register_forward_hook(keep) for block in tower.blocks[first - 1 :]]  # type: ignore[union-attr]
    try:
        yield written
    finally:
        for hook in hooks:
            hook.remove()


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
    """One pretraining run in a folder: ``run`` continues from the folder's checkpoint if it exists."""

    def __init__(
        self, settings: PretrainSettings, out: Path, device: str = "cpu", *, start: Path | None = None
    ) -> None:
        self.settings, self.out, self.device = settings, out, find_device(device)
        self.start: dict[str, Any] | None = None
        self.tokenizer = WordTokenizer(world_words(), tiny.config()["text_cfg"]["context_length"])
        self.master = tiny.build(self.tokenizer, settings.seed).to(self.device)
        dtype = torch.bfloat16 if settings.bf16 else torch.float32
        self.worker = tiny.build(self.tokenizer, settings.seed).to(self.device, dtype)
        self.image, self.text = to_towers(self.worker)
        if self.device.type == "cpu":  # the fused kernel is several times slower there at 37 tokens
            for block in [*self.image.blocks, *self.text.blocks]:
                block.attend = attend_written_out
        if start is not None:
            self._start_from(start)
        matrices = [p for p in self.master.parameters() if p.ndim >= 2]
        vectors = {"params": [p for p in self.master.parameters() if p.ndim < 2], "weight_decay": 0.0}
        groups = [{"params": matrices, "weight_decay": settings.weight_decay}, vectors]
        self.optimizer = torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.98), fused=True)
        self.step, self.seconds, self.loss = 0, 0.0, float("nan")

    def _start_from(self, folder: Path) -> None:
        """Take the weights of an earlier run, and add its facts to this run's."""
        identity = tiny.load(folder).identity  # reports what is wrong with the folder
        if WordTokenizer.load(folder / tiny.VOCABULARY).words != self.tokenizer.words:
            raise WeightsError(f"the vocabulary of {folder} differs from this version's: retrain it.")
        self.master.load_state_dict(weights.read_weights(folder / tiny.WEIGHTS))
        facts = folder / FACTS
        run = json.loads(facts.read_text(encoding="utf-8")) if facts.exists() else None
        self.start = {"sha256": identity.sha256, "run": run}

    def batch_loss(self, step: int) -> Float[Tensor, ""]:
        """Loss of the batch of a step, with the working copy of the weights."""
        s = self.settings
        index = torch.arange(step * s.batch, (step + 1) * s.batch, device=self.device)
        scene = draw_scenes(s.seed, index, combinations="pretraining")
        drawn = [describe(scene, s.seed, index, draw=draw) for draw in range(s.captions)]
        for draw, only in enumerate(s.emphasized, start=s.captions):
            drawn.append(describe(scene, s.seed, index, draw=draw, only=only))
        texts = list(dict.fromkeys(text for captions in drawn for text in captions.texts))
        row = {text: i for i, text in enumerate(texts)}
        place = torch.tensor([row[text] for captions in drawn for text in captions.texts], device=self.device)
        dtype = torch.bfloat16 if s.bf16 else torch.float32
        pixels = (render(scene, tiny.config()["vision_cfg"]["image_size"]).to(dtype) / 255 - 0.5) / 0.5
        first = s.late_first if s.late or s.late_mlp else self.image.depth
        trunk = self.image.trunk(pixels, first)
        with mlps_of_class_token(self.image, first) as written:
            read = torch.zeros(1, dtype=torch.long, device=trunk.device)
            class_token = self.image.span(trunk, first, read=read)[:, 0]
        images = normalize(self.image.finish(class_token).float(), dim=-1)
        ids = self.tokenizer(texts, spell=self._spelling(step)).to(self.device)
        captions = normalize(text_features(self.text, ids).float(), dim=-1)[place]
        scale = self.worker.logit_scale.float().exp()  # type: ignore[operator]
        named = torch.cat([captions.named for captions in drawn])
        positive = matches(scene.factors, visible_factors(scene), scene.factors.repeat(len(drawn), 1), named)
        matched = positive.any(dim=0)  # a caption that names the color of a sketch may match no image
        loss = multi_positive_loss(scale * images @ captions[matched].T, positive[:, matched])
        if s.late:
            loss = loss + s.late * early_share(trunk)
        if s.late_mlp:
            mlps = torch.stack(written).sum(dim=0)
            loss = loss + s.late_mlp * mlp_share(mlps, class_token - trunk[:, 0] - mlps)
        return loss

    def _spelling(self, step: int) -> Callable[[str], bool]:
        """The function that draws, call by call, whether to spell out a word of a step's captions."""
        numbers = torch.rand(1 << 14, generator=generator(self.settings.seed, "spelling", step)).tolist()
        drawn = cycle(numbers)
        return lambda _: next(drawn) < self.settings.spelled

    def advance(self) -> None:
        """One optimization step."""
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
            kept = self._checkpoint if self._checkpoint.exists() else None
            raise TrainingDiverged(self.step + 1, "Try a lower --lr, a longer --warmup or --no-bf16.", kept)
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.lr_at(self.step)
        self.optimizer.step()
        with torch.no_grad():
            self.master.logit_scale.clamp_(max=math.log(100))  # type: ignore[operator]
        self.step += 1
        value = float(loss.detach())
        self.loss = value if math.isnan(self.loss) else 0.98 * self.loss + 0.02 * value

    def run(
        self, *, every: int = 250, progress: Callable[["Pretraining"], None] = lambda _: None
    ) -> dict[str, Any]:
        """Train to the end, saving a checkpoint and calling ``progress`` every ``every`` steps; writes and
        returns the model's facts.
        """
        self.resume()
        start, before = time.perf_counter(), self.seconds
        while self.step < self.settings.steps:
            self.advance()
            if self.step % every == 0 or self.step == self.settings.steps:
                self.seconds = before + time.perf_counter() - start
                self.save()
                progress(self)
        return self.export()

    def save(self) -> None:
        """Write the checkpoint, replacing the previous one atomically."""
        state: dict[str, Any] = {"settings": self._belongs_to(), "model": self.master.state_dict()}
        state |= {"step": self.step, "seconds": self.seconds, "loss": self.loss}
        write_state(self._checkpoint, state | {"optimizer": self.optimizer.state_dict()})

    def resume(self) -> None:
        """Load the folder's checkpoint, if it has one. Raises OutputError for one of other settings, or a
        damaged one.
        """
        if not self._checkpoint.exists():
            return
        try:
            state = torch.load(self._checkpoint, map_location="cpu", weights_only=True)
            settings = state["settings"]
            if settings == self._belongs_to():
                self.master.load_state_dict(state["model"])
                self.optimizer.load_state_dict(state["optimizer"])
                self.step, self.seconds, self.loss = state["step"], state["seconds"], float(state["loss"])
        except Exception as error:  # a damaged file may fail anywhere in torch's reader
            raise OutputError(f"{self._checkpoint} is damaged ({first_line(error)}): remove it.") from error
        if settings != self._belongs_to():
            raise OutputError(
                f"{self._checkpoint} was written with other settings ({settings}): "
                "choose another --out or remove it."
            )

    def export(self) -> dict[str, Any]:
        """Write float16 weights and vocabulary as embedded in the package; returns the run's facts."""
        self.out.mkdir(parents=True, exist_ok=True)
        state = {name: tensor.half().contiguous() for name, tensor in self.master.state_dict().items()}
        with atomic_write(self.out / tiny.WEIGHTS) as file:
            file.write(save(state, metadata={"format": "pt"}))
        with atomic_write(self.out / tiny.VOCABULARY) as file:
            file.write(self.tokenizer.to_json().encode())
        facts = {
            "settings": asdict(self.settings), "steps": self.step, "loss": round(self.loss, 4), "seconds":
            round(self.seconds), "parameters": sum(p.numel() for p in self.master.parameters()),
            "start": self.start,
        }  # fmt: skip
        write_json(self.out / FACTS, facts)
        return facts

    def _belongs_to(self) -> str:
        """Identity of the run that the checkpoint belongs to."""
        start = {"start": self.start["sha256"]} if self.start else {}
        return json.dumps(asdict(self.settings) | start)

    @property
    def _checkpoint(self) -> Path:
        return self.out / "checkpoint.pt"
