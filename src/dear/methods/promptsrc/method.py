"""PromptSRC (Khattak et al., ICCV 2023): deep prompts in both towers, regularized towards the frozen CLIP and
averaged over epochs.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import kl_div, l1_loss, log_softmax, normalize

from dear.backbone.clip import Clip, fill
from dear.backbone.text import TextTrunk
from dear.methods.base import ImageFeatures, Labels, Losses, Method, Target, TextFeatures, Trunk
from dear.methods.context import context_ids, initial_context
from dear.methods.optional import StepHooks
from dear.methods.promptsrc import METHOD, PromptSrcSettings
from dear.methods.shared import add_epoch, deep_prompts, image_injection, text_injection
from dear.methods.shared_settings import imagenet_templates


class PromptSRC(Method, StepHooks):
    """Self-regularized prompts: in each of the first layers of a tower, new prompts replace the previous
    ones; features and scores are regularized towards those of the frozen CLIP, whose text features are means
    over many templates; the final prompts are a Gaussian-weighted mean over epochs.

    Source: arXiv 2307.06948; github.com/muzairkhattak/PromptSRC at bb95c77, trainers/promptsrc.py and
    clip/model.py. As in the code, the divergence of scores is summed and divided by their number, and the
    frozen text feature of a class is the mean of unnormalized features.

    Differs from the code: nothing is cast to half precision, and only the prompts are averaged (the rest is
    constant).
    """

    declaration = METHOD
    settings: PromptSrcSettings
    target = "trunk"
    placed: TextTrunk
    image_average: Tensor
    text_average: Tensor

    def __init__(
        self, clip: Clip, generator: torch.Generator, settings: PromptSrcSettings | None = None
    ) -> None:
        super().__init__(clip, generator, s := settings or PromptSrcSettings())
        self.image_from = self.text_from = 1
        towers = ((clip.image, s.image_depth, s.image_tokens), (clip.text, s.text_depth, s.text_tokens))
        image, text = (
            deep_prompts(tower, depth, tokens, s.token_std, generator, share=s.share)
            for tower, depth, tokens in towers
        )
        text[0] = initial_context(clip, s.words, s.text_tokens, s.token_std, generator)
        self.image_prompts, self.text_prompts = nn.Parameter(image), nn.Parameter(text)
        self.register_buffer("image_average", image.new_zeros(image.shape))
        self.register_buffer("text_average", text.new_zeros(text.shape))
        self._text_targets: Tensor | None = None

    @torch.no_grad()
    def set_classes(self, classnames: Sequence[str], templates: Sequence[str]) -> None:
        super().set_classes(classnames, templates)
        self.templates, self._text_targets = tuple(templates), None
        ids = context_ids(self.clip, classnames, self.settings.words, self.settings.text_tokens)
        self.placed = self.clip.text.trunk(ids, 1)

    @torch.no_grad()
    def text_targets(self) -> Float[Tensor, "class embed"]:
        """The frozen CLIP's unit text features, averaged over the templates; computed on first use."""
        if self._text_targets is None:
            templates: Sequence[str] = self.templates
            if self.settings.teacher == "imagenet":
                templates = imagenet_templates()
            encoded = [self.clip.encode_text(fill(template, self.classnames)) for template in templates]
            self._text_targets = normalize(torch.stack(encoded).mean(dim=0), dim=-1)
        return self._text_targets

    def image_features(self, trunk: Trunk) -> ImageFeatures:
        return self.class_feature(trunk, image_injection(self.clip.image, self.image_prompts)).unsqueeze(0)

    def text_features(self) -> TextFeatures:
        change = text_injection(self.clip.text, self.text_prompts, self.clip.first_word)
        return normalize(self.clip.text.features(self.placed, 1, change, self.text_chunk), dim=-1)

    def loss(self, trunk: Trunk, labels: Labels, frozen: Target = None) -> Losses:
        """Cross-entropy plus distances of features and scores from the frozen ones."""
        s, targets = self.settings, self.text_targets()
        frozen = self.frozen_image(trunk) if frozen is None else frozen
        image, text = self.image_features(trunk), self.text_features()
        scores = self.training_logits(image, text)
        ce = self.label_loss(scores, labels)
        text_distance = l1_loss(text, targets)
        image_distance = l1_loss(image[0], frozen)
        frozen_scores = self.training_logits(frozen.unsqueeze(0), targets)
        student, target = log_softmax(scores, 1), log_softmax(frozen_scores, 1)
        divergence = kl_div(student, target, reduction="sum", log_target=True) / scores.numel()
        loss = (
            ce + s.text_weight * text_distance + s.image_weight * image_distance + s.logit_weight * divergence
        )
        return {"loss": loss, "ce": ce, "text": text_distance, "image": image_distance, "logits": divergence}

    def after_epoch(self, epoch: int, epochs: int) -> None:
        """Add the epoch's prompts to the average, which replaces them after the last epoch."""
        s = self.settings
        weight = average_weights(epochs, s.average_mean, s.average_std)[epoch - 1]
        pairs = ((self.image_prompts, self.image_average), (self.text_prompts, self.text_average))
        add_epoch(pairs, weight, epoch, epochs)


def average_weights(epochs: int, mean: float, std: float) -> list[float]:
    """Weights of epochs 1, 2, ... under a Gaussian, summing to one."""
    epoch = torch.arange(1, epochs + 1, dtype=torch.float64)
    weights: list[float] = (-0.5 * ((epoch - mean) / std) ** 2).softmax(dim=0).tolist()
    return weights
