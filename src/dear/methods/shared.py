"""What methods share: initial values, loss terms, averages over epochs, identities of classes, coupled
prompts, tokens of a learned space.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import normalize

from dear.backbone.change import ClassTokens, Injection
from dear.backbone.clip import Clip, layer_share, span_start
from dear.backbone.text import TextTower
from dear.backbone.towers import Tower, outside_autocast
from dear.backbone.vision import VisionTower
from dear.errors import SettingsError
from dear.methods.base import (
    ImageFeatures,
    Labels,
    Logits,
    Losses,
    Method,
    Target,
    TextFeatures,
    TokenLayout,
    Trunk,
)
from dear.methods.declaration import MethodSettings
from dear.methods.optional import PlacesTokens
from dear.methods.shared_settings import RepresentationSettings


def normal(like: Tensor, generator: torch.Generator, *shape: int, std: float) -> Float[Tensor, "..."]:
    """Normal values of standard deviation ``std``, in the dtype and on the device of ``like``."""
    if like.is_meta:
        return like.new_empty(shape)
    return (torch.randn(*shape, generator=generator) * std).to(like)


def uniform(like: Tensor, generator: torch.Generator, *shape: int) -> Float[Tensor, "..."]:
    """Initial values of torch's linear layers: uniform within 1 / sqrt(the last dimension)."""
    return _within(like, generator, *shape, bound=float(shape[-1]) ** -0.5)


def linear_values(
    like: Tensor, generator: torch.Generator, inputs: int, outputs: int
) -> tuple[Float[Tensor, "output input"], Float[Tensor, "output"]]:
    """Weight and bias with the initial values of torch's linear layer."""
    weight = uniform(like, generator, outputs, inputs)
    return weight, _within(like, generator, outputs, bound=float(inputs) ** -0.5)


def two_layers(
    like: Tensor, generator: torch.Generator, inputs: int, hidden: int, outputs: int, activation: nn.Module
) -> nn.Sequential:
    """Two linear layers with torch's initial values, and an activation between them."""
    first, second = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)
    for layer in (first, second):
        weight, bias = linear_values(like, generator, layer.in_features, layer.out_features)
        layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
    return nn.Sequential(first, activation, second)


def layers_with_prompts(depth: int, layers: int, *, share: bool) -> int:
    """How many of a tower's layers have prompts of their own: ``layers``, or with ``share`` the share of the
    tower's depth that ``layers`` would be of 12.
    """
    return layer_share(depth, layers) if share else min(layers, depth)


def first_layers(clip: Clip, settings: MethodSettings, first: int, *, share: bool) -> tuple[int, int]:
    """The layers at which the spans of the image and the text tower begin, from ``first`` of 12 layers: with
    ``share`` scaled to the depth of each tower, else ``first`` itself. Raises SettingsError if a tower has
    fewer layers than that.
    """
    depths = (clip.image.depth, clip.text.depth)
    if share:
        return span_start(depths[0], first), span_start(depths[1], first)
    if first > min(depths):
        prefix = ".".join(filter(None, [settings.folder(), "first"]))
        raise SettingsError(
            f"{prefix} is {first}: a tower has only {min(depths)} layers. Give a lower one, or scale it "
            f"to the depth of the tower with {prefix.removesuffix('first')}share true."
        )
    return first, first


def deep_prompts(
    tower: Tower, layers: int, tokens: int, std: float, generator: torch.Generator, *, share: bool
) -> Float[Tensor, "layer token width"]:
    """Normally distributed initial values of the prompts of a tower's first layers."""
    count = layers_with_prompts(tower.depth, layers, share=share)
    return normal(tower.projection, generator, count, tokens, tower.width, std=std)


def image_injection(tower: VisionTower, prompts: Float[Tensor, "layer token width"]) -> Injection:
    """Prompts that enter each of an image tower's first layers in place of the previous ones; those of layer
    1 pass its first LayerNorm.
    """
    return Injection(torch.cat([tower.ln_pre(prompts[:1]), prompts[1:]]), beta=1)


def text_injection(
    tower: TextTower,
    prompts: Float[Tensor, "layer token width"],
    at: int,
    of_class: ClassTokens | None = None,
) -> Injection:
    """Prompts that overwrite the tokens of a text from position ``at`` in each of the text tower's first
    layers; those of layer 1 get the positions.
    """
    positions = tower.positional_embedding[at : at + prompts.shape[1]]
    tokens = torch.cat([prompts[:1] + positions, prompts[1:]])
    return Injection(tokens, beta=1, at=at, written=True, of_class=of_class)


def clones(layers: int, *values: Tensor) -> list[nn.Parameter]:
    """Parameters with one copy of each value per layer."""
    return [nn.Parameter(value.new_empty(layers, *value.shape).copy_(value)) for value in values]


