"""Drift: whether images of today look like those that a bundle was made for. Without labels this says what is
unusual, but not how many are right.
"""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dear.adapters.bundle import Bundle
from dear.adapters.encoder import BATCH
from dear.adapters.feature_reader import ImageReader
from dear.adapters.operating import DECIDED
from dear.adapters.predictor import Predictor
from dear.adapters.results import Unreadable
from dear.curation.two_samples import MOST, compare_samples
from dear.data.fewshot import leave_subsets
from dear.data.images.decode import as_image, decode
from dear.data.images.photos import group_names
from dear.data.loading import load_unlabeled
from dear.data.settings import DataSettings
from dear.data.sources.shards import find_images
from dear.errors import DataError, SettingsError
from dear.reading.files import expanded
from dear.reading.remote import as_path, within
from dear.report.render import gallery_photo, render_page, write_page
from dear.stats import LEVEL, group_share_interval, mean_interval, rank_interval
from dear.text import plural
from dear.writing import require_writable

PAGE = "drift.html"
FURTHEST = 12
FEWEST = 10
"""Groups of each sample below which nothing is tested: so few hardly show anything."""
FLAT = 1e-3
"""The least contrast of a picture with a sharpness: a quarter of a step of its 8-bit values."""
VALUES = ("brightness", "sharpness", "confidence")


@dataclass(frozen=True)
class Sample:
    """What was read of some images: their files, groups, features, and values by name."""

    files: tuple[str, ...]
    groups: tuple[str, ...]
    features: Float[np.ndarray, "item embed"] = field(repr=False)
    values: dict[str, Float[np.ndarray, "item"]] = field(repr=False)
    none: np.ndarray = field(repr=False)
    decided: np.ndarray | None = field(repr=False)


@dataclass(frozen=True)
class Drift:
    """How images differ from those that a bundle was made for.

    Attributes:
        images, groups: How many images were looked at, and of how many groups.
        none_of_these, none_interval: The share that looks like none of the classes, and its interval, at 95%.
        none_expected: The interval in which that share of new images of the classes is expected; None if
            nothing can be refused.
        confidence, confidence_interval: The mean probability of the best class, and its interval, at 95%.
        confidence_expected: That of images on which the bundle was measured; None if unknown.
        decided, decided_expected: The share that is decided by the operating point, here and as measured;
            None without one.
        reference: How many images they were compared with; 0 for none.
        p: The p-value of that the features of both are of one distribution; None without a reference.
        values: Of brightness and sharpness (and confidence) the mean in the reference and here, and the
            p-value that both are the same.
        furthest: The files of the images least like the reference, or that the classifier is least sure of.
    """

    images: int
    groups: int
    none_of_these: float
    none_interval: tuple[float, float]
    none_expected: tuple[float, float] | None
    confidence: float
    confidence_interval: tuple[float, float]
    confidence_expected: float | None
    decided: float | None
    decided_expected: float | None
    reference: int
    p: float | None
    values: dict[str, tuple[float, float, float]]
    furthest: tuple[str, ...]

    @property
    def is_clear(self) -> bool:
        """True if the features differ clearly from those of the reference."""
        return self.p is not None and self.p < 1 - LEVEL

    @property
    def verdict(self) -> list[str]:
        """What is unusual, whether it may matter, and what cannot be known, in lines."""
        return [*self._describe_test(), *self._describe_answers(), UNKNOWABLE]

    def _describe_test(self) -> list[str]:
        if self.p is None:
            if not self.reference:
                return ["Features, brightness and sharpness are not compared: --reference says with what."]
            return [f"Features are not compared: that takes {FEWEST} groups of images on each side."]
        images = plural(self.reference, "image")
        p = f"p {self.p:.3f}"
        differ = "differ" if self.is_clear else "do not clearly differ"
        lines = [f"The features of these images {differ} from those of the {images} of the reference ({p})."]
        of_pictures = [name for name in VALUES[:2] if name in self.values]
        for name in of_pictures:
            before, now, p_value = self.values[name]
            if p_value * len(of_pictures) < 1 - LEVEL:
                change = "more" if now > before else "less"
                lines.append(f"Unusual {name}: {now:.3g}, {change} than {before:.3g} (p {p_value:.3f}).")
        return lines

    def _describe_answers(self) -> list[str]:
        low, high = self.none_interval
        share = (
            f"{self.none_of_these:.1%} look like none of the classes ({LEVEL:.0%}: {low:.1%} to {high:.1%})"
        )
        is_unusual = False
        if self.none_expected is not None:
            least, most = self.none_expected
            is_unusual = low > most
            words = "clearly more" if is_unusual else "not clearly more"
            share += f": {words} than the {least:.1%} to {most:.1%} expected"
        lines = [f"{share}."] if self.none_expected is not None else []
        sure = f"The mean probability is {self.confidence:.1%}"
        is_less_sure = False
        if self.confidence_expected is not None:
            is_less_sure = self.confidence_interval[1] < self.confidence_expected
            words = "clearly less than" if is_less_sure else "not clearly less than"
            sure += f", {words} {self.confidence_expected:.1%} on the images that it was measured on"
        lines.append(f"{sure}.")
        if self.decided is not None:
            lines.append(
                f"{self.decided:.1%} are decided; {self.decided_expected or 0:.1%} were when measured."
            )
        if is_unusual or is_less_sure:
            lines.append("This may matter: look at the furthest images, and measure with labels.")
        elif self.is_clear:
            lines.append(
                "It may not matter: the classifier is not clearly less sure and does not refuse clearly more."
            )
        return lines


