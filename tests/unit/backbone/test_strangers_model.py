"""A model of a stranger, as a folder: nothing in it runs, asks, or names what is read or fetched."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from dear.adapters.bundle import Bundle
from dear.backbone.clip import Identity
from dear.backbone.load import load_clip, named_weights
from dear.cli import index
from dear.errors import DearError, WeightsError
from dear.evaluation.recipe import load_recipe
from dear.evaluation.runs import Runner
from dear.methods.registry import METHODS
from tests.standin_hub import StandIn
from tests.unit.backbone.prime import CONFIG
from tests.unit.backbone.tokenizer_files import write_tokenizer

EVIL = "from pathlib import Path\nPath({trace!r}).touch()\nclass Evil: pass\n"


def stranger(folder: Path, text: dict[str, Any] | None = None, vision: dict[str, Any] | None = None) -> Path:
    """A folder in open_clip's form whose tokenizer is code, and which names it; returns what the code
    writes if it runs.
    """
    trace = folder.parent / "it-ran"
    towers: dict[str, Any] = {
        "vision_cfg": CONFIG["vision_cfg"] | (vision or {}),  # type: ignore[operator]
        "text_cfg": CONFIG["text_cfg"] | (text or {}),  # type: ignore[operator]
    }
    folder.mkdir()
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": CONFIG | towers}))
    (folder / "evil.py").write_text(EVIL.format(trace=str(trace)))
    named = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    (folder / "config.json").write_text(json.dumps({"model_type": "evil"} | named))
    return trace


@pytest.mark.parametrize(
    "text",
    [
        {"hf_tokenizer_name": "someone/words", "tokenizer_kwargs": {"trust_remote_code": True}},
        {"hf_tokenizer_name": "someone/words"},
        {"tokenizer_kwargs": {"bpe_path": "/etc/passwd"}},
    ],
)
def test_a_tokenizer_runs_no_code_and_asks_nothing(
    text: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = stranger(tmp_path / "model", text)
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # what asks is answered as the stranger hopes
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DearError) as caught:
        load_clip(str(tmp_path / "model"), "random:0")
    assert not trace.exists()
    assert "evil" not in " ".join(sys.modules)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("vision", "text", "reason"),
    [
        ({"timm_model_name": "hf-hub:evil/model"}, {}, "'hf-hub:evil/model', no architecture of timm"),
        ({"timm_model_name": "../../etc"}, {}, "no architecture of timm"),
        ({"norm_kwargs": {"device": "cuda"}}, {}, "norm_kwargs has the unknown key 'device'"),
        ({"pos_embed_type": "sin_cos_2d"}, {}, "pos_embed_type is 'sin_cos_2d'"),
        ({"layers": [10**9, 1, 1, 1]}, {}, "vision_cfg.layers"),
        ({"image_size": 1025}, {}, "image_size is 1025"),
        (
            {"patch_size": 64, "image_size": 32},
            {},
            "the patches of its image tower are larger than its pictures",
        ),
        ({"image_size": 260}, {}, "4,225 patches of a model's pictures, above the limit of 4,096"),
        ({}, {"width": 258, "heads": 129}, "heads is 129"),
        ({"nonsense": 1}, {}, "vision_cfg has the unknown key 'nonsense'"),
        ({}, {"hf_tokenizer_name": "../../etc"}, "'../../etc' is not the name of a repository on the hub"),
        ({}, {"hf_model_name": "evil/model"}, "its text tower is a Hugging Face model"),
        ({}, {"vocab_size": 100}, "its text tower has 100 words, CLIP's tokenizer 49408"),
        ({}, {"tokenizer_mode": "clips"}, "text_cfg has the unknown key 'tokenizer_mode'"),
    ],
)
def test_a_configuration_names_no_file_no_address_and_no_device(
    vision: dict[str, Any], text: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    stranger(folder, text, vision)
    (folder / "tokenizer_config.json").unlink()  # so that the named tokenizer would be looked for elsewhere
    with pytest.raises(DearError, match=reason) as caught:
        load_clip(str(folder), "random:0")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "..", "a/b/c", "a/b--c", "a\0b", "a/../b", "x" * 300])
@pytest.mark.parametrize("named_by", ["", "the bundle b"])
def test_no_name_of_a_repository(name: str, named_by: str) -> None:
    with pytest.raises(
        WeightsError, match=r"is not the name of a repository on the hub: give OWNER/NAME"
    ) as error:
        load_clip(f"hf-hub:{name}", named_by=named_by)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    "odd",
    [
        {"attentional_pool": True, "attn_pooler_queries": 2, "attn_pooler_heads": 1},
        {"block_type": "custom", "qk_norm": True},
    ],
)
def test_patches_of_a_tower_that_is_used_whole_are_bounded(tmp_path: Path, odd: dict[str, object]) -> None:
    stranger(tmp_path / "model", {}, {"image_size": 224, "patch_size": 1, **odd})
    with pytest.raises(DearError, match=r"50,176 patches .* above the limit of 4,096"):
        load_clip(str(tmp_path / "model"), "random:0")


def test_a_tower_that_fails_is_one_line(tmp_path: Path) -> None:
    """open_clip 3's cosine attention fails at its first picture."""
    stranger(tmp_path / "model", {}, {"block_type": "custom", "scaled_cosine_attn": True})
    clip = load_clip(str(tmp_path / "model"), "random:0")
    with pytest.raises(DearError, match=r"the image tower \(VisionTransformer\) cannot be computed \("):
        clip.encode_image(torch.zeros(1, 3, clip.image_size, clip.image_size))


