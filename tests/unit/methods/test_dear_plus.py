"""DeAR+ as a method: its readouts, its terms, classes with and without images, bundles."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from dear.backbone.clip import Clip
from dear.backbone.head_contributions import head_contributions
from dear.errors import RoleTableError
from dear.methods.base import Method, TrainingImages
from dear.methods.dear_plus import DearPlusSettings
from dear.methods.dear_plus.method import DearPlus, role_shares
from dear.methods.registry import build_method
from dear.roles.table import HeadRole, RoleTable

CLASSES = ["red circle on the sea", "house", "green tree"]
OTHERS = ["blue square", "house", "sea", "green tree"]
TEMPLATE = ["a photo of a {}"]
SHARES: list[dict[str, float]] = [
    {"color": 0.5, "object": 0.5}, {"color": 1.0}, {"object": 0.25, "weather": 0.75},
    {"object": 1.0}, {}, {"color": 0.75},
]  # fmt: skip


def table(clip: Clip, shares: Sequence[dict[str, float]] = SHARES) -> RoleTable:
    """Of layers 4 and 5 of 5; one attribute owns no head."""
    heads = tuple(HeadRole(4 + i // 3, i % 3, "mixed", share=share) for i, share in enumerate(shares))
    return RoleTable("by hand", clip.identity, ("color", "object", "texture"), heads)


def cores(clip: Clip) -> RoleTable:
    kinds: list[Any] = [("core", "color"), ("mixed", None), ("core", "object")] * 2
    heads = tuple(HeadRole(4 + i // 3, i % 3, *kind) for i, kind in enumerate(kinds))
    return RoleTable("without shares", clip.identity, ("color", "object", "texture"), heads)


def images(count: int, seed: int = 3) -> Tensor:
    return torch.rand(count, 3, 20, 20, generator=torch.Generator().manual_seed(seed))


def build(clip: Clip, **options: Any) -> DearPlus:
    method = build_method(
        "dear+", clip, torch.Generator(), roles=table(clip), settings=DearPlusSettings(**options)
    )
    assert isinstance(method, DearPlus)
    method.set_classes(CLASSES, TEMPLATE)
    return method


def fitted(clip: Clip, labels: Sequence[int] = (0, 1, 2, 0, 2, 1, 1), **options: Any) -> DearPlus:
    return fit_on_noise(build(clip, **options), labels)


def fit_on_noise(method: Method, labels: Sequence[int]) -> Any:
    """Trained on noise, brighter with the label; views differ by their brightness too."""
    targets = torch.tensor(labels)

    def view(number: int | None) -> Tensor:
        seed = 10 + (99 if number is None else number)
        pictures = 0.4 * images(len(labels)) + 0.1 * images(len(labels), seed=seed)
        return method.read_out(method.image_trunk(pictures + 0.15 * targets[:, None, None, None]))

    method.before_training(TrainingImages(targets, view))
    return method


@torch.no_grad()
def terms(method: DearPlus, count: int = 5) -> Tensor:
    features = method.image_features(method.read_out(method.image_trunk(images(count, seed=5))))
    return method.evidence(features, method.text_features())


def test_readouts_are_contributions_by_share(small_clip: Clip) -> None:
    method, pixels = build(small_clip), images(4)
    frozen, *groups = method.read_out(method.image_trunk(pixels)).unbind(dim=1)
    normalized = small_clip.normalize_pixels(pixels)
    contributions = head_contributions(small_clip.image, normalized, [4, 5])
    embedding = contributions.total()
    color = 0.5 * contributions.heads[:, 0, 0] + contributions.heads[:, 0, 1]
    color = color + 0.75 * contributions.heads[:, 1, 2]
    length = embedding.norm(dim=1, keepdim=True)
    torch.testing.assert_close(frozen, embedding / length, rtol=0, atol=1e-5)
    torch.testing.assert_close(groups[0], color / length, rtol=0, atol=1e-5)
    assert not groups[2].any()
    assert method.without_heads == ("texture",)


def test_a_table_without_shares_counts_core_heads(small_clip: Clip) -> None:
    shares = role_shares(cores(small_clip), range(4, 6), 3)
    assert shares.tolist() == [[[1, 0, 0], [0, 0, 0], [0, 1, 0]]] * 2
    with pytest.raises(RoleTableError, match="does not fit layer 3"):
        role_shares(cores(small_clip), range(3, 6), 3)


def test_tables_that_do_not_fit_are_refused(small_clip: Clip) -> None:
    roles = table(small_clip)
    other = replace(roles, weights=replace(small_clip.identity, sha256="0" * 64))
    generator = torch.Generator()
    with pytest.raises(RoleTableError, match=r"--dear-plus\.roles-from-other-weights"):
        build_method("dear+", small_clip, generator, roles=other)
    settings = DearPlusSettings(roles_from_other_weights=True)
    build_method("dear+", small_clip, generator, roles=other, settings=settings)


@torch.no_grad()
def test_without_a_table_the_embedding_is_the_only_attribute(small_clip: Clip) -> None:
    method = build_method("dear+", small_clip, torch.Generator())
    method.set_classes(CLASSES, TEMPLATE)
    assert method.features == ("cls", "image")
    assert method.image_from == small_clip.image.depth + 1
    assert method.fingerprint_fields()["roles"] is None
    fit_on_noise(method, (0, 1, 2, 0, 2, 1, 1))
    features = method.image_features(method.read_out(method.image_trunk(images(3))))
    embedding = small_clip.encode_image(small_clip.normalize_pixels(images(3)))
    torch.testing.assert_close(features[1], normalize(embedding, dim=-1), rtol=0, atol=1e-5)
    assert method.evidence(features, method.text_features())[1].any()


def test_features_hold_everything_else_at_its_mean(small_clip: Clip) -> None:
    method = fitted(small_clip)
    readout = method.read_out(method.image_trunk(images(4)))
    frozen, *groups = readout.unbind(dim=1)
    features = method.image_features(readout)
    torch.testing.assert_close(features[2], normalize(groups[1] + method.remainder[1], dim=-1))
    torch.testing.assert_close(features[3], normalize(method.remainder[2], dim=-1).expand(4, -1))
    expected = normalize(frozen + frozen @ method.correction, dim=-1)
    torch.testing.assert_close(features[0], expected)


def test_scores_are_the_exact_sum_of_the_terms(small_clip: Clip) -> None:
    method = fitted(small_clip)
    with torch.no_grad():
        method.strengths[:] = torch.tensor([0.5, 0.3, 0.2, 0.0])
        features = method.image_features(method.read_out(method.image_trunk(images(5))))
        text = method.text_features()
        parts = method.evidence(features, text)
        assert torch.equal(method.logits(features, text), parts.sum(dim=0))
        cosines = small_clip.scale * features[0] @ text.T
        torch.testing.assert_close(method.logits(features, text, decoupled=True), 0.5 * cosines)
    torch.testing.assert_close(parts[0], 0.5 * cosines)
    assert parts[1].any()
    assert not parts[3].any()


def test_the_terms_are_bayes_factors_of_the_gaussians(small_clip: Clip) -> None:
    """From densities: distances to a class's mean and to the center, by matrices."""
    method = fitted(small_clip, spread=1.5)
    with torch.no_grad():
        method.strengths[:] = torch.tensor([1.0, 1.0, 2.0, 0.0])
    features = method.image_features(method.read_out(method.image_trunk(images(5, seed=5))))
    found, whitening = terms(method), method.whitening[1].double()
    inverse = whitening @ whitening.T
    for row in range(5):
        for column in range(3):
            gap = features[2, row].detach().double() - method.center[1].double()
            mean = torch.linalg.solve(whitening.T, method.means[column, 1].detach().double())
            own = (gap - mean) @ inverse @ (gap - mean)
            background = gap @ inverse @ gap / 2.5
            constant = float(method.freedom[1]) * float(torch.tensor(2.5).log())
            expected = 2 * 0.5 * float(background - own + constant)
            assert float(found[2, row, column]) == pytest.approx(expected, rel=2e-3, abs=2e-3)