UNKNOWABLE = (
    "How many are right cannot be known without labels: label some of these (dear suggest), then dear eval."
)


def detect_drift(
    predictor: Predictor | Bundle | Path | str,
    images: Any,
    reference: Any = None,
    out: Path | str | None = None,
    *,
    dataset: DataSettings | None = None,
    seed: int = 1,
) -> Drift:
    """How images differ from those that a bundle was made for.

    Args:
        images, reference: Folders of images, or lists of files. The reference is what the images are compared
            with: those of the fit, or of a month that was fine.
        out: Folder of the page drift.html; None writes none.
        dataset: How files are read; ``group`` is a pattern of images that belong together.
        seed: Of the permutations, and of the images that are drawn of many.

    Raises DataError for a folder without readable images, SettingsError for images that are no files.
    """
    if out is not None:
        require_writable(expanded(out), "the page to", folder=True)
    predictor, settings = Predictor.of(predictor), (dataset or DataSettings()).skip_broken()
    now = read_sample(predictor, images, settings, seed)
    before = None if reference is None else read_sample(predictor, reference, settings, seed)
    bundle, scores = predictor.bundle, predictor.bundle.scores
    point, measured = bundle.training.operating, None
    if point is not None:
        measured = point.measured
    test = None
    if before is not None and min(len({*before.groups}), len({*now.groups})) >= FEWEST:
        both = {name: np.concatenate([before.values[name], now.values[name]]) for name in VALUES[:2]}
        groups = (*before.groups, *now.groups)
        test = compare_samples(before.features, now.features, groups, both, seed)
    order = np.argsort(now.values["confidence"] if test is None else test.likeness, kind="stable")
    drift = Drift(
        images=len(now.files),
        groups=len({*now.groups}),
        none_of_these=float(now.none.mean()),
        none_interval=group_share_interval(now.none, now.groups),
        none_expected=_expect_refused(predictor),
        confidence=float(now.values["confidence"].mean()),
        confidence_interval=mean_interval(now.values["confidence"], now.groups),
        confidence_expected=None if scores is None else scores.confidence,
        decided=None if now.decided is None else float(now.decided.mean()),
        decided_expected=None if measured is None else measured.decided / measured.images,
        reference=0 if before is None else len(before.files),
        p=None if test is None else test.p,
        values={}
        if before is None or test is None
        else {
            name: (float(before.values[name].mean()), float(now.values[name].mean()), p)
            for name, p in test.p_of_values.items()
        },
        furthest=tuple(now.files[item] for item in order[:FURTHEST].tolist()),
    )
    if out is not None:
        write_drift(expanded(out), drift, bundle.title)
    return drift


