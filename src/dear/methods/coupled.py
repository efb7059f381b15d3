"""What MaPLe and ATPrompt on MaPLe share: deep prompts of the text tower, and their linear images in the
image tower.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from dear.backbone.clip import layer_share
from dear.backbone.injection import Injection
from dear.methods import initial
from dear.methods.base import ImageFeatures, Method


class CoupledPrompts(Method):
    """Base of the two. Each of the first layers of a tower takes new prompts in place of the last layer's
    outputs of them; later layers let them evolve. The image tower's are linear maps of the text tower's.

    Source: github.com/muzairkhattak/multimodal-prompt-learning at 69bce21, trainers/maple.py and
    clip/model.py.

    Attributes:
        context: The text prompt of layer 1, (token, text width): made by the method, before ``couple``.
        image_layers, text_layers: Layers with prompts of their own in each tower.
    """

    context: nn.Parameter
    image_layers: int
    text_layers: int

    def couple(self, depth: int, std: float, generator: torch.Generator, *, share: bool) -> None:
        """Make the prompts of layers 2 to ``depth`` and the linear maps of all of them. With ``share`` depth
        is of 12 layers, and towers of other depths keep its share; ``std`` is of the prompts' normal start.
        """
        towers = (self.clip.image.depth, self.clip.text.depth)
        layers = [layer_share(tower, depth) if share else min(depth, tower) for tower in towers]
        self.image_layers, self.text_layers = layers
        like, width, text_width = self.clip.image.projection, self.clip.image.width, self.clip.text.width
        deep = (max(layers) - 1, *self.context.shape)
        self.prompts_deep = nn.Parameter(initial.normal(like, generator, *deep, std=std))
        weight, bias = initial.linear(like, generator, text_width, width)
        self.coupling_weight, self.coupling_bias = nn.Parameter(weight), nn.Parameter(bias)
        self.coupling_deep_weight, self.coupling_deep_bias = initial.clones(
            self.image_layers - 1, *initial.linear(like, generator, text_width, width)
        )

    def image_features(self, trunk: Float[Tensor, "batch token width"]) -> ImageFeatures:
        first = self.clip.image.ln_pre(linear(self.context, self.coupling_weight, self.coupling_bias))
        deep = torch.einsum(
            "ltw,lvw->ltv", self.prompts_deep[: self.image_layers - 1], self.coupling_deep_weight
        )
        tokens = torch.cat([first[None], deep + self.coupling_deep_bias.unsqueeze(1)])
        return self.class_feature(trunk, Injection(tokens, beta=1)).unsqueeze(0)

    def text_injection(self, at: int) -> Injection:
        """The text prompts of each layer, written over the tokens of a prompt from the place ``at``."""
        first = self.context + self.clip.text.positional_embedding[at : at + len(self.context)]
        tokens = torch.cat([first[None], self.prompts_deep[: self.text_layers - 1]])
        return Injection(tokens, beta=1, at=at, written=True)
