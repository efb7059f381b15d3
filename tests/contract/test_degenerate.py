"""Training images with nothing to tell apart, too few of them, or all of one group: every method that takes a
moment to fit does what it can, or says in one line that it cannot. None divides by what there is none of.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.backbone.clip import Clip
from dear.errors import DearError
from dear.methods.base import Method, TrainingImages
from dear.methods.dear_plus import DearPlusSettings
from dear.methods.declaration import MethodSettings
from dear.methods.gda import GdaSettings
from dear.methods.optional import LearnsUnlabeled, UsesAllImages, keep_known_scores
from dear.methods.registry import METHODS, build_method
from dear.methods.tip_adapter import TipAdapterSettings
from tests.helpers.methods import SETTINGS, TEMPLATE, MakeClip, role_table, seeded

CHEAP = [name for name, declared in METHODS.items() if declared.cheap]
ALWAYS = {"zero-shot", "linear-probe", "tip-adapter", "dear+"}
"""The methods that are fitted to whatever images there are."""

CLASSES = ["red circle on the sea", "house", "green tree", "blue square", "sea"]

LABELS: Mapping[str, Sequence[int]] = {
    "1 image": [0],
    "2 images of 2 classes": [0, 1],
    "2 images of 1 class": [0, 0],
    "1 image a class": [0, 1, 2, 3, 4],
    "7 images of 1 class": [0] * 7,
    "1 class with several": [0, 0, 0, 1, 2],
    "several a class": [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1],
}

LARGEST = 1e6
"""Rounding errors that are taken for what varies give scores of 1e12 and more."""

GROUPS = ("no groups", "1 group", "1 group a class", "2 groups across classes")
PICTURES = ("different", "constant", "identical", "identical in classes", "identical but one", "nearly equal")


def draw_pictures(kind: str, labels: Tensor, seed: int = 3) -> Float[Tensor, "item 3 20 20"]:
    """Pictures of noise, many or all of which are equal."""
    noise = torch.rand(16, 3, 20, 20, generator=seeded(seed))
    rows = torch.arange(len(labels))
    if kind == "constant":
        return torch.full((len(labels), 3, 20, 20), 0.5)
    if kind == "identical":
        rows = torch.zeros_like(rows)
    if kind == "identical in classes":
        rows = labels
    if kind == "identical but one":
        rows = (rows == 0).long()
    pictures = noise[rows]
    return noise[:1] + 1e-7 * pictures if kind == "nearly equal" else pictures


def number_groups(kind: str, labels: Tensor) -> Int[Tensor, "item"] | None:
    rows = torch.arange(len(labels))
    return {"no groups": None, "1 group": 0 * rows, "1 group a class": labels}.get(kind, rows // 2 % 2)


@dataclass(frozen=True)
class Case:
    """Training images of a method, each random view a shift of the picture."""

    pictures: str
    labels: str
    groups: str
    classes: int

    def images(self, method: Method) -> TrainingImages:
        labels = torch.tensor(LABELS[self.labels])
        drawn = draw_pictures(self.pictures, labels)

        @torch.no_grad()
        def view(number: int | None) -> Tensor:
            shifted = drawn.roll(0 if number is None else number + 1, dims=3)
            return method.read_out(method.image_trunk(shifted))

        return TrainingImages(labels, view, number_groups(self.groups, labels))

    def __str__(self) -> str:
        return f"{self.pictures}, {self.labels}, {self.groups}, {self.classes} classes"


UNGROUPED = [
    Case(pictures, labels, GROUPS[0], len(CLASSES)) for pictures, labels in product(PICTURES, LABELS)
]
GROUPED = [
    Case(PICTURES[(row + column) % len(PICTURES)], labels, groups, classes)
    for (row, labels), (column, groups) in product(enumerate(LABELS), enumerate(GROUPS))
    for classes in {1 + max(LABELS[labels]), len(CLASSES)}
]
"""All labels with all groups and numbers of classes, which matter to dear+ alone; pictures in turn."""
SEVERAL = [Case(pictures, "several a class", groups, 3) for pictures, groups in product(PICTURES, GROUPS)]
"""Where each class has several images, dear+ learns from images without labels, too."""

VARIANTS: list[tuple[str, MethodSettings | None, bool, Sequence[Case]]] = [
    *((name, None, False, UNGROUPED) for name in CHEAP if name != "clap"),
    ("clap", SETTINGS["clap"], False, UNGROUPED),
    ("dear+", None, False, GROUPED),
    ("dear+", None, True, UNGROUPED[::5]),
    ("dear+", DearPlusSettings(views=0), False, UNGROUPED + GROUPED + SEVERAL),
    ("gda", GdaSettings(covariance="shrunk"), False, UNGROUPED),
    ("gda", GdaSettings(views=3), False, UNGROUPED),
    ("tip-adapter", TipAdapterSettings(alpha=0.0, beta=0.0), False, UNGROUPED),
]
"""Each method that takes a moment to fit, its settings, whether it has roles, and the cases."""


def build(name: str, settings: MethodSettings | None, roles: bool, clip: Clip, classes: int) -> Method:
    table = role_table(clip) if roles else None
    method = build_method(name, clip, seeded(1), roles=table, settings=settings)
    keep_known_scores(method)  # as in a bundle
    method.set_classes(CLASSES[:classes], TEMPLATE)
    return method


@torch.no_grad()
def score(method: Method, pictures: Float[Tensor, "item 3 20 20"]) -> Float[Tensor, "item class"]:
    return method(pictures)


@pytest.mark.parametrize(("name", "settings", "roles", "cases"), VARIANTS)
def test_it_fits_or_says_why_not(
    name: str,
    settings: MethodSettings | None,
    roles: bool,
    cases: Sequence[Case],
    make_small_clip: MakeClip,
) -> None:
    clip, failures, others = make_small_clip(), list[str](), torch.rand(3, 3, 20, 20, generator=seeded(5))
    for case in cases:
        method = build(name, settings, roles, clip, case.classes)
        images = case.images(method)
        try:
            tensors = fit(method, images, others)
        except Exception as error:
            if name in ALWAYS or not isinstance(error, DearError) or "\n" in str(error):
                failures.append(f"{case}: {type(error).__name__}: {error}")
            continue
        tensors["scores"] = score(method, torch.cat([others, draw_pictures(case.pictures, images.labels)]))
        failures += [
            f"{case}: {part} is not finite" for part, of in tensors.items() if not of.isfinite().all()
        ]
        if tensors["scores"].abs().max() > LARGEST:
            failures.append(f"{case}: scores up to {tensors['scores'].abs().max():.2g}")
    assert not failures, f"{len(failures)} of {len(cases)}:\n" + "\n".join(failures)


def fit(method: Method, images: TrainingImages, others: Float[Tensor, "other 3 20 20"]) -> dict[str, Tensor]:
    """Fit a method as `dear fit` does, and return what it has computed."""
    if isinstance(method, UsesAllImages):
        method.before_training(images)
    tensors = dict[str, Tensor]()
    if method.name == "dear+":
        tensors |= {f"left-out scores {number}": of for number, of in enumerate(method.fitted.left_out)}
    if isinstance(method, LearnsUnlabeled):
        with torch.no_grad():
            readout = method.read_out(method.image_trunk(others))
        gain = method.add_unlabeled(images, TrainingImages(torch.full((3,), -1), lambda _: readout))
        tensors |= {name: torch.tensor(value) for name, value in gain.items()}
    return tensors | method.stored_tensors()


def test_where_all_are_one_group_dear_plus_takes_each_image_for_itself(make_small_clip: MakeClip) -> None:
    clip = make_small_clip()
    scores = []
    for groups in GROUPS[:2]:
        method, case = build("dear+", None, False, clip, 3), Case("different", "several a class", groups, 3)
        assert isinstance(method, UsesAllImages)
        method.before_training(case.images(method))
        scores.append(score(method, draw_pictures("different", torch.zeros(5), seed=7)))
    assert torch.equal(*scores)