def _within(like: Tensor, generator: torch.Generator, *shape: int, bound: float) -> Tensor:
    if like.is_meta:
        return like.new_empty(shape)
    return ((2 * torch.rand(*shape, generator=generator) - 1) * bound).to(like)


def cosine_distance(
    features: Float[Tensor, "row embed"], frozen: Float[Tensor, "row embed"]
) -> Float[Tensor, ""]:
    """Mean of 1 - cosine over rows of unit vectors: one half of L_reg."""
    return 1 - (features * frozen).sum(dim=-1).mean()


@torch.no_grad()
def add_epoch(averages: Iterable[tuple[Tensor, Tensor]], weight: float, epoch: int, epochs: int) -> None:
    """Add the parameters after an epoch, counted from 1, to their averages with a weight. ``averages`` are
    pairs of a parameter and its average, a buffer that is saved. The first epoch clears the averages; after
    the last one they replace the parameters.
    """
    for values, average in averages:
        if epoch == 1:
            average.zero_()
        average += weight * values
        if epoch == epochs:
            values.copy_(average)


def name_hashes(classnames: Sequence[str]) -> Int[Tensor, "class"]:
    """A number for each class name (64 bits of its SHA-256), by which a trained method knows its classes,
    even in a bundle.
    """
    digests = (hashlib.sha256(name.encode()).digest()[:8] for name in classnames)
    return torch.tensor([int.from_bytes(digest, "big", signed=True) for digest in digests])


def order_by_name(classnames: Sequence[str]) -> Int[Tensor, "class"]:
    """The place of each class in an order that does not depend on how they are numbered: that of
    `name_hashes`.
    """
    return name_hashes(classnames).argsort().argsort()


def rows_by_name(trained: Int[Tensor, "trained"], classnames: Sequence[str]) -> Int[Tensor, "class"]:
    """The row of each class among those of a trained method, known by its `name_hashes`; -1 for a class that
    it was not trained on.
    """
    row_of = {number: row for row, number in enumerate(trained.tolist())}
    rows = [row_of.get(number, -1) for number in name_hashes(classnames).tolist()]
    return torch.tensor(rows, device=trained.device)


def require_distinct(trained: Tensor) -> None:
    """Raise SettingsError if a class occurs twice in the `name_hashes` of a bundle."""
    if len({*trained.flatten().tolist()}) < trained.numel():
        raise SettingsError("its tensor 'trained' holds a class twice")


def require_current_text(method: Method, text: Tensor) -> None:
    """Raise SettingsError unless the text features are the frozen ones of a method's current classes: for
    methods whose scores need more of the classes than their text features.
    """
    frozen = method.frozen_text
    if text is frozen or torch.compiler.is_compiling():  # an export has the values later
        return
    if text.shape != frozen.shape or not torch.equal(text, frozen.to(text)):
        raise SettingsError(
            f"{method.name} scores the classes that it is set to, and these text features are of others: "
            "take text_features() after the last set_classes()."
        )


