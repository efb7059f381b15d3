"""From images and names of classes to their features: an adapted model on its backbone."""

import copy
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from dear.adapters.bundle import Bundle, require_distinct_names
from dear.adapters.saved_run import load_bundle
from dear.adapters.vocabulary import Vocabulary, named_features
from dear.adapters.wording import describe_names
from dear.backbone.clip import Clip
from dear.backbone.device import precision_for
from dear.backbone.names import Precision
from dear.curation.issues import RefusedShare
from dear.data.images.forms import is_image, picture_of, require_unit
from dear.data.images.transforms import eval_view, to_unit
from dear.data.sources.objects import each_image
from dear.errors import BundleError, SettingsError, warn
from dear.methods.optional import WeighsFeatures
from dear.reading.typed import check_value

BATCH = 32
CACHED = 16
"""Lists of other classes whose text features an encoder keeps: those that were used last."""

Picture = Image.Image | Path | str | bytes | np.ndarray | Tensor
"""An image: a path, a Pillow image, the bytes of an image file, or an array of height x width x 3 or a tensor
of 3 x height x width, both without the 3 if gray (8-bit, or numbers in [0, 1])."""


class Encoder:
    """An adapted model on its backbone, which gives the features of images and of classes.

    Attributes:
        classes: The classes it was fitted to, in label order.
        features: Names of the image features: "class", then the attributes.
        without_heads: Those features whose attribute owns no head, so that they are not about it.
        refusal_threshold: The evidence below which an image is of no known class (`OutlierModel`).
    """

    def __init__(
        self,
        bundle: Bundle | Path | str,
        device: str = "auto",
        *,
        clip: Clip | None = None,
        pretrained: str | None = None,
        precision: Precision = "auto",
        refuse: float | None = None,
        fusion: Mapping[str, float] | None = None,
        decoupled: bool = False,
    ) -> None:
        """Build from a bundle or its path, on the GPU if there is one and ``device`` is "auto"; ``clip`` is
        its backbone if already loaded, ``pretrained`` the location of its weights if they have moved;
        ``precision`` is as in training; ``refuse`` is the share of images of known classes that is refused,
        if not as in the bundle; ``fusion`` and ``decoupled`` steer it (`Vocabulary.steered`): other weights
        of features, or the class feature alone. Raises BundleError, WeightsError, SettingsError for a
        precision that the device does not have and for what cannot be steered.
        """
        self.bundle = load_bundle(bundle)
        self._arguments: dict[str, Any] = {
            "device": device,
            "pretrained": pretrained,
            "precision": precision,
            "refuse": refuse,
            "fusion": fusion,
            "decoupled": decoupled,
        }
        self.clip = self.bundle.load_backbone(device, pretrained) if clip is None else clip
        self.method = self.bundle.build(self.clip).requires_grad_(False)
        self.classes = self.bundle.classes
        self.features = named_features(self.method)
        self.without_heads = self.method.without_heads if isinstance(self.method, WeighsFeatures) else ()
        self.steering: dict[str, Any] = {"fusion": fusion, "decoupled": decoupled}
        own = Vocabulary.of(self.method, precision_for(self.clip, precision))
        self.own_vocabulary = own.steered(**self.steering)
        self.require_finite(self.own_vocabulary.text)
        self._vocabularies = dict[tuple[str, ...], Vocabulary]()
        self._caching = threading.Lock()
        share = self.bundle.refuse if refuse is None else refuse
        check_value("refuse", share, RefusedShare)
        known = self.bundle.known
        self.known = None if known is None else known.to(self.own_vocabulary.text.device)
        self.refusal_threshold = -math.inf if self.known is None else self.known.threshold(share)
        if refuse and self.refusal_threshold == -math.inf:
            raise SettingsError(f"refuse {refuse}: {self.bundle.title} has too few training images for that.")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as what it was built from: workers load the backbone themselves, and check its identity."""
        return partial(type(self), **self._arguments), (self.bundle,)

    def preprocess(self, image: Picture) -> Float[Tensor, "3 size size"]:
        """An image as the model takes it, in [0, 1]: rotated according to its EXIF data, then as the
        model's own preprocessing has it (`Clip.preprocess`). A tensor of such numbers that has this size
        already stays as it is. Raises DataError for an unreadable image.
        """
        if isinstance(image, Tensor) and self.has_views(image, axes=3):
            return image
        return to_unit(eval_view(picture_of(image), self.clip.preprocess))

    def has_views(self, pixels: Tensor, axes: int) -> bool:
        """Whether pixels are numbers of the model's own size. Raises DataError unless they are in [0, 1]."""
        size = self.clip.image_size
        if pixels.ndim != axes or pixels.shape[-3:] != (3, size, size) or not pixels.is_floating_point():
            return False
        require_unit(pixels)
        return True

    def encode(self, images: Any) -> Float[Tensor, "*batch feature embed"]:
        """Unit image features by ``features``. Raises DataError for an unreadable image, else BundleError."""
        return self.encode_all(images)[..., : len(self.features), :]

    @torch.no_grad()
    def encode_all(self, images: Any) -> Float[Tensor, "*batch feature embed"]:
        """As `encode`; where images can be refused, the frozen backbone's feature comes last."""
        vocabulary, remaining = self.own_vocabulary, each_image(images)
        refuses = self.refusal_threshold > -math.inf
        if isinstance(images, Tensor) and self.has_views(images, axes=4):
            parts = images.split(self.clip.image.images_at_once)
            features = [vocabulary.image_features(part, frozen=refuses).transpose(0, 1) for part in parts]
            self.require_finite(*features)
            return torch.cat(features)
        features = [vocabulary.text.new_empty(0, len(self.features) + refuses, vocabulary.text.shape[1])]
        while pixels := [self.preprocess(image) for image in islice(remaining, BATCH)]:
            features.append(self.encode_all(torch.stack(pixels)))
        return features[1][0] if is_image(images) else torch.cat(features)

    @torch.no_grad()
    def encode_classes(self, classes: Sequence[str]) -> Float[Tensor, "class embed"]:
        """Unit text features of classes by name, using the bundle's templates."""
        return self.vocabulary(classes).text

    def require_finite(self, *results: Tensor) -> None:
        """Raise BundleError for what a bundle computes if it is not finite, or was made of such values."""
        if not all(values.isfinite().all() for values in results):
            raise BundleError(
                f"{self.bundle.title} predicts NaN or infinity: its parameters or settings are too large. "
                "Fit it again with `dear fit`."
            )

    def vocabulary(self, classes: Sequence[str] | None = None) -> Vocabulary:
        """The classes by name, by default the bundle's; the last lists are cached.

        Raises DataError for an empty list or a duplicate name, SettingsError if the method cannot score
        classes that it was not trained on, LimitError for too many prompts.
        """
        classes = (classes,) if isinstance(classes, str) else classes
        names = self.classes if classes is None else tuple(classes)
        return self.cached_vocabulary(names) or self._encode_names(names)

    def cached_vocabulary(self, names: tuple[str, ...]) -> Vocabulary | None:
        """The classes by name if they need not be encoded: the bundle's, or of a cached list."""
        if names == self.classes:
            return self.own_vocabulary
        with self._caching:
            vocabulary = self._vocabularies.pop(names, None)
            if vocabulary is not None:
                self._vocabularies[names] = vocabulary  # now the last
            return vocabulary

    @torch.no_grad()
    def _encode_names(self, names: tuple[str, ...]) -> Vocabulary:
        """Encode classes, and cache them if the method scores with their text features alone."""
        require_distinct_names(names)
        for line in describe_names(self.bundle.training.name_cost, names, self.classes):
            warn(line)
        if not self.method.open_vocabulary:
            name = self.method.name
            raise SettingsError(f"{name} cannot score classes that it was not trained on: omit the classes.")
        method = copy.copy(self.method)  # shares all parameters, but not the classes
        method.set_classes(names, self.bundle.templates)
        decoupled = "classes" in method.declaration.decoupled_on and not {*names} <= {*self.classes}
        vocabulary = Vocabulary.of(method, self.own_vocabulary.precision, decoupled=decoupled)
        is_lasting = not method.declaration.text_depends_on_image and method.declaration.cosine_scores
        if is_lasting:  # without the prompts of the copy, which are much larger than the features
            vocabulary = replace(vocabulary, method=self.method)
        vocabulary = vocabulary.steered(**self.steering)
        if is_lasting:
            with self._caching:
                self._vocabularies[names] = vocabulary
                while len(self._vocabularies) > CACHED:
                    del self._vocabularies[next(iter(self._vocabularies))]
        return vocabulary
