"""Loading by name: one model from three forms of file, tags without a network, and every bad input."""

import json
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from open_clip.factory import _MODEL_CONFIGS
from open_clip.pretrained import _PRETRAINED
from open_clip.transformer import QuickGELU
from safetensors.torch import save_file
from torch import Tensor, nn

from dear.backbone import hub, load, tiny
from dear.backbone.clip import Clip
from dear.backbone.load import build, load_clip, random_network
from dear.backbone.tokenizer import WordTokenizer
from dear.errors import UnknownNameError, WeightsError

NAME = "ViT-prime"
CONFIG = {
    "embed_dim": 17,
    "vision_cfg": {"image_size": 20, "patch_size": 4, "width": 21, "head_width": 7, "layers": 3},
    "text_cfg": {"context_length": 13, "vocab_size": 49408, "width": 22, "heads": 2, "layers": 2},
}
MEAN, STD = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
TAGS: dict[str, dict[str, Any]] = {
    "plain": {"hf_hub": "someone/prime-clip/", "mean": MEAN, "std": STD},
    "quick": {"hf_hub": "someone/prime/quick.pt", "mean": MEAN, "std": STD, "quick_gelu": True},
    "by_url": {"url": "https://example.org/prime.pt", "mean": MEAN, "std": STD},
}


