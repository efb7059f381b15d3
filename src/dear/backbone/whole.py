"""Towers that are used whole, as open_clip computes them: frozen features of images or texts, no layers.

They serve models that a `VisionTower` or `TextTower` does not reproduce: ResNets, ConvNeXt, FastViT, CoCa.
Such a tower counts as a single layer that nothing can enter: a span begins past it, at layer 2, where the
trunk is the embedding itself. So methods that change no layer of a tower work on it as they are.
"""

from typing import Any, ClassVar, NoReturn

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dear.backbone.change import UNCHANGED, Change
from dear.backbone.choice import Access
from dear.backbone.openclip import TIMM_MODEL_CLASS, is_instance
from dear.backbone.text import MAX_HIDDEN_VALUES, TextTower, TextTrunk
from dear.backbone.towers import Bias, outside_autocast, widest
from dear.backbone.vision import MAX_IMAGES, VisionTower, exact_convolutions
from dear.errors import WeightsError, first_line, of_memory

IMAGES_ON_CPU = 16


class Refused:
    """An attribute that a tower used whole does not have: it raises WeightsError."""

    def __get__(self, tower: "Whole", _: type) -> NoReturn:
        tower._refuse()


class Whole:
    """The base of both towers that are used whole: their layers and heads cannot be reached."""

    access: ClassVar[Access] = "features"
    depth = 1
    title: str
    module: nn.Module
    heads: Any = Refused()
    block: Any = Refused()
    trainable_copy: Any = Refused()
    side: Any = Refused()

    def _refuse(self) -> NoReturn:
        """Raise WeightsError for what needs layers or heads."""
        raise WeightsError(
            f"this backbone's {self.title} gives features only, no layers or attention heads: docs/models.md "
            "lists those that give them, such as ViT-B-16."
        )

    def _embed(self, inputs: Tensor) -> Tensor:
        """The module's embeddings, without the tokens that some modules return too. Raises WeightsError if it
        fails: a configuration may ask for what its classes cannot compute.
        """
        try:
            with outside_autocast(inputs.device):
                output = self.module(inputs)
        except Exception as error:
            if of_memory(error):
                raise
            raise WeightsError(
                f"the {self.title} cannot be computed ({first_line(error)}): its configuration does not "
                "describe a working model."
            ) from error
        embeddings: Tensor = output[0] if isinstance(output, tuple) else output
        return embeddings


