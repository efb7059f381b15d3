"""Skip Tuning (Wu et al., CVPR 2025): CLIP's own late layers, trained from the trunk outputs of its early
ones, on few classes at a time.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from dear.backbone.block import Block
from dear.backbone.clip import Clip
from dear.backbone.towers import outside_autocast
from dear.data.fewshot import items_by_class
from dear.methods.base import ImageFeatures, Labels, Losses, Method, Target, Trunk
from dear.methods.optional import StepHooks, TrainsBlocks
from dear.methods.shared import first_layers
from dear.methods.shared_settings import templates_or
from dear.methods.skip import METHOD, SkipSettings

STEEP = 5.0
"""Where the last rank lies on the exponential that gives the probability to stay."""


class SkipTuning(Method, StepHooks, TrainsBlocks):
    """CLIP's layers from ``first`` on, the final LayerNorms and the projections of both towers, trained as
    they are, without added tokens or layers. The towers' early layers are the trunk (layer skip), and a
    batch's loss is computed among few of the classes (class skip, `remaining_classes`). Other classes are
    scored by the trained towers.

    The layers are copies in the method, ``image`` and ``text``: the backbone, which other methods share,
    stays as it is. For ViT-B/16 they have 62.1 million parameters. A bundle holds them once, a checkpoint
    twice because of SGD's momentum.

    Source: arXiv 2412.11509; github.com/Koorye/SkipTuning at 8c4636e, trainers/skip_tuning.py,
    trainers/feature_loader.py and trainers/baselines/ft_clip.py; the settings of class skip are in train.py.

    Differs from the code: weights are in float32. In the code they are in float16, as here with
    ``--train.precision 16-true``, and many of its steps, near 1e-5, round to nothing: float32 trains more at
    the same rate. A class of the batch always stays in the loss, and so does the first rank that could be
    dropped. In the code, the labels of dropped classes become the first class (if a batch has more classes
    than stay), and with 2 or 3 classes the probability of that rank is 0/0, which drops it: with 2 the loss
    is then always zero. The order of batches is drawn from our generator. In the warm-up the image tower
    keeps its multiple of the text tower's rate; in the code both have the same. Towers of other depths
    [ours].
    """

    declaration = METHOD
    settings: SkipSettings
    mask_seed: Int[Tensor, ""]
    kept_ranks: Bool[Tensor, "class"]

    def __init__(self, clip: Clip, generator: torch.Generator, settings: SkipSettings | None = None) -> None:
        super().__init__(clip, generator, s := settings or SkipSettings())
        self.image_from, self.text_from = first_layers(clip, s, s.first, share=s.share)
        self.image, self.text = (
            clip.image.trainable_copy(self.image_from),
            clip.text.trainable_copy(self.text_from),
        )
        seed = torch.randint(2**31, (), generator=generator)
        self.register_buffer("mask_seed", seed)

    @torch.no_grad()
    def set_classes(self, classnames: Sequence[str], templates: Sequence[str]) -> None:
        """Set the classes, with the template of the settings, if they have one. Which ranks stay in the
        loss is drawn, with the same result each time for the same number of classes.
        """
        super().set_classes(classnames, templates_or(self.settings.template, templates))
        draw = torch.Generator().manual_seed(int(self.mask_seed))
        chances = stay_chances(len(classnames), self.settings)
        self.kept_ranks = (torch.rand(len(classnames), generator=draw) < chances).to(self.frozen_text.device)

    def image_block(self, layer: int) -> Block:
        late = layer - self.image_from
        return self.clip.image.block(layer) if late < 0 else self.image.block(late + 1)

    def image_features(self, trunk: Trunk) -> ImageFeatures:
        token = torch.zeros(1, dtype=torch.long, device=trunk.device)
        out = self.image.finish(self.image.span(trunk, 1, read=token)[:, 0])
        return normalize(out, dim=-1).unsqueeze(0)

    def text_features(self, rows: Int[Tensor, "row"] | None = None) -> Float[Tensor, "class embed"]:
        """Unit text features of the classes, or of those in ``rows``."""
        prompts = self.prompts
        if rows is not None:
            prompts = [trunk.of_rows(rows) for trunk in prompts]
        features = [
            normalize(self.text.features(trunk, 1, chunk=self.text_chunk), dim=-1) for trunk in prompts
        ]
        return normalize(torch.stack(features).mean(dim=0), dim=-1)

    def loss(self, trunk: Trunk, labels: Labels, frozen: Target = None) -> Losses:
        """Cross-entropy among the classes that stay in the batch's loss."""
        del frozen
        image = self.image_features(trunk)
        classes = self.remaining_classes(image[0], labels)
        logits = self.training_logits(image, self.text_features(classes))
        return {"loss": self.label_loss(logits, torch.searchsorted(classes, labels))}

    @torch.no_grad()
    def remaining_classes(
        self, image: Float[Tensor, "batch embed"], labels: Int[Tensor, "batch"]
    ) -> Int[Tensor, "remaining"]:
        """The classes that stay in the loss, in order: those of the batch, and those at the ranks in
        ``kept_ranks``, ranked by the greatest cosine of the frozen text feature with an image of the batch.
        """
        with outside_autocast(image.device):  # bfloat16 would round many cosines to equal ones
            cosines = image.to(self.frozen_text) @ self.frozen_text.T
        greatest = cosines.amax(dim=0)
        greatest[labels] = torch.inf
        ranked = greatest.argsort(descending=True)
        stays = torch.zeros_like(self.kept_ranks)
        stays[ranked[self.kept_ranks]] = True
        stays[labels] = True
        return stays.nonzero().squeeze(1)

    def batches(
        self, labels: Int[Tensor, "item"], size: int, draw: torch.Generator
    ) -> list[Int[Tensor, "item"]]:
        """If every class has enough images, batches of one class each, in random order; the remainder of a
        class is left out. Else random batches (as the authors have with 1 and 2 shots).
        """
        counts = labels.unique(return_counts=True)[1]
        if int(counts.min()) < size:
            order = torch.randperm(len(labels), generator=draw)
            return [*order.split(size)[: max(1, len(labels) // size)]]
        by_class = []
        for items in filter(len, items_by_class(labels.cpu())):
            items = items[torch.randperm(len(items), generator=draw)]
            by_class.append([*items.split(size)[: len(items) // size]])
        batches = []
        while by_class:
            number = int(torch.randint(len(by_class), (), generator=draw))
            batches.append(by_class[number].pop())
            if not by_class[number]:
                del by_class[number]
        return batches

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [
            {"params": [*self.text.parameters()], "rate": 1.0},
            {"params": [*self.image.parameters()], "rate": self.settings.image_rate},
        ]


def stay_chances(classes: int, settings: SkipSettings) -> Float[Tensor, "class"]:
    """The probability to stay for each rank of the classes: 1 for the first ones, then an exponential from 1
    to 0.
    """
    first = classes if settings.top == 1 else min(math.ceil(settings.top * classes), settings.most)
    chances = torch.ones(classes)
    if first < classes - 1:  # else the only other rank is the first of the curve, which stays
        x = torch.linspace(0, STEEP, classes - first, dtype=torch.float64)
        fall, remainder, total = (-values / settings.decay for values in (x, STEEP - x, x[-1]))
        # (exp(-x) - exp(-5)) / (1 - exp(-5)), not 0 / 0 for a large decay
        chances[first:] = fall.exp() * remainder.expm1() / total.expm1()
    return chances
