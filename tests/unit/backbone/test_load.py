"""Loading by name: one model from every form of file, tags and their downloads, without a network."""

import json
import warnings
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from open_clip.transformer import QuickGELU
from safetensors.torch import save_file
from torch import Tensor, nn

from dear.backbone.clip import tensors_hash
from dear.backbone.loading import hub, skeleton
from dear.backbone.loading.hub import list_shards
from dear.backbone.loading.load import load_clip
from dear.backbone.loading.open_clip_format import OpenClipFormat, build, build_random
from dear.backbone.names import backbone_or_default
from dear.backbone.preprocess import Preprocess
from dear.errors import WeightsError
from dear.limits import LimitError
from tests.helpers.clips import compare, saved
from tests.helpers.errors import refuses
from tests.standin_hub import COMMIT, StandIn
from tests.unit.backbone.prime import CONFIG, MEAN, NAME, STD, features
from tests.unit.backbone.sharded_files import write_sharded

pytestmark = pytest.mark.usefixtures("prime_architecture")
NOTES = {name: torch.tensor(7) for name in ("input_resolution", "context_length", "vocab_size")}


def save_torchscript(path: Path) -> None:
    """As OpenAI published its models: traced, with its notes as buffers."""
    network = build_random(NAME, 3).eval()
    for name, value in NOTES.items():
        vars(network).pop(name, None)
        network.register_buffer(name, value)
    views, tokens = torch.zeros(1, 3, 20, 20), torch.zeros(1, 13, dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(network, (views, tokens), check_trace=False), path)