@pytest.fixture(autouse=True)
def _small_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small architecture, and tags for it, that open_clip knows for the length of a test."""
    monkeypatch.setitem(_MODEL_CONFIGS, NAME, CONFIG)
    monkeypatch.setitem(_PRETRAINED, NAME, TAGS)


@pytest.fixture
def state() -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in random_network(NAME, 3).state_dict().items()}


@pytest.fixture
def weights(tmp_path: Path, state: dict[str, Tensor]) -> Path:
    path = tmp_path / "prime.pt"
    torch.save(state, path)
    return path


@torch.no_grad()
def features(clip: Clip) -> tuple[Tensor, Tensor]:
    pixels = torch.rand(2, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    return clip.encode_image(clip.normalize_pixels(pixels)), clip.encode_text(["a red house", "trees"])


def openai_notes() -> dict[str, Tensor]:
    return {name: torch.tensor(7) for name in ("input_resolution", "context_length", "vocab_size")}


def test_every_form_of_file_gives_the_same_model(tmp_path: Path, state: dict[str, Tensor]) -> None:
    training = {"epoch": 3, "state_dict": {f"module.{name}": value for name, value in state.items()}}
    torch.save(training, tmp_path / "open_clip.pt")
    torch.save(state | {"logit_scale": state["logit_scale"].reshape(1)}, tmp_path / "plain.bin")
    torch.save(state | openai_notes(), tmp_path / "openai.pth")
    save_file(state, tmp_path / "model.safetensors")
    source = load_clip(NAME, "random:3")
    for file in ("open_clip.pt", "plain.bin", "openai.pth", "model.safetensors"):
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


def test_the_tokenizer_has_the_architectures_context_length() -> None:
    assert load_clip(NAME, "random:0").tokenize(["a house"]).shape == (1, 13)


def test_a_tag_brings_activation_pixels_and_name(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "download_pretrained", lambda _: str(weights))
    quick, plain = load_clip(NAME, "quick"), load_clip(NAME, "plain")
    assert quick.identity.pretrained == "quick"
    assert quick.mean.flatten().tolist() == pytest.approx(MEAN)
    assert quick.std.flatten().tolist() == pytest.approx(STD)
    gelu = [
        type(block.mlp.gelu) for clip in (quick, plain) for block in (*clip.image.blocks, *clip.text.blocks)
    ]
    assert gelu == [QuickGELU] * 5 + [nn.GELU] * 5


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
        ("plain", r"open_clip_model\.safetensors of https://huggingface\.co/someone/prime-clip"),
        ("quick", r"quick\.pt of https://huggingface\.co/someone/prime"),
        ("by_url", r"https://example\.org/prime\.pt"),
    ],
)
def test_a_failed_download_says_which_file_is_wanted(
    tag: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(_: object) -> str:
        raise FileNotFoundError("no route to host\nand more")

    monkeypatch.setattr(load, "download_pretrained", offline)
    with pytest.raises(
        WeightsError, match=rf"{NAME}/{tag} \(no route to host\).*{wanted}.*local path"
    ) as caught:
        load_clip(NAME, tag)
    assert "\n" not in str(caught.value)


def test_a_host_that_is_not_there_is_noticed_before_the_client_retries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(load.constants, "ENDPOINT", "http://127.0.0.1:9")  # a port where nothing listens
    monkeypatch.setattr(load, "download_pretrained", lambda _: pytest.fail("asked the hub"))
    with pytest.raises(WeightsError, match="Connection refused"):
        load_clip(NAME, "plain")


def test_a_file_in_the_hubs_cache_is_used_offline(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cached(repository: str, file: str) -> str | None:
        assert repository == "someone/prime-clip"
        return str(weights) if file == "open_clip_pytorch_model.bin" else None

    monkeypatch.setattr(hub, "try_to_load_from_cache", cached)
    monkeypatch.setattr(load, "download_pretrained", lambda _: pytest.fail("asked the hub"))
    assert load_clip(NAME, "plain").identity.sha256 == load_clip(NAME, str(weights)).identity.sha256


def test_unknown_architecture_lists_the_nearest_few() -> None:
    with pytest.raises(UnknownNameError, match=r"'vit-b-61'.* ViT-B-16.* \.\.\. and \d+ more") as caught:
        load_clip("vit-b-61")
    assert str(caught.value).count(", ") == 11
    assert "tiny" in caught.value.known
    assert caught.value.known[0].startswith("ViT-B-")


def test_no_weights_lists_the_tags_and_random() -> None:
    with pytest.raises(WeightsError, match=r"ViT-B-32 needs weights: a tag \(.*and \d+ more\).*random:0"):
        load_clip("ViT-B-32")
    with pytest.raises(WeightsError, match=r"a tag \(by_url, plain, quick\), a local file, or random:0"):
        load_clip(NAME)


def test_unknown_tag_lists_the_nearest_first() -> None:
    with pytest.raises(WeightsError, match=r"has no weights 'quik'. It takes a tag \(quick, "):
        load_clip(NAME, "quik")


@pytest.mark.parametrize("name", ["RN50", "ViT-B-16-SigLIP", "coca_ViT-B-32", "roberta-ViT-B-32"])
def test_architectures_that_do_not_fit_are_refused_before_any_download(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "download_pretrained", lambda _: pytest.fail("downloaded"))
    with pytest.raises(WeightsError, match=f"{name} does not fit: its "):
        load_clip(name, open_clip.list_pretrained_tags_by_model(name)[0])


@pytest.mark.parametrize("seed", ["", "x", "-1", "1.5", "²", str(2**63)])
def test_a_seed_that_is_none(seed: str) -> None:
    with pytest.raises(WeightsError, match="has no valid seed"):
        load_clip(NAME, f"random:{seed}")


def test_paths_without_a_file(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no weights file at .*absent\.pt"):
        load_clip(NAME, str(tmp_path / "absent.pt"))
    with pytest.raises(WeightsError, match=r"no weights file at here\.bin"):
        load_clip(NAME, "here.bin")
    with pytest.raises(WeightsError, match="is a folder: name the weights file"):
        load_clip(NAME, str(tmp_path))


@pytest.mark.parametrize("form", ["pt", "safetensors"])
@pytest.mark.parametrize("keep", [0, 5, 1000, -100])
def test_cut_files(tmp_path: Path, state: dict[str, Tensor], form: str, keep: int) -> None:
    path = tmp_path / f"cut.{form}"
    if form == "pt":
        torch.save(state, path)
    else:
        save_file(state, path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(WeightsError, match=rf"cut\.{form}"):
        load_clip(NAME, str(path))


@pytest.mark.parametrize("name", ["image.pt", "image.bin", "image.safetensors", "image.jpg"])
def test_a_file_of_another_kind(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(bytes(range(256)) * 9)
    with pytest.raises(WeightsError, match=name):
        load_clip(NAME, str(tmp_path / name))


@pytest.mark.parametrize(
    ("saved", "reason"),
    [
        (torch.zeros(3), "holds a Tensor"),
        ([torch.zeros(3)], "holds a list"),
        ({"a": 3}, "'a' is not a tensor"),
        ({}, "missing"),
        ({"state_dict": {"a": 3}}, "'a' is not a tensor"),
    ],
)
def test_a_checkpoint_without_a_state_dict(tmp_path: Path, saved: object, reason: str) -> None:
    torch.save(saved, tmp_path / "odd.pt")
    with pytest.raises(WeightsError, match=rf"odd\.pt .*{reason}"):
        load_clip(NAME, str(tmp_path / "odd.pt"))


class Exploit:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("code of the file ran",)


@pytest.mark.parametrize("writer", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_code_in_a_checkpoint_is_not_run(
    tmp_path: Path, writer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    writer({"a": Exploit()}, tmp_path / "evil.pt")
    with pytest.raises(WeightsError, match=r"evil\.pt cannot be read as a checkpoint of tensors only"):
        load_clip(NAME, str(tmp_path / "evil.pt"))
    assert "ran" not in capsys.readouterr().out


def test_a_torchscript_archive_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "ViT-B-32.pt"
    with zipfile.ZipFile(path, "w") as archive:
        for entry in ("data.pkl", "constants.pkl", "code/__torch__.py"):
            archive.writestr(f"ViT-B-32/{entry}", b"")
    with pytest.raises(WeightsError, match=r"TorchScript archive.*torch\.jit\.load.*ViT-B-32-state\.pt"):
        load_clip(NAME, str(path))


def test_weights_of_another_architecture_say_what_does_not_fit(
    tmp_path: Path, state: dict[str, Tensor]
) -> None:
    path = tmp_path / "other.pt"
    del state["visual.proj"]
    state["vision_model.projection"] = torch.zeros(3)
    state["positional_embedding"] = torch.zeros(77, 22)
    torch.save(state, path)
    wanted = (
        r"other\.pt holds weights of another architecture: tensors 1 missing \(first: visual\.proj\), "
        r"1 unknown \(first: vision_model\.projection\), "
        r"1 of a different shape \(first: positional_embedding\)"
    )
    with pytest.raises(WeightsError, match=wanted):
        load_clip(NAME, str(path))


def test_a_tokenizer_that_cannot_be_had_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = CONFIG["text_cfg"] | {"hf_tokenizer_name": "someone/tokenizer"}  # type: ignore[operator]
    monkeypatch.setitem(_MODEL_CONFIGS, NAME, CONFIG | {"text_cfg": text})

    def offline(_: str) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(open_clip, "get_tokenizer", offline)
    with pytest.raises(WeightsError, match=r"someone/tokenizer\) cannot be loaded: no route to host"):
        load_clip(NAME, "random:0")


@pytest.fixture
def tiny_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run-7"
    folder.mkdir()
    tokenizer = WordTokenizer(["red", "house"], 13)
    (folder / tiny.VOCABULARY).write_text(tokenizer.to_json())
    save_file({k: v.half() for k, v in tiny.build(tokenizer, 5).state_dict().items()}, folder / tiny.WEIGHTS)
    return folder


def test_the_tiny_clip_from_a_folder(tiny_folder: Path) -> None:
    clip = load_clip("tiny", str(tiny_folder))
    assert (clip.identity.model, clip.identity.pretrained) == ("tiny", "run-7")
    assert (clip.image.depth, clip.image_size, clip.image.projection.dtype) == (12, 48, torch.float32)
    assert clip.tokenize(["red house"]).shape == (1, 13)


def test_the_tiny_clip_from_no_folder_or_a_broken_one(tmp_path: Path, tiny_folder: Path) -> None:
    with pytest.raises(WeightsError, match=r"no vocabulary\.json in .*absent: .*dear pretrain"):
        load_clip("tiny", str(tmp_path / "absent"))
    whole = (tiny_folder / tiny.WEIGHTS).read_bytes()
    (tiny_folder / tiny.WEIGHTS).write_bytes(whole[:-1])
    with pytest.raises(WeightsError, match=r"model\.safetensors: it is not a complete safetensors file"):
        load_clip("tiny", str(tiny_folder))
    (tiny_folder / tiny.WEIGHTS).write_bytes(whole)
    (tiny_folder / tiny.VOCABULARY).write_text(WordTokenizer(["red"], 13).to_json())
    with pytest.raises(WeightsError, match=r"1 of a different shape \(first: token_embedding\.weight\)"):
        load_clip("tiny", str(tiny_folder))
    (tiny_folder / tiny.WEIGHTS).unlink()
    with pytest.raises(WeightsError, match=r"no model\.safetensors in"):
        load_clip("tiny", str(tiny_folder))


def test_the_tiny_clip_with_random_weights(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "FOLDER", tmp := tiny_folder)
    (tmp / tiny.CONFIG).write_text(
        (Path(tiny.__file__).parent / "tiny" / tiny.CONFIG).read_text(encoding="utf-8"), encoding="utf-8"
    )
    clip = load_clip("tiny", "random:5")
    assert (clip.identity.model, clip.identity.pretrained) == ("tiny", "random:5")
    assert clip.identity.sha256 == load_clip("tiny", "random:5").identity.sha256


class TestHub:
    """A repository in open_clip's form, as the hub's cache holds it."""

    @pytest.fixture
    def repository(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        folder = tmp_path / "snapshot"
        folder.mkdir()
        pixels = {"mean": list(MEAN), "std": list(STD)}
        (folder / hub.CONFIG).write_text(json.dumps({"model_cfg": CONFIG, "preprocess_cfg": pixels}))

        def cached(repository: str, file: str) -> str | None:
            assert repository == "someone/prime"
            return str(folder / file) if (folder / file).is_file() else None

        monkeypatch.setattr(hub, "try_to_load_from_cache", cached)
        monkeypatch.setattr(
            open_clip, "get_tokenizer", lambda _: open_clip.SimpleTokenizer(context_length=13)
        )
        return folder

    def test_it_brings_weights_and_pixels(self, repository: Path, state: dict[str, Tensor]) -> None:
        save_file(state, repository / "open_clip_model.safetensors")
        clip = load_clip("hf-hub:someone/prime")
        source = load_clip(NAME, "random:3")
        assert (clip.identity.model, clip.identity.pretrained) == ("hf-hub:someone/prime", "hub")
        assert clip.identity.sha256 == source.identity.sha256
        torch.testing.assert_close(clip.mean.flatten(), torch.tensor(MEAN))
        assert torch.equal(features(clip)[1], features(source)[1])

    def test_other_weights(self, repository: Path, weights: Path) -> None:
        assert repository.is_dir()
        clip = load_clip("hf-hub:someone/prime", str(weights))
        assert clip.identity.sha256 == load_clip("hf-hub:someone/prime", "random:3").identity.sha256

    def test_offline_without_the_weights_or_the_configuration(self, repository: Path) -> None:
        with pytest.raises(
            WeightsError,
            match=r"open_clip_model\.safetensors of https://huggingface\.co/someone/prime .*hf download",
        ) as caught:
            load_clip("hf-hub:someone/prime")
        assert "\n" not in str(caught.value)
        (repository / hub.CONFIG).write_text("{}")
        with pytest.raises(WeightsError, match=r"its open_clip_config\.json is not open_clip's"):
            load_clip("hf-hub:someone/prime")
        (repository / hub.CONFIG).unlink()
        with pytest.raises(WeightsError, match=r"cannot download open_clip_config\.json"):
            load_clip("hf-hub:someone/prime")

    def test_what_does_not_fit(self, repository: Path) -> None:
        towers = {"vision_cfg": {"timm_model_name": "vit_base"}, "text_cfg": {}, "embed_dim": 17}
        (repository / hub.CONFIG).write_text(json.dumps({"model_cfg": towers}))
        with pytest.raises(WeightsError, match="someone/prime does not fit: its image tower is a timm model"):
            load_clip("hf-hub:someone/prime")
