"""Inference with a bundle: features of images and classes, and predictions with evidence."""

import copy
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from dear.adapters.bundle import Bundle, distinct
from dear.adapters.reading import ImageReader
from dear.adapters.results import ClassScore, Prediction, Suggestion, Unreadable
from dear.adapters.vocabulary import Vocabulary, named_features
from dear.adapters.wording import UNOWNED, describe_names
from dear.backbone.clip import Clip
from dear.backbone.device import precision_for
from dear.backbone.names import Precision
from dear.curation.outliers import Refusal
from dear.curation.twins import choose_all, margins
from dear.data.images.photos import is_image, picture_of, require_unit, split_hashes
from dear.data.images.transforms import eval_view, to_unit
from dear.data.sources.corrections import answered_contents
from dear.data.sources.objects import each_image
from dear.errors import BundleError, DataError, SettingsError, warn
from dear.text import plural

BATCH = 32
CACHED = 16
"""Lists of other classes whose text features a predictor keeps: those that were used last."""
EVIDENCE = 2**24
"""Values of the evidence for images that are scored together: images times features times classes."""

Picture = Image.Image | Path | str | bytes | np.ndarray | Tensor
"""An image: a path, a Pillow image, the bytes of an image file, or an array of height x width x 3 or a tensor
of 3 x height x width, both without the 3 if gray (8-bit, or numbers in [0, 1])."""