@pytest.mark.parametrize("name", ["mvitv2_tiny", "levit_128s"])
def test_pictures_of_another_size_than_the_only_one(name: str, tmp_path: Path) -> None:
    vision = {"timm_model_name": name, "timm_pool": "", "timm_proj": "linear", "image_size": 448}
    stranger(tmp_path / "model", {}, vision)
    with pytest.raises(WeightsError, match="it takes images of 224 x 224 pixels only, not of 448"):
        load_clip(str(tmp_path / "model"), "random:0")


def test_a_file_asks_for_no_random_weights_but_those_of_the_tiny_clip() -> None:
    bundle = Bundle(
        "dear", METHODS["dear"].settings(), "ViT-bigG-14", "random:0", Identity("a", "b", ""), None,
        ("a",), ("{}",), {}, source="downloads/odd",
    )  # fmt: skip
    with pytest.raises(
        DearError, match=r"the bundle downloads/odd asks for random weights of 'ViT-bigG-14'"
    ) as told:
        bundle.load_backbone()
    assert "with --pretrained 'random:0', for" in str(told.value)  # which `dear predict` has, without --model
    metadata = {"heads": {"model": "ViT-bigG-14", "pretrained": "random:0"}}
    with pytest.raises(DearError, match="the index asks for random weights"):
        index._index_encoder(metadata, None, None, "cpu")
    assert named_weights("ViT-bigG-14", "random:0", "") == "random:0"  # the user's own choice
    assert named_weights("tiny", "random:0", "the index") == "random:0"


def test_a_recipes_model_is_announced_as_a_bundles_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def load(*_: object, named_by: str, **__: object) -> None:
        asked.append(named_by)
        raise DearError("not loaded")

    text = "protocol: few-shot\nout: out\ndata: world\nmodel: hf-hub:evil/model\n"
    (tmp_path / "odd.yaml").write_text(text)
    (tmp_path / "random.yaml").write_text(text + "pretrained: random:0\n")
    experiment = load_recipe(tmp_path / "odd.yaml")
    monkeypatch.setattr("dear.evaluation.runs.load_clip", load)
    for own in (experiment, replace(experiment, about={})):
        with pytest.raises(DearError, match="not loaded"):
            Runner("cpu").context(own)
    assert asked == ["the recipe odd", ""]
    with pytest.raises(DearError, match="the recipe random asks for random weights"):
        Runner("cpu").context(load_recipe(tmp_path / "random.yaml"))


