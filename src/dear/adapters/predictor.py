"""Inference with a bundle: features of images and classes, and predictions with evidence."""

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dear.adapters.bundle import Bundle
from dear.adapters.encoder import BATCH, Encoder
from dear.adapters.feature_reader import ImageReader
from dear.adapters.operating import name_choices
from dear.adapters.results import ClassScore, Prediction, Suggestion, Unreadable, is_sum, name_evidence
from dear.adapters.vocabulary import Vocabulary
from dear.curation.outliers import Refusal
from dear.curation.twins import choose_all, margins
from dear.data.images.forms import is_image
from dear.data.images.photos import split_hashes
from dear.data.sources.corrections import answered_contents
from dear.data.sources.objects import each_image
from dear.errors import DataError, warn
from dear.reading.typed import PositiveInt, check_value
from dear.text import plural

EVIDENCE = 2**24
"""Values of the evidence for images that are scored together: images times features times classes."""


class Predictor(Encoder):
    """An adapted model for inference. Calls change nothing in it but a cache of text features.

    What takes images takes one (`Picture`) and gives one result, or takes several and gives as many: a list,
    a folder, an array or tensor with an axis more, a data frame with a column path or image or that column, a
    torch Dataset or a DataLoader. A path may be an address, such as s3://bucket/photos: do not pass on what a
    stranger wrote.
    """

    @classmethod
    def of(cls, source: "Predictor | Bundle | Path | str", **options: Any) -> "Predictor":
        """A predictor itself, or that of a bundle, its folder or name. Raises BundleError for others."""
        return source if isinstance(source, Predictor) else cls(source, **options)

    @classmethod
    def from_pretrained(cls, folder_or_hub_id: Path | str, device: str = "auto", **options: Any) -> Self:
        """The predictor of a bundle in a folder or, given OWNER/NAME, on the hub; the same as the class."""
        return cls(folder_or_hub_id, device, **options)

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
    def logits(self, images: Any, classes: Sequence[str] | None = None) -> Float[Tensor, "*batch class"]:
        """Scores of the classes, before the temperature. Raises DataError for an unreadable image."""
        features, vocabulary = self.encode(images), self.vocabulary(classes)
        logits = vocabulary.logits(features.reshape(-1, *features.shape[-2:]).transpose(0, 1))
        self.require_finite(logits)
        return logits[0] if is_image(images) else logits

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
        check_value("top", top, PositiveInt)
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
        check_value("count", count, PositiveInt)
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
    ) -> list[tuple[tuple[ClassScore, ...], bool, str, str, tuple[ClassScore, ...]]]:
        """What a `Prediction` says of each image after its file, from what `encode_all` gives."""
        image = features[:, : len(self.features)]
        best, refused = self.best_classes(image, vocabulary, top), [False] * len(features)
        if (refusal := self.refusal(vocabulary.classes)) is not None:
            numbers = {name: number for number, name in enumerate(vocabulary.classes)}
            predicted = torch.tensor(
                [numbers[candidates[0].name] for candidates in best], device=features.device
            )
            refused = refusal(features[:, -1], predicted).tolist()
        choices = self.decide(image, vocabulary, refused)
        unchanged: list[tuple[ClassScore, ...]] = [()] * len(features)
        if vocabulary.unchanged is not None:
            unchanged = self.best_classes(image, vocabulary.unchanged, top)
        rows = zip(best, refused, choices, unchanged, strict=True)
        return [(candidates, is_refused, *choice, own) for candidates, is_refused, choice, own in rows]

    def decide(
        self, image: Float[Tensor, "batch feature embed"], vocabulary: Vocabulary, refused: Sequence[bool]
    ) -> list[tuple[str, str]]:
        """Whether each image is decided by the bundle's operating point or goes to a person, and the class
        that it is decided to be of; both empty without one, among other classes than the bundle's, and if it
        is steered, as the point was chosen by its own weights.
        """
        point = self.bundle.training.operating
        if point is None or vocabulary.classes != self.classes or vocabulary.unchanged is not None:
            return [("", "")] * len(image)
        logits = vocabulary.logits(image.transpose(0, 1)).double() / self.bundle.temperature
        choices = point.decide(logits.softmax(dim=1).cpu().numpy(), self.classes)
        return name_choices(choices, refused, self.classes)

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
        if not is_sum(logits, evidence.sum(dim=0)):
            warn(
                f"no evidence is shown: the parts of the features do not sum to the scores of "
                f"{self.bundle.method}. Its class can say what each adds, by a method "
                "evidence(image, text, *, decoupled=False)."
            )
            evidence = evidence[:0]
        probabilities = (logits.double() / self.bundle.temperature).softmax(dim=1)
        best = probabilities.topk(min(top, len(vocabulary.classes)), dim=1).indices
        return [
            tuple(
                ClassScore(
                    vocabulary.classes[label],
                    float(probabilities[row, label]),
                    float(logits[row, label]),
                    name_evidence(evidence[:, row, label].tolist(), self.features, self.without_heads),
                )
                for label in labels
            )
            for row, labels in enumerate(best.tolist())
        ]