class Predictor:
    """An adapted model for inference. Calls change nothing in it but a cache of text features.

    What takes images takes one (`Picture`) and gives one result, or takes several and gives as many: a list,
    a folder, an array or tensor with an axis more, a data frame with a column path or image or that column, a
    torch Dataset or a DataLoader. Addresses are refused.

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
        self.bundle = bundle if isinstance(bundle, Bundle) else Bundle.from_pretrained(bundle)
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
        self.without_heads = self.method.without_heads
        self.steering: dict[str, Any] = {"fusion": fusion, "decoupled": decoupled}
        own = Vocabulary.of(self.method, precision_for(self.clip, precision))
        self.own_vocabulary = own.steered(**self.steering)
        self.require_finite(self.own_vocabulary.text)
        self._vocabularies = dict[tuple[str, ...], Vocabulary]()
        self._caching = threading.Lock()
        share = self.bundle.refuse if refuse is None else refuse
        if not 0 <= share < 1:
            raise SettingsError(f"refuse is {share}: it must be at least 0 and below 1.")
        known = self.bundle.known
        self.known = None if known is None else known.to(self.own_vocabulary.text.device)
        self.refusal_threshold = -math.inf if self.known is None else self.known.threshold(share)
        if refuse and self.refusal_threshold == -math.inf:
            raise SettingsError(f"refuse {refuse}: {self.bundle.title} has too few training images for that.")

    @classmethod
    def of(cls, source: "Predictor | Bundle | Path | str", **options: Any) -> "Predictor":
        """A predictor itself, or that of a bundle, its folder or name. Raises BundleError for others."""
        if not isinstance(source, Predictor | Bundle | str | Path):
            raise BundleError(f"not a predictor, a bundle or its path, but a {type(source).__name__}.")
        return source if isinstance(source, Predictor) else cls(source, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as what it was built from: workers load the backbone themselves, and check its identity."""
        return partial(type(self), **self._arguments), (self.bundle,)

    @classmethod
    def from_pretrained(cls, folder_or_hub_id: Path | str, device: str = "auto", **options: Any) -> Self:
        """The predictor of a bundle in a folder or, given OWNER/NAME, on the hub; the same as the class."""
        return cls(folder_or_hub_id, device, **options)

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

    def refusal(self, classes: Sequence[str]) -> Refusal | None:
        """What says which images are of none of some classes; None if nothing is refused."""
        if self.known is None or self.refusal_threshold == -math.inf:
            return None
        return Refusal(self.known, self.classes, classes, self.refusal_threshold)

    def none_of_these(self, images: Any, classes: Sequence[str] | None = None) -> np.ndarray:
        """Whether each image looks like none of the classes; True or False for an image. Raises DataError for
        an unreadable image.
        """
        found = np.array([part.none_of_these for part in self.predict([*each_image(images)], 1, classes)])
        return found[0] if is_image(images) else found

    @torch.no_grad()
    def encode_classes(self, classes: Sequence[str]) -> Float[Tensor, "class embed"]:
        """Unit text features of classes by name, using the bundle's templates."""
        return self.vocabulary(classes).text

    @torch.no_grad()
    def logits(self, images: Any, classes: Sequence[str] | None = None) -> Float[Tensor, "*batch class"]:
        """Scores of the classes, before the temperature. Raises DataError for an unreadable image."""
        features, vocabulary = self.encode(images), self.vocabulary(classes)
        logits = vocabulary.logits(features.reshape(-1, *features.shape[-2:]).transpose(0, 1))
        self.require_finite(logits)
        return logits[0] if is_image(images) else logits

    def require_finite(self, *results: Tensor) -> None:
        """Raise BundleError for what a bundle computes if it is not finite, or was made of such values."""
        if not all(values.isfinite().all() for values in results):
            raise BundleError(
                f"{self.bundle.title} gives no numbers: its parameters or settings are too large. Fit it "
                "again with `dear fit`."
            )

    def predict_proba(self, images: Any, classes: Sequence[str] | None = None) -> np.ndarray:
        """Probabilities of the bundle's classes or of ``classes``, item x class, each row with the sum 1.
        Raises DataError for an unreadable image.
        """
        logits = self.logits(images, classes).double() / self.bundle.temperature
        return logits.softmax(dim=-1).cpu().numpy()

    def predict(self, images: Any, top: int = 5, classes: Sequence[str] | None = None) -> Any:
        """The best classes of each image, among the bundle's or among ``classes``, by name: a `Prediction` of
        an image, a list of them of several.

        Raises DataError for an unreadable image.
        """
        predictions = []
        for prediction in self.predict_each(images, top, classes):
            if isinstance(prediction, Unreadable):
                raise DataError(prediction.reason)
            predictions.append(prediction)
        return predictions[0] if is_image(images) else predictions

    __call__ = predict

    def predict_each(
        self,
        images: Any,
        top: int = 5,
        classes: Sequence[str] | None = None,
        *,
        batch: int = BATCH,
        remember: bool = False,
    ) -> Iterator[Prediction | Unreadable]:
        """As `predict`, in batches while the next ones are read; an unreadable image gives an Unreadable.
        ``remember`` keeps features in the cache folder, and takes them from there.
        """
        if top < 1:
            raise SettingsError(f"top is {top}: it must be at least 1.")
        vocabulary = self.vocabulary(classes)
        reader = ImageReader(self, remember=remember)
        for part in reader.read(images, batch):
            readable = [image for image in part if not isinstance(image.pixels, Unreadable)]
            rows = iter(self.rank(reader.features(readable), vocabulary, top) if readable else ())
            for image in part:
                failure = image.pixels if isinstance(image.pixels, Unreadable) else None
                yield failure or Prediction(image.file, *next(rows))

    @torch.no_grad()
    def suggest(self, images: Any, count: int = 50) -> list[Suggestion]:
        """The images to label next: those that it is least sure of, no two alike, then as many that look like
        no class, by groups (`choose_all`); none of the fit or corrected, none unreadable. Features are kept
        in the cache folder, and taken from there. Raises DataError without any.
        """
        if count < 1:
            raise SettingsError(f"count is {count}: it must be at least 1.")
        known = split_hashes(self.bundle.image_hashes) | answered_contents(images)
        names, unreadable, features, logits = list[str](), list[str](), list[Tensor](), list[Tensor]()

        number, reader = 0, ImageReader(self, remember=True)
        for part in reader.read(images, BATCH):
            unreadable += [image.pixels.reason for image in part if isinstance(image.pixels, Unreadable)]
            named = [(image, image.file or str(number + place)) for place, image in enumerate(part)]
            new = [
                (image, name)
                for image, name in named
                if not isinstance(image.pixels, Unreadable) and known.isdisjoint(image.hashes)
            ]
            number += len(part)
            if new:
                names += [name for _, name in new]
                features.append(reader.features([image for image, _ in new]))
                logits.append(
                    self.own_vocabulary.logits(features[-1][:, : len(self.features)].transpose(0, 1))
                )
        if unreadable:
            warn(f"{plural(len(unreadable), 'image')} cannot be read: {unreadable[0]}")
        if not features:
            raise DataError("no image is left to label: it was fitted on all that can be read.")
        self.require_finite(*logits)
        everything = torch.cat(features)
        probabilities = (torch.cat(logits).double() / self.bundle.temperature).softmax(dim=1)
        margin, best = margins(probabilities), probabilities.argmax(dim=1)
        refusal = self.refusal(self.classes)
        unlike = torch.zeros_like(best) if refusal is None else refusal(everything[:, -1], best)
        return [
            Suggestion(names[item], self.classes[best[item]], float(margin[item]), group)
            for item, group in choose_all(probabilities, everything[:, 0], unlike.bool(), count)
        ]

    @torch.no_grad()
    def rank(
        self, features: Float[Tensor, "batch feature embed"], vocabulary: Vocabulary, top: int
    ) -> list[tuple[tuple[ClassScore, ...], bool, tuple[ClassScore, ...]]]:
        """The best classes of each image, from what `encode_all` gives; whether it is of none of them; and
        the best classes by the bundle's own weights, if it is steered.
        """
        own, is_none = features[:, : len(self.features)], [False] * len(features)
        unchanged: list[tuple[ClassScore, ...]] = [()] * len(features)
        best = self.best_classes(own, vocabulary, top)
        if vocabulary.unchanged is not None:
            unchanged = self.best_classes(own, vocabulary.unchanged, top)
        if (refusal := self.refusal(vocabulary.classes)) is not None:
            numbers = {name: number for number, name in enumerate(vocabulary.classes)}
            predicted = [numbers[candidates[0].name] for candidates in best]
            is_none = refusal(features[:, -1], torch.tensor(predicted, device=features.device)).tolist()
        return [*zip(best, is_none, unchanged, strict=True)]

    @torch.no_grad()
    def best_classes(
        self, features: Float[Tensor, "batch feature embed"], vocabulary: Vocabulary, top: int
    ) -> list[tuple[ClassScore, ...]]:
        """The best classes of each image, from its features; fewer together of many classes and features."""
        at_once = max(1, EVIDENCE // (features.shape[1] * len(vocabulary.classes)))
        if len(features) > at_once:
            parts = (self.best_classes(part, vocabulary, top) for part in features.split(at_once))
            return [*chain.from_iterable(parts)]
        image = features.transpose(0, 1)
        logits, evidence = vocabulary.logits(image), vocabulary.evidence(image)
        self.require_finite(vocabulary.text, logits, evidence)
        probabilities = (logits.double() / self.bundle.temperature).softmax(dim=1)
        best = probabilities.topk(min(top, len(vocabulary.classes)), dim=1).indices
        return [
            tuple(
                ClassScore(
                    vocabulary.classes[label],
                    float(probabilities[row, label]),
                    float(logits[row, label]),
                    self._evidence(evidence[:, row, label].tolist()),
                )
                for label in labels
            )
            for row, labels in enumerate(best.tolist())
        ]

    def _evidence(self, parts: Sequence[float]) -> dict[str, float]:
        """The part of each feature by name; attributes that own no head are summed into one part."""
        by_name = dict(zip(self.features, parts, strict=True))
        scores_without_heads = [by_name.pop(name) for name in self.without_heads]
        return by_name | ({UNOWNED: sum(scores_without_heads)} if scores_without_heads else {})

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
        distinct(names)
        for line in describe_names(self.bundle.training.name_cost, names, self.classes):
            warn(line)
        if not self.method.open_vocabulary:
            name = self.method.name
            raise SettingsError(f"{name} cannot score classes that it was not trained on: omit the classes.")
        method = copy.copy(self.method)  # shares all parameters, but not the classes
        method.set_classes(names, self.bundle.templates)
        decoupled = "classes" in method.decoupled_on and not {*names} <= {*self.classes}
        vocabulary = Vocabulary.of(method, self.own_vocabulary.precision, decoupled=decoupled)
        is_lasting = not method.text_depends_on_image and method.cosine_scores
        if is_lasting:  # without the prompts of the copy, which are much larger than the features
            vocabulary = replace(vocabulary, method=self.method)
        vocabulary = vocabulary.steered(**self.steering)
        if is_lasting:
            with self._caching:
                self._vocabularies[names] = vocabulary
                while len(self._vocabularies) > CACHED:
                    del self._vocabularies[next(iter(self._vocabularies))]
        return vocabulary
