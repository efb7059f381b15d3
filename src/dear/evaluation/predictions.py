"""The logits of a method on labeled images, which all metrics are computed from, and the file of predictions
beside the record of a run.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Self
from zipfile import BadZipFile

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dear.backbone.device import mixed, precision_for
from dear.backbone.names import Precision
from dear.data.dataset import Images
from dear.data.fewshot import leave_subsets
from dear.data.images.photos import PhotoImages, group_names
from dear.data.images.transforms import load_test_views, prefetch_views, to_unit
from dear.errors import DataError
from dear.methods.base import ImageFeatures, Method
from dear.progress import Progress, silent
from dear.text import without_surrogates
from dear.training.cache import Cache, trunk_facts

MOST_LOGITS, FEWEST_LOGITS = 1_000_000, 10
"""Of each image the highest logits are written: as many as make ``MOST_LOGITS`` for a part of the results,
but at least ``FEWEST_LOGITS``.
"""
BATCHES_READ = 16  # of which readouts are read at once: those that are not known are encoded together

Encode = Callable[[Images], Iterable[Float[Tensor, "batch feature embed"]]]
"""Gives unit image features in order: those of a method, and that of the frozen backbone if it is tested."""


@dataclass(frozen=True)
class Predictions:
    """A method's logits on labeled images, on the CPU.

    Attributes:
        classes: The candidate classes, in the order of the logits.
        logits: Those that count: fused or decoupled, as the method's authors score.
        fused, decoupled: The logits by all features, and by the class feature alone.
        zero_shot: Those of the frozen backbone; None if it was not evaluated.
        features: Unit image features, a row for each feature of the method; None if they were not asked for.
        temperature: What the logits are divided by before the softmax.
        frozen: Unit image features of the frozen backbone; None if it was not evaluated.
        new: Labels of untrained classes; empty unless scored together with trained ones.
    """

    classes: tuple[str, ...]
    labels: Int[Tensor, "item"]
    logits: Float[Tensor, "item class"]
    fused: Float[Tensor, "item class"]
    decoupled: Float[Tensor, "item class"]
    zero_shot: Float[Tensor, "item class"] | None = None
    features: Float[Tensor, "item feature embed"] | None = None
    temperature: float = 1.0
    new: tuple[int, ...] = ()
    frozen: Float[Tensor, "item embed"] | None = None

    def among(
        self, columns: Int[Tensor, "class"], classes: tuple[str, ...], labels: Int[Tensor, "item"]
    ) -> Self:
        """These predictions among some of the classes, the ``columns`` of the logits, which are then called
        ``classes`` and are what ``labels`` count.
        """
        scores = {name: getattr(self, name)[:, columns] for name in ("logits", "fused", "decoupled")}
        return replace(self, classes=classes, labels=labels, **scores)

    @property
    def predicted(self) -> Int[Tensor, "item"]:
        """The class with the highest logit, the first of equals."""
        return self.logits.argmax(dim=1)

    @property
    def correct(self) -> Bool[Tensor, "item"]:
        """Which images are classified correctly."""
        return self.predicted == self.labels

    @property
    def zero_shot_correct(self) -> Bool[Tensor, "item"]:
        """Which images the frozen backbone classifies correctly; it must have been evaluated."""
        assert self.zero_shot is not None
        return self.zero_shot.argmax(dim=1) == self.labels

    def probabilities(self) -> Float[Tensor, "item class"]:
        """softmax(logits / temperature), in float64."""
        return (self.logits.double() / self.temperature).softmax(dim=1)


@dataclass(frozen=True)
class ImagePredictions:
    """What a run predicts for each image of a part of its results, as stored; classes are their indices.

    Attributes:
        classes: The candidate classes.
        labels: The class of each image.
        top: The classes with the highest logits, the highest first.
        logits: The logits of these.
        label_logits: The logit of the image's own class.
        log_sums: Logarithm of the sum of exp(logit) over all classes.
        indices: The numbers of the images among the test images of their data set.
        groups: The number of each image's group: the same for images that belong together.
        paths: The image files within ``folder``; none if the images have no files.
    """

    classes: np.ndarray
    labels: Int[np.ndarray, "item"]
    top: Int[np.ndarray, "item top"]
    logits: Float[np.ndarray, "item top"]
    label_logits: Float[np.ndarray, "item"]
    log_sums: Float[np.ndarray, "item"]
    indices: Int[np.ndarray, "item"]
    groups: Int[np.ndarray, "item"]
    paths: np.ndarray
    folder: np.ndarray

    @classmethod
    def of(cls, predictions: Predictions, images: Images) -> "ImagePredictions":
        """The predictions for the test images of a data set, or for a `Subset` of them."""
        logits, labels = predictions.logits.float() / predictions.temperature, predictions.labels
        everything = torch.arange(len(images))
        whole, indices = leave_subsets(images, everything)
        is_grouped = any(getattr(whole, "groups", ()))
        names = group_names(images) if is_grouped else everything.numpy()
        most = max(FEWEST_LOGITS, MOST_LOGITS // max(len(labels), 1))
        # In the order of the classes, so that the first of equals comes first.
        top = logits.topk(min(most, logits.shape[1]), dim=1).indices.sort(dim=1).values
        top = top.gather(1, logits.gather(1, top).argsort(dim=1, descending=True, stable=True))
        log_sums = [rows.double().logsumexp(dim=1) for rows in logits.split(4096)]
        small = np.min_scalar_type(len(predictions.classes))
        photos = whole if isinstance(whole, PhotoImages) else None
        return cls(
            classes=np.array(predictions.classes, dtype=str),
            labels=labels.numpy().astype(small),
            top=top.numpy().astype(small),
            logits=logits.gather(1, top).numpy(),
            label_logits=logits.gather(1, labels[:, None])[:, 0].numpy(),
            log_sums=torch.cat(log_sums).numpy(),
            indices=indices.numpy(),
            groups=np.unique(names, return_inverse=True)[1],
            paths=np.array([photos.paths[index] for index in indices] if photos else [], dtype=str),
            folder=np.array(str(photos.folder.resolve()) if photos else "", dtype=str),
        )


def predictions_file(parts: Mapping[str, ImagePredictions]) -> bytes:
    """The predictions of a run, by part of its results, as npz with arrays PART/FIELD (docs/reproduce.md);
    the same predictions give the same bytes.
    """
    arrays = {
        f"{without_surrogates(part)}/{name}": value
        for part, predictions in parts.items()
        for name, value in asdict(predictions).items()
    }
    file = BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def list_parts(path: Path) -> list[str]:
    """The parts of the results in a file of predictions. Raises DataError for a damaged one."""
    with _expect_whole(path), np.load(path) as arrays:
        return list(dict.fromkeys(name.rpartition("/")[0] for name in arrays.files))


def load_predictions(path: Path, part: str) -> ImagePredictions:
    """The predictions in a part of the results. Raises DataError for a damaged file."""
    with _expect_whole(path), np.load(path) as arrays:
        return ImagePredictions(
            **{name: arrays[f"{part}/{name}"] for name in ImagePredictions.__annotations__}
        )


@contextmanager
def _expect_whole(path: Path) -> Iterator[None]:
    try:
        yield
    except (KeyError, ValueError, OSError, BadZipFile, EOFError) as error:
        raise DataError(f"{path} is damaged: remove it with its record, and run it again.") from error


@torch.no_grad()
def predict(
    method: Method,
    images: Images,
    *,
    labels: Int[Tensor, "item"] | None = None,
    vocabulary: tuple[tuple[str, ...], Float[Tensor, "class embed"]] | None = None,
    frozen: Method | None = None,
    batch: int | None = None,
    cache: Cache | None = None,
    decoupled: bool = False,
    precision: Precision = "auto",
    temperature: float = 1.0,
    keep_features: bool = False,
    encode: Encode | None = None,
    progress: Progress = silent,
) -> Predictions:
    """Compute the logits of all images. Text features are computed once; each image is read and passes the
    trunk once.

    ``labels`` are by default those of the images. ``vocabulary`` is the candidate classes and their text
    features, by default those that the method is set to. ``frozen`` is the frozen backbone, set to the same
    classes; it continues the method's trunk outputs. ``decoupled`` takes the logits by the class feature
    alone in place of the fused ones. ``encode`` gives the features in place of the method. ``precision`` is
    as in training; the logits themselves are computed in the type of the CLIP's weights: float32, or float16
    with 16-true.
    """
    like, precision = method.clip.image.projection, precision_for(method.clip, precision)
    with mixed(like.device, precision):
        classes, text = vocabulary or (tuple(method.classnames), method.text_features())
        text = text.to(like)
        frozen_text = None if frozen is None else frozen.text_features().to(like)
    fused, alone, zero_shot, features, unadapted = (list[Tensor]() for _ in range(5))
    done = 0
    batch = batch or method.clip.image.images_at_once
    if encode is None:
        batches = _load_features(method, images, batch, cache or Cache(0), precision, frozen)
    else:
        encoded = (part.transpose(0, 1).to(like) for part in encode(images))
        batches = ((part[: len(method.features)], part[len(method.features) :]) for part in encoded)
    for image, plain in batches:
        by_all, by_class = _classify(method, image, text)
        fused.append(by_all)
        alone.append(by_class)
        if keep_features:
            features.append(image.transpose(0, 1).cpu())
        if frozen is not None and frozen_text is not None and plain is not None:
            zero_shot.append(frozen.logits(plain, frozen_text))
            unadapted.append(plain[0].cpu())
        done += image.shape[1]
        progress("testing", done, len(images))
    fused_logits, decoupled_logits = _join(fused), _join(alone)
    return Predictions(
        classes,
        (images.labels if labels is None else labels).cpu(),
        decoupled_logits if decoupled else fused_logits,
        fused_logits,
        decoupled_logits,
        _join(zero_shot) if zero_shot else None,
        torch.cat(features) if features else None,
        temperature,
        frozen=torch.cat(unadapted) if unadapted else None,
    )


def _classify(
    method: Method, image: Float[Tensor, "feature item embed"], text: Float[Tensor, "class embed"]
) -> tuple[Float[Tensor, "item class"], Float[Tensor, "item class"]]:
    """The logits by all features, and those by the class feature alone."""
    fused = method.logits(image, text)
    return fused, method.logits(image, text, decoupled=True) if method.can_be_decoupled else fused


def _join(batches: Sequence[Float[Tensor, "batch class"]]) -> Float[Tensor, "item class"]:
    """Join batches on the CPU. They stay on the GPU until then, so that it is not waited for after each."""
    return torch.cat([logits.cpu() for logits in batches])


def _load_features(
    method: Method,
    images: Images,
    batch: int,
    cache: Cache,
    precision: Precision,
    frozen: Method | None,
) -> Iterator[tuple[ImageFeatures, ImageFeatures | None]]:
    """Image features in batches, of the method and of the frozen backbone, which continues the method's trunk
    outputs. They come from the cache's readouts if it has those.
    """
    like = method.clip.image.projection
    if (readouts := cache.readouts_of(method, images)) is None:
        for trunk in load_trunks(method, images, batch, cache, precision):
            with mixed(like.device, precision):
                image = method.image_features(method.read_out(trunk)).to(like)
                plain = None
                if frozen is not None:
                    token = frozen.continue_trunk(trunk, method.image_from)
                    plain = frozen.image_features(token).to(like)
            yield image, plain
        return
    for indices in torch.arange(len(images)).split(batch * BATCHES_READ):
        rows = readouts.read(method, images, indices, precision)
        tokens = rows if frozen is None else readouts.read(frozen, images, indices, precision)
        for read, token in zip(rows.split(batch), tokens.split(batch), strict=True):
            with mixed(like.device, precision):
                image = method.image_features(read).to(like)
                plain = None if frozen is None else frozen.image_features(token).to(like)
            yield image, plain


def load_trunks(
    method: Method, images: Images, batch: int, cache: Cache, precision: Precision
) -> Iterator[Float[Tensor, "item token width"]]:
    """Trunk outputs of all images in the test view, in batches; the next ones are loaded in the background.
    An output that is cached for a method whose span begins earlier is continued from there.
    """
    device, precision = method.clip.image.projection.device, precision_for(method.clip, precision)

    def key(start: int, layer: int) -> tuple[object, ...]:
        return (images.identity, *trunk_facts(method, precision, layer), start, batch)

    def cached_layer(start: int) -> int | None:
        layers = range(method.image_from, 0, -1)
        return next((layer for layer in layers if cache.find("trunk", key(start, layer)) is not None), None)

    batches = torch.arange(len(images)).split(batch)
    cached = [cached_layer(int(indices[0])) is not None for indices in batches]
    missing = [indices for indices, is_cached in zip(batches, cached, strict=True) if not is_cached]
    preprocess = method.clip.preprocess

    def compute(indices: Tensor, views: Tensor | None) -> Tensor:
        start = int(indices[0])
        layer = cached_layer(start)
        with mixed(device, precision):
            if layer is not None and (trunk := cache.find("trunk", key(start, layer))) is not None:
                return method.continue_trunk(trunk, layer)
            if views is None:  # evicted from the cache since
                views = to_unit(load_test_views(images, indices, preprocess).to(device))
            return method.image_trunk(views)

    with closing(prefetch_views(images, missing, preprocess, device)) as loaded:
        for indices, is_cached in zip(batches, cached, strict=True):
            views = None if is_cached else next(loaded)
            trunk_key = key(int(indices[0]), method.image_from)
            yield cache.get("trunk", trunk_key, partial(compute, indices, views))
