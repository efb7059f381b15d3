"""Predictions: evidence that sums to the score, any classes by name, unreadable images among good ones."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from dear.adapters.index_encoder import BundleEncoder
from dear.adapters.predictor import Predictor
from dear.adapters.results import Prediction, Unreadable
from dear.backbone import device
from dear.errors import DataError, SettingsError
from dear.methods.coop import CoOpSettings
from dear.methods.registry import METHODS
from tests.conftest import MakeClip
from tests.helpers.bundles import fitted
from tests.helpers.data import CLASSES
from tests.helpers.errors import refuses
from tests.helpers.methods import OTHERS, TEMPLATE, images


def pictures() -> list[Image.Image]:
    return [Image.fromarray((255 * one).byte().permute(1, 2, 0).numpy()) for one in images()]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_evidence_sums_to_the_logit(name: str, make_small_clip: MakeClip) -> None:
    clip = make_small_clip(dtype=torch.float64)
    bundle, _ = fitted(name, clip)
    predictor = Predictor(bundle, clip=clip)
    found = predictor.predict(pictures(), top=2)
    logits = predictor.logits(torch.stack([predictor.preprocess(one) for one in pictures()]))
    assert predictor.features[0] == "class"
    for prediction, row in zip(found, logits, strict=True):
        shares = (row / 1.7).softmax(dim=0)
        order = row.argsort(descending=True)[:2].tolist()
        assert [one.name for one in prediction.top] == [CLASSES[at] for at in order]
        for one, at in zip(prediction.top, order, strict=True):
            assert tuple(one.evidence) == predictor.features
            assert sum(one.evidence.values()) == pytest.approx(one.logit, abs=1e-9)
            assert one.logit == pytest.approx(float(row[at]), abs=1e-9)
            assert one.probability == pytest.approx(float(shares[at]), abs=1e-12)
    assert len({round(one.best.logit, 6) for one in found}) == len(found)


def test_evidence_of_dear_is_alpha_times_the_scaled_cosine(make_small_clip: MakeClip) -> None:
    clip = make_small_clip(dtype=torch.float64)
    bundle, method = fitted("dear", clip)
    predictor = Predictor(bundle, clip=clip)
    best = predictor.predict(pictures()[:1])[0].best
    feature = predictor.encode(predictor.preprocess(pictures()[0])[None])[0]
    text = predictor.encode_classes([best.name])[0]
    weights = method.get_parameter("fusion").detach().exp()
    alpha = weights / weights.sum()
    for k, name in enumerate(("class", "color", "object")):
        cosine = float(feature[k] @ text) / float(feature[k].norm() * text.norm())
        assert best.evidence[name] == pytest.approx(float(alpha[k]) * cosine * float(clip.scale), abs=1e-9)


def test_evidence_of_attributes_without_heads_is_one_part(make_small_clip: MakeClip) -> None:
    """They are not named: their features say nothing of them. Everything still sums to the score."""
    clip = make_small_clip(dtype=torch.float64)
    bundle, _ = fitted("dear", clip)
    assert bundle.roles is not None
    heads = tuple(
        replace(one, role="mixed", attribute=None) if one.attribute == "object" else one
        for one in bundle.roles.heads
    )
    predictor = Predictor(replace(bundle, roles=replace(bundle.roles, heads=heads)), clip=clip)
    assert (predictor.features, predictor.without_heads) == (("class", "color", "object"), ("object",))
    image = pictures()[:1]
    pixels = predictor.preprocess(image[0])[None]
    parts = predictor.method.evidence(
        predictor.encode(pixels).transpose(0, 1), predictor.encode_classes(predictor.classes)
    )
    for one in predictor.predict(image)[0].top:
        assert tuple(one.evidence) == ("class", "color", "rest")
        assert one.evidence["rest"] == pytest.approx(float(parts[2, 0, CLASSES.index(one.name)]), abs=1e-9)
        assert sum(one.evidence.values()) == pytest.approx(one.logit, abs=1e-9)
    encoder = BundleEncoder(predictor)
    assert (encoder.features, encoder.left_out) == (("class", "color"), ("object",))
    levels = torch.zeros(1, 3, clip.image_size, clip.image_size, dtype=torch.uint8)
    torch.testing.assert_close(encoder.images(levels), predictor.encode(levels.double() / 255)[:, :2])


def test_bfloat16_is_rounding_and_float32_can_be_asked_for(
    make_small_clip: MakeClip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A processor that is fast in bfloat16 computes in it; features are in float32 all the same."""
    clip = make_small_clip()
    bundle, _ = fitted("dear", clip)
    full = Predictor(bundle, clip=clip)
    monkeypatch.setattr(device, "fast_in_bfloat16", lambda: True)
    monkeypatch.setattr(device, "WIDE_FOR_BFLOAT16", 1)
    rough, asked = Predictor(bundle, clip=clip), Predictor(bundle, clip=clip, precision="32-true")
    for of in ("encode", "logits"):
        exact, near, same = (getattr(one, of)(images()) for one in (full, rough, asked))
        assert near.dtype == torch.float32
        assert torch.equal(exact, same)
        assert not torch.equal(exact, near)
    torch.testing.assert_close(rough.encode(images()), full.encode(images()), rtol=0, atol=0.03)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_other_classes_by_name(name: str, make_small_clip: MakeClip) -> None:
    """Or they are refused, and its own go on to work."""
    clip = make_small_clip()
    bundle, method = fitted(name, clip)
    predictor = Predictor(bundle, clip=clip)
    before = predictor.logits(images())
    if not predictor.method.open_vocabulary:
        refuses(SettingsError, f"{name} cannot score", predictor.logits, images(), OTHERS)
        assert torch.equal(predictor.logits(images(), CLASSES), before)
        return
    got = predictor.logits(images(), OTHERS)
    method.set_classes(OTHERS, TEMPLATE)
    with torch.no_grad():
        features = method.image_features(method.read_out(method.image_trunk(images())))
        want = method.logits(
            features, method.text_features(), decoupled="classes" in method.declaration.decoupled_on
        )
    assert torch.equal(got, want)
    (found,) = predictor.predict(pictures()[:1], top=9, classes=[*CLASSES, "sea"])
    assert {one.name for one in found.top} == {*CLASSES, "sea"}
    assert sum(one.probability for one in found.top) == pytest.approx(1)
    assert torch.equal(predictor.logits(images()), before)  # and it still knows its own