def test_classes_without_images_have_only_the_class_term(small_clip: Clip) -> None:
    """Their scores, and those of the others, depend on no order of classes."""
    method = fitted(small_clip)
    with torch.no_grad():
        method.strengths[:] = torch.tensor([0.5, 0.3, 0.2, 0.0])
    before = terms(method)
    method.set_classes(OTHERS, TEMPLATE)
    after = terms(method)
    assert not after[1:, :, [0, 2]].any()
    torch.testing.assert_close(after[:, :, [1, 3]], before[:, :, [1, 2]])
    method.set_classes(OTHERS[::-1], TEMPLATE)
    torch.testing.assert_close(terms(method), after.flip(2))


@pytest.mark.parametrize(
    ("labels", "with_evidence"),
    [((0, 1, 2), 3), ((0, 0, 0, 0, 0, 1, 2, 2), 2), ((0, 0, 0), 0), ((1, 1, 0, 2), 3)],
)
def test_few_and_uneven_images(labels: tuple[int, ...], with_evidence: int, small_clip: Clip) -> None:
    method = fitted(small_clip, labels)
    assert torch.isfinite(terms(method)).all()
    assert len(method.trained) == with_evidence
    assert bool((method.strengths[:, 0] > 0).all())


def test_a_class_with_a_name_only_changes_the_strengths(small_clip: Clip) -> None:
    """Those of the first set score classes that all have evidence, also a part of them."""
    method = fitted(small_clip)
    with torch.no_grad():
        method.strengths[:] = torch.tensor([[1.0, 0.5, 0.4, 0.0], [0.2, 0.05, 0.04, 0.0]])
    every = terms(method)
    method.set_classes(CLASSES[:2], TEMPLATE)
    torch.testing.assert_close(terms(method), every[:, :, :2])
    method.set_classes([*CLASSES, "sea"], TEMPLATE)
    with_name = terms(method)
    torch.testing.assert_close(with_name[0, :, :3], every[0] / 5)
    torch.testing.assert_close(with_name[1:, :, :3], every[1:] / 10)