class CoupledPrompts(Method):
    """Base of MaPLe and of ATPrompt on MaPLe. In each of the first layers of a tower new prompts replace the
    previous layer's outputs at their positions; in later layers they evolve freely. The image tower's prompts
    are linear maps of the text tower's.

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
        """Make the prompts of layers 2 to ``depth``, and the linear maps for all layers. With ``share``,
        ``depth`` is that of a tower of 12 layers, and scaled to each tower. ``std`` is the standard deviation
        of initial values.
        """
        towers = (self.clip.image.depth, self.clip.text.depth)
        layers = [layers_with_prompts(tower, depth, share=share) for tower in towers]
        self.image_layers, self.text_layers = layers
        like, width, text_width = self.clip.image.projection, self.clip.image.width, self.clip.text.width
        deep = (max(layers) - 1, *self.context.shape)
        self.prompts_deep = nn.Parameter(normal(like, generator, *deep, std=std))
        weight, bias = linear_values(like, generator, text_width, width)
        self.coupling_weight, self.coupling_bias = nn.Parameter(weight), nn.Parameter(bias)
        self.coupling_deep_weight, self.coupling_deep_bias = clones(
            self.image_layers - 1, *linear_values(like, generator, text_width, width)
        )

    def image_features(self, trunk: Trunk) -> ImageFeatures:
        first = self.clip.image.ln_pre(
            functional.linear(self.context, self.coupling_weight, self.coupling_bias)
        )
        deep = torch.einsum(
            "ltw,lvw->ltv", self.prompts_deep[: self.image_layers - 1], self.coupling_deep_weight
        )
        tokens = torch.cat([first[None], deep + self.coupling_deep_bias.unsqueeze(1)])
        return self.class_feature(trunk, Injection(tokens, beta=1)).unsqueeze(0)

    def text_injection(self, at: int) -> Injection:
        """The text prompts of each layer, which overwrite the tokens of a prompt from position ``at``."""
        prompts = torch.cat([self.context[None], self.prompts_deep[: self.text_layers - 1]])
        return text_injection(self.clip.text, prompts, at)


class Representation(Method, PlacesTokens, ABC):
    """Base of MMRL and MMRL++, which differ in how tokens enter a layer and in the projection of the second
    feature.

    Scores are a fixed mixture of both features' scores; those of novel classes use the class feature alone.
    """

    features = ("cls", "rep")
    layout = TokenLayout(before_patches=True)
    target = "trunk"
    settings: RepresentationSettings

    def __init__(
        self, clip: Clip, generator: torch.Generator, settings: RepresentationSettings, beta: float
    ) -> None:
        super().__init__(clip, generator, settings, scale=settings.scale)
        self.beta = beta
        self.image_from, self.text_from = first_layers(clip, settings, settings.first, share=settings.share)
        self.tokens = nn.Parameter(
            normal(clip.image.projection, generator, settings.tokens, settings.space, std=settings.token_std)
        )
        self.register_buffer(
            "read", torch.arange(1 + settings.tokens, device=self.tokens.device), persistent=False
        )

    @abstractmethod
    def image_tokens(self) -> Float[Tensor, "layer token width"]:
        """The tokens for each layer of the image span."""

    @abstractmethod
    def text_tokens(self) -> Float[Tensor, "layer token width"]:
        """The tokens for each layer of the text span."""

    @abstractmethod
    def token_projection(self) -> Float[Tensor, "width embed"]:
        """The projection of the second feature."""

    def image_features(self, trunk: Trunk) -> ImageFeatures:
        """The class feature, and the projected mean of the tokens after the final LayerNorm."""
        tower, change = self.clip.image, Injection(self.image_tokens(), self.beta, at=1)
        out = tower.span(trunk, self.image_from, change, read=self.read)  # type: ignore[arg-type]
        f_cls = tower.finish(out[:, 0])
        f_rep = tower.projected(tower.ln_final(out[:, 1:]).mean(dim=1), self.token_projection())
        return normalize(torch.stack([f_cls, f_rep.to(f_cls.dtype)]), dim=-1)

    def text_features(self) -> TextFeatures:
        return self.mean_over_templates(Injection(self.text_tokens(), self.beta, at=self.clip.first_word))

    def logits(self, image: ImageFeatures, text: TextFeatures, *, decoupled: bool = False) -> Logits:
        """The mixture of both features' scores, or those of the class feature alone."""
        f_cls, f_rep = (self._of_feature(feature, text) for feature in image)
        alpha = self.settings.alpha
        return f_cls if decoupled else alpha * f_cls + (1 - alpha) * f_rep

    def _of_feature(
        self, feature: Float[Tensor, "batch embed"], text: TextFeatures
    ) -> Float[Tensor, "batch class"]:
        """The scores by one feature, computed outside autocast even in training."""
        with outside_autocast(feature.device):
            scores: Tensor = self.scale * feature @ text.T
        return scores

    def loss(self, trunk: Trunk, labels: Labels, frozen: Target = None) -> Losses:
        """The mixture of both features' cross-entropies plus the distance from the frozen features."""
        frozen = self.frozen_image(trunk) if frozen is None else frozen
        image, text, s = self.image_features(trunk), self.text_features(), self.settings
        ce_cls, ce_rep = (self.label_loss(self._of_feature(feature, text), labels) for feature in image)
        ce = s.alpha * ce_cls + (1 - s.alpha) * ce_rep
        reg = cosine_distance(image[0], frozen) + cosine_distance(text, self.frozen_text)
        return {"loss": ce + s.reg_weight * reg, "ce": ce, "reg": reg}


def layers_of(clip: Clip, spans: Sequence[int]) -> tuple[int, int]:
    """The number of layers in the image and the text span."""
    return clip.image.depth - spans[0] + 1, clip.text.depth - spans[1] + 1


def aligned(
    tokens: Float[Tensor, "token space"],
    weight: Float[Tensor, "layer width space"],
    bias: Float[Tensor, "layer width"],
) -> Float[Tensor, "layer token width"]:
    """Each layer's linear projection of the tokens."""
    return torch.einsum("ts,lws->ltw", tokens, weight) + bias.unsqueeze(1)


def find_basis(vectors: Float[Tensor, "item embed"]) -> Float[Tensor, "embed direction"]:
    """An orthonormal basis of directions that hold these vectors: as many as there are, or all."""
    items, embed = vectors.shape
    if items >= embed:
        return torch.eye(embed, dtype=vectors.dtype, device=vectors.device)
    basis: Tensor = torch.linalg.qr(vectors.T).Q
    return basis