def test_classes_that_cannot_be_scored(make_small_clip: MakeClip) -> None:
    clip = make_small_clip()
    predictor = Predictor(fitted("dear", clip)[0], clip=clip)
    for wrong in (["sea", "Sea"], [], ["sea", " "]):
        with pytest.raises(DataError):
            predictor.predict(pictures(), classes=wrong)
    refuses(SettingsError, "top is 0", predictor.predict, pictures(), top=0)
    specific = fitted("coop", clip, CoOpSettings(tokens=3, words="", class_specific=True))[0]
    with pytest.raises(SettingsError, match="cannot score classes that it was not trained on"):
        Predictor(specific, clip=clip).predict(pictures(), classes=["sea", "house"])
    encoder = BundleEncoder(Predictor(specific, clip=clip))
    refuses(SettingsError, "search by an image", encoder.texts, ["sea"])


def test_unreadable_images_among_good_ones(make_small_clip: MakeClip, tmp_path: Path) -> None:
    clip = make_small_clip()
    predictor = Predictor(fitted("dear", clip)[0], clip=clip)
    paths = []
    for number, picture in enumerate(pictures()):
        picture.save(tmp_path / f"{number}.png")
        paths.append(tmp_path / f"{number}.png")
    paths[1].write_text("words")
    paths[4].write_bytes(b"")
    found = [*predictor.predict_each([*paths, tmp_path / "nowhere.png"], batch=3)]
    assert [at for at, one in enumerate(found) if not isinstance(one, Prediction)] == [1, 4, 7]
    assert [one.image for one in found] == [*map(str, paths), str(tmp_path / "nowhere.png")]
    bad = [one for one in found if isinstance(one, Unreadable)]
    assert "1.png: it is not an image" in bad[0].reason
    assert "empty" in bad[1].reason
    one_by_one = predictor.predict([paths[0], paths[2]])
    assert one_by_one[1].best.name == found[2].best.name  # type: ignore[union-attr]
    refuses(DataError, "1.png", predictor.predict, paths)
    assert predictor.predict([]) == []