def _expect_refused(predictor: Predictor) -> tuple[float, float] | None:
    """The interval of the share of new images of the classes that is refused, where any can be."""
    known = predictor.known
    if known is None or predictor.refusal_threshold < 0:
        return None
    limit, groups = predictor.refusal_threshold, int(known.groups)
    return rank_interval(1 + (math.floor(limit) if groups == int(known.images) else limit), groups)


@torch.no_grad()
def read_sample(predictor: Predictor, images: Any, settings: DataSettings, seed: int) -> Sample:
    """What is compared of images; of more than `MOST`, as many are drawn. Raises as `detect_drift`."""
    is_folder = isinstance(images, str | Path)
    files = find_images(images, settings) if is_folder else [*images]
    if not files or not all(isinstance(file, str | Path) for file in files):
        raise SettingsError("drift is seen in files of images: give a folder, or a list of files.")
    if len(files) > MOST:
        chosen = np.random.default_rng(seed).permutation(len(files))[:MOST]
        files = [files[number] for number in sorted(chosen.tolist())]
    loaded = load_unlabeled(files, replace(settings, allow_fewer=True))
    base, items = leave_subsets(loaded)
    folder, paths = getattr(base, "folder", Path()), getattr(base, "paths", ())
    names = group_names(loaded)
    readable = [within(folder, paths[item]) for item in items.tolist()]
    features, values, told = list[Tensor](), list[Tensor](), list[tuple[float, bool, str]]()
    reader, vocabulary = ImageReader(predictor, remember=False), predictor.own_vocabulary
    has_frozen = predictor.refusal_threshold > -float("inf")
    for part in reader.read(readable, BATCH):
        if failed := [image for image in part if isinstance(image.pixels, Unreadable)]:
            raise DataError(str(failed[0].pixels))
        rows = reader.features(part)
        features.append(rows[:, -1 if has_frozen else 0].cpu())
        pixels = [image.pixels for image in part if isinstance(image.pixels, Tensor)]
        values.append(torch.stack([*map(measure_picture, pixels)]))
        ranked = [(best[0].probability, none) for best, none, *_ in predictor.rank(rows, vocabulary, 1)]
        refused = [none for _, none in ranked]
        choices = predictor.decide(rows[:, : len(predictor.features)], vocabulary, refused)
        told += [(*of, decision) for of, (decision, _) in zip(ranked, choices, strict=True)]
    of_pictures = torch.cat(values).double().numpy()
    confidence, none, decisions = zip(*told, strict=True)
    return Sample(
        files=tuple(map(str, readable)),
        groups=tuple(names),
        features=torch.cat(features).double().numpy(),
        values={
            "brightness": of_pictures[:, 0],
            "sharpness": of_pictures[:, 1],
            "confidence": np.array(confidence),
        },
        none=np.array(none),
        decided=np.array([decision == DECIDED for decision in decisions]) if decisions[0] else None,
    )


def measure_picture(pixels: Float[Tensor, "3 size size"]) -> Float[Tensor, "2"]:
    """The brightness of a view in [0, 1], its mean luma, and its sharpness: the standard deviation of the
    Laplacian of the luma divided by that of the luma itself, so that less light or contrast is not taken for
    less sharpness.
    """
    luma = torch.einsum("c,chw->hw", pixels.new_tensor([0.299, 0.587, 0.114]), pixels).double()
    inner = luma[1:-1, 1:-1]
    laplacian = luma[:-2, 1:-1] + luma[2:, 1:-1] + luma[1:-1, :-2] + luma[1:-1, 2:] - 4 * inner
    contrast = luma.std()
    return torch.stack([luma.mean(), laplacian.std() / contrast if contrast > FLAT else contrast * 0]).cpu()


def write_drift(folder: Path, drift: Drift, title: str) -> tuple[Path, ...]:
    """Write drift.html into a folder, with the furthest images."""
    gallery = [
        gallery_photo(as_image(decode(as_path(file))), title=Path(file).name, alt="", captions={})
        for file in drift.furthest
    ]
    text = render_page("drift.html.j2", drift=drift, title=title, gallery=gallery, lines=drift.verdict)
    return write_page(folder, PAGE, text, {}, ())
