"""CLIP-Adapter (Gao et al., IJCV 2023): a small network on the image feature, mixed with that feature."""

import torch
from torch import nn
from torch.nn.functional import linear, normalize, relu

from dear.backbone.clip import Clip
from dear.methods.base import ImageFeatures, Method, Trunk
from dear.methods.clip_adapter import METHOD, ClipAdapterSettings
from dear.methods.shared import uniform


class ClipAdapter(Method):
    """A feature adapter: both towers are unchanged, so images are encoded only once.

    Source: arXiv 2110.04544; github.com/gaopengcuhk/CLIP-Adapter at 08d07f8, clip_adapter.py. As in the code:
    only images have an adapter (in the paper, texts too), its two layers have no bias, both end in a ReLU,
    and it works on features before they are normalized.

    Differs from the code: if the feature is narrower than ``reduction``, the bottleneck has width 1 [ours].
    """

    declaration = METHOD
    settings: ClipAdapterSettings

    def __init__(
        self, clip: Clip, generator: torch.Generator, settings: ClipAdapterSettings | None = None
    ) -> None:
        super().__init__(clip, generator, s := settings or ClipAdapterSettings())
        like, embed = clip.image.projection, clip.image.embed_dim
        hidden = max(1, embed // s.reduction)
        self.down = nn.Parameter(uniform(like, generator, hidden, embed))
        self.up = nn.Parameter(uniform(like, generator, embed, hidden))

    def image_features(self, trunk: Trunk) -> ImageFeatures:
        ratio = self.settings.ratio
        with torch.no_grad():
            feature = self.clip.image.finish(trunk[:, 0])
        adapted = relu(linear(relu(linear(feature, self.down)), self.up))
        return normalize(ratio * adapted + (1 - ratio) * feature, dim=-1).unsqueeze(0)
