"""CLAP (Silva-Rodriguez et al., CVPR 2024): a linear probe that starts from text features and is held near
them, each class as far as zero-shot CLIP knows it.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize, one_hot

from dear.backbone.clip import Clip
from dear.methods.base import Method, TextFeatures, TrainingImages
from dear.methods.clap import METHOD, ClapSettings
from dear.methods.optional import UsesAllImages

WARMUP_RATE, MOMENTUM = 1e-5, 0.9
"""Learning rate of the first epoch; momentum of all steps."""


class CLAP(Method, UsesAllImages):
    """Class-adaptive linear probing: the scores are scaled cosines with class vectors w_c, which start as the
    text features t_c (as the tower gives them, before they are normalized) and are trained by

        cross-entropy + mean over classes of lambda_c |w_c - t_c|^2

    lambda_c is zero-shot CLIP's mean probability of the right class over the views of the images of class c.
    With ``constraint`` "none" it is the authors' baseline ZS-LP, without the second term.

    Source: arXiv 2312.12730; github.com/jusiro/CLAP at dbdf409, trainers/adapters.py. As in the code: the
    features of 20 random views of each image are computed once; an epoch takes random ones of all these in
    batches of 256, as many batches as the images alone would fill, at least one; lambda stays as it is.

    Differs from the code: nothing is cast to half precision. Class names have spaces, where the code keeps
    the underscores of its data sets. A class without images has lambda 0 [ours]; the code has images of all.
    """

    declaration = METHOD
    settings: ClapSettings
    base: Float[Tensor, "class embed"]
    class_vectors: nn.Parameter

    def __init__(self, clip: Clip, generator: torch.Generator, settings: ClapSettings | None = None) -> None:
        super().__init__(clip, generator, settings or ClapSettings())
        self.generator = generator

    @torch.no_grad()
    def set_classes(self, classnames: Sequence[str], templates: Sequence[str]) -> None:
        """Set the classes; each gets its vector. Raises SettingsError for other classes afterwards."""
        first = not self.classnames
        super().set_classes(classnames, templates)
        features = [self.clip.text.features(prompts, self.text_from) for prompts in self.prompts]
        self.base = torch.stack(features).mean(dim=0)
        if first:
            self.class_vectors = nn.Parameter(self.base.clone())

    @torch.enable_grad()
    def before_training(self, images: TrainingImages) -> None:
        """Train the class vectors, in float64, from the text features and with the same draws each time."""
        s, images_count = self.settings, len(images.labels)
        with torch.no_grad():
            features = torch.cat([self.frozen_image(images.view(view)) for view in range(s.views)])
            labels, base, scale = images.labels.repeat(s.views), self.base.double(), float(self.scale)
            multipliers = self._multipliers(features, labels) * (s.constraint == "l2")
        class_vectors = base.clone().requires_grad_()
        optimizer = torch.optim.SGD([class_vectors], momentum=MOMENTUM)
        draw = torch.Generator().set_state(self.generator.get_state())
        taken = s.batch * max(1, images_count // s.batch)
        for epoch in range(s.epochs):
            cosine = 0.5 * s.lr * (1 + math.cos(math.pi * (epoch - 1) / s.epochs))
            optimizer.param_groups[0]["lr"] = cosine if epoch else WARMUP_RATE
            order = torch.randperm(len(labels), generator=draw)[:taken].to(labels.device)
            for batch in order.split(s.batch):
                scores = scale * features[batch].double() @ normalize(class_vectors, dim=-1).T
                distance = (multipliers * (class_vectors - base).square().sum(dim=1)).mean()
                optimizer.zero_grad()
                (self.label_loss(scores, labels[batch]) + distance).backward()
                optimizer.step()
        with torch.no_grad():
            self.class_vectors.copy_(class_vectors)

    def _multipliers(self, features: Float[Tensor, "item embed"], labels: Tensor) -> Float[Tensor, "class"]:
        """Each class's mean zero-shot probability of the right class."""
        text, sums = normalize(self.base, dim=-1).double(), self.base.new_zeros(len(self.base)).double()
        for part, right in zip(features.split(1024), labels.split(1024), strict=True):
            probabilities = (float(self.scale) * part.double() @ text.T).softmax(dim=1)
            sums += (probabilities * one_hot(right, len(text))).sum(dim=0)
        return sums / labels.bincount(minlength=len(text)).clamp(min=1)

    def text_features(self) -> TextFeatures:
        return normalize(self.class_vectors, dim=-1)