def test_every_form_of_file_gives_the_same_model(tmp_path: Path, state: dict[str, Tensor]) -> None:
    wrapped = {f"module._orig_mod.{name}": value for name, value in state.items()}
    torch.save({"epoch": 3, "state_dict": wrapped}, tmp_path / "open_clip.pt")
    torch.save(state | {"logit_scale": state["logit_scale"].reshape(1)}, tmp_path / "other.bin")
    torch.save(state | NOTES, tmp_path / "openai.pth")
    save_file(state, tmp_path / "model.safetensors")
    save_torchscript(tmp_path / "ViT-B-16.pt")
    source = load_clip(NAME, "random:3")
    for file in ("open_clip.pt", "other.bin", "openai.pth", "model.safetensors", "ViT-B-16.pt"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            clip = load_clip(NAME, str(tmp_path / file))
        assert (clip.identity.model, clip.identity.pretrained) == (NAME, file)
        assert clip.identity == source.identity
        assert {tensor.data_ptr() % 64 for tensor in clip.state_dict().values()} == {0}
        for one, other in zip(features(clip), features(source), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("kind", [torch.float16, torch.float8_e4m3fn])
def test_coarser_types_become_float32(tmp_path: Path, state: dict[str, Tensor], kind: torch.dtype) -> None:
    coarse = {name: tensor.to(kind) for name, tensor in state.items()}
    torch.save(coarse, tmp_path / "coarse.pt")
    save_file(coarse, tmp_path / "coarse.safetensors")
    one, other = (load_clip(NAME, str(tmp_path / f"coarse.{form}")) for form in ("pt", "safetensors"))
    assert torch.equal(one.image.projection, coarse["visual.proj"].float())
    assert one.identity.sha256 == other.identity.sha256
    assert all(torch.equal(a, b) for a, b in zip(features(one), features(other), strict=True))


def test_openais_form_without_quick_gelu_is_warned_of(tmp_path: Path, state: dict[str, Tensor]) -> None:
    torch.save(state | NOTES, tmp_path / "openai.pt")
    with pytest.warns(UserWarning, match=r"openai\.pt .*QuickGELU.*-quickgelu"):
        load_clip(NAME, str(tmp_path / "openai.pt"))


@pytest.mark.parametrize("name", [NAME, "tiny"])
def test_random_weights_follow_their_seed_and_leave_the_global_generator(name: str) -> None:
    before = torch.get_rng_state()
    one, same, other = (load_clip(name, f"random:{seed}") for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert one.identity == same.identity
    assert (one.identity.model, one.identity.pretrained) == (name, "random:0")
    assert one.identity.sha256 != other.identity.sha256


def test_a_tag_brings_activation_pixels_and_name(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "fetch", lambda *_, **__: weights)
    quick, plain = load_clip(NAME, "quick"), load_clip(NAME, "plain")
    assert quick.identity.pretrained == "quick"
    assert quick.mean.flatten().tolist() == pytest.approx(MEAN)
    assert quick.std.flatten().tolist() == pytest.approx(STD)
    gelu = [
        type(block.mlp.gelu) for clip in (quick, plain) for block in (*clip.image.blocks, *clip.text.blocks)
    ]
    assert gelu == [skeleton.QuickGELU] * 5 + [nn.GELU] * 5


@pytest.mark.parametrize(
    ("name", "tag", "kind"),
    [
        ("ViT-B-32", "openai", QuickGELU),  # open_clip 3 only warns of this one
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


@pytest.mark.parametrize(
    ("name", "tag", "wanted"),
    [
        (NAME, "plain", "https://huggingface.co/someone/prime-clip/resolve/main/open_clip_model.safetensors"),
        (NAME, "by_url", "file:///nowhere/prime.pt"),
        (*backbone_or_default(None, None, world=False), "run on --model lite"),
    ],
)
def test_a_failed_download_says_which_file_is_wanted(
    name: str, tag: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: object, **__: object) -> str:
        raise FileNotFoundError("no route to host\nand more")

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_, **__: None)
    monkeypatch.setattr(hub, "require_answer", offline)
    monkeypatch.setattr("open_clip.pretrained.download_pretrained", offline)
    refuses(WeightsError, (wanted, f"--model {name} --pretrained {name}-{tag}."), load_clip, name, tag)


def test_the_preprocessing_is_the_models_own() -> None:
    """That of a tag, or of an architecture whose tags agree, as open_clip lists it."""
    preprocess = OpenClipFormat.named("ViT-B-16-SigLIP").preprocess(224)
    assert preprocess == Preprocess(224, (0.5,) * 3, (0.5,) * 3, "bicubic", "squash")
    tag = open_clip.get_pretrained_cfg("MobileCLIP-S1", "datacompdr")
    preprocess = OpenClipFormat.named("MobileCLIP-S1", tag).preprocess(256)
    assert (preprocess.size, preprocess.interpolation, preprocess.std) == (256, "bilinear", (1.0,) * 3)
    assert OpenClipFormat.named("ViT-B-32").preprocess(224) == Preprocess(224)
    assert Preprocess(224).mean == (0.48145466, 0.4578275, 0.40821073)  # OpenAI's


def test_a_repository_of_the_hub(standin: StandIn, tmp_path: Path, state: dict[str, Tensor]) -> None:
    with pytest.raises(WeightsError, match=r"no folder someone/prime here, and .* no open_clip_config\.json"):
        load_clip("someone/prime")
    pixels = {"mean": list(MEAN), "std": list(STD)}
    files = {hub.CONFIG: json.dumps({"model_cfg": CONFIG, "preprocess_cfg": pixels}).encode()}
    standin.files["someone/prime"] = files
    source, random = load_clip(NAME, "random:3"), load_clip("hf-hub:someone/prime", "random:3")
    save_file(state, tmp_path / "own.safetensors")
    files["open_clip_model.safetensors"] = (tmp_path / "own.safetensors").read_bytes()
    clip = load_clip("hf-hub:someone/prime")
    assert (clip.identity.model, clip.identity.pretrained) == ("hf-hub:someone/prime", "hub")
    torch.testing.assert_close(clip.mean.flatten(), torch.tensor(MEAN))
    assert torch.equal(features(clip)[1], features(source)[1])
    assert clip.identity != source.identity  # its configuration may change
    others = load_clip("hf-hub:someone/prime", str(tmp_path / "own.safetensors"))
    assert clip.identity.sha256 == random.identity.sha256 == others.identity.sha256


def test_a_folder_as_transformers_saves_large_models(tmp_path: Path) -> None:
    model = saved(tmp_path, "CLIP")
    (tmp_path / "model.safetensors").unlink()
    model.save_pretrained(tmp_path, max_shard_size="1MB")
    assert not (tmp_path / "model.safetensors").exists()
    assert len(list_shards(tmp_path / "model.safetensors.index.json")) > 1
    compare(load_clip(str(tmp_path)), model)


def test_a_repository_on_the_hub(tmp_path: Path, state: dict[str, Tensor], standin: StandIn) -> None:
    folder = tmp_path / "remote"
    write_sharded(folder, state, stem="open_clip_model")
    (folder / hub.CONFIG).write_text(json.dumps({"model_cfg": CONFIG}))
    standin.files["someone/large"] = {path.name: path.read_bytes() for path in folder.iterdir()}
    clip = load_clip("someone/large", named_by="the bundle b")  # for which no pickle is fetched
    assert tensors_hash(clip.state_dict()) == tensors_hash(load_clip(NAME, "random:3").state_dict())
    assert len(standin.downloads()) == 2
    asked = [path for _, path, _ in standin.requests if "-of-00002" in path and "/resolve/" in path]
    assert asked
    assert all(f"/resolve/{COMMIT}/" in path for path in asked)
    load_clip("someone/large")  # from the cache
    assert len(standin.downloads()) == 2


@pytest.mark.parametrize(
    "weight_map",
    [
        {"a": "../a.safetensors"}, {"a": "/etc/a.safetensors"}, {"a": "..\\a.safetensors"}, {"a": ".."},
        {"a": "a.bin"}, {"a": 3}, {}, [],
    ],
    ids=str,
)  # fmt: skip
def test_an_index_of_another_form_or_of_files_elsewhere_is_refused(
    weight_map: object, tmp_path: Path, state: dict[str, Tensor]
) -> None:
    index = write_sharded(tmp_path / "w", state)
    index.write_text(json.dumps({"weight_map": weight_map}))
    refuses(WeightsError, "index.json", load_clip, NAME, str(index))


def test_an_index_as_local_weights(
    tmp_path: Path, state: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    index = write_sharded(tmp_path / "w", state)
    assert load_clip(NAME, str(index)).identity.sha256 == load_clip(NAME, "random:3").identity.sha256
    size = max(path.stat().st_size for path in index.parent.glob("*.safetensors"))
    monkeypatch.setenv("DEAR_LIMIT_TENSOR_BYTES", str(size))
    refuses(LimitError, "DEAR_LIMIT_TENSOR_BYTES", load_clip, NAME, str(index))  # together they are larger
    (tmp_path / "w" / "model-00002-of-00002.safetensors").unlink()
    refuses(WeightsError, "model-00002-of-00002.safetensors", load_clip, NAME, str(index))
