"""ProVP-Ref (Xu et al., IJCV 2024): prompts in every layer of the image tower, mixed with the outputs of the
previous layer, and image features that stay recognizable among those of the frozen CLIP.
"""

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dear.backbone.change import Injection
from dear.backbone.clip import Clip
from dear.backbone.towers import outside_autocast
from dear.methods.base import ImageFeatures, Labels, Losses, Method, Target, TokenLayout, Trunk
from dear.methods.optional import PlacesTokens
from dear.methods.provp import METHOD, ProVpSettings
from dear.methods.shared import uniform
from dear.methods.shared_settings import templates_or


class ProVP(Method, PlacesTokens):
    """Progressive visual prompts: those of layer 1 stand between the class token and the patches, after the
    first LayerNorm and without positions; at a later layer, beta times its own prompts plus (1 - beta) times
    the previous layer's outputs stand there. Class features are the frozen CLIP's, with hand-written
    templates.

    Source: arXiv 2304.08386; github.com/MCG-NJU/ProVP at 837b8fb, trainers/provp.py and clip/model.py. As in
    the code: the mixture is 0.99 to 0.01; the re-formation loss is a cross-entropy of raw cosines,
    without a temperature, so that it starts near the logarithm of the batch size and hardly falls; its weight
    is 1 on every data set; initial values have a Xavier bound for patches of 14 pixels.

    Differs from the code: no part is cast to half precision. Any number of prompts is inserted: the code only
    inserts more than 4, and with fewer it mixes those of later layers into the first patches. Layers and
    width are the backbone's, where the code has 12 and 768. Not followed: the authors test the epoch that is
    best on the test images, on novel classes too.
    """

    declaration = METHOD
    settings: ProVpSettings
    layout = TokenLayout(before_patches=True)
    target = "trunk"

    def __init__(self, clip: Clip, generator: torch.Generator, settings: ProVpSettings | None = None) -> None:
        super().__init__(clip, generator, s := settings or ProVpSettings())
        self.image_from = 1
        tower, patch = clip.image, s.start_patch or clip.image.patch_size
        bound = math.sqrt(6 / (3 * patch**2 + tower.width))
        drawn = uniform(tower.projection, generator, tower.depth, s.tokens, tower.width)
        # drawn within 1 / sqrt(width)
        self.image_prompts = nn.Parameter(drawn.mul_(bound * math.sqrt(tower.width)))

    @torch.no_grad()
    def set_classes(self, classnames: Sequence[str], templates: Sequence[str]) -> None:
        super().set_classes(classnames, templates_or(self.settings.template, templates))

    def image_features(self, trunk: Trunk) -> ImageFeatures:
        change = Injection(self.image_prompts, self.settings.beta, at=1)
        return self.class_feature(trunk, change).unsqueeze(0)

    def loss(self, trunk: Trunk, labels: Labels, frozen: Target = None) -> Losses:
        """Cross-entropy of the scores, and the re-formation loss: the cross-entropy of finding an image's own
        frozen feature among those of the batch by cosines. It depends on which images share a batch.
        """
        frozen = self.frozen_image(trunk) if frozen is None else frozen
        image = self.image_features(trunk)
        ce = self.label_loss(self.training_logits(image, self.text_features()), labels)
        own_feature = torch.arange(len(labels), device=labels.device)
        with outside_autocast(image.device):
            cosines = image[0] @ frozen.to(image.dtype).T
        ref = cross_entropy(cosines, own_feature)
        return {"loss": ce + self.settings.ref_weight * ref, "ce": ce, "ref": ref}
