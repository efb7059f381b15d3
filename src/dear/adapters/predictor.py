"""Predictions with evidence: class probabilities, and what each feature contributes to a class's score."""

import copy
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Self

import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from dear.adapters.bundle import Bundle, distinct
from dear.adapters.predictions import Candidate, Prediction, Unreadable
from dear.backbone.choice import warn_of_toy
from dear.backbone.clip import Clip
from dear.backbone.precision import mixed, precision_for
from dear.backbone.precisions import Precision
from dear.data.images.decode import as_picture, decode
from dear.data.images.photos import in_parallel
from dear.data.images.transforms import eval_views
from dear.data.settings import DataSettings
from dear.errors import DataError, SettingsError
from dear.limits import at_most, limit
from dear.methods.base import Method

BATCH = 32
REST = "rest"
"""Evidence of the attributes that own no head, together: it says nothing of any of them."""
CACHE = 128 * 2**20
"""Bytes of text features, and of their classes' names, that a predictor caches."""

Picture = Image.Image | Path | str


@dataclass(frozen=True)
class Vocabulary:
    """Candidate classes: a method set to them, their text features, whether features are decoupled (classes
    that it was not trained on), and the precision of features.
    """

    classes: tuple[str, ...]
    method: Method
    text: Float[Tensor, "class embed"]
    decoupled: bool
    precision: Precision

    @classmethod
    @torch.no_grad()
    def of(cls, method: Method, precision: Precision, *, decoupled: bool = False) -> Self:
        """The classes that a method is set to."""
        like = method.clip.image.projection
        with mixed(like.device, precision):
            text = method.text_features().to(like)
        return cls(tuple(method.classnames), method, text, decoupled, precision)

    @property
    def nbytes(self) -> int:
        """Bytes of the text features and the names."""
        return self.text.nbytes + sum(map(sys.getsizeof, self.classes))

    def image_features(
        self, pixels: Float[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "feature batch embed"]:
        """Unit image features of views in [0, 1]."""
        like = self.method.clip.image.projection
        with mixed(like.device, self.precision):
            return self.method.image_features(self.method.image_trunk(pixels.to(like))).to(like)


class Predictor:
    """An adapted model for inference. Calls change nothing in it but a cache of text features.

    Attributes:
        classes: The classes it was fitted to, in label order.
        features: Names of the image features: "class", then the attributes.
        cached_bytes: Bytes of the cached lists of other classes, at most ``CACHE``.
        unowned: Those of them whose attribute owns no head, so that they say nothing of it.
    """

    def __init__(
        self,
        bundle: Bundle | Path | str,
        device: str = "auto",
        *,
        clip: Clip | None = None,
        pretrained: str | None = None,
        precision: Precision = "auto",
    ) -> None:
        """Build from a bundle or its path, on the GPU if there is one and ``device`` is "auto"; ``clip`` is
        its backbone if already loaded, ``pretrained`` the location of its weights if they have moved;
        ``precision`` is as in training. Raises BundleError, WeightsError, SettingsError for a precision that
        the device does not have.
        """
        self.bundle = bundle if isinstance(bundle, Bundle) else Bundle.from_pretrained(bundle)
        self.clip = self.bundle.load_backbone(device, pretrained) if clip is None else clip
        self.method = self.bundle.build(self.clip).requires_grad_(False)
        self.classes = self.bundle.classes
        self.features = tuple("class" if name == "cls" else name for name in self.method.features)
        self.unowned = self.method.unowned
        self._own = Vocabulary.of(self.method, precision_for(self.clip, precision))
        self._vocabularies = OrderedDict[tuple[str, ...], Vocabulary]()
        self.cached_bytes = 0
        self._caching = threading.Lock()

    def preprocess(self, image: Picture) -> Float[Tensor, "3 size size"]:
        """An image as `encode` takes it: rotated according to its EXIF data, centre square, in [0, 1].

        Raises DataError for an unreadable image.
        """
        if isinstance(image, Image.Image):
            try:
                picture = as_picture(image, self.bundle.short_side)
            except (OSError, ValueError, SyntaxError) as error:  # pixels are decoded on access
                raise DataError(f"the image cannot be read: {error}.") from error
        else:
            picture = decode(Path(image), self.bundle.short_side)
        return eval_views([picture], self.clip.image_size)[0]

    @torch.no_grad()
    def encode(
        self, pixels: Float[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "batch feature embed"]:
        """Unit image features, in the order of ``features``."""
        return self._own.image_features(pixels).transpose(0, 1)

    @torch.no_grad()
    def encode_classes(self, classes: Sequence[str]) -> Float[Tensor, "class embed"]:
        """Unit text features of classes by name, using the bundle's templates."""
        return self.vocabulary(classes).text

    @torch.no_grad()
    def logits(
        self, pixels: Float[Tensor, "batch channel height width"], classes: Sequence[str] | None = None
    ) -> Float[Tensor, "batch class"]:
        """Scores of the classes, before the temperature."""
        known = self.vocabulary(classes)
        return known.method.logits(self.encode(pixels).transpose(0, 1), known.text, decoupled=known.decoupled)

    def predict(
        self, images: Sequence[Picture] | Picture, top: int = 5, classes: Sequence[str] | None = None
    ) -> list[Prediction]:
        """The best classes of each image (a single one is a list of one), among the bundle's own or among any
        others given by name. Warns of the tiny CLIP.

        Raises DataError for an unreadable image.
        """
        found = []
        for one in self.predict_each(images, top, classes):
            if isinstance(one, Unreadable):
                raise DataError(one.reason)
            found.append(one)
        return found

    def predict_each(
        self,
        images: Iterable[Picture] | Picture,
        top: int = 5,
        classes: Sequence[str] | None = None,
        *,
        batch: int = BATCH,
    ) -> Iterator[Prediction | Unreadable]:
        """The same one image at a time, computed in batches; yields an Unreadable for an unreadable image."""
        if top < 1:
            raise SettingsError(f"top is {top}: it must be at least 1.")
        warn_of_toy(self.bundle.model, world=False)  # a file may be of anything
        several = [images] if isinstance(images, Image.Image | Path | str) else images
        known, coming = self.vocabulary(classes), iter(several)
        while some := [*islice(coming, batch)]:
            files = not any(isinstance(one, Image.Image) for one in some)  # an open image is not thread-safe
            read = in_parallel(self._read, some, DataSettings().threads if files else 1)
            yield from self._batch(read, known, top)

    def _read(self, image: Picture) -> tuple[str | None, Tensor | Unreadable]:
        """The file of an image, if it has one, and its pixels or why they cannot be read."""
        place = None if isinstance(image, Image.Image) else str(image)
        try:
            return place, self.preprocess(image)
        except DataError as error:
            return place, Unreadable(place, str(error))

    @torch.no_grad()
    def _batch(
        self, waiting: Sequence[tuple[str | None, Tensor | Unreadable]], known: Vocabulary, top: int
    ) -> Iterator[Prediction | Unreadable]:
        good = [pixels for _, pixels in waiting if isinstance(pixels, Tensor)]
        rows = iter(()) if not good else iter(self.candidates(self.encode(torch.stack(good)), known, top))
        for place, pixels in waiting:
            yield pixels if isinstance(pixels, Unreadable) else Prediction(place, next(rows))

    @torch.no_grad()
    def candidates(
        self, features: Float[Tensor, "batch feature embed"], known: Vocabulary, top: int
    ) -> list[tuple[Candidate, ...]]:
        """The best classes of each image, from its features."""
        image = features.transpose(0, 1)
        logits = known.method.logits(image, known.text, decoupled=known.decoupled)
        evidence = known.method.evidence(image, known.text, decoupled=known.decoupled)
        shares = (logits.double() / self.bundle.temperature).softmax(dim=1)
        best = shares.topk(min(top, len(known.classes)), dim=1).indices
        return [
            tuple(
                Candidate(
                    known.classes[at],
                    float(shares[row, at]),
                    float(logits[row, at]),
                    self._evidence(evidence[:, row, at].tolist()),
                )
                for at in places
            )
            for row, places in enumerate(best.tolist())
        ]

    def _evidence(self, parts: Sequence[float]) -> dict[str, float]:
        """What each feature adds, by name, with those of attributes that own no head as one."""
        named = dict(zip(self.features, parts, strict=True))
        rest = [named.pop(name) for name in self.unowned]
        return named | ({REST: sum(rest)} if rest else {})

    def vocabulary(self, classes: Sequence[str] | None = None) -> Vocabulary:
        """The classes by name, the bundle's own if none are given; the last lists are cached.

        Raises DataError for an empty list or a duplicate name, SettingsError if the method cannot score
        classes that it was not trained on, LimitError for too many prompts.
        """
        names = (
            self.classes if classes is None else (classes,) if isinstance(classes, str) else tuple(classes)
        )
        cached = self.cached_vocabulary(names)
        return cached or next(filter(None, self.encoding(names, limit("prompts"))))

    def cached_vocabulary(self, names: tuple[str, ...]) -> Vocabulary | None:
        """The classes by name if they need not be encoded: the bundle's own, or of a cached list."""
        if names == self.classes:
            return self._own
        with self._caching:
            vocabulary = self._vocabularies.get(names)
            if vocabulary is not None:
                self._vocabularies.move_to_end(names)
            return vocabulary

    def check_names(self, names: Sequence[str]) -> None:
        """Raise what `vocabulary` raises for these classes, without encoding them."""
        distinct(names)
        if not self.method.open_vocabulary:
            raise SettingsError(
                f"this bundle's {self.method.name} cannot score classes that it was not trained on: omit "
                "the classes."
            )
        at_most("prompts", len(names) * len(self.bundle.templates), f"{len(names):,} class names")

    def pieces(self, names: tuple[str, ...], prompts: int) -> list[tuple[str, ...]]:
        """The classes in lists of up to ``prompts`` prompts each, of a class at least; in one list if text
        features are computed for each image.
        """
        size = max(1, prompts // len(self.bundle.templates))
        if self.method.text_depends_on_image:
            size = len(names)
        return [names[first : first + size] for first in range(0, len(names), size)]

    @torch.no_grad()
    def encoding(self, names: tuple[str, ...], prompts: int) -> Iterator[Vocabulary | None]:
        """Encode classes a piece at a time, as `pieces` says: yields None after each piece but the last, and
        then the vocabulary, which is cached. Raises as `check_names`.
        """
        self.check_names(names)
        decoupled = self.method.novel_decoupled and not {*names} <= {*self.classes}
        texts = list[Tensor]()
        for piece in self.pieces(names, prompts):
            if texts:
                yield None
            method = copy.copy(self.method)  # shares all parameters, but has its own classes
            method.set_classes(piece, self.bundle.templates)
            texts.append(Vocabulary.of(method, self._own.precision).text)
        if not self.method.text_depends_on_image:
            method = self.method  # its prompts are not needed any more, and much larger than the features
        text = texts[0] if len(texts) == 1 else torch.cat(texts)
        vocabulary = Vocabulary(names, method, text, decoupled, self._own.precision)
        if not self.method.text_depends_on_image:
            self._cache(vocabulary)
        yield vocabulary

    def _cache(self, vocabulary: Vocabulary) -> None:
        with self._caching:
            replaced = self._vocabularies.pop(vocabulary.classes, None)
            self._vocabularies[vocabulary.classes] = vocabulary
            self.cached_bytes += vocabulary.nbytes - (replaced.nbytes if replaced else 0)
            while self.cached_bytes > CACHE:
                _, oldest = self._vocabularies.popitem(last=False)
                self.cached_bytes -= oldest.nbytes


class BundleEncoder:
    """Image and text features of an adapted model, tied to its bundle. Texts are put into its templates."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.features: tuple[str, ...] = predictor.features
        self.unowned: tuple[str, ...] = predictor.unowned
        self.embed: int = predictor.encode_classes(predictor.classes).shape[1]
        self.short_side: int = predictor.bundle.short_side

    @property
    def facts(self) -> Mapping[str, Any]:
        """Nothing: the index names the bundle."""
        return {}

    @cached_property
    def identity(self) -> str:
        return self.predictor.bundle.features_identity

    @torch.no_grad()
    def images(
        self, pictures: Sequence[UInt8[Tensor, "3 _height _width"]]
    ) -> Float[Tensor, "batch feature embed"]:
        return self.predictor.encode(eval_views(pictures, self.predictor.clip.image_size)).cpu()

    def texts(self, texts: Sequence[str]) -> Float[Tensor, "text feature embed"]:
        """The same for every feature. Raises SettingsError if the method has prompts for its own classes
        only.
        """
        if not self.predictor.method.open_vocabulary:
            raise SettingsError(
                f"this bundle's {self.predictor.method.name} has text features for its own classes only: "
                "search by an image."
            )
        return self.predictor.encode_classes(texts).cpu()[:, None].expand(-1, len(self.features), -1)