class WholeVisionTower(Whole, VisionTower):
    """An image tower used whole. Its only token is the embedding, which is already in the joint space.

    It is always in evaluation mode, and computes in the type of its weights: float32 under every precision.
    """

    def __init__(self, visual: Any, embed_dim: int) -> None:
        nn.Module.__init__(self)
        self.module = visual
        self.kind = image_kind(visual)
        self.title = f"image tower ({self.kind})"
        self.image_size = image_side(visual)
        self.ln_final: nn.Module = nn.Identity()
        self.projection = _identity(embed_dim, visual)
        self.projection_bias = None
        self.readout, self.has_class_token, self.rotation = None, True, None

    @property
    def images_at_once(self) -> int:
        """How many images to compute together without gradients: few on a CPU, because the first layers of a
        convolutional tower have many values.
        """
        return IMAGES_ON_CPU if self.projection.device.type == "cpu" else MAX_IMAGES

    def train(self, mode: bool = True) -> "WholeVisionTower":
        """Stay in evaluation mode: batch normalization uses the statistics stored with the weights."""
        del mode
        super().train(False)
        return self

    def embed(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch 3 height width"]:
        """The pixels themselves: the input of its only layer."""
        return images

    def layers(self, x: Tensor, first: int, last: int, bias: Tensor | None = None) -> Tensor:
        """Layers ``first`` to ``last``: the whole tower, or nothing."""
        del bias
        return self._tokens(x) if first <= 1 <= last else x

    def trunk(self, images: Float[Tensor, "batch 3 height width"], first: int) -> Tensor:
        return self.layers(images, 1, first - 1)

    def span(
        self,
        x: Tensor,
        first: int,
        change: Change = UNCHANGED,
        *,
        bias: Bias = None,
        read: Int[Tensor, "*batch read"] | None = None,
    ) -> Float[Tensor, "batch read embed"]:
        """The embedding as token 0. Raises WeightsError for a change."""
        del bias, read
        if change is not UNCHANGED:
            self._refuse()
        return self.layers(x, first, self.depth)

    def forward(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch embed"]:
        return self._tokens(images)[:, 0]

    def projected(
        self, x: Float[Tensor, "*any embed"], projection: Float[Tensor, "embed embed"]
    ) -> Float[Tensor, "*any embed"]:
        """The embedding as it is; another projection than the tower's is applied."""
        if projection is self.projection:
            return x.to(projection.dtype)
        return super().projected(x, projection)

    def _tokens(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch 1 embed"]:
        weight = next(self.module.parameters())
        with exact_convolutions(images.device):
            features = self._embed(images.to(weight.dtype))
        if features.ndim != 2 or features.shape[1] != self.embed_dim:
            raise WeightsError(
                f"the {self.title} gives {tuple(features.shape[1:])} for an image, not an embedding of "
                f"{self.embed_dim} numbers: its configuration names no pooling that fits."
            )
        return features.to(self.projection.dtype).unsqueeze(1)


class WholeTextTower(Whole, TextTower):
    """A text tower used whole. The trunk past its only layer holds each text's embedding as one token."""

    def __init__(self, source: Any) -> None:
        nn.Module.__init__(self)
        self.module = source
        has_class = getattr(source, "cls_emb", None) is not None
        self.title = f"text tower ({'CoCa' if has_class else 'open_clip'}'s {type(source).__name__})"
        self.ln_final: nn.Module = nn.Identity()
        self.projection = _identity(int(source.output_dim), source)
        self.projection_bias = None
        self.context_length = int(source.context_length)
        self.pool, self.end_id, self.causal = "argmax", int(source.eos_id), False

    def embed(self, ids: Int[Tensor, "class token"]) -> NoReturn:
        del ids
        self._refuse()

    def trunk(self, ids: Int[Tensor, "class token"], first: int, most_stored: int = 0) -> TextTrunk:
        """The embeddings. Raises WeightsError for a span that does not begin past the tower."""
        del most_stored
        if first <= self.depth:
            self._refuse()
        embeddings = [self._embed(part) for part in ids.split(self.prompts_at_once(1 + ids.shape[1]))]
        features = torch.cat(embeddings).to(self.projection.dtype)
        return TextTrunk(features.unsqueeze(1), features.new_zeros(len(ids), dtype=torch.long), 0, False)

    def prompts_at_once(self, tokens: int) -> int:
        """How many prompts to compute together: their hidden values fit into 512 MiB, and their masks into
        128 MiB. open_clip makes a mask for each head of each prompt, and copies it.
        """
        heads = max(getattr(part, "num_heads", 1) for part in self.module.modules())
        return max(1, MAX_HIDDEN_VALUES // (tokens * max(widest(self.module), 4 * heads * tokens)))

    def features(
        self,
        trunk: TextTrunk,
        first: int,
        change: Change = UNCHANGED,
        chunk: int = 0,
    ) -> Float[Tensor, "class embed"]:
        """The embeddings that the trunk holds. Raises WeightsError for a change."""
        del chunk
        if first <= self.depth or change is not UNCHANGED:
            self._refuse()
        return trunk.tokens[:, 0]

    def forward(self, ids: Int[Tensor, "class token"]) -> Float[Tensor, "class embed"]:
        past = self.depth + 1
        return self.features(self.trunk(ids, past), past)


def image_kind(visual: Any) -> str:
    """The class of an image tower, as a message names it."""
    if is_instance(visual, TIMM_MODEL_CLASS):
        return f"timm's {type(visual.trunk).__name__}"
    is_pooled = getattr(visual, "attn_pool", None) is not None
    return f"CoCa's {type(visual).__name__}" if is_pooled else type(visual).__name__


def image_sides(visual: Any) -> tuple[int, int]:
    """Height and width of the images that an image tower takes, in pixels."""
    size = getattr(getattr(getattr(visual, "trunk", None), "patch_embed", None), "img_size", None)
    size = visual.image_size if size is None else size
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return int(height), int(width)


def image_side(visual: Any) -> int:
    return image_sides(visual)[0]


def _identity(size: int, module: nn.Module) -> nn.Parameter:
    return nn.Parameter(torch.eye(size).to(next(module.parameters())), requires_grad=False)