def test_timms_weights_are_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[bool] = []

    def create(*_: object, pretrained: bool, **__: object) -> None:
        wanted.append(pretrained)
        raise ValueError("built no further")

    monkeypatch.setattr("timm.create_model", create)
    stranger(
        tmp_path / "model", {}, {"timm_model_name": "vit_tiny_patch16_224", "timm_model_pretrained": True}
    )
    with pytest.raises(DearError, match="built no further"):
        load_clip(str(tmp_path / "model"), "random:0")
    assert wanted == [False]


class TestBundle:
    """A bundle, or an index, whose configuration names a model of the hub."""

    @pytest.fixture
    def evil(self, tmp_path: Path, standin: StandIn, state: dict[str, Tensor]) -> dict[str, bytes]:
        """The repository of such a model, with its weights in both formats."""
        stranger(tmp_path / "evil", {"hf_tokenizer_name": "evil/model", "tokenizer_kwargs": {}})
        pickled = io.BytesIO()
        torch.save(state, pickled)
        files = {path.name: path.read_bytes() for path in (tmp_path / "evil").iterdir()}
        standin.files["evil/model"] = files | {"open_clip_pytorch_model.bin": pickled.getvalue()}
        return standin.files["evil/model"]

    def test_it_says_so_and_nothing_runs(
        self, evil: dict[str, bytes], standin: StandIn, state: dict[str, Tensor], tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        evil["open_clip_model.safetensors"] = save(state)
        write_tokenizer("BERT", tmp_path)
        evil["tokenizer.json"] = (tmp_path / "tokenizer.json").read_bytes()
        clip = load_clip("hf-hub:evil/model", named_by="the bundle of dear")
        assert clip.tokenize(["a cat"])[0, :4].tolist() == [2, 5, 8, 3]
        lines = capsys.readouterr().err.splitlines()
        first, second, third = [line for line in lines if line.startswith("dear:")]
        assert first.startswith(
            "dear: the bundle of dear names the backbone hf-hub:evil/model, which is fetched"
        )
        assert "fetching hf-hub:evil/model once" in second
        assert "fetching the tokenizer once from" in third
        assert not (tmp_path / "it-ran").exists()
        names = {path.rpartition("/")[2] for _, path, _ in standin.requests if "/resolve/" in path}
        assert names == {
            "open_clip_config.json", "open_clip_model.safetensors", "tokenizer.json", "tokenizer_config.json",
        }  # fmt: skip

    @pytest.mark.usefixtures("evil")
    def test_no_pickle_is_fetched_unless_the_user_names_the_model(self, standin: StandIn) -> None:
        with pytest.raises(DearError, match="Only safetensors are downloaded"):
            load_clip("hf-hub:evil/model", named_by="the bundle of dear")
        assert not standin.downloads()
        with pytest.raises(DearError, match="the tokenizer of hf-hub:evil/model"):
            load_clip("hf-hub:evil/model")
        assert len(standin.downloads()) == 1

    def test_bundles_and_indexes_say_who_names_the_model(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[str] = []

        def load(*_: object, named_by: str, **__: object) -> None:
            asked.append(named_by)
            raise DearError("not loaded")

        bundle = Bundle(
            "dear", METHODS["dear"].settings(), "hf-hub:evil/model", None, Identity("a", "b", ""), None,
            ("a",),
            ("{}",), {},
        )  # fmt: skip
        monkeypatch.setattr("dear.adapters.bundle.load_clip", load)
        monkeypatch.setattr("dear.backbone.load.load_clip", load)
        with pytest.raises(DearError, match="not loaded"):
            bundle.load_backbone()
        metadata = {"heads": {"model": "hf-hub:evil/model", "pretrained": None}}
        with pytest.raises(DearError, match="not loaded"):
            index._index_encoder(metadata, None, None, "cpu")
        assert asked == ["the bundle of dear", "the index"]
