"""A bundle's classifier in detail: what it confuses, how far its confidence can be trusted, where its core
heads look, what its features set apart.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from dear.adapters.attention import attention_maps, overlay
from dear.adapters.calibration import probabilities
from dear.adapters.predictor import Predictor
from dear.adapters.results import BundleScores
from dear.adapters.scoring import evaluate_bundle, images_of, places
from dear.data.dataset import Dataset, Images
from dear.data.images.transforms import eval_views
from dear.evaluation.diagnosis import class_scores, confusion, expected_error, most_confident, reliability
from dear.methods.registry import frozen_clip
from dear.report.diagnosis import Diagnosis, FeatureMap, Look, Looks, Mistake
from dear.report.diagnosis_page import check_folder, write_diagnosis
from dear.roles.table import HeadRole, RoleTable

MISTAKES = 24
MAPPED = 500  # images in the map of features
FEWEST = 10  # images for which a map is made
PERPLEXITY = 30.0
SIDE = 160  # pixels of a picture with attention over it
THUMBNAIL = 224


def write_evaluation(
    folder: Path | str,
    predictor: Predictor,
    dataset: Dataset,
    *,
    split: str = "test",
    own_classes: bool = True,
) -> tuple[BundleScores, tuple[Path, ...]]:
    """Score a bundle as `evaluate_bundle`, and write the page ``evaluation.html`` into a folder, with its
    tables and figures as files. Returns the scores and the files, the page first.

    Raises DataError as `evaluate_bundle`, OutputError for a folder that cannot be written to.
    """
    check_folder(Path(folder))
    scores, found = diagnose(predictor, dataset, split=split, own_classes=own_classes)
    return scores, write_diagnosis(Path(folder), found)


@torch.no_grad()
def diagnose(
    predictor: Predictor, dataset: Dataset, *, split: str = "test", own_classes: bool = True
) -> tuple[BundleScores, Diagnosis]:
    """The scores of `evaluate_bundle` and what the page of an evaluation shows. Each image is scored once; a
    few are read again for their attention. Raises as `evaluate_bundle`.
    """
    logits: list[Tensor] = []
    features: list[Tensor] = []

    def watch(some: Float[Tensor, "feature batch embed"], scored: Float[Tensor, "batch class"]) -> None:
        logits.append(scored.cpu())
        features.append(some.transpose(0, 1).cpu())

    scores = evaluate_bundle(predictor, dataset, split=split, own_classes=own_classes, watch=watch)
    images = images_of(dataset, split)
    known = predictor.vocabulary(None if own_classes else dataset.classnames)
    labels = places(known, dataset, predictor.bundle.keys, tell=False)[images.labels.cpu()]
    shares = probabilities(torch.cat(logits), predictor.bundle.temperature)
    confidence, guesses = shares.max(dim=1)
    hit = guesses == labels
    counts = confusion(labels, guesses, len(known.classes))
    by_class = class_scores(counts, known.classes)
    bins = reliability(confidence, hit)
    # The most confident image that is right, and the most confident one that is wrong.
    wanted = [torch.where(hit == right, confidence, -1.0).argmax() for right in (True, False)]
    examples = [
        int(at) for at, right in zip(wanted, (True, False), strict=True) if bool((hit == right).any())
    ]
    looks, why = _looks(
        predictor, images, [(at, known.classes[int(labels[at])], bool(hit[at])) for at in examples]
    )
    chosen = torch.linspace(0, len(labels) - 1, min(len(labels), MAPPED)).long()
    mapped, why_no_map = _map(predictor.features, torch.cat(features)[chosen], labels[chosen])
    return scores, Diagnosis(
        subject=f"{predictor.bundle.method} on {predictor.bundle.weights}",
        data=dataset.title,
        split=split,
        numbers=_numbers(scores, sum(one.f1 for one in by_class) / len(by_class)),
        classes=known.classes,
        confusion=counts,
        scores=by_class,
        bins=bins,
        calibration_error=expected_error(bins),
        mistakes=_mistakes(predictor, images, known.classes, shares, labels),
        epochs=tuple(predictor.bundle.training.get("epochs") or ()),
        looks=looks,
        features=mapped,
        notes=tuple(filter(None, (why, why_no_map, _no_curve(predictor)))),
    )


def _numbers(scores: BundleScores, f1: float) -> dict[str, str]:
    return {
        "accuracy": f"{100 * scores.accuracy:.1f}%",
        "zero shot": f"{100 * scores.zero_shot:.1f}%",
        "chance": f"{100 * scores.chance:.1f}%",
        "mean F1 of the classes": f"{100 * f1:.1f}%",
        "calibration error": f"{100 * scores.calibration_error:.1f}%",
        "log-loss": f"{scores.log_loss:.2f} nats",
    }


def _mistakes(
    predictor: Predictor,
    images: Images,
    classes: Sequence[str],
    shares: Float[Tensor, "item class"],
    labels: Int[Tensor, "item"],
) -> tuple[Mistake, ...]:
    """The wrong answers with the highest probability."""
    confidence, guesses = shares.max(dim=1)
    return tuple(
        Mistake(
            as_image(_view(predictor, images, at)).resize((THUMBNAIL, THUMBNAIL)),
            name_of(images, at),
            classes[int(guesses[at])],
            float(confidence[at]),
            classes[int(labels[at])],
            float(shares[at, labels[at]]),
        )
        for at in most_confident(confidence, guesses == labels, MISTAKES)
    )


def _looks(
    predictor: Predictor, images: Images, examples: Sequence[tuple[int, str, bool]]
) -> tuple[tuple[Looks, ...], str]:
    """Attention of the core heads on some images, given with their class and whether they are classified
    correctly; or why there is none.
    """
    heads = [] if predictor.bundle.roles is None else core_heads(predictor.bundle.roles)
    if not heads:
        return (
            (),
            f"Attention of core heads: the bundle's {predictor.bundle.method} has no table of core heads.",
        )
    plain = frozen_clip(predictor.clip)
    plain.set_classes(predictor.classes, predictor.bundle.templates)
    found = []
    for at, name, right in examples:
        pixels = _view(predictor, images, at)
        shown = []
        for head in heads:
            place = head.layer, head.head
            maps = {"plain CLIP, class": attention_maps(plain, pixels, *place)["class"]}
            own = attention_maps(predictor.method, pixels, *place)
            maps["adapted, class"] = own["class"]
            if head.attribute in own:
                maps["adapted, its attribute"] = own[head.attribute]
            overlays = {whose: overlay(pixels, grid, SIDE) for whose, grid in maps.items()}
            shown.append(Look(*place, str(head.attribute), overlays))
        title = f"{name_of(images, at)} ({name}), classified {'correctly' if right else 'wrongly'}"
        found.append(Looks(as_image(pixels), title, tuple(shown)))
    return tuple(found), ""


def core_heads(roles: RoleTable) -> list[HeadRole]:
    """For each attribute of a table the core head with the largest share of it, the last of equals."""
    best: dict[str, HeadRole] = {}
    for head in roles.heads:
        if head.role == "core" and head.attribute is not None:
            other = best.get(head.attribute)
            if other is None or head.share.get(head.attribute, 0) >= other.share.get(head.attribute, 0):
                best[head.attribute] = head
    return [best[name] for name in roles.attributes if name in best]


def _map(
    names: Sequence[str], features: Float[Tensor, "item feature embed"], labels: Int[Tensor, "item"]
) -> tuple[FeatureMap | None, str]:
    """The plane of t-SNE for each feature, or why there is none. Source: van der Maaten and Hinton, 2008."""
    if len(labels) < FEWEST:
        return None, f"A map of the features: {len(labels)} images are too few, {FEWEST} are needed."
    try:
        from sklearn.manifold import TSNE
    except ModuleNotFoundError:
        return None, "A map of the features: it needs scikit-learn, pip install 'dear-vlm[roles]'."
    perplexity = min(PERPLEXITY, (len(labels) - 1) / 3)
    plane = TSNE(perplexity=perplexity, init="pca", random_state=0)
    points = {
        name: torch.from_numpy(plane.fit_transform(features[:, at].float().numpy()))
        for at, name in enumerate(names)
    }
    return FeatureMap(points, labels), ""


def _no_curve(predictor: Predictor) -> str:
    if predictor.bundle.training.get("epochs"):
        return ""
    return "The learning curve: the bundle holds none (not trained in epochs, or by an earlier version)."


def _view(predictor: Predictor, images: Images, at: int) -> Float[Tensor, "3 size size"]:
    """An image as the model sees it."""
    return eval_views(images.load(torch.tensor([at])), predictor.clip.image_size)[0]


def as_image(pixels: Float[Tensor, "3 size size"]) -> Image.Image:
    """Pixels in [0, 1] as a picture."""
    return Image.fromarray((pixels * 255).round().byte().permute(1, 2, 0).cpu().numpy())


def name_of(images: Images, at: int) -> str:
    """The file of an image, or its number counted from 1."""
    paths: Sequence[str] | None = getattr(images, "paths", None)
    return f"image {at + 1}" if paths is None else str(paths[at])
