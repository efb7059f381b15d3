"""Loading by name: one model from every form of file, tags and their downloads, without a network."""

import warnings
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from open_clip.pretrained import _PRETRAINED
from open_clip.transformer import QuickGELU
from safetensors.torch import save_file
from torch import Tensor, nn

from dear.backbone import hub
from dear.backbone import plain as plain_clip
from dear.backbone.choice import backbone_or_default
from dear.backbone.load import _preprocess, build, load_clip
from dear.backbone.preprocess import Preprocess
from dear.errors import WeightsError
from tests.unit.backbone.prime import MEAN, NAME, STD, TAGS, features

pytestmark = pytest.mark.usefixtures("prime_architecture")


def openai_notes() -> dict[str, Tensor]:
    return {name: torch.tensor(7) for name in ("input_resolution", "context_length", "vocab_size")}


def test_every_form_of_file_gives_the_same_model(tmp_path: Path, state: dict[str, Tensor]) -> None:
    wrapped = {f"module._orig_mod.{name}": value for name, value in state.items()}
    training = {"epoch": 3, "state_dict": wrapped}
    torch.save(training, tmp_path / "open_clip.pt")
    torch.save(state | {"logit_scale": state["logit_scale"].reshape(1)}, tmp_path / "other.bin")
    torch.save(state | openai_notes(), tmp_path / "openai.pth")
    save_file(state, tmp_path / "model.safetensors")
    source = load_clip(NAME, "random:3")
    for file in ("open_clip.pt", "other.bin", "openai.pth", "model.safetensors"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            clip = load_clip(NAME, str(tmp_path / file))
        assert (clip.identity.model, clip.identity.pretrained) == (NAME, file)
        assert clip.identity == source.identity
        assert {tensor.data_ptr() % 64 for tensor in clip.state_dict().values()} == {0}
        for one, other in zip(features(clip), features(source), strict=True):
            assert torch.equal(one, other)


def test_half_precision_files_become_float32(tmp_path: Path, state: dict[str, Tensor]) -> None:
    half = {name: tensor.half() for name, tensor in state.items()}
    torch.save(half, tmp_path / "half.pt")
    save_file(half, tmp_path / "half.safetensors")
    one, other = (load_clip(NAME, str(tmp_path / f"half.{form}")) for form in ("pt", "safetensors"))
    assert one.image.projection.dtype == torch.float32
    assert one.identity.sha256 == other.identity.sha256
    assert all(torch.equal(a, b) for a, b in zip(features(one), features(other), strict=True))


def test_openais_form_without_quick_gelu_is_warned_of(tmp_path: Path, state: dict[str, Tensor]) -> None:
    torch.save(state | openai_notes(), tmp_path / "openai.pt")
    with pytest.warns(UserWarning, match=r"openai\.pt .*QuickGELU.*-quickgelu"):
        load_clip(NAME, str(tmp_path / "openai.pt"))


def test_random_weights_follow_their_seed_and_leave_the_global_generator() -> None:
    before = torch.get_rng_state()
    one, same, other = (load_clip(NAME, f"random:{seed}") for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert one.identity == same.identity
    assert one.identity.pretrained == "random:0"
    assert one.identity.sha256 != other.identity.sha256


@torch.no_grad()
def test_a_real_architecture_with_its_tokenizer_and_pixels() -> None:
    clip = load_clip("ViT-B/32", "random:0")
    assert clip.identity.model == "ViT-B-32"
    assert (clip.image.depth, clip.image.heads, clip.text.depth, clip.image_size) == (12, 12, 12, 224)
    assert clip.tokenize(["a photo of a cat."]).tolist()[0][:9] == [
        49406, 320, 1125, 539, 320, 2368, 269, 49407, 0
    ]  # fmt: skip
    torch.testing.assert_close(clip.mean.flatten(), torch.tensor([0.48145466, 0.4578275, 0.40821073]))
    assert clip.encode_text(["a"]).shape == (1, 512)


def test_a_tag_brings_activation_pixels_and_name(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "fetch", lambda *_, **__: weights)
    quick, plain = load_clip(NAME, "quick"), load_clip(NAME, "plain")
    assert quick.identity.pretrained == "quick"
    assert quick.mean.flatten().tolist() == pytest.approx(MEAN)
    assert quick.std.flatten().tolist() == pytest.approx(STD)
    gelu = [
        type(block.mlp.gelu) for clip in (quick, plain) for block in (*clip.image.blocks, *clip.text.blocks)
    ]
    assert gelu == [plain_clip.QuickGELU] * 5 + [nn.GELU] * 5


@pytest.mark.parametrize(
    ("name", "tag", "kind"),
    [
        ("ViT-B-32", "openai", QuickGELU),  # open_clip 3 only warns of this one
        ("ViT-B-32-quickgelu", "openai", QuickGELU),
        ("ViT-B-32-quickgelu", None, QuickGELU),
        ("ViT-B-32", "laion2b_s34b_b79k", nn.GELU),
        ("ViT-B-16", None, nn.GELU),
    ],
)
def test_activation_of_known_weights(name: str, tag: str | None, kind: type[nn.Module]) -> None:
    with torch.device("meta"):
        network: Any = build(name, open_clip.get_pretrained_cfg(name, tag) if tag else None)
    assert isinstance(network.visual.transformer.resblocks[11].mlp.gelu, kind)
    assert isinstance(network.transformer.resblocks[0].mlp.gelu, kind)


def test_a_local_file_has_the_pixels_on_which_the_tags_agree(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_clip(NAME, str(weights)).mean.flatten().tolist() == pytest.approx(MEAN)
    disagreeing = TAGS | {"other": {"mean": (0.9, 0.9, 0.9), "std": STD}}
    monkeypatch.setitem(_PRETRAINED, NAME, disagreeing)
    assert load_clip(NAME, str(weights)).mean.flatten().tolist() == pytest.approx(
        [0.48145, 0.45783, 0.40821], abs=1e-5
    )


@pytest.mark.parametrize(
    ("tag", "wanted"),
    [
        ("plain", r"https://huggingface\.co/someone/prime-clip/resolve/main/open_clip_model\.safetensors"),
        ("quick", r"https://huggingface\.co/someone/prime/resolve/main/quick\.pt"),
        ("by_url", r"file:///nowhere/prime\.pt"),
    ],
)
def test_a_failed_download_says_which_file_is_wanted(
    tag: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: object, **__: object) -> str:
        raise FileNotFoundError("no route to host\nand more")

    monkeypatch.setattr(hub, "require_answer", lambda: None)
    monkeypatch.setattr(hub, "_download", offline)
    monkeypatch.setattr("open_clip.pretrained.download_pretrained", offline)
    with pytest.raises(
        WeightsError, match=rf"{NAME}/{tag} \(no route to host\).*{wanted}.*local path"
    ) as caught:
        load_clip(NAME, tag)
    assert "\n" not in str(caught.value)


def test_a_file_named_after_a_tag_or_its_repository_has_its_weights(
    tmp_path: Path, state: dict[str, Tensor]
) -> None:
    cache = tmp_path / "models--someone--prime-clip" / "snapshots" / "ab12"
    cache.mkdir(parents=True)
    torch.save(state, tmp_path / "quick.bin")
    for path, tag in (
        (tmp_path / "quick.bin", "quick"),
        (cache / "open_clip_pytorch_model.bin", "plain"),
        (tmp_path / "mine.bin", None),
    ):
        torch.save(state, path)
        clip = load_clip(NAME, str(path))
        assert clip.identity.pretrained == (tag or path.name)
        assert isinstance(clip.image.blocks[0].mlp.gelu, plain_clip.QuickGELU) == (tag == "quick")


def test_the_usual_clip_offline_says_what_to_fetch_and_where_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_, **__: None)
    with pytest.raises(WeightsError) as caught:
        load_clip(*backbone_or_default(None, None, world=False))
    said = str(caught.value)
    repository = "huggingface.co/laion/CLIP-ViT-B-16-laion2B-s34B-b88K"
    local = "--model ViT-B-16 --pretrained laion2b_s34b_b88k.safetensors"
    assert f"{repository}/resolve/main/open_clip_model.safetensors" in said
    assert f"{local}; --model tiny is only for trying things out" in said
    assert "\n" not in said


def test_the_preprocessing_is_the_models_own() -> None:
    """That of a tag, or of an architecture whose tags agree, as open_clip lists it."""
    (shared,) = {
        (tag["interpolation"], tag["resize_mode"], tuple(tag["mean"]))
        for name in open_clip.list_pretrained_tags_by_model("ViT-B-16-SigLIP")
        for tag in [open_clip.get_pretrained_cfg("ViT-B-16-SigLIP", name)]
    }
    preprocess = _preprocess("ViT-B-16-SigLIP", {}, 224)
    assert (preprocess.interpolation, preprocess.resize_mode, preprocess.mean) == shared
    assert preprocess.resize_mode == "squash"
    tag = open_clip.get_pretrained_cfg("MobileCLIP-S1", "datacompdr")
    preprocess = _preprocess("MobileCLIP-S1", tag, 256)
    assert (preprocess.size, preprocess.interpolation, preprocess.std) == (256, "bilinear", (1.0,) * 3)
    assert _preprocess("ViT-B-32", {}, 224) == Preprocess(224)
