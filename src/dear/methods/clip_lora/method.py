"""CLIP-LoRA (Zanella and Ben Ayed, CVPR workshops 2024): low-rank updates of attention in all layers."""

import math
from collections.abc import Sequence

import torch
from torch import nn

from dear.backbone.change import LowRank, UpdateDropout
from dear.backbone.clip import Clip
from dear.methods.base import ImageFeatures, Method, TextFeatures, Trunk
from dear.methods.clip_lora import METHOD, ClipLoraSettings
from dear.methods.optional import StepHooks
from dear.methods.shared import uniform
from dear.methods.shared_settings import templates_or


class ClipLora(Method, StepHooks):
    """In each layer of both towers the weights of queries, keys and values become W + alpha / sqrt(r) B A,
    with A (r, width) and B (width, r) trained, W frozen, and B zero at first. In a training step

        q = W x + b + alpha / sqrt(r) B A drop(x)

    with x the normalized tokens; q, k and v of each layer, image and prompt each drop values of their own.
    Outside of training steps, the updated weights are used. The loss is the cross-entropy of scaled cosines;
    text features are computed in each step. Other classes are scored by the updated towers.

    Source: arXiv 2405.18541; github.com/MaxZanella/CLIP-LoRA at 358f0d7, lora.py, loralib/layers.py and
    run_utils.py. As in the code: the factor is alpha / sqrt(r), not LoRA's alpha / r; cosines are multiplied
    by 100; the template is "a photo of a {}." for all data sets.

    Differs from the code: dropout is drawn from our generator; B A x is computed as B (A x) where values are
    dropped; no part is cast to half precision.
    """

    declaration = METHOD
    settings: ClipLoraSettings

    def __init__(
        self, clip: Clip, generator: torch.Generator, settings: ClipLoraSettings | None = None
    ) -> None:
        super().__init__(clip, generator, s := settings or ClipLoraSettings(), scale=s.scale)
        self.image_from = self.text_from = 1
        like = clip.image.projection
        image, text = (
            uniform(like, generator, tower.depth, 3, s.rank, tower.width) for tower in (clip.image, clip.text)
        )
        self.image_down, self.text_down = nn.Parameter(image), nn.Parameter(text)
        self.image_up, self.text_up = (nn.Parameter(down.new_zeros(down.mT.shape)) for down in (image, text))
        self.image_dropout: UpdateDropout | None = None  # dropout of the current step
        self.text_dropout: UpdateDropout | None = None

    @property
    def factor(self) -> float:
        """The factor that updates are multiplied by."""
        return self.settings.alpha / math.sqrt(self.settings.rank)

    @torch.no_grad()
    def set_classes(self, classnames: Sequence[str], templates: Sequence[str]) -> None:
        """Set the classes, with the template of the settings, if they have one."""
        super().set_classes(classnames, templates_or(self.settings.template, templates))

    def image_features(self, trunk: Trunk) -> ImageFeatures:
        change = LowRank(self.image_down, self.image_up, self.factor, self.image_dropout)
        return self.class_feature(trunk, change).unsqueeze(0)

    def text_features(self) -> TextFeatures:
        change = LowRank(self.text_down, self.text_up, self.factor, self.text_dropout)
        return self.mean_over_templates(change)

    def before_step(self, draw: torch.Generator) -> None:
        """Draw the seeds of the step's dropout."""
        if self.settings.dropout:
            towers = (self.clip.image, self.clip.text)
            seeds = [torch.randint(2**62, (tower.depth, 3), generator=draw).tolist() for tower in towers]
            self.image_dropout, self.text_dropout = (
                UpdateDropout(self.settings.dropout, tower_seeds) for tower_seeds in seeds
            )

    def after_step(self, progress: float) -> None:
        """End the step's dropout."""
        del progress
        self.image_dropout = self.text_dropout = None