@pytest.mark.parametrize("names", [["sea"], ["sea", "sand", "blue square"]])
def test_a_name_costs_the_classes_of_a_bundle_nothing(names: list[str], small_clip: Clip) -> None:
    """Their terms stay, whatever names are beside them and wherever, and each name has the odds against all
    of them that it has by the second strengths, less the threshold.
    """
    method = fitted(small_clip)
    with torch.no_grad():
        method.strengths[:] = torch.tensor([[1.0, 0.5, 0.4, 0.0], [0.2, 0.05, 0.04, 0.0]])
        method.threshold.fill_(0.7)
    every = terms(method)
    method.set_classes([*CLASSES, *names], TEMPLATE)
    before = terms(method).sum(dim=0).double().exp()
    method.keeps_known_scores = True
    after = terms(method)
    torch.testing.assert_close(after[:, :, :3], every)
    assert not after[1:, :, 3:].any()
    exponents = after.sum(dim=0).double().exp()
    for number in range(3, 3 + len(names)):
        odds = before[:, number] / before[:, :3].sum(dim=1) * math.exp(-0.7)
        torch.testing.assert_close(
            exponents[:, number] / exponents[:, :3].sum(dim=1), odds, rtol=1e-4, atol=0
        )
    method.set_classes([*names, *CLASSES], TEMPLATE)
    torch.testing.assert_close(terms(method), after.roll(len(names), dims=2))
    method.set_classes(names, TEMPLATE)  # nothing to spare
    assert torch.equal(terms(method)[0].argsort(dim=1), after[0, :, 3:].argsort(dim=1))
