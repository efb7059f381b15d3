"""ProLIP (Fahes et al., 2024): CLIP's own projection of image features is tuned, and nothing else."""

import math

import torch
from torch import nn
from torch.nn.functional import normalize

from dear.backbone.clip import Clip
from dear.methods.base import ImageFeatures, Method, Readout, TrainingImages, Trunk
from dear.methods.optional import UsesAllImages
from dear.methods.prolip import METHOD, ProLipSettings

EPS = 1e-4
"""Adam's epsilon, as in the code."""


class ProLIP(Method, UsesAllImages):
    """The matrix P that projects the image tower's output x into the joint space, from CLIP's P_0, trained by

        cross-entropy of 100 cos(x P, text features) + lambda |P - P_0|^2,   lambda = 1 / shots

    with Adam and a cosine schedule, 300 steps on all images; each step sees another random view of them.

    Source: arXiv 2410.05270; github.com/astra-vision/ProLIP at b43e795, methods/ProLIP.py. As in the code:
    the first of the views is used last; a bias of the projection stays as it is.

    Differs from the code: P is trained in float64, there in float16 on a GPU, where part of the steps of 1e-5
    round to nothing. With unequal numbers of images, shots are their mean [ours]. Its rate and lambda for
    few-shot runs with validation images are searched on these; nothing is searched here.
    """

    declaration = METHOD
    settings: ProLipSettings

    def __init__(
        self, clip: Clip, generator: torch.Generator, settings: ProLipSettings | None = None
    ) -> None:
        super().__init__(clip, generator, s := settings or ProLipSettings(), scale=s.scale)
        self.projection = nn.Parameter(clip.image.projection.detach().clone())

    @torch.enable_grad()
    def before_training(self, images: TrainingImages) -> None:
        """Train the projection, from CLIP's own each time."""
        s, text = self.settings, self.frozen_text.double()
        start, scale = self.clip.image.projection.detach().double(), float(self.scale)
        bias = self.clip.image.projection_bias
        shots = len(images.labels) / len(self.classnames)
        reg_weight = 1 / shots if s.reg_weight is None else s.reg_weight
        views = dict[int, Readout]()  # those that are used again
        projection = start.clone().requires_grad_()
        optimizer = torch.optim.Adam([projection], eps=EPS)
        for epoch in range(s.epochs):
            number = (epoch + 1) % s.views
            with torch.no_grad():
                inputs = (
                    views[number] if number in views else self.clip.image.ln_final(images.view(number)[:, 0])
                )
            if s.views < s.epochs:
                views[number] = inputs
            embedded = inputs.double() @ projection + (0 if bias is None else bias.double())
            scores = scale * normalize(embedded, dim=-1) @ text.T
            distance = (projection - start).square().sum()
            optimizer.param_groups[0]["lr"] = 0.5 * s.lr * (1 + math.cos(math.pi * epoch / s.epochs))
            optimizer.zero_grad()
            (self.label_loss(scores, images.labels) + reg_weight * distance).backward()
            optimizer.step()
        with torch.no_grad():
            self.projection.copy_(projection)

    def image_features(self, trunk: Trunk) -> ImageFeatures:
        return normalize(self.clip.image.finish(trunk[:, 0], self.projection), dim=-1).unsqueeze(0)
