"""The interface of a method: a module on a frozen CLIP that says where its spans begin, and works on trunk
outputs.

The training loop and the protocols use only this interface. A trained method is restored
from its `stored_tensors` and its classes; it may keep more while it is trained.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from dear.backbone.change import UNCHANGED, Change
from dear.backbone.clip import Clip, fill
from dear.backbone.prompts import check_prompt_limits
from dear.backbone.text import MAX_STORED_VALUES, TextTrunk
from dear.backbone.towers import outside_autocast
from dear.errors import SettingsError, WeightsError
from dear.methods.declaration import Declaration, MethodSettings

Trunk = Float[Tensor, "batch token width"]
"""The input of a method's image span: the trunk's output."""
Readout = Float[Tensor, "batch token width"]
"""What a method reads of images, from which their features follow: trunk outputs, or a smaller array."""
ImageFeatures = Float[Tensor, "feature batch embed"]
TextFeatures = Float[Tensor, "class embed"]
Logits = Float[Tensor, "batch class"]
Labels = Int[Tensor, "batch"]
Target = Float[Tensor, "batch target"] | None
"""Features of a frozen model that a loss may compare with; None if it is to compute them."""
Losses = dict[str, Tensor]
"""A training loss as "loss", and its parts by name."""


@dataclass(frozen=True)
class TokenLayout:
    """Positions of a method's learned tokens among the image tokens, for attention maps.

    Attributes:
        before_patches: True if they are between the class token and the patches, else after the patches.
        tokens_by_name: Number of tokens for each name, in order; these come first.
    """

    before_patches: bool = False
    tokens_by_name: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingImages:
    """All training images at once, for methods that compute something from them before training.

    Attributes:
        labels: Their classes; views are in their order.
        view: Returns the readouts of the test view of each (None), or of a random one by its number.
        groups: The number of each image's group, whose images are left out together where images are left
            out; None if each is on its own.
    """

    labels: Int[Tensor, "item"]
    view: Callable[[int | None], Readout]
    groups: Int[Tensor, "item"] | None = None


class Method(nn.Module):
    """Base of all methods.

    It is in training mode during steps only.

    Attributes:
        declaration: Its facts that do not depend on settings.
        settings: Its current settings: a run replaces their templates for a target.
        image_from, text_from: The layer, counted from 1, at which its span begins in each tower; depth + 1,
            the default, if it changes none.
        features: Names of the image features used for scores, "cls" first.
        open_vocabulary: Whether it can score classes other than the first ones set; if not, they are
            refused. As declared, unless its settings decide.
        target: The frozen features that its loss compares with, if any: of "trunk" outputs (`frozen_image`),
            of each "view", or of the "whole" image, resized to a square (both `ComputesTargets`).
        readout_key: What its readouts depend on beside the backbone; empty for trunk outputs.
        text_chunk: Number of prompts in the text span at a time, to save memory; 0 for all.
    """

    declaration: Declaration = Declaration()
    settings: MethodSettings
    image_from: int
    text_from: int
    features: tuple[str, ...] = ("cls",)
    open_vocabulary: bool
    target: ClassVar[Literal["trunk", "view", "whole"] | None] = None
    readout_key: str = ""
    text_chunk: int = 0

    clip: Clip
    frozen_text: TextFeatures
    prompts: list[TextTrunk]

    def __init__(
        self,
        clip: Clip,
        generator: torch.Generator | None = None,
        settings: MethodSettings | None = None,
        *,
        scale: float | None = None,
    ) -> None:
        """``generator`` is what a method draws its initial parameters from, if it draws any; ``scale`` is a
        constant factor on cosines in the scores, and None takes the backbone's.
        """
        is_generator = generator is None or isinstance(generator, torch.Generator)
        assert is_generator, "a method is built from (clip, generator, settings)"
        super().__init__()
        # frozen and shared: not a submodule, so neither trained nor saved with the method
        self.__dict__["clip"] = clip
        self.settings, self._constant_scale = settings or self.declaration.settings(), scale
        self.open_vocabulary = self.declaration.open_vocabulary
        self.image_from, self.text_from = clip.image.depth + 1, clip.text.depth + 1
        self.classnames: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name on the command line and in records."""
        return self.declaration.name

    @torch.no_grad()
    def set_classes(self, classnames: Sequence[str], templates: Sequence[str]) -> None:
        """Set the classes to classify: computes the prompts' trunk and the frozen text features once.

        Warns about names that are cut. Raises SettingsError if two become equal, and for classes other than
        the first ones if the vocabulary is not open; LimitError for too many prompts; WeightsError for
        features that are not finite.
        """
        if not self.open_vocabulary and self.classnames not in ((), tuple(classnames)):
            raise SettingsError(
                f"{self.name} with these settings cannot score classes other than the first ones "
                "set: build another method."
            )
        check_prompt_limits(classnames, templates)
        self.classnames = tuple(classnames)
        self.clip.check_prompts(classnames, prompts := [fill(part, classnames) for part in templates])
        ids = [self.clip.tokenize(texts) for texts in prompts]
        most = MAX_STORED_VALUES // len(ids)
        self.prompts = [self.clip.text.trunk(prompt_ids, self.text_from, most) for prompt_ids in ids]
        self.frozen_text = self.mean_over_templates()
        if not self.frozen_text.isfinite().all():
            raise WeightsError(
                f"{self.clip.identity.model} gives class names features that are not finite numbers: its "
                "weights are damaged, or too large for their precision."
            )

    def mean_over_templates(self, change: Change = UNCHANGED) -> Float[Tensor, "class embed"]:
        """Unit text features: the normalized mean over templates of the normalized feature."""
        features = [
            normalize(self.clip.text.features(prompts, self.text_from, change, self.text_chunk), dim=-1)
            for prompts in self.prompts
        ]
        return normalize(torch.stack(features).mean(dim=0), dim=-1)

    @torch.no_grad()
    def image_trunk(
        self, images: Float[Tensor, "batch 3 height width"]
    ) -> Float[Tensor, "batch token width"]:
        """The input of the method's image span: frozen, so it can be computed once and cached. Images are in
        [0, 1]. A method that changes no layer of the image tower gets only the class token.
        """
        return self.continue_trunk(self.clip.image.embed(self.clip.normalize_pixels(images)), 1)

    @torch.no_grad()
    def continue_trunk(
        self, tokens: Float[Tensor, "batch token width"], layer: int
    ) -> Float[Tensor, "batch token width"]:
        """The result of ``image_trunk``, bit for bit, from the input of an earlier layer."""
        tower = self.clip.image
        if layer == self.image_from:
            return tokens
        if self.image_from <= tower.depth:
            return tower.layers(tokens, layer, self.image_from - 1)
        before = tower.layers(tokens, layer, tower.depth - 1)
        return tower.span(before, tower.depth, read=_class_token(tokens))

    def read_out(self, trunk: Trunk) -> Readout:
        """What image features are made of, which no training changes. If it is smaller than the trunk's
        outputs, it is cached in their place, under ``readout_key``.
        """
        return trunk

    @torch.no_grad()
    def frozen_image(self, readout: Readout) -> Float[Tensor, "batch embed"]:
        """The frozen CLIP's unit class feature."""
        return self.class_feature(readout)

    def class_feature(
        self, trunk: Trunk, change: Change = UNCHANGED, *, unit: bool = True
    ) -> Float[Tensor, "batch embed"]:
        """The class feature at the end of the span, with a change if given: of length 1, if ``unit``."""
        read = _class_token(trunk)
        out = self.clip.image.span(trunk, self.image_from, change, read=read)
        feature = self.clip.image.finish(out[:, 0])
        return normalize(feature, dim=-1) if unit else feature

    def image_features(self, readout: Readout) -> ImageFeatures:
        """Unit image features, one per name in ``features``; by default the frozen class feature."""
        return self.frozen_image(readout).unsqueeze(0)

    def forward(self, images: Float[Tensor, "batch 3 height width"]) -> Logits:
        """The scores of the current classes for images in [0, 1], at the size of the model."""
        readout = self.read_out(self.image_trunk(images))
        return self.logits(self.image_features(readout), self.text_features())

    def text_features(self) -> TextFeatures:
        """Unit text features of the classes, without the part of prompts that depends on the image; the
        frozen ones by default.
        """
        return self.frozen_text

    @property
    def scale(self) -> Float[Tensor, ""] | float:
        """The factor on cosines in the scores: that of the constructor, else the backbone's, 1 / tau."""
        return self.clip.scale if self._constant_scale is None else self._constant_scale

    def logits(self, image: ImageFeatures, text: TextFeatures, *, decoupled: bool = False) -> Logits:
        """Scores of the classes from unit features; ``decoupled`` uses the class feature alone."""
        del decoupled  # methods with one feature have nothing to decouple
        return self.scale * image[0] @ text.T

    @property
    def can_be_decoupled(self) -> bool:
        """True if its decoupled ``logits`` may differ from the others: with several features, or where its
        authors score so. Otherwise they are never asked for.
        """
        return len(self.features) > 1 or bool(self.declaration.decoupled_on)

    def training_logits(self, image: ImageFeatures, text: TextFeatures) -> Logits:
        """The ``logits`` that a loss takes: computed in the dtype of the weights, outside autocast, as in
        testing. In bfloat16, numbers between 16 and 32 are 0.125 apart.
        """
        like = self.clip.image.projection
        with outside_autocast(like.device):
            return self.logits(image.to(like), text.to(like))

    def evidence(
        self, image: ImageFeatures, text: TextFeatures, *, decoupled: bool = False
    ) -> Float[Tensor, "feature batch class"]:
        """The contribution of each image feature to the scores, which are their sum: for DeAR, alpha_k s_k.

        Valid if scores are linear in the features or there is only one, as for all methods so far.
        """
        masks = torch.eye(len(image), dtype=image.dtype, device=image.device)[:, :, None, None]
        return torch.stack([self.logits(image * mask, text, decoupled=decoupled) for mask in masks])

    def loss(self, trunk: Trunk, labels: Labels, frozen: Target = None) -> Losses:
        """The training loss as "loss" and its parts by name for the record; by default the cross-entropy of
        the scores. In training ``frozen`` is what ``target`` names. With several views per image, the first
        views of all images precede the second ones.
        """
        del frozen
        image, text = self.image_features(self.read_out(trunk)), self.text_features()
        return {"loss": self.label_loss(self.training_logits(image, text), labels)}

    def label_loss(self, scores: Logits, labels: Labels) -> Float[Tensor, ""]:
        """The part of the loss by the labels, the same for all methods: the cross-entropy of scores."""
        return cross_entropy(scores, labels)

    def fingerprint_fields(self) -> dict[str, Any]:
        """What the method was built from, as plain values. A checkpoint only fits a method with the same."""
        return {"settings": asdict(self.settings)}

    def stored_tensors(self) -> dict[str, Tensor]:
        """The tensors that a bundle stores, by name: the trained parameters. A method that computes other
        tensors from the training images adds them.
        """
        return {name: values for name, values in self.named_parameters() if values.requires_grad}

    @property
    def trainable(self) -> list[nn.Parameter]:
        return [p for p in self.parameters() if p.requires_grad]

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The trained parameters as optimizer groups; "rate" is a group's factor on the learning rate."""
        return [{"params": self.trainable, "rate": 1.0}]


def _class_token(like: Tensor) -> Int[Tensor, "read"]:
    return torch.zeros(1, dtype=torch.long, device=like.device)
