"""A model of a stranger, as a folder: nothing in it runs, asks, or names what is read or fetched."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from dear.adapters.bundle import Bundle
from dear.backbone.clip import Identity
from dear.backbone.loading.load import load_clip, named_weights
from dear.errors import DearError, WeightsError
from dear.methods.registry import METHODS
from tests.helpers.errors import refuses
from tests.standin_hub import StandIn
from tests.unit.backbone.prime import CONFIG
from tests.unit.backbone.tokenizer_files import write_tokenizer

EVIL = "from pathlib import Path\nPath({trace!r}).touch()\nclass Evil: pass\n"
TIMM = {"timm_pool": "", "timm_proj": "linear", "image_size": 448}


def stranger(
    folder: Path, text: dict[str, Any] | None = None, vision: dict[str, Any] | None = None, **model: Any
) -> Path:
    """A folder in open_clip's form whose tokenizer is code, and which names it; returns what the code
    writes if it runs.
    """
    trace = folder.parent / "it-ran"
    towers: dict[str, Any] = {
        "vision_cfg": CONFIG["vision_cfg"] | (vision or {}),  # type: ignore[operator]
        "text_cfg": CONFIG["text_cfg"] | (text or {}),  # type: ignore[operator]
    }
    folder.mkdir()
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": CONFIG | towers | model}))
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
    refuses(DearError, "", load_clip, str(tmp_path / "model"), "random:0")
    assert not trace.exists()
    assert "evil" not in " ".join(sys.modules)


@pytest.mark.parametrize(
    ("vision", "text", "model", "reason"),
    [
        ({"timm_model_name": "hf-hub:evil/model"}, {}, {}, "'hf-hub:evil/model'"),
        ({"timm_model_name": "../../etc"}, {}, {}, "timm_model_name"),
        ({"timm_model_name": "mvitv2_tiny", **TIMM}, {}, {}, "224 x 224 pixels only, not of 448"),
        ({"norm_kwargs": {"device": "cuda"}}, {}, {}, "'device'"),
        ({"pos_embed_type": "sin_cos_2d"}, {}, {}, "pos_embed_type"),
        ({"layers": [10**9, 1, 1, 1]}, {}, {}, "layers"),
        ({"image_size": 1025}, {}, {}, "image_size is 1025"),
        ({"patch_size": 64, "image_size": 32}, {}, {}, "patches of its image tower are larger"),
        ({"image_size": 260}, {}, {}, "DEAR_LIMIT_PATCHES"),
        ({"image_size": 224, "patch_size": 1, "block_type": "custom", "qk_norm": True}, {}, {}, "PATCHES"),
        ({}, {"width": 258, "heads": 129}, {}, "heads is 129"),
        ({"nonsense": 1}, {}, {}, "'nonsense'"),
        ({}, {"hf_tokenizer_name": "../../etc"}, {}, "'../../etc' cannot be loaded"),
        ({}, {"hf_model_name": "evil/model"}, {}, "its text tower is a Hugging Face model"),
        ({}, {"vocab_size": 100}, {}, "its text tower has 100 words"),
        ({}, {}, {"init_logit_scale": 1e308}, "init_logit_scale"),
        ({}, {}, {"embed_dim": 2**20, "quick_gelu": 2}, "quick_gelu"),
    ],
)
def test_a_configuration_is_bounded_and_names_no_file_no_address_and_no_device(
    vision: dict[str, Any], text: dict[str, Any], model: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    stranger(folder, text, vision, **model)
    (folder / "tokenizer_config.json").unlink()  # so that the named tokenizer would be looked for elsewhere
    refuses(DearError, reason, load_clip, str(folder), "random:0")


@pytest.mark.parametrize("name", ["", "..", "a/b/c", "a/b--c", "a\0b", "a/../b", "x" * 300])
def test_no_name_of_a_repository(name: str) -> None:
    with pytest.raises(WeightsError, match="not the name of a repository") as error:
        load_clip(f"hf-hub:{name}", named_by="the bundle b")
    assert len(str(error.value)) < 200


def test_timms_weights_are_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[bool] = []

    def create(*_: object, pretrained: bool, **__: object) -> None:
        wanted.append(pretrained)
        raise ValueError("built no further")

    monkeypatch.setattr("timm.create_model", create)
    vision = {"timm_model_name": "vit_tiny_patch16_224", "timm_model_pretrained": True}
    stranger(tmp_path / "model", {}, vision)
    refuses(DearError, "built no further", load_clip, str(tmp_path / "model"), "random:0")
    assert wanted == [False]


class TestNamedByAFile:
    """A bundle, an index or a recipe whose content names a model."""

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
        first, second = [line for line in lines if line.startswith("dear:")]
        assert "fetching hf-hub:evil/model, which the bundle of dear names, once" in first
        assert "fetching the tokenizer once from" in second
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
        refuses(DearError, "the tokenizer of hf-hub:evil/model", load_clip, "hf-hub:evil/model")
        assert len(standin.downloads()) == 1

    def test_a_bundle_asks_for_no_random_weights(self) -> None:
        """But those of the tiny CLIP, which are small."""
        bundle = Bundle(
            "dear", METHODS["dear"].settings(), "hf-hub:evil/model", "random:0", Identity("a", "b", ""), None,
            ("a",), ("{}",), {},
        )  # fmt: skip
        refuses(DearError, "asks for random weights", bundle.load_backbone)
        assert named_weights("tiny", "random:0", "the index") == "random:0"
